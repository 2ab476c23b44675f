"""Fetching for a whole process, from brokers that misbehave as real ones do only by chance."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from aiokafka.conn import AIOKafkaConnection

from relay.domain.errors import ConsumerBroken, ConsumerClosed, LogUnavailable, OffsetMissing
from relay.log.kafka import fetch_link, fetch_loop
from relay.log.kafka.cluster import FETCH_BYTES, GATHER_S, KafkaCluster
from relay.log.kafka.feed import Feed, FetchMemory, TopicVanished
from relay.log.kafka.fetch_loop import FetchLoop
from relay.log.kafka.fetch_session import BURST_S, FEW, PARTITION_S, PollPace
from relay.log.kafka.leader_epochs import UNKNOWN, ReadHistory
from relay.log.kafka.wire import FetchRequest
from relay.log.port import Record, TopicPartition
from tests.fakes.kafka_broker import Asking, FakeBroker, FakeKafka, fake_kafka
from tests.fakes.raw_batches import RawBatch, RawRecord

pytestmark = pytest.mark.thorough

E = TypeVar("E", bound=Exception)
A, B, C, D = (TopicPartition("topic", number) for number in range(4))
CLUSTER = KafkaCluster("unused")
NOT_LEADER, FENCED, UNKNOWN_TOPIC, NOT_ALLOWED = 6, 74, 3, 29


def batch(*values: bytes) -> RawBatch:
    return RawBatch([RawRecord(value=value) for value in values])


class Reader:
    """Opens partitions, and keeps their records."""

    def __init__(self, loop: FetchLoop) -> None:
        self.loop = loop
        self.arrived = asyncio.Event()
        self.partitions: list[TopicPartition] = []
        self.records: list[Record] = []

    def open(self, *partitions: TopicPartition, offset: int = 0, epoch: int = UNKNOWN) -> None:
        for at in partitions:
            if at not in self.partitions:
                self.partitions.append(at)
            self.loop.open(at, ReadHistory(offset, epoch), self.arrived.set)

    async def until(self, count: int, *, at_a_time: int = 100) -> list[bytes | None]:
        """The values of the first `count` records that come from now on."""
        found: list[Record] = []
        while len(found) < count:
            taken = self.loop.take(self.partitions, min(at_a_time, count - len(found)))
            found += [record for records in taken.values() for record in records]
            if not taken:
                await self.arrived.wait()
                self.arrived.clear()
        self.records += found
        return [record.value for record in found]

    async def until_raised(self, kind: type[E]) -> E:
        while True:
            try:
                if self.loop.take(self.partitions, 100):
                    continue
            except kind as error:
                return error
            await self.arrived.wait()
            self.arrived.clear()

    def offsets(self, at: TopicPartition) -> list[int]:
        return [record.offset for record in self.records if (record.topic, record.partition) == at]


@asynccontextmanager
async def fetching(
    kafka: FakeKafka, held_bytes: int = 2**23, opened_bytes: int = 2**25, cluster: KafkaCluster = CLUSTER
) -> AsyncIterator[Reader]:
    loop = FetchLoop(cluster, kafka.layout, kafka.epoch_ends, FetchMemory(held_bytes, opened_bytes))
    loop.start()
    try:
        yield Reader(loop)
    finally:
        await loop.close()


@pytest.fixture
async def kafka() -> AsyncIterator[FakeKafka]:
    async with fake_kafka() as kafka, asyncio.timeout(60):
        yield kafka


@pytest.fixture
def broker(kafka: FakeKafka) -> FakeBroker:
    return kafka.brokers[0]


@pytest.fixture
async def reader(kafka: FakeKafka) -> AsyncIterator[Reader]:
    async with fetching(kafka) as reader:
        yield reader


async def some_time() -> None:
    """In which something might happen that must not."""
    for _ in range(20):
        await asyncio.sleep(0.005)


def long_ones(broker: FakeBroker) -> list[Asking]:
    return [asking for asking in broker.asked if asking.epoch >= 0]


# fetched records


async def test_records_of_all_partitions_come_from_where_they_were_opened(reader: Reader, broker: FakeBroker) -> None:
    await broker.append(A, batch(b"0", b"1", b"2"))
    reader.open(A, offset=1)
    reader.open(B)
    assert await reader.until(2) == [b"1", b"2"]
    await broker.append(B, batch(b"3"))
    await broker.append(A, batch(b"4"))
    assert sorted(await reader.until(2), key=str) == [b"3", b"4"]


async def test_one_request_asks_for_all_partitions_and_the_next_only_for_what_changed(
    reader: Reader, broker: FakeBroker
) -> None:
    reader.open(A, B, C)
    asking = await broker.until_long()
    assert asking.all.keys() == {A, B, C}
    await broker.append(B, batch(b"1"))
    await reader.until(1)
    asking = await broker.until_asked(1) if broker.asked[-1].answered.is_set() else broker.asked[-1]
    assert asking.wanted == {B: (1, FETCH_BYTES)}
    assert asking.all.keys() == {A, B, C}


async def test_who_is_in_no_hurry_has_the_broker_gather_while_records_come(
    kafka: FakeKafka, broker: FakeBroker
) -> None:
    async with fetching(kafka, cluster=replace(CLUSTER, gather_bytes=1000)) as reader:
        reader.open(A)
        assert (await broker.until_long()).min_bytes == 1
        await broker.append(A, batch(b"1"))
        assert await reader.until(1) == [b"1"]
        await broker.until(lambda: any(asking.min_bytes > 1 for asking in long_ones(broker)))
        gathering = next(asking for asking in long_ones(broker) if asking.min_bytes > 1)
        assert gathering.min_bytes == 1000
        assert gathering.max_wait_ms <= GATHER_S * 1000
        assert (await broker.until_long()).min_bytes == 1  # nothing had come


def test_polls_of_few_partitions_never_wait_and_those_of_many_only_after_a_burst() -> None:
    few, many = PollPace(), PollPace()
    for _ in range(10_000):
        few.polled(0.0, FEW)
    assert few.pause_s(0.0) == 0.0

    each = PARTITION_S * 1_744
    burst = 0
    while many.pause_s(0.0) == 0.0 and burst < 1_000:
        many.polled(0.0, FEW + 1_744)
        burst += 1
    assert burst == int(BURST_S / each) + 1
    now = 0.0
    for _ in range(100):
        now += many.pause_s(now)
        many.polled(now, FEW + 1_744)
    assert now == pytest.approx((100 + burst - 1) * each - BURST_S)
    assert many.pause_s(now + each) == pytest.approx(0.0)


async def test_each_long_poll_is_paced_by_the_partitions_of_its_session(
    kafka: FakeKafka, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled: list[int] = []
    monkeypatch.setattr(PollPace, "polled", lambda _pace, _now, partitions: polled.append(partitions))
    async with fetching(kafka) as reader:
        reader.open(A, B)
        await broker.until_long()
        await broker.append(A, batch(b"1"))
        assert await reader.until(1) == [b"1"]
        await broker.until_long()
        assert polled == [len(asking.all) for asking in long_ones(broker)]


async def test_partitions_without_records_are_in_a_session_of_their_own(
    reader: Reader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker looks at all partitions of a session for each request, so idle ones would cost as much as others."""
    monkeypatch.setattr(fetch_link, "FEW", 2)
    reader.open(A, B, C, D)
    await until_polled(broker, {A, B}, {C, D})
    await broker.append(D, batch(b"1"))
    assert await reader.until(1) == [b"1"]
    await until_polled(broker, {D}, {A, B, C})
    await broker.append(D, batch(b"2"))
    assert await reader.until(1) == [b"2"]
    await until_polled(broker, {D}, {A, B, C})


