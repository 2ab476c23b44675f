"""An endpoint that returned 410, or was down for days, gets nothing until an operator resumes it: also if the process
dies at any moment around that, and the state loses its memory."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from relay.domain.exchange import Response
from relay.domain.hold import Hold, HoldReason, encode_hold, hold
from relay.domain.message import Message
from relay.domain.one_off import OneOff
from relay.domain.receiver import BreakerPolicy, OfflinePolicy, Receiver
from relay.domain.topics import SHARED
from relay.engine.holding import Holding
from relay.log.port import Coordinate, NewRecord, Record, TopicPartition
from tests.fakes.log import MemoryLog
from tests.fakes.strikes import CRASHES, NEVER, Frost, Fuse, Fused, Strikes, crash_at_each, each_call
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

GONE = Response(410, {}, b"")
QUICK = OfflinePolicy(after=2.0, ping_every=1.0, disable_after=8.0)
TRIES: dict[str, Any] = {"base": 1.0, "factor": 1.0, "max_attempts": 99}


async def _world(*receivers: Receiver) -> World:
    return await World(receivers).create()


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

    async def story(fuse: Fuse) -> None:
        world = await _world(receiver("r", "/answer", status=True))
        world.outside.troubles["a-0"] = [GONE]
        await world.send(message(0, "a", "r"))
        await world.run(fuse, 5)
        place = fuse.place
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

    crash_at_each(story, strikes, late=late)


def _has_ended(world: World) -> bool:
    """The first message was tried, and nothing of it is left to be done."""
    return (
        world.outside.tried["a-0"] > 0 and TopicPartition(world.topics.to_receiver("r"), 0) not in world.uncommitted()
    )


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


def _origin() -> Receiver:
    """The receiver of messages with URLs of their own at one origin; it is pinged soon if it is down."""
    return replace(_pinged(), lane=SHARED, is_origin=True)


def _to(number: int, url: str) -> Message:
    return structs.replace(message(number, "a", "r"), one_off=OneOff(url))


@pytest.mark.parametrize("said", [GONE, Response(200, {"webhook-delivery": "disable"}, b"{}")])
async def test_one_url_that_is_gone_does_not_hold_the_others_of_its_origin(said: Response) -> None:
    world = await _world(_origin())
    world.outside.troubles["a-0"] = [said]
    await world.send(_to(0, "http://r/answer"), _to(1, "http://r/answer?other"))
    await world.run(Fuse(), 60)
    assert ("a-0" in world.outside.reasons()) == (said is GONE)
    assert world.outside.arrived("/answer") == ["a-1"]
    assert await _held(world) is None
    assert world.told.outages == []


async def test_a_ping_of_a_url_that_is_gone_shows_that_its_origin_is_up() -> None:
    world = await _world(_origin())
    world.outside.down.add("answer")
    await world.send(_to(0, "http://r/answer"))
    process = await Process(world).run(4)
    world.outside.down.clear()
    world.outside.ping_status = 410
    await process.ended(60)
    assert world.outside.arrived("/answer") == ["a-0"]
    assert await _held(world) is None


def _pinged() -> Receiver:
    """Soon, if it is down."""
    down = receiver("r", "/answer", failures=2, **TRIES)
    return replace(down, post=replace(down.post, breaker=BreakerPolicy(2, 60.0, 1.0, QUICK)))


async def test_one_that_was_disabled_stays_so_without_the_state_until_it_is_resumed() -> None:
    world = await _world(_pinged())
    world.outside.down.add("answer")
    await world.send(message(0, "a", "r"))
    await world.run(Fuse(), 30)
    assert world.told.outages == [("r:r", "disabled")]
    before = await _held(world)
    world.state.lose()
    world.outside.down.clear()
    process = await Process(world).run(60)
    assert world.outside.arrived("/answer") == []
    assert await _held(world) == before
    assert before is not None
    assert before.reason == "disabled"

    holding = await _holding(world)
    await holding.resume("r:r")
    await process.ended(60)
    assert world.outside.arrived("/answer") == ["a-0"]
    world.state.lose()
    await process.stop(after=60)
    assert await _held(world) is None


async def test_a_resume_that_the_state_forgot_is_no_hold_any_more() -> None:
    """Its memory came back without its end: the hold is there again, and what ended it is not."""
    world = await _world(receiver("r", "/answer"))
    holding = await _holding(world)
    process = await Process(world).run(5)
    held = hold("paused", world.clock.time(), "")
    await holding.hold("r:r", held)
    await holding.resume("r:r")
    await process.ended(5)
    world.state.lose()
    await world.state.hold_again({"r:r": held})
    await world.send(message(0, "a", "r"))
    await process.stop(after=60)
    assert world.outside.arrived("/answer") == ["a-0"]


async def _until_held(fuse: Fuse, *, pings: bool) -> tuple[World, Process]:
    """A process, which may freeze, gets a 410, or pings an endpoint that has been down for too long."""
    world = await _world(_pinged() if pings else receiver("r", "/answer"))
    if pings:
        world.outside.down.add("answer")
    else:
        world.outside.troubles["a-0"] = [GONE]
    await world.send(message(0, "a", "r"))
    process = await Process(world, fuse).run(30)
    return world, process


async def _calls_of_a_hold(*, pings: bool) -> list[int]:
    """Those that write it to the log and to the state."""
    fuse = Fuse()
    _, process = await _until_held(fuse, pings=pings)
    await process.stop()
    held = fuse.names.index("state.hold")
    return [held - fuse.names[held::-1].index("log.append") + 1, held + 1]


@pytest.mark.parametrize("pings", [False, True])
@pytest.mark.parametrize("call", [0, 1], ids=["log", "state"])
def test_a_hold_that_is_written_after_its_resume_holds_nothing(call: int, pings: bool) -> None:
    """The process freezes before it writes the hold. Meanwhile the next owner of the lane has the same reason for one,
    or finds it on the log, and an operator resumes the endpoint."""
    freeze_at = run_virtually(_calls_of_a_hold(pings=pings))[call]

    async def story() -> None:
        frost = Frost(freeze_at)
        world, frozen = await _until_held(frost, pings=pings)
        assert frost.frozen.is_set()
        frozen.log.expel()
        world.outside.troubles["a-0"] = [] if call or pings else [GONE]
        other = await Process(world).run(60)
        assert await _held(world) is not None
        reported = list(world.told.outages)
        world.outside.down.clear()
        await (await _holding(world)).resume("r:r")
        await other.ended(5)
        frost.thaw.set()
        await frozen.ended(5)
        await world.send(message(1, "a", "r"))
        await other.ended(60)
        await frozen.stop()
        await other.stop()
        assert await _held(world) is None
        assert _values(world) == []
        assert world.outside.arrived("/answer")[-1] == "a-1"
        assert world.told.outages == reported

    run_virtually(story())


async def test_a_request_from_before_a_resume_does_not_hold_the_next_endpoint() -> None:
    """The receiver's name has another endpoint when the response arrives."""
    slow = receiver("r", "/slow")
    world = await _world(replace(slow, post=replace(slow.post, codes={200: "gone"})))
    await world.send(message(0, "a", "r"))
    process = await Process(world).run(5)
    world.known.replace(receiver("r", "/answer"))
    await (await _holding(world)).resume("r:r")
    await process.ended(30)
    assert world.outside.reasons() == {"a-0": "gone"}
    assert await _held(world) is None
    assert world.told.outages == []
    assert _values(world) == []
    await world.send(message(1, "a", "r"))
    await process.stop(after=30)
    assert world.outside.arrived("/answer") == ["a-1"]


