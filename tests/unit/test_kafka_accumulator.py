"""What several tasks append at once shares batches, in order, and each call learns its own fate and nothing else's."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import KafkaError, KafkaTimeoutError, RecordListTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.errors import LogUnavailable, PartlyAppended, RecordTooLarge
from relay.engine.slices import Slices
from relay.log.kafka.accumulator import Accumulator
from relay.log.partitioner import partition_of
from relay.log.port import Coordinate, NewRecord, TopicPartition
from tests.fakes.virtual_time import virtually

PATIENCE_S = 20.0
BATCH_BYTES = 2_000
MAX_RECORD_BYTES = 10_000


class Sent(NamedTuple):
    offset: int


@dataclass
class Delivery:
    """A batch in flight."""

    place: TopicPartition
    batch: BatchBuilder
    future: asyncio.Future[Any]


class Cluster:
    """Topics with `partitions` each, and the records of these. Batches stay in flight until the test ends them.

    `largest`: a batch with more bytes is refused.
    """

    def __init__(self, partitions: int = 1, largest: int = 1_000_000) -> None:
        self.batch_bytes = BATCH_BYTES
        self.records: dict[TopicPartition, list[bytes | None]] = defaultdict(list)
        self.under_way: list[Delivery] = []
        self.asked_at: list[float] = []
        self.broken = False
        self._partitions = partitions
        self._largest = largest

    def new_batch(self) -> BatchBuilder:
        return BatchBuilder(self.batch_bytes, 0)

    def send(self, batch: BatchBuilder, place: TopicPartition) -> asyncio.Future[Any]:
        if self.broken:
            raise KafkaError("stopped")
        assert place not in [delivery.place for delivery in self.under_way], "two batches of a partition at a time"
        loop = asyncio.get_running_loop()
        self.asked_at.append(loop.time())
        self.under_way.append(Delivery(place, batch, loop.create_future()))
        return self.under_way[-1].future

    def partitions(self, topic: str) -> int:
        return self._partitions if topic != "missing" else 0

    def values(self, number: int = 0) -> list[bytes | None]:
        """Values of the batch in flight that was handed over as number `number`."""
        return decoded(bytes(self.under_way[number].batch._build()))

    def acknowledge(self, number: int = 0) -> None:
        delivery = self.under_way.pop(number)
        data = bytes(delivery.batch._build())
        if len(data) > self._largest:
            delivery.future.set_exception(RecordListTooLargeError())
            return
        held = self.records[delivery.place]
        delivery.future.set_result(Sent(len(held)))
        held += decoded(data)

    def fail(self, number: int = 0, *, arrived: bool = False) -> None:
        """`arrived`: only the answer was lost."""
        delivery = self.under_way.pop(number)
        data = bytes(delivery.batch._build())
        if arrived:
            self.records[delivery.place] += decoded(data)
        delivery.future.set_exception(KafkaTimeoutError())


def decoded(data: bytes) -> list[bytes | None]:
    batches = MemoryRecords(data)
    found: list[bytes | None] = []
    while batches.has_next():
        found += [record.value for record in batches.next_batch()]
    return found


def accumulator(cluster: Cluster) -> Accumulator:
    return Accumulator(cluster, MAX_RECORD_BYTES, PATIENCE_S)


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def into(cluster: Cluster) -> Accumulator:
    return accumulator(cluster)


def record(value: bytes, key: bytes | None = None, topic: str = "t") -> NewRecord:
    return NewRecord(topic, key, value, (("header", b"1"),))


def appending(into: Accumulator, *records: NewRecord) -> asyncio.Task[list[Coordinate]]:
    assert not into.unknown(records)
    return asyncio.ensure_future(into.append(records))


async def turns(count: int = 4) -> None:
    """Let all that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def sent(cluster: Cluster, into: Accumulator, value: bytes) -> asyncio.Task[list[Coordinate]]:
    """A call whose batch is in flight."""
    call = appending(into, record(value))
    await turns()
    assert cluster.values() == [value]
    return call


async def acknowledge_all(cluster: Cluster) -> None:
    await turns()
    while cluster.under_way:
        cluster.acknowledge()
        await turns()


