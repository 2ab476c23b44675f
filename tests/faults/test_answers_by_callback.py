"""Receivers that bring their answers by themselves: what waits for one has its room before it is sent, and gives it
back as soon as the answer is there."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from relay.api.answers import AnswersResource
from relay.api.problems import Problem
from relay.api.status import StatusReader
from relay.config.settings import Settings
from relay.domain.exchange import Response
from relay.domain.identity import DeliveryId
from relay.domain.receiver import BreakerPolicy
from relay.state.attempts import BeginRequest, Go, Limits
from relay.state.port import Lane
from relay.state.replies import answered, of
from relay.state.rows import Result, RowKey
from tests.fakes.state import MemoryState
from tests.fakes.strikes import NEVER, STRIKES, CrashError, FrozenBeforeOutcome, Fuse, Strikes, crash_at_each
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

CAP = 30
LIMITS = Limits(0.0, 25.0, BreakerPolicy(), 25.0)
LANES = ["shared", "dedicated"]
BUSY = Response(500, {}, b"")


class _Answering:
    """The receiver's side: POSTs to the answer URL."""

    def __init__(self, world: World, fuse: Fuse | None = None) -> None:
        self._world = world
        self._fuse = fuse or Fuse()

    async def answer(self, message_id: str) -> bool:
        """Whether it was taken."""
        context = await self._world.api_context(self._fuse)
        delivery = DeliveryId("r", message_id.split("-")[0], message_id)
        try:
            await AnswersResource(context, StatusReader(context)).take(
                delivery, 0, Result("answered", 200, body=b"built")
            )
        except (Problem, CrashError):
            return False
        return True

    async def answer_all(self, message_ids: Iterable[str]) -> bool:
        return all([await self.answer(each) for each in message_ids])


def _settings(**given: Any) -> Settings:
    return Settings.model_validate(
        {"receivers_file": "none", "parked_per_receiver": CAP, "window_records": 100, "window_offsets": 1000, **given}
    )


async def _world(lane: str, count: int, **how: Any) -> World:
    """`count` messages of ten sources to a receiver that says 202, and has no status endpoint."""
    world = await World([receiver("r", "/later", lane=lane, **how)], settings=_settings()).create()
    await world.send(*(message(number, f"s{number % 10}", "r") for number in range(count)))
    return world


async def test_beyond_its_room_for_answers_a_shared_receiver_is_sent_nothing_that_is_then_given_up() -> None:
    world = await _world("shared", 300)
    process = await Process(world).run(30)
    posted = world.outside.arrived("/later")
    assert len(posted) == CAP
    assert world.outside.reasons() == {
        f"s{number % 10}-{number}": "backlog_full" for number in range(300) if f"s{number % 10}-{number}" not in posted
    }
    assert await _Answering(world).answer_all(posted)
    await process.stop(after=60)
    assert await world.is_at_rest()


async def test_beyond_its_room_for_answers_a_dedicated_receiver_has_its_intake_stopped() -> None:
    world = await _world("dedicated", 300)
    process, receiving = Process(world), _Answering(world)
    answered: list[str] = []
    for number in range(1, 11):
        await process.ended(30)
        posted = world.outside.arrived("/later")
        assert len(posted) == number * CAP
        assert await receiving.answer_all(posted[len(answered) :])
        answered = posted
    assert world.told.dead_letters == {}
    await process.stop(after=60)
    assert sorted(answered) == sorted(f"s{number % 10}-{number}" for number in range(300))
    assert await world.is_at_rest()


async def test_the_deadline_of_what_was_answered_is_nobodys_failure() -> None:
    """It is held in memory until then, and finds out that it is over."""
    waits = replace(receiver("r", "/later"), answer="required", answer_deadline=30.0)
    world = await World([waits], settings=_settings()).create()
    await world.send(message(0, "s", "r"), message(1, "s", "r"))
    process = await Process(world).run(5)
    assert await _Answering(world).answer("s-0")
    await process.stop(after=60)
    assert world.told.tried["pending", "dead"] == 1  # of the one that was not answered
    assert world.told.dead_letters == {"answer_timeout": 1}
    assert await world.is_at_rest()


@pytest.mark.parametrize("lane", LANES)
async def test_what_waits_longer_as_its_receiver_gets_a_later_deadline_leaves_memory_again(lane: str) -> None:
    """Its parked copy is due at the first deadline. In memory it would learn of its answer only at the new one."""
    world, one = await _world(lane, 3), receiver("r", "/later", lane=lane)
    world.known.replace(replace(one, answer_deadline=90.0))
    process = await Process(world).run(10)
    world.known.replace(replace(one, answer_deadline=86_400.0))
    await process.ended(120)
    assert await _Answering(world).answer_all(world.outside.arrived("/later"))
    await process.stop(after=60)
    assert world.told.dead_letters == {}
    assert await world.is_at_rest()