@pytest.mark.parametrize("reason", ["gone", "paused"])
async def test_a_hold_that_only_the_log_has_from_before_its_resume_is_removed(reason: HoldReason) -> None:
    """The process that wrote it died before the state refused it. An operator's may be about to take effect."""
    world = await _world(receiver("r", "/answer"))
    await (await _process_was_there(world)).resume("r:r")
    late = hold(reason, world.clock.time() - 1, "")
    await world.append(world.topics.receiver_config, b"hold:r:r", encode_hold(late), ())
    await _process_was_there(world)
    assert await _held(world) is None
    assert _values(world) == ([] if reason == "gone" else [encode_hold(late)])


async def _process_was_there(world: World) -> Holding:
    await world.run(Fuse(), 30)
    return await _holding(world)


async def test_the_removal_of_a_late_hold_removes_no_other() -> None:
    world = await _world(receiver("r", "/answer"))
    holding = await _process_was_there(world)
    await holding.resume("r:r")
    now = world.clock.time()

    class Meanwhile(MemoryLog):
        """Right before the removal, another process holds the endpoint."""

        async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
            if records[0].value is None and await _held(world) is None:
                assert await holding.hold("r:r", hold("paused", now, "by hand"))
            return await super().append(records)

    log = Meanwhile(world.broker)
    await log.start()
    assert await Holding(log, world.state, world.topics.receiver_config).hold("r:r", hold("gone", now - 1, "late"))
    world.state.lose()
    await _process_was_there(world)
    assert await _held(world) is not None


@pytest.mark.parametrize("after", [False, True])
def test_a_resume_that_freezes_leaves_the_log_as_the_state_is(after: bool) -> None:
    """Another process holds the endpoint meanwhile. A loss of the state's memory is not to change what holds."""

    async def story(freeze_at: int) -> Frost:
        world = await _world(receiver("r", "/answer"))
        holding = await _process_was_there(world)
        await holding.hold("r:r", hold("gone", world.clock.time(), ""))
        frost, topic = Frost(freeze_at, after=after), world.topics.receiver_config
        log: Any = Fused(await world.client(), frost, "log")
        state: Any = Fused(world.state, frost, "state")
        resuming = asyncio.ensure_future(Holding(log, state, topic).resume("r:r"))
        if freeze_at != NEVER:
            await frost.frozen.wait()
            assert await holding.hold("r:r", hold("paused", world.clock.time(), "by hand"))
        frost.thaw.set()
        await resuming
        held = await _held(world)
        assert _values(world) == ([] if held is None else [encode_hold(held)]), frost.names
        assert (held is None) == (freeze_at == NEVER or "state.resume" not in frost.names[: freeze_at - (not after)])
        return frost

    for call in each_call(run_virtually(story(NEVER))):
        run_virtually(story(call))


def _values(world: World) -> list[bytes]:
    return [record.value for record in _on_log(world) if record.value is not None]


async def _holding(world: World) -> Holding:
    log = MemoryLog(world.broker)
    await log.start()
    return Holding(log, world.state, world.topics.receiver_config)