async def test_what_comes_meanwhile_goes_next_and_together(cluster: Cluster, into: Accumulator) -> None:
    first = await sent(cluster, into, b"0")
    later = []
    for n in (1, 2, 3):
        later.append(appending(into, record(b"%d" % n)))
        await turns()
    assert len(cluster.under_way) == 1

    cluster.acknowledge()
    await turns()
    assert first.done()
    assert not any(call.done() for call in later)
    assert cluster.values() == [b"1", b"2", b"3"]
    cluster.acknowledge()
    assert await asyncio.gather(*later) == [[Coordinate("t", 0, n)] for n in (1, 2, 3)]


@pytest.mark.parametrize("in_one_turn", [True, False])
async def test_calls_share_a_batch_that_nobody_took_yet(
    cluster: Cluster, into: Accumulator, *, in_one_turn: bool
) -> None:
    calls = []
    for n in range(3):
        calls.append(appending(into, record(b"%d" % n)))
        await turns(0 if in_one_turn else 4)
    await turns()

    assert cluster.values() == [b"0", b"1", b"2"]
    cluster.acknowledge()
    assert await asyncio.gather(*calls) == [[Coordinate("t", 0, n)] for n in range(3)]


async def test_more_than_a_batch_holds_goes_one_after_the_other(cluster: Cluster, into: Accumulator) -> None:
    sent = [record(b"%d" % n * 300) for n in range(9)]
    call = appending(into, *sent)
    batches = 0
    while not call.done():
        await turns()
        if cluster.under_way:
            batches += 1
            cluster.acknowledge()

    assert batches > 1
    assert call.result() == [Coordinate("t", 0, n) for n in range(9)]
    assert cluster.records[TopicPartition("t", 0)] == [each.value for each in sent]


async def test_a_failed_batch_fails_each_call_with_records_in_it_and_no_other(
    cluster: Cluster, into: Accumulator
) -> None:
    failing = [appending(into, record(b"a")), appending(into, record(b"b"))]
    await turns()
    cluster.values()
    after = appending(into, record(b"c"))
    await turns()

    cluster.fail()
    for call in failing:
        with pytest.raises(LogUnavailable, match="t/0"):
            await call
    await turns()
    assert cluster.values() == [b"c"]
    cluster.acknowledge()
    assert await after == [Coordinate("t", 0, 0)]


async def test_the_rest_of_a_call_that_failed_is_not_sent(cluster: Cluster, into: Accumulator) -> None:
    """Its caller will append the whole call again: no record may overtake the first of it."""
    call = appending(into, *(record(b"%d" % n * 900) for n in range(4)))
    neighbour = appending(into, record(b"n"))
    await turns()
    assert [value and value[:1] for value in cluster.values()] == [b"0", b"1"]

    cluster.fail()
    await turns()
    with pytest.raises(LogUnavailable):
        await call
    assert cluster.values() == [b"n"]
    cluster.acknowledge()
    assert await neighbour == [Coordinate("t", 0, 0)]


async def test_a_call_raises_when_nothing_of_it_is_under_way_any_more() -> None:
    cluster = Cluster(partitions=2)
    keys = {partition_of(b"%d" % n, 2): b"%d" % n for n in range(20)}
    call = appending(accumulator(cluster), record(b"0", keys[0]), record(b"1", keys[1]))
    await turns()

    cluster.fail(0)
    await turns()
    assert not call.done()
    cluster.acknowledge()
    with pytest.raises(PartlyAppended) as raised:
        await call
    assert raised.value.places == {1: Coordinate("t", 1, 0)}


async def test_a_record_that_is_too_large_fails_its_own_call_only(cluster: Cluster, into: Accumulator) -> None:
    before = appending(into, record(b"a"))
    large = appending(into, record(b"b"), record(bytes(MAX_RECORD_BYTES + 1)), record(b"c"))
    after = appending(into, record(b"d"))
    await acknowledge_all(cluster)

    with pytest.raises(RecordTooLarge, match=r"t: a record of 10\d+ bytes; 10000 are allowed") as refused:
        await large
    assert refused.value.rejected == {1}
    [[one], [two]] = await asyncio.gather(before, after)
    held = cluster.records[TopicPartition("t", 0)]
    assert (held[one.offset], held[two.offset]) == (b"a", b"d")
    assert b"c" not in held