async def test_a_partition_without_records_for_some_time_is_quiet_again(
    reader: Reader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_link, "FEW", 1)
    monkeypatch.setattr(fetch_link, "_SORT_S", 0.0)
    reader.open(A, B, C, D)
    for at in (A, B):
        await broker.append(at, batch(b"1"))
    await reader.until(2)
    await until_polled(broker, {A, B}, {C, D})
    monkeypatch.setattr(fetch_link, "QUIET_S", -1.0)
    await broker.append(C, batch(b"2"))  # which ends the poll of the quiet ones
    assert await reader.until(1) == [b"2"]
    await broker.until(lambda: any({A, B, D} <= session for session in polled(broker)))


async def test_partitions_that_change_sessions_lose_nothing_and_double_nothing(
    reader: Reader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_link, "FEW", 1)
    monkeypatch.setattr(fetch_link, "QUIET_S", 0.0)
    monkeypatch.setattr(fetch_link, "_SORT_S", 0.0)
    reader.open(A, B, C, D)
    for number in range(60):
        for at in (A, B, C, D)[: 1 + number % 4]:
            await broker.append(at, batch(b"%d" % number))
        await reader.until(1, at_a_time=1)
        if number % 7 == 0:
            reader.loop.pause([A])
            reader.loop.resume([A])
    await reader.until(sum(broker.logs[at].end for at in (A, B, C, D)) - len(reader.records))
    for at in (A, B, C, D):
        assert reader.offsets(at) == list(range(broker.logs[at].end))


def polled(broker: FakeBroker) -> list[set[TopicPartition]]:
    """The partitions of each long poll that the broker has not answered."""
    return [set(asking.all) for asking in long_ones(broker) if not asking.answered.is_set()]


async def until_polled(broker: FakeBroker, *sessions: set[TopicPartition]) -> None:
    await broker.until(lambda: sorted(map(sorted, polled(broker))) == sorted(map(sorted, sessions)))