@pytest.mark.parametrize("lane", LANES)
async def test_an_answer_gives_its_room_back_at_once(lane: str) -> None:
    """However often its room is used within the time that an answer may take."""
    world = await _world(lane, 0)
    process, receiving = Process(world), _Answering(world)
    for number in range(5 * CAP):
        await world.send(message(number, "a", "r"))
        await process.ended(1.5)
        assert await receiving.answer(f"a-{number}")
    assert world.told.dead_letters == {}
    await process.stop(after=60)
    assert await world.parked_references() == 0
    assert world.parked_copies() == []


@pytest.mark.parametrize("ordering", ["source", "none"])
@pytest.mark.parametrize("lane", LANES)
async def test_those_in_doubt_that_have_all_the_room_are_asked_although_others_wait_for_room(
    lane: str, ordering: str
) -> None:
    """Only the outcome of a message in doubt gives its room back."""
    one = receiver("r", "/answer", lane=lane, status=True, ordering=ordering, max_in_flight=1)
    world = await World([one], settings=_settings(parked_per_receiver=3)).create()
    world.outside.troubles = {f"s{number}-{number}": [BUSY] for number in range(3)}
    await world.send(*(message(number, f"s{number}", "r") for number in range(6)))
    process = await Process(world).run(120)
    assert await world.is_at_rest()
    await process.stop()
    expected = {f"s{number}-{number}" for number in range(6)} - world.outside.reasons().keys()
    assert set(world.outside.arrived("/answer")) == expected
    assert set(world.outside.reasons().values()) <= ({"backlog_full"} if lane == "shared" else set())


@pytest.mark.parametrize("lane", LANES)
async def test_an_answer_that_comes_while_its_message_is_being_parked_gives_the_room_back(lane: str) -> None:
    world = await _world(lane, 3 * CAP)
    process, receiving = Process(world), _Answering(world)
    answered: set[str] = set()
    for _ in range(5_000):
        await process.ended(0.011)
        news = set(world.outside.arrived("/later")) - answered
        assert await receiving.answer_all(sorted(news))
        answered |= news
        if len(answered) == 3 * CAP:
            break
    assert len(answered) == 3 * CAP
    await process.stop(after=60)
    assert world.told.dead_letters == {}
    assert await world.is_at_rest()


async def test_a_shared_receivers_message_that_was_sent_once_is_not_given_up_for_lack_of_room() -> None:
    """Its retry waits until an answer comes."""
    world = await _world("shared", 0)
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(message(0, "a", "r"))
    process, receiving = Process(world), _Answering(world)
    await process.ended(0.5)
    await world.send(*(message(number, f"s{number}", "r") for number in range(CAP)))
    await process.ended(120)
    assert world.outside.arrived("/later", "a") == []
    assert world.told.dead_letters == {}
    assert await receiving.answer("s1-1")
    await process.ended(5)
    assert world.outside.arrived("/later", "a") == ["a-0"]
    await process.stop()


@pytest.mark.timeout(600)  # a hundred and more stories, which take minutes on a busy machine
@STRIKES
@pytest.mark.parametrize(("lane", "after"), [("dedicated", False), ("shared", True)])
def test_no_crash_at_any_call_loses_an_answer_or_the_room_for_it(lane: str, after: bool, strikes: Strikes) -> None:
    """The receiver answers each POST as soon as it has read it."""

    async def story(fuse: Fuse) -> None:
        world = await _world(lane, 3)
        process, receiving, answered = Process(world, fuse), _Answering(world), set[str]()
        for turn in range(1_500):
            if await process.ended(0.004 if turn < 250 else 0.2):
                process = Process(world)
            for each in set(world.outside.arrived("/later")) - answered:
                if await receiving.answer(each):
                    answered.add(each)
            if len(answered) == 3 and await world.is_at_rest() and len(world.outside.results()) == 3:
                break
        await process.stop()
        place = fuse.place
        assert set(map(frozenset, world.outside.results().values())) == {frozenset({"answered"})}, place
        assert sorted(world.outside.arrived("/later")) == ["s0-0", "s1-1", "s2-2"], place
        assert await world.is_at_rest(), place
        assert await _room_left(world) == CAP, place

    (counted, _), *_ = crash_at_each(story, strikes, late=after)
    assert counted.calls > 30


