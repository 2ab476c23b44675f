"""An endpoint that returned 410, or was down for days, gets nothing until an operator resumes it: also if the process
dies at any moment around that, and the state loses its memory."""

from dataclasses import replace
from typing import Any

import pytest

from relay.domain.exchange import Response
from relay.domain.hold import Hold, hold
from relay.domain.receiver import BreakerPolicy, OfflinePolicy, Receiver
from relay.engine.holding import Holding
from relay.log.port import Record, TopicPartition
from tests.fakes.log import MemoryLog
from tests.fakes.strikes import CRASHES, Fuse, Strikes
from tests.fakes.virtual_time import run_virtually, virtually
from tests.fakes.world import Process, World, message, receiver

GONE = Response(410, {}, b"")
QUICK = OfflinePolicy(after=2.0, ping_every=1.0, disable_after=8.0)
TRIES: dict[str, Any] = {"base": 1.0, "factor": 1.0, "max_attempts": 99}


async def _world(*receivers: Receiver) -> World:
    world = World(receivers)
    await world.create()
    return world


def _on_log(world: World) -> list[Record]:
    topic = world.topics.receiver_config
    return [record for at in world.broker.partitions_of(topic) for record in world.broker[at].table().values()]


async def _held(world: World, owner: str = "r:r") -> Hold | None:
    [health] = await world.state.endpoints([owner])
    return health.hold


@CRASHES
@pytest.mark.parametrize("restarted", [False, True])
def test_no_crash_around_a_410_lets_the_next_message_through(restarted: bool, late: bool, strikes: Strikes) -> None:
    """Once the message that heard it has ended, or the log says so, nothing more is sent, although the state lost all
    it knew: at once, or after another process had gone on with it."""

    async def story(blow_at: int | None) -> Fuse:
        world = await _world(receiver("r", "/answer", status=True))
        world.outside.troubles["a-0"] = [GONE]
        await world.send(message(0, "a", "r"))
        crashing = Fuse(blow_at, after=late)
        await world.run(crashing, 5)
        place = f"call {blow_at} {crashing.names[-1]}"
        if restarted:
            await world.run(Fuse(), 60)
        gone = (_has_ended(world) and not world.outside.arrived("/answer")) or _on_log(world) != []
        world.state.lose()
        await world.send(message(1, "a", "r"))
        await world.run(Fuse(), 60)
        held = await _held(world)
        assert world.outside.arrived("/answer") == ([] if held else ["a-0", "a-1"]), place
        if gone:
            assert held is not None, place
            assert held.reason == "gone", place
        return crashing

    for blow_at in strikes(run_virtually(story(None))):
        run_virtually(story(blow_at))


def _has_ended(world: World) -> bool:
    """The first message was tried, and nothing of it is left to be done."""
    return (
        world.outside.tried["a-0"] > 0 and TopicPartition(world.topics.to_receiver("r"), 0) not in world.uncommitted()
    )


@virtually
async def test_one_that_takes_a_message_and_asks_for_no_further_ones_gets_none() -> None:
    world = await _world(receiver("r", "/answer"))
    world.outside.troubles["a-0"] = [Response(200, {"webhook-delivery": "disable"}, b"{}")]
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    await world.run(Fuse(), 60)
    assert world.outside.results() == {("a-0", "r"): {"answered"}}
    assert world.outside.arrived("/answer") == []
    held = await _held(world)
    assert held is not None
    assert held.reason == "gone"


@virtually
async def test_one_that_was_disabled_stays_so_without_the_state_until_it_is_resumed() -> None:
    down = receiver("r", "/answer", failures=2, **TRIES)
    world = await _world(replace(down, post=replace(down.post, breaker=BreakerPolicy(2, 60.0, 1.0, QUICK))))
    world.outside.down.add("answer")
    await world.send(message(0, "a", "r"))
    await world.run(Fuse(), 30)
    assert world.told.outages == [("r:r", "disabled")]
    before = await _held(world)
    world.state.lose()
    world.outside.down.clear()
    process = Process(world)
    await process.ended(60)
    assert world.outside.arrived("/answer") == []
    assert await _held(world) == before
    assert before is not None
    assert before.reason == "disabled"

    holding = await _holding(world)
    await holding.resume("r:r")
    await process.ended(60)
    assert world.outside.arrived("/answer") == ["a-0"]
    world.state.lose()
    await process.ended(60)
    await process.stop()
    assert await _held(world) is None


@virtually
async def test_a_resume_that_the_state_forgot_is_no_hold_any_more() -> None:
    """Its memory came back without its end: the hold is there again, and what ended it is not."""
    world = await _world(receiver("r", "/answer"))
    holding = await _holding(world)
    process = Process(world)
    await process.ended(5)
    held = hold("paused", world.clock.time(), "")
    await holding.hold("r:r", held)
    await holding.resume("r:r")
    await process.ended(5)
    world.state.lose()
    await world.state.hold_again({"r:r": held})
    await world.send(message(0, "a", "r"))
    await process.ended(60)
    await process.stop()
    assert world.outside.arrived("/answer") == ["a-0"]


async def _holding(world: World) -> Holding:
    log = MemoryLog(world.broker)
    await log.start()
    return Holding(log, world.state, world.topics.receiver_config)