async def test_a_batch_that_the_topic_refuses_is_taken_apart() -> None:
    cluster = Cluster(largest=700)
    into = accumulator(cluster)
    calls = [appending(into, record(name * 300)) for name in (b"a", b"b")]
    large = appending(into, record(b"c" * 900))
    calls.append(appending(into, record(b"d")))
    await acknowledge_all(cluster)

    with pytest.raises(RecordTooLarge, match="t: a record of"):
        await large
    assert [await call for call in calls] == [[Coordinate("t", 0, n)] for n in range(3)]
    assert cluster.records[TopicPartition("t", 0)] == [b"a" * 300, b"b" * 300, b"d"]


async def test_each_partition_says_which_record_it_refuses() -> None:
    cluster = Cluster(partitions=3, largest=700)
    keys = {partition_of(b"%d" % n, 3): b"%d" % n for n in range(20)}
    call = appending(accumulator(cluster), *(record(bytes(size), keys[at]) for at, size in enumerate((900, 1, 901))))
    await acknowledge_all(cluster)
    with pytest.raises(RecordTooLarge) as refused:
        await call
    assert refused.value.rejected == {0, 2}


async def test_a_cancelled_call_withdraws_what_was_not_sent(cluster: Cluster, into: Accumulator) -> None:
    first = await sent(cluster, into, b"0")
    cancelled, kept = appending(into, record(b"1")), appending(into, record(b"2"))
    await turns()
    cancelled.cancel()
    await turns()

    cluster.acknowledge()
    await turns()
    assert cluster.values() == [b"2"]
    cluster.acknowledge()
    assert [await first, await kept] == [[Coordinate("t", 0, 0)], [Coordinate("t", 0, 1)]]
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_what_does_not_fit_any_more_is_not_taken_for_sent(cluster: Cluster, into: Accumulator) -> None:
    first = await sent(cluster, into, b"0")
    cancelled, whole, cut = (appending(into, *(record(name * 300) for _ in range(2))) for name in (b"1", b"2", b"3"))
    await turns()
    cancelled.cancel()
    await turns()
    cluster.batch_bytes = 1_200  # of four records, three fit

    await acknowledge_all(cluster)
    assert await first == [Coordinate("t", 0, 0)]
    assert await whole == [Coordinate("t", 0, n) for n in (1, 2)]
    with pytest.raises(LogUnavailable, match="do not fit"):
        await cut


async def test_a_sender_that_takes_nothing_any_more_is_said(cluster: Cluster, into: Accumulator) -> None:
    cluster.broken = True
    with pytest.raises(LogUnavailable, match="stopped"):
        await appending(into, record(b"0"))
    cluster.broken = False
    call = await sent(cluster, into, b"1")
    cluster.acknowledge()
    await call


async def test_closing_fails_what_is_left(cluster: Cluster, into: Accumulator) -> None:
    under_way = await sent(cluster, into, b"0")
    waiting = appending(into, record(b"1"))
    await turns()
    into.close()
    for call in (under_way, waiting):
        with pytest.raises(LogUnavailable, match="closed"):
            await call
    cluster.acknowledge()
    await turns()
    assert cluster.under_way == []


async def test_partitions_that_are_added_are_used(cluster: Cluster, into: Accumulator) -> None:
    first = await sent(cluster, into, b"0")
    cluster._partitions = 3
    into.forget_topics()
    keys = {partition_of(b"%d" % n, 3): b"%d" % n for n in range(30)}
    calls = [appending(into, record(b"x", keys[number])) for number in range(3)]
    await turns()
    cluster.acknowledge()  # the first batch of partition 0, which the next one has waited for
    await turns()
    while cluster.under_way:
        cluster.acknowledge()
    assert await first == [Coordinate("t", 0, 0)]
    assert [await call for call in calls] == [[Coordinate("t", n, 1 if n == 0 else 0)] for n in range(3)]


async def test_the_topics_that_are_not_known_are_named_once(into: Accumulator) -> None:
    topics = ("t", "missing", "t", "missing")
    assert into.unknown([record(b"0", topic=topic) for topic in topics]) == ["missing"]
    assert into.unknown([record(b"0")]) == []


