"""A replay and a discard of one dead letter, each as a single request: one of them ends its delivery, wherever the
other one freezes or dies."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from msgspec.structs import replace

from relay.domain.message import Message
from relay.domain.replay_job import Action
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import CRASHES, NEVER, CrashError, Frost, Fuse, Fused, Strikes
from tests.fakes.virtual_time import run_virtually, until
from tests.fakes.world import message

MESSAGE = message(1, "a", "r")
_CAUSES = {"rejected", "answer_timeout", "callback_exhausted", "unknown_receiver"}
ACTIONS: Sequence[tuple[Action, Action]] = [("discard", "replay"), ("replay", "discard")]
Failing = Callable[[ReplayWorld], Awaitable[ReplayProcess]]
"""Has a message fail, and mends the cause. Returns the process that runs its lanes."""


async def rejected(world: ReplayWorld) -> ReplayProcess:
    await world.declare("r")
    world.reject("a-1")
    return await _failed(world)


async def unanswered(world: ReplayWorld) -> ReplayProcess:
    await world.declare("r", "/later", answer="required", answer_deadline=60)
    process = await _failed(world)
    await world.declare("r", "/later", status_endpoint="http://r/later/{message_id}", answer_deadline=60)
    return process


async def unreturned(world: ReplayWorld) -> ReplayProcess:
    await world.declare("r")
    world.outside.down.add("callback")
    process = await _failed(world)
    world.outside.down.clear()
    return process


async def unnotified(world: ReplayWorld) -> ReplayProcess:
    world.reject("a-1")
    return await unreturned(world)


async def unknown_receiver(world: ReplayWorld) -> ReplayProcess:
    process = await _failed(world)
    await world.declare("r")
    return process


async def without_receiver(world: ReplayWorld) -> ReplayProcess:
    process = await _failed(world, replace(MESSAGE, receivers=None))
    await world.declare("r", sources=["a"], event_types=["push"])
    return process


async def _failed(world: ReplayWorld, one: Message = MESSAGE) -> ReplayProcess:
    await world.send(one)
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    return process


FAILING = pytest.mark.parametrize(
    "failing", [rejected, unanswered, unreturned, unnotified, unknown_receiver, without_receiver]
)


class Story:
    """One dead letter, and what became of it since."""

    def __init__(self, world: ReplayWorld, process: ReplayProcess) -> None:
        self.world = world
        self.process = process
        [self.letter] = [each for each in world.letters() if each.reason in _CAUSES][-1:]
        self._called, self._letters = len(world.outside.posts), len(world.letters())

    async def request(self, action: Action, fuse: Fuse) -> None:
        """A single request of a process without lanes, which may die or freeze."""
        log = await self.world.client()
        state = Fused(self.world.state, fuse, "state")
        with suppress(CrashError):
            await self.process.service(Fused(log, fuse, "log"), state).do(action, self.letter, same_life=False)

    async def rest(self) -> None:
        await until(self.world.is_at_rest)

    def judge(self, place: str) -> None:
        posts = [headers for at, headers, _ in self.world.outside.posts[self._called :] if at == "/callback"]
        replayed = {each["webhook-id"] for each in posts if each.get("relay-reason") != "discarded"}
        new = self.world.letters()[self._letters :]
        assert {each.dead.reason for each in new} <= {"discarded"}, place
        discarded = {each.generation for each in new}
        assert len(replayed) + len(discarded) == 1, (place, replayed, discarded)


async def test_a_discard_that_died_before_its_dead_letter_is_repeated_by_the_name_of_its_delivery() -> None:
    story, claim = await _begun(rejected), (await _calls(rejected, "discard")).names.index("state.settle") + 1
    await story.request("discard", Fuse(claim, after=True))
    delivery = story.letter.delivery
    service = story.process.replay_service
    assert await service.letter_of(delivery, await story.world.row(*delivery)) == story.letter
    assert (await service.do("discard", story.letter, same_life=False)).skip is None
    await story.rest()
    assert (await story.world.row(*delivery)).at == story.world.letters()[-1].place
    await story.process.stop()


async def _begun(failing: Failing) -> Story:
    world = await ReplayWorld().create()
    return Story(world, await failing(world))


async def _calls(failing: Failing, action: Action) -> Fuse:
    story, fuse = await _begun(failing), Fuse()
    await story.request(action, fuse)
    await story.rest()
    story.judge("no fault")
    await story.process.stop()
    return fuse


async def _frozen(failing: Failing, actions: tuple[Action, Action], frost: Frost) -> None:
    story = await _begun(failing)
    first = asyncio.create_task(story.request(actions[0], frost))
    await frost.frozen.wait()
    await story.request(actions[1], Fuse(NEVER))
    await story.rest()
    frost.thaw.set()
    await first
    await story.rest()
    story.judge(f"{actions[0]} frozen at {frost.names}")
    await story.process.stop()


@FAILING
@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_one_of_both_ends_it_wherever_the_other_freezes(
    failing: Failing, actions: tuple[Action, Action], late: bool
) -> None:
    calls = run_virtually(_calls(failing, actions[0]))
    for freeze_at in range(1, calls.calls + 1):
        run_virtually(_frozen(failing, actions, Frost(freeze_at, after=late)))


async def _dead(failing: Failing, actions: tuple[Action, Action], fuse: Fuse) -> None:
    story = await _begun(failing)
    await story.request(actions[0], fuse)
    for action in (actions[1], actions[0]):
        await story.request(action, Fuse(NEVER))
        await story.rest()
    story.judge(f"{actions[0]} died at {fuse.names}")
    await story.process.stop()


@FAILING
@pytest.mark.parametrize("actions", ACTIONS)
@CRASHES
def test_one_of_both_ends_it_wherever_the_other_dies(
    failing: Failing, actions: tuple[Action, Action], late: bool, strikes: Strikes
) -> None:
    calls = run_virtually(_calls(failing, actions[0]))
    for blow_at in strikes(calls):
        run_virtually(_dead(failing, actions, Fuse(blow_at, after=late)))
