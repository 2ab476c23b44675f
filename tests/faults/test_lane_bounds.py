"""Everything is bounded: at a bound what waits is parked, intake stops, or a dead letter says so; nothing vanishes."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace as evolve
from itertools import islice
from typing import Any

import pytest
from msgspec.structs import replace

from relay.config.settings import Settings
from relay.domain.errors import StateUnavailable
from relay.domain.exchange import Response
from relay.domain.message import Message
from relay.engine import runner
from relay.engine.policy import ENOUGH
from relay.engine.runner import POLL_RECORDS
from relay.log.partitioner import partition_of
from relay.log.port import Coordinate, NewRecord, Record, TopicPartition
from relay.state.rows import Mark, Stage
from tests.fakes.log import MemoryLog
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import REFUSED
from tests.fakes.world import Process, World, message, receiver

PARKS: dict[str, Any] = {"base": 90.0, "factor": 1.0, "cap": 90.0, "max_attempts": 50}


def _settings(**given: Any) -> Settings:
    return Settings.model_validate({"receivers_file": "none", **given})


def _stream(source: str, count: int, name: str, start: int = 0) -> list[Message]:
    return [message(number, source, name) for number in range(start, start + count)]


def _in_order(source: str, count: int) -> list[str]:
    return [f"{source}-{number}" for number in range(count)]


# the window


async def test_three_thousand_messages_behind_a_stuck_head() -> None:
    world = World([receiver("r", "/answer", base=40.0, cap=40.0)])  # held in memory, until the window is full
    await world.create()
    world.outside.troubles["a-0"] = [REFUSED] * 2
    await world.send(*_stream("a", 3000, "r"), message(0, "b", "r"))
    process = await Process(world).run(5)
    assert world.outside.arrived("/answer") == ["b-0"], "it is behind them in the topic, and passes"
    await process.stop(after=250)
    assert world.outside.arrived("/answer", "a") == _in_order("a", 3000)
    assert not world.uncommitted()
    assert world.parked_copies() == []


async def test_a_lane_in_which_nothing_ends_fills_its_window_step_by_step() -> None:
    """It may just be slow: when one process starts on the backlogs of all receivers, nothing ends for a while."""
    world = await World([receiver("r", "/answer", base=40.0, cap=40.0)]).create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*_stream("a", 1900, "r"))
    process = Process(world)
    lane = TopicPartition(world.topics.to_receiver("r"), 0)
    await process.ended(1.5)
    assert POLL_RECORDS < world.told.levels[lane] < 1500
    await process.ended(5)
    assert world.told.levels[lane] == 1900
    await process.stop(after=60)
    assert world.outside.arrived("/answer") == _in_order("a", 1900)


async def test_a_narrow_span_of_offsets_parks_the_head_too() -> None:
    world = await World(
        [receiver("r", "/answer", base=40.0, cap=40.0)], settings=_settings(window_records=100, window_offsets=100)
    ).create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(message(0, "a", "r"), *_stream("b", 300, "r"))
    process = await Process(world).run(20)
    assert world.outside.arrived("/answer") == _in_order("b", 300)
    assert world.told.parked_records == 1
    await process.stop(after=30)
    assert world.outside.arrived("/answer", "a") == ["a-0"]


async def test_a_lane_at_its_bound_goes_on_as_soon_as_there_is_room() -> None:
    """Not only after the poll in flight has waited its full second."""
    world = await World([receiver("r", "/answer")], settings=_settings(window_records=50, window_offsets=500)).create()
    sources = [f"s{number}" for number in range(40)]
    await world.send(*[message(number, source, "r") for number in range(50) for source in sources])
    await Process(world).stop(after=5)
    assert len(world.outside.arrived("/answer")) == 2000
    assert world.told.parked_records == 0


# a dedicated receiver that is down


@pytest.mark.parametrize(("ordering", "base"), [("source", 5.0), ("none", 30.0)])
async def test_a_dedicated_receiver_that_is_down_stops_its_intake_and_parks_nothing(ordering: str, base: float) -> None:
    """Its backlog stays in its topic however long it lasts, and comes in order when it is up again."""
    window = 400  # records of so many sources fail that the breaker opens before it is full
    settings = _settings(window_records=window, window_offsets=1000)
    policy: dict[str, Any] = {"base": base, "factor": 2.0, "cap": 120.0, "max_attempts": 1000}
    world = await World([receiver("r", "/answer", ordering=ordering, **policy)], settings=settings).create()
    world.outside.down.add("answer")
    sources = [f"s{number}" for number in range(20)]
    count = (window + 2 * POLL_RECORDS) // len(sources)
    await world.send(*[message(number, source, "r") for number in range(count) for source in sources])
    process = await Process(world).run(1800)
    lane = TopicPartition(world.topics.to_receiver("r"), 0)
    assert world.told.parked_records == 0
    assert world.broker.offsets[world.topics.group("to-receiver"), lane] == 0
    assert window <= world.told.levels[lane] < window + POLL_RECORDS, "intake stands still"
    assert world.outside.tried.total() < 1800 / 30 + 100, "one probe each time that the breaker lets one through"
    world.outside.down.clear()
    await process.stop(after=300)
    for source in sources:
        arrived = world.outside.arrived("/answer", source)
        assert (arrived if ordering == "source" else sorted(arrived, key=_number)) == _in_order(source, count)
    assert not world.uncommitted()
    assert set(world.told.levels.values()) == {0}


async def test_a_dedicated_receiver_that_asks_for_a_long_pause_is_waited_for() -> None:
    world = await World(
        [receiver("r", "/answer", **PARKS)], settings=_settings(window_records=50, window_offsets=500)
    ).create()
    world.outside.troubles["s0-0"] = [Response(503, {"retry-after": "600"}, b"")]
    await world.send(message(0, "s0", "r"))
    process = await Process(world).run(1)
    await world.send(*[message(number, f"s{source}", "r") for number in range(1, 31) for source in range(30)])
    await process.ended(590)
    assert world.outside.arrived("/answer") == []
    assert world.told.parked_records == 0
    await process.stop(after=150)
    assert len(world.outside.arrived("/answer")) == 901


async def test_newcomers_behind_parked_ones_stay_in_the_topic_while_the_receiver_is_down() -> None:
    world = await World(
        [receiver("r", "/answer", **PARKS)], settings=_settings(window_records=50, window_offsets=500)
    ).create()
    world.outside.down.add("answer")
    sources = [f"s{number}" for number in range(15)]
    await world.send(*[message(0, source, "r") for source in sources])  # enough failures to open the breaker
    process = await Process(world).run(300)
    parked = world.told.parked_records
    await world.send(*[message(number, source, "r") for number in range(1, 101) for source in sources])
    await process.ended(900)
    assert world.told.parked_records - parked < 900 / 30 + len(sources), "only what probes is parked again"
    world.outside.down.clear()
    await process.stop(after=400)
    for source in sources:
        assert world.outside.arrived("/answer", source) == _in_order(source, 101)
    assert world.parked_copies() == []


async def test_at_its_cap_a_dedicated_lane_stops_and_keeps_the_order() -> None:
    """What finds no room to queue up behind parked ones must not overtake them."""
    settings = _settings(window_records=20, window_offsets=200, parked_per_receiver=5, parked_total=1000)
    world = await World([receiver("r", "/answer", **PARKS)], settings=settings).create()
    world.outside.troubles["a-0"] = [REFUSED] * 3
    await world.send(*_stream("a", 60, "r"), *_stream("b", 5, "r"))
    process = await Process(world).run(200)
    assert await world.parked_references() == 5
    assert world.outside.arrived("/answer", "a") == []
    assert world.told.dead_letters == {}
    await process.stop(after=200)
    assert world.outside.arrived("/answer", "a") == _in_order("a", 60)
    assert world.outside.arrived("/answer", "b") == _in_order("b", 5)
    assert world.parked_copies() == []


async def test_without_room_to_park_retries_go_on_in_memory() -> None:
    settings = _settings(window_records=20, window_offsets=200, parked_per_receiver=6, parked_total=6)
    world = await World([receiver("r", "/answer", **PARKS)], settings=settings).create()
    for source in range(8):
        world.outside.troubles[f"s{source}-0"] = [REFUSED]
    await world.send(*[message(number, f"s{source}", "r") for number in range(3) for source in range(8)])
    process = await Process(world).run(80)
    assert await world.parked_references() == 3
    await process.stop(after=60)
    for source in range(8):
        assert world.outside.arrived("/answer", f"s{source}") == _in_order(f"s{source}", 3)
    assert world.parked_copies() == []


def _number(message_id: str) -> int:
    return int(message_id.split("-")[1])


# the shared lane: "weak", "fast" and "down" are in the same partition of it


def _shared(settings: Settings, **weak: Any) -> World:
    assert partition_of(b"weak", 32) == partition_of(b"fast", 32) == partition_of(b"down", 32)
    return World(
        [receiver("weak", "/weak", lane="shared", **weak), receiver("fast", "/fast", lane="shared")], settings=settings
    )


def _mixed(count: int) -> list[Message]:
    """For "weak" of one source, for "fast" of twenty."""
    return [
        each
        for number in range(count)
        for each in (message(number, "a", "weak"), message(number // 20, f"b{number % 20}", "fast"))
    ]


def _all_fast_in_order(world: World, count: int) -> bool:
    return all(
        world.outside.arrived("/fast", f"b{source}") == _in_order(f"b{source}", count // 20) for source in range(20)
    )


async def test_in_the_shared_lane_the_others_pass_a_receiver_that_is_down() -> None:
    world = await _shared(_settings(window_records=100, window_offsets=1000), max_attempts=50).create()
    world.outside.down.add("weak")
    await world.send(*_mixed(300))
    process = await Process(world).run(60)
    assert _all_fast_in_order(world, 300)
    world.outside.down.clear()
    await process.stop(after=300)
    assert world.outside.arrived("/weak", "a") == _in_order("a", 300)
    assert not world.uncommitted()
    assert world.parked_copies() == []


async def test_in_the_shared_lane_the_others_pass_a_receiver_with_a_rate_limit() -> None:
    world = await _shared(_settings(window_records=100, window_offsets=1000), rate_limit=5).create()
    await world.send(*_mixed(300))
    process = await Process(world).run(10)
    assert _all_fast_in_order(world, 300)
    assert len(world.outside.arrived("/weak", "a")) <= 10 * 5 + 5
    await process.stop(after=300)
    assert world.outside.arrived("/weak", "a") == _in_order("a", 300)
    assert world.parked_copies() == []


async def test_in_the_shared_lane_due_records_of_a_closed_receiver_do_not_keep_those_of_others_waiting() -> None:
    world = _shared(_settings(window_records=100, window_offsets=1000), **PARKS, ordering="none")
    world.known.replace(receiver("fast", "/fast", lane="shared", **PARKS))
    await world.create()
    world.outside.down.add("weak")
    await world.send(*[message(number, f"w{number}", "weak") for number in range(1500)])
    world.outside.troubles["b-0"] = [REFUSED]
    process = await Process(world).run(60)
    await world.send(message(0, "b", "fast"))
    await process.ended(92)
    assert world.outside.arrived("/fast") == ["b-0"]
    world.outside.down.clear()
    await process.stop(after=900)
    assert len(world.outside.arrived("/weak")) == 1500
    assert world.parked_copies() == []


async def test_beyond_its_cap_a_shared_receiver_gets_dead_letters_and_the_others_go_on() -> None:
    settings = _settings(window_records=50, window_offsets=500, parked_per_receiver=30, parked_total=1000)
    world = await _shared(settings, **PARKS).create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*_mixed(200))
    process = await Process(world).run(60)
    assert _all_fast_in_order(world, 200)
    assert set(world.outside.reasons().values()) == {"backlog_full"}
    await process.stop(after=120)
    arrived = world.outside.arrived("/weak", "a")
    assert arrived == sorted(arrived, key=_number)
    assert len(arrived) + len(world.outside.reasons()) == 200
    assert arrived[0] == "a-0"
    assert not world.uncommitted()


async def test_after_a_loss_the_head_of_parked_records_does_not_wait_for_the_room_that_these_have() -> None:
    """It was in flight when its process died, and whether it was sent is not known."""
    settings = _settings(window_records=4, window_offsets=40, parked_per_receiver=3)
    world = await World([receiver("r", "/slow", lane="shared", **PARKS)], settings=settings).create()
    await world.send(*_stream("a", 4, "r"))
    first = await Process(world).run(4)
    assert await world.parked_references() == 3
    await first.kill()
    world.state.lose()
    await world.run(Fuse(), 200, until=lambda: not world.uncommitted())
    assert world.outside.arrived("/slow") == ["a-0", *_in_order("a", 4)]
    assert await world.is_at_rest()


async def test_at_the_global_cap_intake_stops_and_nothing_dies() -> None:
    """For who has nothing parked yet; who has is over its share."""
    settings = _settings(window_records=20, window_offsets=200, parked_per_receiver=60, parked_total=60)
    world = _shared(settings, **PARKS)
    names = [f"down-{number}" for number in range(80)]
    for name in names:
        world.known.replace(receiver(name, f"/{name}", lane="shared", **PARKS))
        world.outside.troubles[f"{name}-0"] = [REFUSED]
    await world.create()
    await world.send(*_mixed(40), *(message(0, name, name) for name in names))
    process = await Process(world).run(80)
    assert await world.parked_references() >= 60
    assert world.told.dead_letters == {}
    assert world.uncommitted()
    await process.stop(after=200)
    assert [world.outside.arrived(f"/{name}") for name in names] == [[f"{name}-0"] for name in names]
    assert _all_fast_in_order(world, 40)
    assert not world.uncommitted()


async def test_near_the_global_cap_a_shared_receiver_with_more_than_its_share_stops_itself_only() -> None:
    settings = _settings(window_records=20, window_offsets=200, parked_per_receiver=60, parked_total=60)
    world = _shared(settings, **PARKS)
    world.known.replace(receiver("down", "/down", lane="shared", **PARKS))
    await world.create()
    world.outside.down.add("down")
    await world.send(*(message(0, f"d{number}", "down") for number in range(100)))
    process = await Process(world).run(80)
    assert await world.parked_references() <= 32, "half of it, and what was sent at once"
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*_mixed(10))
    await process.ended(150)
    assert world.outside.arrived("/weak", "a") == _in_order("a", 10)
    assert set(world.told.dead_letters) == {"backlog_full"}
    world.outside.down.clear()
    await process.stop(after=400)
    assert len(world.outside.arrived("/down")) + world.told.dead_letters["backlog_full"] == 100
    assert not world.uncommitted()


async def test_parked_messages_of_a_removed_receiver_become_dead_letters() -> None:
    world = await _shared(_settings(), **PARKS).create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*_mixed(20))
    process = await Process(world).run(5)
    world.known.remove("weak")
    await process.ended(120)
    await world.send(message(1, "b0", "fast"))
    await process.stop(after=5)
    assert world.outside.reasons() == {f"a-{number}": "unknown_receiver" for number in range(20)}
    assert world.outside.arrived("/fast", "b0") == ["b0-0", "b0-1"]
    assert world.parked_copies() == []
    assert await world.parked_references() == 0


# neighbours in the shared lane


@pytest.mark.parametrize("per_second", [40, 5])
async def test_one_record_behind_a_slow_neighbours_backlog_does_not_wait_for_it(
    per_second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the slow receiver's records end often or seldom, there is room for the records behind them."""
    monkeypatch.setattr(runner, "POLL_RECORDS", 4)  # of each of the 32 partitions: as many as a fetch of 256 KiB brings
    slow = receiver("slow", "/answer", lane="shared", ordering="none", rate_limit=per_second)
    world = await World([slow, receiver(_neighbour("slow"), "/flaky", lane="shared")]).create()
    await world.send(*_stream("a", 6000, "slow"), message(6000, "a", _neighbour("slow")))
    process = await Process(world).run(60)
    await process.kill()
    order = [headers["ce-id"] for path, headers, _ in world.outside.posts if path in ("/answer", "/flaky")]
    assert order.index("a-6000") < 8 * per_second, "the slow one takes minutes for its own"
    assert len(order) > 30 * per_second, "and keeps its pace, though most of its backlog is parked"