async def test_without_sessions_every_request_names_all(reader: Reader, broker: FakeBroker) -> None:
    broker.grants = False
    reader.open(A, B, C)
    for number in range(5):
        await broker.append(A, batch(b"%d" % number))
        assert await reader.until(1) == [b"%d" % number]
    assert all(asking.wanted.keys() == {A, B, C} for asking in long_ones(broker))


@pytest.mark.parametrize("how", ["forgotten", "another epoch"])
async def test_a_session_that_the_broker_lost_is_begun_anew(reader: Reader, broker: FakeBroker, how: str) -> None:
    reader.open(A, B)
    await broker.append(A, batch(b"0"))
    await reader.until(1)
    await broker.until_long()
    if how == "forgotten":
        broker.sessions.clear()
    else:
        broker.sessions = {id: (epoch + 7, all) for id, (epoch, all) in broker.sessions.items()}
    await broker.append(A, batch(b"1"))
    await broker.append(B, batch(b"2"))
    assert sorted(await reader.until(2), key=str) == [b"1", b"2"]


async def test_a_session_is_told_everything_now_and_then(
    reader: Reader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a partition missing from it, by whosever mistake, nothing else would show that."""
    reader.open(A, B)
    await broker.until_long()
    for _, known in broker.sessions.values():
        del known[B]
    monkeypatch.setattr(fetch_link, "_RENEWED_S", 0.0)
    await broker.append(B, batch(b"of B"))
    await broker.append(A, batch(b"of A"))  # ends the long poll, as its time would
    assert sorted(await reader.until(2), key=str) == [b"of A", b"of B"]


async def test_a_backlog_does_not_starve_the_others(kafka: FakeKafka, broker: FakeBroker) -> None:
    """A broker fills its answer in order, and one partition's backlog could fill it every time."""
    big = [batch(bytes(200_000)) for _ in range(60)]
    for at in (A, B, C, D):
        await broker.append(at, *big)
    for grants in (True, False):
        broker.grants = grants
        async with fetching(kafka, held_bytes=10**9) as reader:
            reader.open(A, B, C, D)
            await reader.until(40, at_a_time=4)
            counts = [len(reader.offsets(at)) for at in (A, B, C, D)]
            assert min(counts) >= 5, counts


async def test_what_is_above_the_high_watermark_is_not_read(reader: Reader, broker: FakeBroker) -> None:
    broker.logs[A].hidden = 1
    await broker.append(A, batch(b"0"), batch(b"1"))
    reader.open(A)
    assert await reader.until(1) == [b"0"]
    await broker.until_long()
    assert reader.loop.take([A], 10) == {}
    broker.logs[A].hidden = 0
    await broker.notify()
    assert await reader.until(1) == [b"1"]


@pytest.mark.parametrize(
    ("whole_first", "times"), [(True, 3), (False, 6)], ids=["of a broker that sends it whole", "of one that cuts it"]
)
async def test_a_batch_that_is_larger_than_the_limit_comes(
    reader: Reader, broker: FakeBroker, *, whole_first: bool, times: int
) -> None:
    broker.whole_first = whole_first
    large = bytes(times * FETCH_BYTES)
    await broker.append(A, batch(b"0"), batch(large), batch(b"2"))
    reader.open(A)
    assert await reader.until(3) == [b"0", large, b"2"]
    assert broker.asked[-1].all[A][1] == FETCH_BYTES, "larger answers are asked for only where they are needed"


async def test_a_batch_whose_length_is_made_up_costs_one_offset(reader: Reader, broker: FakeBroker) -> None:
    broken = bytearray(batch(b"0").encoded())
    broken[8:12] = (2**20).to_bytes(4, "big")
    await broker.append(A, batch(b"0"), encoded=bytes(broken))
    await broker.append(A, batch(b"1"))
    reader.open(A)
    assert await reader.until(2) == [None, b"1"]
    assert [record.flaw is None for record in reader.records] == [False, True]


async def test_a_bad_record_costs_its_own_offset(reader: Reader, broker: FakeBroker) -> None:
    await broker.append(A, RawBatch([RawRecord(value=b"0"), RawRecord(body=b"\xff\xff"), RawRecord(value=b"2")]))
    reader.open(A)
    assert await reader.until(3, at_a_time=1) == [b"0", None, b"2"]
    assert reader.offsets(A) == [0, 1, 2]


async def test_a_large_batch_is_unpacked_aside_and_the_others_go_on(reader: Reader, broker: FakeBroker) -> None:
    many = RawBatch([RawRecord(value=bytes(100_000)) for _ in range(60)], codec=1)
    await broker.append(A, many)
    await broker.append(B, batch(b"of B"))
    reader.open(A, B)
    assert len(await reader.until(61)) == 61
    assert reader.offsets(A) == list(range(60))


async def test_unpacked_batches_of_which_records_are_left_are_bounded(kafka: FakeKafka, broker: FakeBroker) -> None:
    for at in (A, B, C, D):
        await broker.append(at, RawBatch([RawRecord(value=bytes(10_000)) for _ in range(50)], codec=2))
    async with fetching(kafka, opened_bytes=600_000) as reader:
        reader.open(A, B, C, D)
        await reader.until(200, at_a_time=7)
        for at in (A, B, C, D):
            assert reader.offsets(at) == list(range(50))


# the set changes


async def test_a_partition_that_is_opened_under_a_long_poll_does_not_wait_for_its_end(
    reader: Reader, broker: FakeBroker
) -> None:
    reader.open(A)
    long = await broker.until_long()
    await broker.append(B, batch(b"of B"))
    reader.open(B)
    assert await reader.until(1) == [b"of B"]
    await broker.append(B, batch(b"more"))
    reader.open(C)
    await broker.append(C, batch(b"of C"))
    assert sorted(await reader.until(2), key=str) == [b"more", b"of C"]
    assert not long.answered.is_set()
    assert broker.connections == 2


async def test_a_resumed_partition_goes_on_where_it_stood_and_does_not_wait(reader: Reader, broker: FakeBroker) -> None:
    await broker.append(B, *(batch(b"%d" % n) for n in range(10)))
    reader.open(A, B)
    assert await reader.until(3, at_a_time=1) == [b"0", b"1", b"2"]
    reader.loop.pause([B])
    assert reader.loop.take([A, B], 10) == {}
    long = await broker.until_long()
    assert B not in long.all, "it is left out"
    reader.loop.resume([B])
    assert await reader.until(7) == [b"%d" % n for n in range(3, 10)]
    assert not long.answered.is_set()
    assert reader.offsets(B) == list(range(10))


async def test_pausing_and_resuming_at_once_neither_loses_nor_doubles(reader: Reader, broker: FakeBroker) -> None:
    reader.open(A, B)
    for number in range(40):
        for at in (A, B):
            await broker.append(at, batch(b"%d" % number))
        await reader.until(1 + number % 3, at_a_time=1)
        reader.loop.pause([A])
        if number % 2:
            await asyncio.sleep(0)
        reader.loop.resume([A])
    await reader.until(80 - len(reader.records))
    assert (reader.offsets(A), reader.offsets(B)) == (list(range(40)), list(range(40)))


async def test_what_was_asked_for_before_a_partition_was_opened_anew_is_not_taken_for_it(
    reader: Reader, broker: FakeBroker
) -> None:
    reader.open(A, B)
    await broker.until_long()
    reader.open(A, offset=5)
    await broker.append(A, *(batch(b"%d" % n) for n in range(8)))
    assert await reader.until(3) == [b"5", b"6", b"7"]


async def test_a_partition_that_was_shut_is_forgotten(reader: Reader, broker: FakeBroker) -> None:
    reader.open(A, B)
    await broker.append(A, batch(b"0"))
    await reader.arrived.wait()
    reader.loop.shut(A)
    assert reader.loop.take([A, B], 10) == {}
    await broker.append(A, batch(b"1"))
    await broker.append(B, batch(b"2"))
    assert await reader.until(1) == [b"2"]
    assert A not in (await broker.until_long()).all


async def test_nothing_is_asked_while_nothing_is_wanted(reader: Reader, broker: FakeBroker) -> None:
    reader.open(A, B)
    await broker.until_long()
    reader.loop.pause([A, B])
    await broker.append(A, batch(b"0"))  # ends the long poll
    await some_time()
    asked = len(broker.asked)
    await some_time()
    assert len(broker.asked) == asked
    reader.loop.resume([A, B])
    assert await reader.until(1) == [b"0"]


async def test_an_idle_process_asks_seldom(reader: Reader, broker: FakeBroker) -> None:
    reader.open(A, B)
    long = await broker.until_long()
    assert len(broker.asked) < 20
    asked = len(broker.asked)
    await some_time()
    assert len(broker.asked) == asked
    assert not long.answered.is_set()


# memory


async def test_what_is_fetched_and_not_taken_is_bounded_over_all_partitions(
    kafka: FakeKafka, broker: FakeBroker
) -> None:
    kafka.partitions["topic"] = 40
    places = [TopicPartition("topic", number) for number in range(40)]
    for at in places:
        await broker.append(at, *(batch(bytes(50_000)) for _ in range(10)))
    async with fetching(kafka, held_bytes=2_000_000) as reader:
        reader.open(*places)
        while reader.loop.memory.held < 2_000_000:
            await reader.arrived.wait()
            reader.arrived.clear()
        await some_time()
        assert reader.loop.memory.held < 2_000_000 + 2 * 1_100_000, "one answer on each connection may be on its way"
        await reader.until(400, at_a_time=10)
        assert all(reader.offsets(at) == list(range(10)) for at in places)
        assert reader.loop.memory.held == 0


async def test_one_partition_holds_no_more_than_its_share(reader: Reader, broker: FakeBroker) -> None:
    await broker.append(A, *(batch(bytes(50_000)) for _ in range(100)))
    reader.open(A, B)
    while A in (await broker.until_long()).all:
        await broker.until_asked()
    assert FETCH_BYTES <= reader.loop.memory.held < 2 * FETCH_BYTES
    await reader.until(100, at_a_time=9)
    assert reader.offsets(A) == list(range(100))


async def test_each_gets_its_share_of_what_is_taken(reader: Reader, broker: FakeBroker) -> None:
    await broker.append(A, batch(*(b"a" for _ in range(100))))
    await broker.append(B, batch(b"b", b"b"))
    await broker.append(C, batch(*(b"c" for _ in range(100))))
    reader.open(A, B, C)
    while reader.loop.memory.held == 0 or len(reader.loop.take([A, B, C], 0)) or not _all_arrived(reader, [A, B, C]):
        await reader.arrived.wait()
        reader.arrived.clear()
    taken = reader.loop.take([A, B, C], 30)
    assert len(taken[B]) == 2
    assert min(len(taken[A]), len(taken[C])) >= 10
    assert len(taken[A]) + len(taken[C]) == 28


def _all_arrived(reader: Reader, partitions: Sequence[TopicPartition]) -> bool:
    return all(at in reader.loop._ready for at in partitions)


# trouble


@pytest.mark.parametrize("code", [NOT_LEADER, FENCED, UNKNOWN_TOPIC, 5, 9, 75])
async def test_a_leader_that_moved_is_looked_for(code: int) -> None:
    async with fake_kafka(2) as kafka, fetching(kafka) as reader, asyncio.timeout(60):
        old, new = kafka.brokers
        reader.open(A, B)
        await old.append(A, batch(b"0"))
        assert await reader.until(1) == [b"0"]
        new.logs[A] = old.logs[A]
        kafka.leaders[A] = new.node
        old.errors[A] = code
        await old.notify()
        await new.append(A, batch(b"1"))
        await old.append(B, batch(b"2"))
        assert sorted(await reader.until(2), key=str) == [b"1", b"2"]
        assert reader.offsets(A) == [0, 1]


async def test_a_partition_without_a_leader_gets_one_later(reader: Reader, kafka: FakeKafka) -> None:
    kafka.leaders[A] = -1
    await kafka.brokers[0].append(A, batch(b"0"))
    await kafka.brokers[0].append(B, batch(b"1"))
    reader.open(A, B)
    assert await reader.until(1) == [b"1"]
    await kafka.until_looked_up(3)
    kafka.leaders[A] = 1
    assert await reader.until(1) == [b"0"]


async def test_news_of_yesterday_about_a_leader_do_not_count() -> None:
    """A broker that was frozen thinks that it leads what it led, says so, and lacks what came since."""
    async with fake_kafka(2) as kafka, fetching(kafka) as reader, asyncio.timeout(60):
        old, new = kafka.brokers
        kafka.leaders[A], kafka.epochs[A] = new.node, 5
        await new.append(A, *(batch(b"%d" % n) for n in range(5)))
        reader.open(A)
        await reader.until(5)
        assert new.epochs[A] == 5
        kafka.leaders[A], kafka.epochs[A] = old.node, 4
        new.errors[A] = NOT_LEADER
        await new.notify()
        await kafka.until_looked_up(3)
        assert not old.asked
        del new.errors[A]
        kafka.leaders[A], kafka.epochs[A] = new.node, 6
        await new.append(A, batch(b"5"))
        assert await reader.until(1) == [b"5"]
        assert new.epochs[A] == 6


async def test_an_offset_that_an_old_leader_does_not_have_is_asked_for_again(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker
) -> None:
    reader.open(A, offset=3)
    await kafka.until_looked_up(2)
    await broker.append(A, *(batch(b"%d" % n) for n in range(3)))
    await broker.until_long()
    await broker.append(A, batch(b"3"))
    assert await reader.until(1) == [b"3"]


async def test_what_is_opened_does_not_wait_for_others_that_nobody_leads(
    reader: Reader, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_loop, "_RETRY_S", (0.0, 3_600.0))
    kafka.leaders[A] = -1
    reader.open(A)
    await kafka.until_looked_up(1)
    await kafka.brokers[0].append(B, batch(b"of B"))
    await kafka.brokers[0].append(C, batch(b"of C"))
    reader.open(B)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reader.open(C)
    assert sorted(await reader.until(2), key=str) == [b"of B", b"of C"]


async def test_a_stale_answer_about_a_leader_is_not_asked_for_in_a_circle(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker
) -> None:
    broker.errors[A] = NOT_LEADER
    reader.open(A)
    while len(kafka.lookups) < 5:
        await broker.until_asked()
    del broker.errors[A]
    await broker.append(A, batch(b"0"))
    assert await reader.until(1) == [b"0"]
    assert len(broker.asked) < 50


async def test_a_broker_that_goes_and_comes_back(reader: Reader, kafka: FakeKafka, broker: FakeBroker) -> None:
    reader.open(A, B)
    await broker.append(A, batch(b"0"))
    assert await reader.until(1) == [b"0"]
    kafka.away = True
    await broker.stop()
    await kafka.until_looked_up(2)
    assert reader.loop.take([A, B], 10) == {}
    kafka.away = False
    await broker.start()
    await broker.append(A, batch(b"1"))
    await broker.append(B, batch(b"2"))
    assert sorted(await reader.until(2), key=str) == [b"1", b"2"]


async def test_a_connection_that_is_closed_while_something_is_asked_for_is_made_anew(
    reader: Reader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop says so by a RuntimeError, until the library has read the end."""
    rightly, closed = AIOKafkaConnection.send, [True]

    def send(self: AIOKafkaConnection, request: Any) -> Any:
        if isinstance(request, FetchRequest) and closed:
            closed.pop()
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
        return rightly(self, request)

    monkeypatch.setattr(AIOKafkaConnection, "send", send)
    reader.open(A)
    await broker.append(A, batch(b"0"))
    assert await reader.until(1) == [b"0"]
    assert not closed


async def test_a_broker_that_never_answers_holds_up_nobody_else_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_link, "LONG_WAIT_S", 0.2)
    cluster = KafkaCluster("unused", request_timeout_ms=300)
    async with fake_kafka(2) as kafka, asyncio.timeout(60):
        good, deaf = kafka.brokers
        kafka.leaders[B] = deaf.node
        deaf.deaf = True
        loop = FetchLoop(cluster, kafka.layout, kafka.epoch_ends)
        loop.start()
        reader = Reader(loop)
        reader.open(A, B)
        await deaf.until_asked()
        await good.append(A, batch(b"0"))
        assert await reader.until(1) == [b"0"]
        await deaf.append(B, batch(b"1"))
        while deaf.connections < 2:
            await deaf.until_asked()
        deaf.deaf = False
        assert await reader.until(1) == [b"1"]
        await loop.close()


async def test_an_offset_that_is_not_there_is_told_until_the_partition_is_opened_anew(
    reader: Reader, broker: FakeBroker
) -> None:
    broker.logs[A].start = broker.logs[A].end = 7
    await broker.append(A, batch(b"7"))
    await broker.append(B, batch(b"of B"))
    reader.open(A, B, offset=0)
    error = await reader.until_raised(OffsetMissing)
    assert error.partitions == {A}
    assert "topic/0 at 0" in str(error)
    with pytest.raises(OffsetMissing):
        reader.loop.take([A], 10)
    reader.loop.shut(A)
    reader.open(A, offset=7)
    assert await reader.until(1) == [b"7"], "what B had came meanwhile"


async def test_a_missing_offset_is_told_again_after_a_pause(reader: Reader, broker: FakeBroker) -> None:
    broker.logs[A].start = broker.logs[A].end = 7
    reader.open(A)
    await reader.arrived.wait()
    reader.loop.pause([A])
    assert reader.loop.take([A], 10) == {}
    reader.loop.resume([A])
    await reader.until_raised(OffsetMissing)


async def test_what_came_before_a_missing_offset_is_taken_first(reader: Reader, broker: FakeBroker) -> None:
    await broker.append(A, batch(b"0", b"1"))
    reader.open(A, B)
    await reader.arrived.wait()
    broker.logs[A].start = 100
    broker.logs[A].end = 100
    await broker.notify()
    assert await reader.until(2, at_a_time=1) == [b"0", b"1"]
    await reader.until_raised(OffsetMissing)


async def cut(kafka: FakeKafka, at: TopicPartition, end: int, *grown: bytes) -> None:
    """Its broker comes back without what was behind `end`, leads in a new epoch, and takes more."""
    broker = kafka.brokers[0]
    broker.logs[at].cut(end)
    epoch = kafka.epochs[at] = kafka.epochs.get(at, 0) + 2
    broker.logs[at].epochs.append((end, epoch))
    if grown:
        await broker.append(at, replace(batch(*grown), epoch=epoch))
    broker.fenced[at] = epoch
    await broker.notify()


async def test_a_log_that_came_back_shorter_and_grew_is_not_read_on(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker
) -> None:
    for number in range(30):
        await broker.append(A, batch(b"%d" % number))
    reader.open(A, offset=10, epoch=0)
    await reader.until(20)

    await cut(kafka, A, 20, *(b"new %d" % number for number in range(15)))

    error = await reader.until_raised(OffsetMissing)
    assert error.lost == {A: (20, 30)}
    reader.open(A, offset=20, epoch=0)
    assert await reader.until(15) == [b"new %d" % number for number in range(15)]


async def test_a_committed_offset_is_proved_before_anything_is_read(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker
) -> None:
    for number in range(30):
        await broker.append(A, batch(b"%d" % number))
    await cut(kafka, A, 20, *(b"new %d" % number for number in range(15)))
    reader.open(A, offset=30, epoch=0)
    error = await reader.until_raised(OffsetMissing)
    assert (error.lost, broker.asked) == ({A: (20, 30)}, [])


async def test_what_was_fetched_of_a_lost_end_and_not_taken_is_fetched_again(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker
) -> None:
    for number in range(6):
        await broker.append(A, batch(b"%d" % number))
    reader.open(A)
    assert await reader.until(2, at_a_time=1) == [b"0", b"1"]
    await broker.until_asked()
    await cut(kafka, A, 3, b"new 3", b"new 4", b"new 5")
    await kafka.until_proved(1)
    assert await reader.until(4) == [b"2", b"new 3", b"new 4", b"new 5"]


async def test_a_topic_that_was_created_again_has_lower_epochs_and_is_read_from_its_start(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.log.kafka.feed._RECREATED_S", 1e-9)
    kafka.epochs[A] = 5
    await broker.append(A, *(replace(batch(b"%d" % number), epoch=5) for number in range(3)))
    reader.open(A)
    await reader.until(3)

    broker.logs[A].cut(0)
    kafka.epochs[A] = 0
    await broker.append(A, *(batch(b"new %d" % number) for number in range(4)))
    broker.errors[A] = NOT_LEADER
    await broker.notify()
    await kafka.until_looked_up(2)
    del broker.errors[A]

    error = await reader.until_raised(OffsetMissing)
    assert error.partitions == {A}
    reader.open(A)
    assert await reader.until(4) == [b"new 0", b"new 1", b"new 2", b"new 3"]


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_topic_that_was_deleted_is_not_read_on_where_it_ended_if_it_is_created_again(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker, *, pauses: bool
) -> None:
    """With the same leader epoch, and soon with more records, nothing else would show that it is another one."""
    await broker.append(A, *(batch(b"%d" % number) for number in range(3)))
    reader.open(A)
    await reader.until(3)

    broker.errors[A] = UNKNOWN_TOPIC
    kafka.deleted.add("topic")
    await broker.notify()
    await kafka.until_looked_up(1)
    del broker.errors[A]
    broker.logs[A].cut(0)
    await broker.append(A, *(batch(b"new %d" % number) for number in range(5)))
    if pauses:
        reader.loop.pause([A])
    kafka.deleted.clear()
    await kafka.until_looked_up(1)
    reader.loop.resume([A])

    error = await reader.until_raised(TopicVanished)
    assert error.partitions == [A]
    reader.open(A)
    assert await reader.until(5) == [b"new %d" % number for number in range(5)]


@pytest.mark.parametrize("created_again", [False, True])
async def test_a_topic_that_was_created_again_while_nothing_was_fetched_is_not_read_on_where_it_ended(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, *, created_again: bool
) -> None:
    """As the topic of a receiver that is paused."""
    monkeypatch.setattr(fetch_loop, "_PAUSED_S", 0.0)
    kafka.ids["topic"] = "here/first"
    await broker.append(A, *(batch(b"%d" % number) for number in range(3)))
    reader.open(A)
    await reader.until(3)

    reader.loop.pause([A])
    if created_again:
        kafka.ids["topic"] = "here/second"
        broker.logs[A].cut(0)
    await broker.append(A, *(batch(b"new %d" % number) for number in range(5)))
    reader.loop.resume([A])

    if created_again:
        error = await reader.until_raised(TopicVanished)
        assert error.partitions == [A]
        reader.open(A)
    assert await reader.until(5) == [b"new %d" % number for number in range(5)]


@pytest.mark.parametrize(
    ("committed", "is_another"), [("", False), ("here/second", False), ("mirrored/first", False), ("here/first", True)]
)
async def test_an_offset_that_was_committed_for_another_topic_of_that_name_is_not_read_on(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker, committed: str, *, is_another: bool
) -> None:
    """As after a restart, in which nothing else shows it."""
    kafka.ids["topic"] = "here/second"
    await broker.append(A, *(batch(b"%d" % number) for number in range(5)))
    history = ReadHistory(3, topic_id=committed)
    reader.partitions.append(A)
    reader.loop.open(A, history, reader.arrived.set)

    if is_another:
        assert (await reader.until_raised(TopicVanished)).partitions == [A]
    else:
        assert await reader.until(2) == [b"3", b"4"]
    assert history.topic_id == ("here/first" if is_another else "here/second")


async def test_a_topic_that_a_broker_does_not_know_yet_has_not_vanished(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker
) -> None:
    kafka.deleted.add("topic")
    await broker.append(A, batch(b"0"))
    reader.open(A)
    await kafka.until_looked_up(2)
    kafka.deleted.clear()
    assert await reader.until(1) == [b"0"]


async def test_a_new_leader_that_holds_all_is_read_on(reader: Reader, kafka: FakeKafka, broker: FakeBroker) -> None:
    await broker.append(A, batch(b"0", b"1"))
    reader.open(A)
    await reader.until(2)
    await cut(kafka, A, 2, b"2")
    assert await reader.until(1) == [b"2"]
    assert kafka.proofs == [{A: (2, 0)}]


async def test_a_leader_that_cannot_be_asked_is_not_read_until_it_can(
    reader: Reader, kafka: FakeKafka, broker: FakeBroker
) -> None:
    await broker.append(A, batch(b"0"))
    await broker.append(B, batch(b"of B"))
    kafka.unproved = True
    reader.open(A, offset=0, epoch=0)
    reader.open(B)
    assert await reader.until(1) == [b"of B"]
    kafka.unproved = False
    assert await reader.until(1) == [b"0"]


async def test_an_error_of_a_partition_that_does_not_pass_is_told_now_and_then_and_tried_again(
    reader: Reader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_loop, "_REPORT_EVERY_S", 0.0)
    broker.errors[A] = NOT_ALLOWED
    await broker.append(A, batch(b"0"))
    await broker.append(B, batch(b"1"))
    reader.open(A, B)
    error = await reader.until_raised(LogUnavailable)
    assert "topic/0 cannot be read: TopicAuthorizationFailed" in str(error)
    await reader.until_raised(LogUnavailable)
    del broker.errors[A]
    while A not in {(record.topic, record.partition) for record in reader.records}:
        with_trouble = await _one(reader)
        assert with_trouble in (b"0", b"1", None)


async def _one(reader: Reader) -> bytes | None:
    try:
        return (await reader.until(1))[0]
    except LogUnavailable:
        return None


async def test_an_error_of_a_partition_does_not_keep_its_reader_from_the_others(
    reader: Reader, broker: FakeBroker
) -> None:
    """A reader pauses after each error, and meanwhile the next one is there: it came to nothing else."""
    broker.errors[A] = NOT_ALLOWED
    reader.open(A, B)
    await reader.until_raised(LogUnavailable)
    await broker.append(B, batch(b"0"))
    asked = len(broker.asked)
    for _ in range(20):
        while reader.loop._feeds[A].trouble is None or reader.loop._feeds[B].held == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if taken := reader.loop.take([A, B], 10):
            break
    assert taken.keys() == {B}
    while not any(A in asking.wanted for asking in broker.asked[asked:]):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_partition_that_nobody_leads_for_long_is_told(
    reader: Reader, kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_loop, "_LEADERLESS_S", 0.0)
    kafka.leaders[A] = -1
    reader.open(A)
    assert "no broker leads topic/0" in str(await reader.until_raised(LogUnavailable))


async def test_a_broker_that_asks_for_a_pause_gets_it(reader: Reader, broker: FakeBroker) -> None:
    """Its answers are empty then, which would be asked for in a circle."""
    broker.throttle_ms = 1_000
    await broker.append(A, batch(b"0"))
    reader.open(A)
    await reader.until(1)
    await some_time()
    assert len(broker.asked) == 1
    broker.throttle_ms = 0
    await broker.append(A, batch(b"1"))
    assert await reader.until(1) == [b"1"]


async def test_whoever_takes_is_told_that_fetching_broke_off(
    reader: Reader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks run unseen: lanes would wait for ever, and keep their partitions."""
    reader.open(A)
    await broker.until_long()

    def fail(*_: object) -> bool:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(Feed, "accept", fail)
    await broker.append(A, batch(b"0"))
    error = await reader.until_raised(ConsumerBroken)
    assert "a mistake of ours" in str(error)


async def test_whoever_takes_is_told_of_a_turn_that_never_ends(
    reader: Reader, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.open(A)
    await broker.until_long()
    monkeypatch.setattr(fetch_loop, "_STUCK_S", 0.0)
    await reader.until_raised(ConsumerBroken)


async def test_whoever_takes_of_a_closed_one_is_told(kafka: FakeKafka) -> None:
    async with fetching(kafka) as reader:
        reader.open(A)
        await kafka.brokers[0].until_long()
    with pytest.raises(ConsumerClosed):
        reader.loop.take([A], 1)


async def test_tasks_and_connections_do_not_grow_with_partitions(kafka: FakeKafka, broker: FakeBroker) -> None:
    kafka.partitions["topic"] = 1_000
    async with fetching(kafka) as reader:
        reader.open(A)
        await broker.until_long()
        before = len(asyncio.all_tasks())
        reader.open(*(TopicPartition("topic", number) for number in range(1, 1_000)))
        await broker.until(lambda: sum(map(len, polled(broker))) == 1_000)
        # beside the tasks of the connections, there and here: a task group for the second link, its polls and its
        # short requests
        assert len(asyncio.all_tasks()) <= before + 3 + 2 * 3
        assert broker.connections <= 4
