"""Payloads are erased while their deliveries wait, in memory and parked: they are not sent, and no record of them is
written any more, whatever happens to the process on the way."""

import asyncio
from typing import Any, Final

import pytest

from relay.domain.dead_letter import parse_dead_letter
from relay.domain.hold import hold
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import STRIKES, FrozenBeforeOutcome, Fuse, Strikes, crash_at_each
from tests.fakes.world import message
from tests.faults.test_replays import ended

SLOW: Final = {"base": 60, "factor": 1, "cap": 60, "max_attempts": 1000}
TARGETS: Final[dict[str, dict[str, str]]] = {
    "message": {"source_id": "a", "message_id": "a-0"},
    "source": {"source_id": "a"},
    "receiver": {"receiver": "r"},
}
ERASED: Final = {"message": {"a-0"}, "source": {"a-0", "a-1", "a-2"}, "receiver": {"a-0", "a-1", "a-2"}}


async def _story(fuse: Fuse, target: str) -> MovingWorld:
    """One message is parked, one is behind it, and one was not read yet; then all, or the first alone, are erased. The
    process that goes on then may die. One follows."""
    world = await MovingWorld().create("r", retry=SLOW, status_endpoint="http://r/answer/{message_id}")
    await world.declare("other")
    world.outside.down = {"answer"}
    first = MovingProcess(world)
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    await first.stop(after=20)
    assert len(world.parked_copies()) == 2
    await world.send(message(2, "a", "r"))
    await world.erase(**TARGETS[target])
    world.outside.down.clear()
    await MovingProcess(world, fuse).stop(after=90)
    await asyncio.sleep(1)
    await world.send(message(3, "a", "r"), message(0, "b", "other"))
    await MovingProcess(world).finish()
    return world


def _judge(world: MovingWorld, target: str, place: str) -> None:
    erased = ERASED[target]
    sent = [f"a-{number}" for number in range(4) if f"a-{number}" not in erased]
    assert world.outside.arrived("/answer", "a") == sent, place
    results = {(id, "r"): {"failed"} if id in erased else {"answered"} for id in ("a-0", "a-1", "a-2", "a-3")}
    assert world.outside.results() == results | {("b-0", "other"): {"answered"}}, place
    assert world.outside.reasons() == dict.fromkeys(erased, "discarded"), place
    letters = [
        record for at in world.broker.partitions_of(world.topics.failed_messages) for record in _records(world, at)
    ]
    assert {parse_dead_letter(letter.headers).reason for letter in letters} == {"discarded"}, place
    assert all(letter.value is None for letter in letters), place
    assert not world.parked_copies(), place


def _records(world: MovingWorld, at: Any) -> list[Any]:
    return list(world.broker[at].records)


@STRIKES
@pytest.mark.parametrize("target", TARGETS)
def test_a_crash_on_the_way_neither_sends_nor_keeps_it(target: str, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        _judge(await _story(fuse, target), target, fuse.place)

    crash_at_each(story, strikes)


async def test_it_ends_while_its_receiver_is_down_or_paused() -> None:
    world = await MovingWorld().create()
    for name in ("r", "paused"):
        await world.declare(name, f"/{name}", retry=SLOW)
    world.outside.down = {"r", "paused"}
    process = MovingProcess(world)
    await world.send(*(message(number, "a", name) for number, name in enumerate(("r", "paused", "r", "paused"))))
    await process.ended(400)
    await world.state.hold("r:paused", hold("paused", world.clock.time(), "by hand"))
    assert len(world.parked_copies()) == 4
    await world.erase(source_id="a")
    await process.finish()
    assert world.outside.reasons() == {f"a-{number}": "discarded" for number in range(4)}


async def test_who_froze_before_and_wakes_up_afterwards_keeps_no_copy() -> None:
    """Its successor has ended the message without any call that fences it, and its own request has failed."""
    world, frost = MovingWorld(), FrozenBeforeOutcome()
    await world.create("r", "/fail", retry=SLOW, timeout=2)
    await world.send(message(0, "a", "r"))
    first = MovingProcess(world, frost)
    await frost.frozen.wait()
    await world.erase(source_id="a")
    first.log.expel()
    second = await MovingProcess(world).run(30)
    assert world.outside.reasons() == {"a-0": "discarded"}
    frost.thaw.set()
    await first.ended(20)
    assert await world.is_at_rest()
    assert world.state.intents() == 0
    await asyncio.gather(first.stop(), second.stop())


async def test_what_failed_where_it_was_not_known_yet_is_not_replayed() -> None:
    """The message was received before the erasure, and its dead letter is from after it."""
    world = await ReplayWorld().create("other")
    before = await world.registry()
    await world.send(message(0, "a", "r"))
    await world.erase(source_id="a")
    await asyncio.sleep(1)
    await ReplayProcess(world, deaf=before).finish()
    assert world.outside.reasons() == {"a-0": "unknown_receiver"}
    await world.declare("r")
    second = await ReplayProcess(world).ready()
    job = await ended(world, second, await second.order())
    await second.stop()
    assert job.progress.skipped == {"erased": 1}
    assert world.outside.arrived("/answer") == []
