"""Several partitions are read as one, in the order in which things failed, from a moment or a place on."""

import pytest

from relay.domain.replay_job import OffsetSpan, ReplayOrder, Selection
from relay.domain.topics import Topics, TopicSpec
from relay.log.port import Coordinate, NewRecord
from relay.replay import scanner
from relay.replay.scanner import ReplayScanner, merged, start_at
from tests.fakes.log import MemoryBroker, MemoryLog

TOPIC = Topics().failed_messages
KEYS = {0: b"k-1", 1: b"k-0"}


async def written(*turns: int) -> MemoryLog:
    """A log with a record in each of these partitions in turn, a second after the one before."""
    now = iter(range(0, 1_000_000, 1_000))
    broker = MemoryBroker(now_ms=lambda: next(now))
    log = MemoryLog(broker)
    await log.start()
    await log.create([TopicSpec(TOPIC, 2)], {})
    for turn in turns:
        (at,) = await log.append([NewRecord(TOPIC, KEYS[turn], b"")])
        assert at.partition == turn
    return log


def spans(first: int, second: int) -> list[OffsetSpan]:
    return [OffsetSpan(TOPIC, 0, 0, first), OffsetSpan(TOPIC, 1, 0, second)]


async def test_the_oldest_comes_first() -> None:
    log = await written(0, 1, 1, 0, 1)
    found = [(number, record.timestamp_ms) async for number, record in merged(log, spans(2, 3), ())]
    assert found == [(0, 0), (1, 1_000), (1, 2_000), (0, 3_000), (1, 4_000)]
    found = [(number, record.timestamp_ms) async for number, record in merged(log, spans(1, 3), (1, 1))]
    assert found == [(1, 2_000), (1, 4_000)], "from these places on, and to the end of each span"


@pytest.mark.parametrize("moment_ms", [-1, 0, 1, 4_999, 5_000, 19_000, 20_000, 10**9])
async def test_it_begins_not_behind_the_moment(moment_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "NEAR", 1)
    log = await written(*[0] * 20)
    span = await start_at(log, OffsetSpan(TOPIC, 0, 0, 20), moment_ms)
    left_out = range(span.start)
    assert all(offset * 1_000 < moment_ms for offset in left_out)
    assert span.start >= min(19, moment_ms // 1_000 - 1), "and not much is read in vain"


async def test_a_gap_in_the_offsets_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "NEAR", 1)
    log = await written(*[0] * 20)
    log._broker.drop_before(Coordinate(TOPIC, 0, 15))
    assert (await start_at(log, OffsetSpan(TOPIC, 0, 0, 20), 19_000)).start == 0


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_chunks_go_on_where_the_last_one_ended(size: int) -> None:
    log = await written(0, 1, 1, 0, 1)
    order = ReplayOrder("1", "replay", Selection(), 0.0, tuple(spans(2, 3)), (), None)
    whole = [chunk async for chunk in ReplayScanner(log, Topics(), order).chunks(size=size)]
    read = [record.timestamp_ms for chunk in whole for record in chunk.records]
    assert read == [0, 1_000, 2_000, 3_000, 4_000]
    assert all(len(chunk) <= size for chunk in whole)
    first = whole[0]
    rest = [chunk async for chunk in ReplayScanner(log, Topics(), order).chunks(0, first.positions, size=size)]
    assert [record.timestamp_ms for chunk in rest for record in chunk.records] == read[len(first) :]


async def test_a_chunk_of_large_letters_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "BYTES", 1_000)
    broker = MemoryBroker()
    log = MemoryLog(broker)
    await log.start()
    await log.create([TopicSpec(TOPIC, 2)], {})
    await log.append([NewRecord(TOPIC, KEYS[0], b" " * 400) for _ in range(10)])
    order = ReplayOrder("job", "replay", Selection(), 0.0, (OffsetSpan(TOPIC, 0, 0, 10),), (), None)
    chunks = [chunk async for chunk in ReplayScanner(log, Topics(), order).chunks(size=100)]
    assert [len(chunk) for chunk in chunks] == [3, 3, 3, 1]
    assert [chunk.positions for chunk in chunks] == [(3,), (6,), (9,), (10,)]
