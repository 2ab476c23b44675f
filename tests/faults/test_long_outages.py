"""An endpoint is down for long: it gets pings instead of messages, no message fails because of it, and the backlog
arrives in order once a ping succeeds. After days it is disabled, until an operator resumes it."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

from relay.config.settings import Settings
from relay.domain.message import Message
from relay.domain.receiver import BreakerPolicy, Endpoint, OfflinePolicy, PollPolicy, Receiver, RetryPolicy, Source
from relay.engine.lane import Lane
from relay.engine.request_limiter import RequestLimiter, attend
from relay.state.port import EndpointHealth
from relay.state.rows import TAGS
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

AFTER, PING_EVERY = 60.0, 20.0
OFFLINE = OfflinePolicy(after=AFTER, ping_every=PING_EVERY, disable_after=3 * 86_400.0)
PATIENT: dict[str, Any] = {"base": 5.0, "cap": 600.0, "max_attempts": 20}
SOURCES = [f"s{number}" for number in range(12)]


def _receiver(name: str = "r", path: str = "/answer", offline: OfflinePolicy = OFFLINE, **given: Any) -> Receiver:
    known = receiver(name, path, **(PATIENT | given))
    return replace(known, post=replace(known.post, breaker=BreakerPolicy(offline=offline)))


def _stream(sources: list[str], count: int, start: int = 0, name: str = "r") -> list[Message]:
    return [message(number, source, name) for number in range(start, start + count) for source in sources]


async def _down(*receivers: Receiver, settings: Settings | None = None) -> World:
    world = await World(receivers or [_receiver()], settings=settings).create()
    world.outside.down.add("answer")
    return world


def _in_order_and_once(world: World, sources: list[str], count: int, path: str = "/answer", start: int = 0) -> bool:
    wanted = list(range(start, start + count))
    return all([_number(each) for each in world.outside.arrived(path, source)] == wanted for source in sources)


def _number(message_id: str) -> int:
    return int(message_id.split("-")[1])


async def _health(world: World, owner: str = "r:r") -> EndpointHealth:
    (health,) = await world.state.endpoints([owner])
    return health


async def test_three_hours_are_over_and_the_backlog_comes_in_order() -> None:
    world = await _down(_receiver(offline=OfflinePolicy()))
    await world.send(*_stream(SOURCES, 3))
    process = await Process(world).run(900)
    tried, pinged = world.outside.tried.copy(), len(world.outside.pings)
    await world.send(*_stream(SOURCES, 3, start=3))
    await process.ended(9900)
    assert world.outside.tried == tried, "no message is used up"
    assert len(world.outside.pings) - pinged >= 9900 / 70, "one a minute, and a moment"
    assert world.told.dead_letters == {}
    world.outside.down.clear()
    await process.stop(after=650)
    assert world.told.outages == [("r:r", "back")]
    assert _in_order_and_once(world, SOURCES, 6)
    assert await world.is_at_rest()


async def test_the_only_head_of_one_source_fails_too_slowly_for_the_breaker_and_yet_is_not_used_up() -> None:
    world = await _down(_receiver(base=1.0, cap=64.0))
    await world.send(*_stream(["one"], 20))
    process = await Process(world).run(500)
    tried = world.outside.tried.copy()
    assert 10 <= tried["one-0"] < 20
    await process.ended(900)
    assert world.outside.tried == tried
    world.outside.down.clear()
    await process.stop(after=200)
    assert world.told.dead_letters == {}
    assert _in_order_and_once(world, ["one"], 20)
    assert await world.is_at_rest()


async def test_a_restart_changes_nothing() -> None:
    world = await _down()
    await world.send(*_stream(SOURCES, 5))
    process = await Process(world).run(300)
    tried = world.outside.tried.total()
    await process.kill()
    process = await Process(world).run(300)
    assert await process.stop() < 10
    process = await Process(world).run(300)
    assert world.outside.tried.total() == tried
    world.outside.down.clear()
    await process.stop(after=650)
    assert _in_order_and_once(world, SOURCES, 5)
    assert world.told.dead_letters == {}


async def test_after_a_restart_one_that_is_back_is_found_at_once() -> None:
    rare = OfflinePolicy(after=AFTER, ping_every=3600.0)
    world = await _down(_receiver(offline=rare))
    await world.send(*_stream(SOURCES, 3))
    process = Process(world)
    await process.stop(after=300)
    pinged = len(world.outside.pings)
    assert pinged > 0
    process = await Process(world).run(60)
    assert len(world.outside.pings) == pinged + 1, "one, and then as often as before"
    await process.kill()
    world.outside.down.clear()
    process = await Process(world).run(5)
    assert await _health(world) == EndpointHealth("closed", 0.0, 0)
    await process.ended(650)  # what had been tried is parked
    await process.stop()
    assert _in_order_and_once(world, SOURCES, 3)


async def test_one_that_answers_a_status_get_is_found_long_before_the_next_ping() -> None:
    rare = OfflinePolicy(after=AFTER, ping_every=3600.0)
    declared = replace(_receiver(path="/later", offline=rare), poll=PollPolicy(base=400.0, factor=1.0, cap=400.0))
    world = await World(
        [replace(declared, status_endpoint=receiver("r", "/later", status=True).status_endpoint)]
    ).create()
    process = Process(world)
    await world.send(message(0, "accepted", "r"))
    await process.ended(1)
    world.outside.down.add("later")
    await world.send(*_stream(SOURCES, 3))
    await process.ended(300)
    pinged = len(world.outside.pings)
    assert pinged > 0
    world.outside.down.clear()
    while not world.outside.asked["accepted-0"]:
        assert not await process.ended(0.1)
    await process.ended(0.5)
    assert len(world.outside.pings) == pinged + 1
    assert await _health(world) == EndpointHealth("closed", 0.0, 0)
    await process.ended(650)  # what had been tried is parked
    await process.stop()
    assert _in_order_and_once(world, SOURCES, 3, "/later")


async def test_what_shows_that_it_is_back_wakes_all_lanes_that_wait_for_it() -> None:
    """Another request of this process or of another one, of which the lanes know nothing; and the ping of one lane."""
    rare = OfflinePolicy(after=AFTER, ping_every=3600.0)
    world = await _down(_receiver(offline=rare, partitions=2))
    await world.send(*_stream(SOURCES, 3))
    processes = [Process(world), Process(world)]
    for process in processes:
        await process.ended(202.5)  # between two looks of a lane that was not woken
    waiting = {lane.partition for process in processes for lane in _lanes(process) if lane.unfinished}
    assert len(waiting) == 2
    world.outside.down.clear()
    pinged = len(world.outside.pings)
    await world.state.probe_soon(["r:r"])
    await processes[0].ended(0.5)
    assert len(world.outside.pings) == pinged + 1
    assert await _health(world) == EndpointHealth("closed", 0.0, 0)
    assert not any(lane.order.is_closed("r:r", world.clock.monotonic()) for each in processes for lane in _lanes(each))
    await processes[0].ended(650)  # what had been tried is parked
    for process in processes:
        await process.stop()
    assert _in_order_and_once(world, SOURCES, 3)


def _lanes(process: Process) -> list[Lane[Any]]:
    return (
        [lane for lane in process.lanes.pump.lanes() if "to_receiver" in lane.partition.topic] if process.lanes else []
    )


async def test_that_the_relay_was_off_is_no_part_of_it() -> None:
    world = await _down(_receiver(base=2.0, cap=4.0))

    async def serving(seconds: float) -> Process:
        process = Process(world)
        request_limiter = RequestLimiter(world.clock)
        attending = asyncio.create_task(attend(world.state, world.clock, request_limiter, range(TAGS)))
        await process.ended(seconds)
        attending.cancel()
        return process

    await world.send(*_stream(SOURCES, 3))
    await (await serving(AFTER / 2)).kill()
    assert world.outside.pings == []
    await asyncio.sleep(18 * 60)
    world.outside.down.clear()
    process = await serving(10)
    assert world.outside.pings == [], "it was not away for long, as far as anybody knows"
    assert len(world.outside.arrived("/answer")) >= len(SOURCES)
    await process.stop(after=30)
    assert _in_order_and_once(world, SOURCES, 3)


async def test_all_processes_together_send_one_ping_per_interval() -> None:
    world = await _down(_receiver(partitions=2))
    await world.send(*_stream(SOURCES, 5))
    processes = [Process(world), Process(world)]
    for process in processes:
        await process.ended(400)
    moments = [at for at, _ in world.outside.pings]
    assert len(moments) > 20
    assert all(after - before >= PING_EVERY for before, after in pairwise(moments))
    world.outside.down.clear()
    await processes[0].ended(650)
    for process in processes:
        await process.stop()
    assert _in_order_and_once(world, SOURCES, 5)


async def test_messages_grow_old_meanwhile() -> None:
    world = await _down(_receiver(max_age=600.0))
    await world.send(*_stream(SOURCES, 5))
    process = await Process(world).run(500)
    await world.send(*_stream(SOURCES, 2, start=5))
    await process.ended(150)
    assert world.outside.reasons() == {f"{s}-{n}": "expired" for s in SOURCES for n in range(5)}
    world.outside.down.clear()
    await process.stop(after=60)
    assert sorted(set(world.outside.arrived("/answer"))) == sorted(f"{s}-{n}" for s in SOURCES for n in (5, 6))


async def test_what_is_too_old_ends_also_behind_others_that_wait_for_the_closed_endpoint() -> None:
    """More heads than may be in flight stand before it, and none of them is sent for a long time."""
    settings = Settings.model_validate({"receivers_file": "none", "window_records": 200, "window_offsets": 2000})
    world = await _down(_receiver(max_age=1200.0, max_in_flight=4), settings=settings)
    process = Process(world)
    await world.send(message(0, "a", "r"))
    await process.ended(300)
    await world.send(*_stream(["a"], 150, start=1))
    await world.send(*_stream(SOURCES, 1))
    await process.ended(600)
    world.known.replace(_receiver(max_age=800.0, max_in_flight=4))  # all of a key are over, one after the other
    await process.ended(10)
    assert world.outside.reasons() == {"a-0": "expired"}
    await process.ended(200)
    reasons = world.outside.reasons()
    assert len(reasons) == 151 + len(SOURCES)
    assert set(reasons.values()) == {"expired"}
    await process.stop()
    assert not world.uncommitted()


async def test_what_waits_behind_parked_ones_grows_old_too() -> None:
    world = await _down(_receiver(max_age=1200.0, base=100.0, factor=1.0))
    await world.send(*_stream(["a"], 30))
    process = Process(world)
    await process.ended(1100)  # its head has failed so often that the lane stands still
    await world.send(*_stream(["a"], 30, start=30))
    await process.ended(30)
    assert world.told.parked_records > 0
    assert world.outside.reasons() == {}
    await process.ended(170)
    assert len(world.outside.reasons()) == 30
    await process.stop(after=1100)
    assert world.outside.reasons() == {f"a-{number}": "expired" for number in range(60)}
    assert await world.is_at_rest()


async def test_after_days_it_is_disabled_until_somebody_resumes_it() -> None:
    world = await _down(_receiver(offline=OfflinePolicy(AFTER, PING_EVERY, disable_after=900.0)))
    await world.send(*_stream(SOURCES, 3))
    process = await Process(world).run(1000)
    assert world.told.outages == [("r:r", "disabled")]
    health = await _health(world)
    assert health.paused_for_s == inf
    assert health.failing_for_s > 900
    assert health.hold is not None
    assert health.hold.reason == "disabled"
    assert health.hold.detail.startswith("it was down for 15 min")
    pings = len(world.outside.pings)
    world.outside.down.clear()
    await process.ended(600)
    assert len(world.outside.pings) == pings
    assert world.outside.arrived("/answer") == []
    await world.state.resume("r:r")
    assert await _health(world) == EndpointHealth("closed", 0.0, 0)
    await process.stop(after=650)
    assert _in_order_and_once(world, SOURCES, 3)
    assert world.told.dead_letters == {}


async def test_one_that_says_that_it_is_gone_is_paused_at_once() -> None:
    world = await _down()
    await world.send(*_stream(SOURCES, 2))
    process = await Process(world).run(200)
    world.outside.down.clear()
    world.outside.ping_status = 410
    await process.stop(after=200)
    assert world.told.outages == [("r:r", "gone")]
    health = await _health(world)
    assert health.paused_for_s == inf
    assert health.hold is not None
    assert health.hold.reason == "gone"
    assert world.outside.arrived("/answer") == []
    assert world.told.dead_letters == {}


async def test_one_that_cannot_take_pings_well_stays_offline() -> None:
    world = await _down()
    await world.send(*_stream(SOURCES, 2))
    process = await Process(world).run(200)
    world.outside.down.clear()
    world.outside.ping_status = 429
    await process.ended(200)
    before = len(world.outside.pings)
    assert world.outside.arrived("/answer") == []
    assert before < 400 / PING_EVERY, "not one after the other"
    world.outside.ping_status = 422  # it refuses the ping, so it is there
    await process.stop(after=650)
    assert _in_order_and_once(world, SOURCES, 2)


async def test_neighbours_in_the_shared_lane_go_on() -> None:
    world = await _down(_receiver(lane="shared"), receiver("fine", "/fine", lane="shared"))
    await world.send(*_stream(SOURCES, 3))
    process = await Process(world).run(200)
    await world.send(*_stream(SOURCES, 3, start=3, name="fine"))
    await process.ended(5)
    assert _in_order_and_once(world, SOURCES, 3, "/fine", start=3)
    assert {path for _, path in world.outside.pings} == {"/answer"}
    world.outside.down.clear()
    await process.stop(after=1300)
    assert _in_order_and_once(world, SOURCES, 3)
    assert await world.is_at_rest()


async def test_a_callback_that_is_down_is_pinged_too() -> None:
    policy = RetryPolicy(base=5.0, cap=600.0, jitter=False)
    callback = Endpoint("http://sender/callback", retry=policy, breaker=BreakerPolicy(offline=OFFLINE))
    world = await World([_receiver()], sources=[Source("s", callback)]).create()
    world.outside.down.add("callback")
    await world.send(*_stream(["s"], 30))
    process = await Process(world).run(400)
    assert {path for _, path in world.outside.pings} == {"/callback"}
    assert world.outside.results() == {}
    world.outside.down.clear()
    await process.stop(after=700)
    assert world.told.outages == [("s:s", "back")]
    assert len(world.outside.results()) == 30
    assert world.told.dead_letters == {}


def test_no_crash_around_a_ping_loses_or_repeats_a_message() -> None:
    async def story(blow_at: int | None, *, after: bool) -> int:
        quick = OfflinePolicy(after=2.0, ping_every=1.0)
        world = await _down(
            replace(_receiver(offline=quick, base=1.0, factor=1.0), status_endpoint="http://r/answer/{message_id}")
        )
        await world.send(*_stream(SOURCES, 1))
        crashing = Fuse(blow_at, after=after)
        await world.run(crashing, 45)
        world.outside.down.clear()
        await world.run(crashing if blow_at is None else Fuse(), 60, until=lambda: len(world.outside.results()) == 12)
        place = f"call {blow_at} {crashing.names[-1]}"
        assert world.outside.pings, place
        assert _in_order_and_once(world, SOURCES, 1), place
        assert len(world.outside.results()) == len(SOURCES), place
        return crashing.calls

    calls = run_virtually(story(None, after=False))
    for blow_at in range(calls // 2, calls, 7):
        run_virtually(story(blow_at, after=blow_at % 2 == 0))