@virtually
async def test_a_call_ends_when_its_time_is_over_and_what_was_not_sent_never_is() -> None:
    cluster = Cluster()
    into = accumulator(cluster)
    started = asyncio.get_running_loop().time()
    hanging = await sent(cluster, into, b"0")
    await asyncio.sleep(1)
    waiting = appending(into, record(b"1"))

    for call, at in ((hanging, PATIENCE_S), (waiting, PATIENCE_S + 1)):
        with pytest.raises(LogUnavailable, match="in time"):
            await call
        assert asyncio.get_running_loop().time() - started == pytest.approx(at)
    last = appending(into, record(b"2"))
    await turns()
    cluster.acknowledge()
    await turns()
    assert cluster.values() == [b"2"]
    cluster.acknowledge()
    assert await last == [Coordinate("t", 0, 1)]


Step = tuple[str, int]


class Callers:
    """Tasks that append numbered records one call after another, as often as it takes, but nothing that is there."""

    def __init__(self, into: Accumulator) -> None:
        self.acknowledged: list[tuple[Coordinate, bytes]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._into = into

    def start(self, name: int, sizes: Sequence[int]) -> None:
        self.tasks.append(asyncio.ensure_future(self._run(name, sizes)))

    async def _run(self, name: int, sizes: Sequence[int]) -> None:
        number = 0
        for size in sizes:
            values = [b"%d/%d/" % (name, number + n) + bytes(150) for n in range(size)]
            records = [record(value, b"%d" % (n % 3)) for n, value in enumerate(values)]
            number += size
            assert not self._into.unknown(records)
            rest = Slices(records)
            while some := rest.next():
                try:
                    rest.acknowledged(await self._into.append(some))
                except PartlyAppended as error:
                    rest.partly(error.places)
                except LogUnavailable:
                    continue
            self.acknowledged += zip(rest.all_places(), values, strict=True)


@virtually
async def test_a_topic_is_unknown_while_it_has_fewer_partitions_than_a_record_says() -> None:
    into = accumulator(Cluster(partitions=2))
    few, more, most = ([NewRecord("t", b"k", b"v", spread=spread)] for spread in (2, 3, 4))
    assert [into.unknown(records) for records in (few, more, most)] == [[], ["t"], ["t"]]
    into.take_as_they_are(["t"], more)
    assert [into.unknown(records) for records in (few, more, most)] == [[], [], ["t"]]
    into.forget_topics()
    assert into.unknown(more) == ["t"]


@given(
    sizes=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=6),
    script=st.lists(st.tuples(st.sampled_from(["ok", "lost", "late", "turn"]), st.integers(0, 5)), max_size=40),
)
@virtually
async def test_what_is_reported_is_where_it_says_and_in_order(sizes: list[list[int]], script: list[Step]) -> None:
    cluster = Cluster(partitions=3)
    callers = Callers(accumulator(cluster))
    for name, each in enumerate(sizes):
        callers.start(name, each)
    steps = iter(script)
    while not all(task.done() for task in callers.tasks):
        await turns()
        what, number = next(steps, ("ok", 0))
        if not cluster.under_way or what == "turn":
            continue
        if what == "ok":
            cluster.acknowledge(number % len(cluster.under_way))
        else:
            cluster.fail(number % len(cluster.under_way), arrived=what == "late")
    for task in callers.tasks:
        task.result()
    check(cluster, callers.acknowledged, sizes)


def check(cluster: Cluster, acknowledged: list[tuple[Coordinate, bytes]], sizes: list[list[int]]) -> None:
    assert len(acknowledged) == sum(map(sum, sizes))
    for at, value in acknowledged:
        assert cluster.records[TopicPartition(at.topic, at.partition)][at.offset] == value
    last: dict[tuple[bytes, int], tuple[int, int]] = {}
    for at, value in acknowledged:  # of each caller in the order of its calls
        caller, number, _ = value.split(b"/", 2)
        before = last.get((caller, at.partition), (-1, -1))
        assert (int(number), at.offset) > before
        assert at.offset > before[1]
        last[caller, at.partition] = (int(number), at.offset)