@pytest.mark.parametrize("repeats", [False, True], ids=["sent once", "sent again"])
@pytest.mark.parametrize("after", [False, True], ids=["call_fails", "reply_is_lost"])
@pytest.mark.parametrize("settled", [0.5, 30.0], ids=["in memory", "parked"])
def test_an_api_that_dies_at_any_call_loses_no_answer_that_it_has_stored(
    settled: float, after: bool, repeats: bool
) -> None:
    """A receiver that got no 200 sends its answer again; the relay does not depend on it."""

    async def story(blow_at: int) -> Fuse:
        world = await _world("dedicated", 1)
        process, fuse = Process(world), Fuse(blow_at, after=after)
        await process.ended(settled)
        taken = await _Answering(world, fuse).answer("s0-0")
        is_stored = taken or "state.settle" in fuse.names[: len(fuse.names) - (not after)]
        if repeats or not is_stored:
            assert await _Answering(world).answer("s0-0")
        await process.stop(after=90)
        place = f"call {blow_at}, {fuse.names[-1]}"
        assert world.outside.results() == {("s0-0", "r"): {"answered"}}, place
        assert len([at for at, _, _ in world.outside.posts if at == "/callback"]) == 1, place
        assert world.outside.arrived("/later") == ["s0-0"], place
        assert await world.is_at_rest(), place
        assert await _room_left(world) == CAP, place
        return fuse

    blow_at = 1
    while run_virtually(story(blow_at)).blown:
        blow_at += 1
    assert blow_at > 3, "settle, append and mark"


async def _room_left(world: World) -> int:
    """How many first attempts would be let through."""
    asks = [
        BeginRequest(RowKey("r:r", b"%12d" % number), 0, b"t%d" % number, LIMITS, room=CAP) for number in range(CAP + 1)
    ]
    verdicts = await answered(world.state.begin(of(Lane("another", 0, 1), asks)))
    return sum(isinstance(verdict, Go) for verdict in verdicts)


@pytest.mark.parametrize("lane", LANES)
async def test_one_that_finds_no_room_to_be_parked_ends_soon_after_its_answer(lane: str) -> None:
    """All room is taken by messages of a receiver that is down, so it waits in memory."""
    down = receiver("down", "/down", base=8.0, factor=1.0, cap=8.0, max_attempts=1_000)
    world = await World(
        [receiver("r", "/later", lane=lane), down],
        settings=_settings(hold_max=5.0, parked_per_receiver=3, parked_total=3),
    ).create()
    world.outside.down.add("down")
    process = Process(world)
    await world.send(*(message(number, f"s{number}", "down") for number in range(5)))
    await process.ended(10)
    await world.send(message(5, "a", "r"))
    await process.ended(10)
    assert world.outside.arrived("/later") == ["a-5"]
    assert await _Answering(world).answer("a-5")
    await process.ended(120)
    pending = world.topics.pending("r" if lane == "dedicated" else "shared")
    assert not [at for at in world.uncommitted() if at.topic == pending]
    await process.stop()


class _SlowToPark(Fuse):
    """The first intent to park that it notes takes until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def before(self, name: str) -> None:
        is_first = name == "state.intend_to_park" and name not in self.names
        await super().before(name)
        if is_first:
            await self.go.wait()


async def test_an_answer_ends_the_wait_of_a_delivery_that_two_owners_have_handed_on() -> None:
    """A process that froze during its request wakes up, and hands the delivery to the next lane, while its successor,
    whose lane is full, is about to park it: the receiver's answer frees the copy in the next lane."""
    world = await World([receiver("r", "/later")], settings=_settings(hold_max=5.0, window_records=1)).create()
    await world.send(message(0, "a", "r"))
    frost, slow = FrozenBeforeOutcome(), _SlowToPark()
    first = Process(world, frost)
    await frost.frozen.wait()
    first.log.expel()
    await world.send(message(1, "a", "r"))
    second = await Process(world, slow).run(3)
    frost.thaw.set()
    await second.ended(3)
    assert await world.parked_references() == 1
    slow.go.set()
    await second.ended(60)
    assert await _Answering(world).answer_all(world.outside.arrived("/later"))
    await second.ended(60)
    await asyncio.gather(first.stop(), second.stop())
    assert await world.is_at_rest()
    assert not world.state.intents()
    assert world.outside.tried == {"a-0": 1, "a-1": 1}


class _Lagging(Fuse):
    """A replica of the state falls behind right before the first outcome is stored."""

    def __init__(self, state: MemoryState) -> None:
        super().__init__(NEVER)
        self._state = state
        self.replica: Mapping[str, Any] = {}

    async def before(self, name: str) -> None:
        if name == "state.settle" and not self.replica:
            self.replica = self._state.copied()
        await super().before(name)


class _RebuildingProcess(Process):
    rebuilds = True


async def test_an_answer_that_the_state_lost_in_a_fail_over_is_the_only_result() -> None:
    """The replica has the message as in flight. Its parked record waits for the answer until the deadline otherwise."""
    world = await _world("dedicated", 1)
    fuse = _Lagging(world.state)
    process = await _RebuildingProcess(world, fuse).run(5)
    assert await _Answering(world).answer("s0-0")
    await process.ended(1)
    world.state.fail_over(fuse.replica)
    await process.stop(after=4_000)
    assert world.outside.results() == {("s0-0", "r"): {"answered"}}
    assert await world.is_at_rest()