@pytest.mark.parametrize("slow", [1, 2, 4, 8])
@pytest.mark.parametrize("ordering", ["none", "source"])
async def test_requests_in_flight_to_slow_neighbours_do_not_fill_the_window(slow: int, ordering: str) -> None:
    """They cannot be parked. As many of each as the whole window has would be allowed."""
    *names, fast = islice(_neighbours("slow"), slow + 1)
    settings = _settings(window_records=100, window_offsets=2000)
    endless: dict[str, Any] = {"lane": "shared", "max_in_flight": 100, "timeout": 600.0, "ordering": ordering}
    slow_ones = [receiver(name, f"/slow/{name}", **endless) for name in names]
    world = World([*slow_ones, receiver(fast, "/answer", lane="shared")], settings=settings)
    world.outside.slow_s = 500.0
    await world.create()
    await world.send(*(message(n, f"{name}-{n}", name) for n in range(1600 // slow) for name in names))
    await world.send(message(0, "b", fast))
    process = await Process(world).run(30)
    await process.kill()
    assert world.outside.arrived("/answer") == ["b-0"]
    assert sum(world.outside.most.values()) >= 50, "they get more than half of it all the same"


@pytest.mark.parametrize("slow", [1, 4, 8])
@pytest.mark.parametrize("ordering", ["none", "source"])
async def test_large_messages_for_slow_neighbours_do_not_fill_the_memory(slow: int, ordering: str) -> None:
    """A few have all the bytes that the lane may hold, long before they are as many as the window has. In flight they
    cannot be parked; and the parked ones are due again at once, and wait behind those in flight."""
    *names, fast = islice(_neighbours("slow"), slow + 1)
    endless: dict[str, Any] = {"lane": "shared", "timeout": 600.0, "ordering": ordering}
    slow_ones = [receiver(name, f"/slow/{name}", **endless) for name in names]
    world = World(
        [*slow_ones, receiver(fast, "/answer", lane="shared")], settings=_settings(memory_budget=16 * 1024**2)
    )
    world.outside.slow_s = 500.0
    await world.create()
    large = bytes(500_000)
    for n in range(160 // slow):
        await world.send(*(replace(message(n, name, name), payload=large) for name in names))
    process = await Process(world).run(10)
    await world.send(replace(message(0, "b", fast), payload=large))
    await process.ended(5)
    await process.kill()
    assert world.outside.arrived("/answer") == ["b-0"]
    assert sum(world.outside.most.values()) >= (slow if ordering == "source" else 6), (
        "they have their share all the same"
    )


@pytest.mark.parametrize("size", [10, 500_000])
@pytest.mark.parametrize("slow", [30, 120])
async def test_an_owners_slow_endpoints_do_not_fill_a_partition_however_many_they_are(slow: int, size: int) -> None:
    """One request to each of them would be enough."""
    *names, fast = islice(_neighbours("slow"), slow + 1)
    slow_ones = [receiver(name, f"/slow/{name}", lane="shared", timeout=600.0, ordering="none") for name in names]
    world = World(
        [*(evolve(each, owner="one") for each in slow_ones), receiver(fast, "/answer", lane="shared")],
        settings=_settings(window_records=100, window_offsets=100_000, memory_budget=16 * 1024**2),
    )
    world.outside.slow_s = 500.0
    await world.create()
    for n in range(4):
        await world.send(*(replace(message(n, name, name), payload=bytes(size)) for name in names))
    process = await Process(world).run(10)
    await world.send(*(replace(message(0, f"b{n}", fast), payload=bytes(size)) for n in range(100)))
    await process.ended(10)
    await process.kill()
    assert len(world.outside.arrived("/answer")) == 100
    assert sum(world.outside.most.values()) >= 9, "they have their share all the same"


async def test_a_slow_receiver_gets_large_messages_at_the_pace_of_its_share() -> None:
    """Those that are parked, to let others pass, return as soon as there is room for them."""
    slow = receiver("slow", "/slow", lane="shared", ordering="none")
    world = World([slow], settings=_settings(memory_budget=16 * 1024**2))
    world.outside.slow_s = 2.0
    await world.create()
    large = bytes(500_000)
    await world.send(*(replace(message(n, f"a{n}", "slow"), payload=large) for n in range(160)))
    process = await Process(world).run(90)
    await process.kill()
    assert len(world.outside.arrived("/slow")) == 160


async def test_a_worker_that_waits_for_nobody_leaves_its_backlog_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in its neighbours' way there, so a full window would only be memory: ten of them on `from_sender`."""
    append = MemoryLog.append

    async def slowly(log: MemoryLog, records: Sequence[NewRecord]) -> list[Coordinate]:
        await asyncio.sleep(0.2)
        return await append(log, records)

    monkeypatch.setattr(MemoryLog, "append", slowly)
    monkeypatch.setattr(runner, "POLL_RECORDS", 10)  # of each of ten partitions
    world = await World([receiver("r", "/answer", lane="shared")]).create()
    await world.send(*_stream("a", 3000, "r"))
    peaks = _Peaks()
    world.told.levels = peaks
    process = await Process(world).run(5)
    await process.kill()
    [peak] = [level for at, level in peaks.items() if at.topic == world.topics.from_sender and level]
    assert 0 < peak <= ENOUGH + 2 * 100


class _Peaks(dict[TopicPartition, int]):
    """Keeps the highest."""

    def __setitem__(self, at: TopicPartition, level: int) -> None:
        super().__setitem__(at, max(level, self.get(at, 0)))


def _neighbour(name: str) -> str:
    """Another receiver whose records are in the same partition of the shared lane."""
    return next(_neighbours(name))


def _neighbours(name: str) -> Iterator[str]:
    shared = partition_of(name.encode(), 32)
    return (f"n{n}" for n in range(10_000) if partition_of(f"n{n}".encode(), 32) == shared)


# tasks


async def _tasks_with(receivers: int) -> int:
    """How many tasks a process has that serves so many receivers with lanes of their own, when all is delivered."""
    names = [f"r{number}" for number in range(receivers)]
    world = await World([receiver(name, f"/{name}") for name in names]).create()
    await world.send(*(message(0, f"source-{name}", name) for name in (names[0], names[-1])))
    process = await Process(world).run(10)
    assert len(world.outside.arrived(f"/{names[0]}")) == len(world.outside.arrived(f"/{names[-1]}")) == 1
    count = len(asyncio.all_tasks())
    await process.stop()
    return count


async def test_tasks_do_not_grow_with_receivers() -> None:
    """There may be thousands of them."""
    assert await _tasks_with(10) == await _tasks_with(1_000)


async def test_what_was_given_up_for_lack_of_room_is_not_sent_after_a_crash_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = _settings(window_records=50, window_offsets=500, parked_per_receiver=30, parked_total=1000)
    world = await _shared(settings, **PARKS).create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*_mixed(200))

    mark = world.state.mark

    async def unmarked(marks: Sequence[Mark]) -> Any:
        if any(each.stage is Stage.FAILED for each in marks):
            raise StateUnavailable("gone")
        return await mark(marks)

    with monkeypatch.context() as crash:
        crash.setattr(world.state, "mark", unmarked)
        process = await Process(world).run(60)
        given_up = {_id_of(letter) for letter in world.broker.records(world.topics.failed_messages)}
        await process.kill()
    assert given_up
    world.settings = _settings(window_records=50, window_offsets=500)
    await Process(world).stop(after=400)
    assert not given_up.intersection(world.outside.arrived("/weak"))


def _id_of(letter: Record) -> str:
    return dict(letter.headers)["ce_id"].decode()
