"""The worker of the history: from the log into a store, through everything that happens to either."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import pytest
from msgspec import structs

from relay.clock import SystemClock
from relay.domain.attempt import encode_attempt, key_of
from relay.domain.hop import Hop, result_headers
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.message import Message, message_headers
from relay.domain.topics import Topics
from relay.engine.observer import Observer
from relay.engine.supervision import Retrier
from relay.history.port import FactBatch
from relay.log.port import Assignment, Coordinate, NewRecord, Subscription, TopicPartition
from tests.contract.history_contract import everything
from tests.contract.history_facts import attempt
from tests.fakes.history import MemoryHistory
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.log_reads import lag
from workers.history import GATHERED_BYTES, HistoryEvents, HistoryWorker, never_throttle

TOPICS = Topics()


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_S", "GATHER_S", "CHECK_EVERY_S", "PRUNE_EVERY_S"):
        monkeypatch.setattr(f"workers.history.{name}", 0.02)


class Heard(HistoryEvents):
    """Keeps the reports of the worker."""

    def __init__(self) -> None:
        self.records = self.unreadable = self.moves = self.prunes = 0
        self.gaps: dict[TopicPartition, tuple[int, int]] = {}
        self.far: dict[TopicPartition, int] = {}

    def wrote(self, records: int, unreadable: int) -> None:
        self.records += records
        self.unreadable += unreadable

    def lost(self, gaps: Mapping[TopicPartition, tuple[int, int]]) -> None:
        assert gaps
        self.gaps |= gaps

    def ahead(self, partitions: Mapping[TopicPartition, int]) -> None:
        self.far |= partitions

    def moved(self) -> None:
        self.moves += 1

    def pruned(self, messages: int) -> None:
        self.prunes += 1


class World:
    """A log, a store, and workers that come and go."""

    def __init__(self) -> None:
        self.broker, self.history, self.heard = MemoryBroker(), MemoryHistory(), Heard()
        self.log = MemoryLog(self.broker)
        self.stop = asyncio.Event()

    async def begin(self) -> None:
        await self.log.start()
        await self.log.create(TOPICS.fixed(), TOPICS.informational_groups())

    def worker(
        self,
        log: MemoryLog | None = None,
        *,
        at_once: int = 1_000,
        throttle: Callable[[float], float] = never_throttle,
        keep: int = 100,
    ) -> HistoryWorker:
        log, clock = log or self.log, SystemClock()
        return HistoryWorker(
            partial(log.consumer, Subscription(TOPICS.group("history"), _read())),
            log,
            self.history,
            TOPICS,
            clock,
            Retrier(clock, Observer()),
            keep=keep,
            retention_s=9e9,
            at_once=at_once,
            throttle=throttle,
            events=self.heard,
        )

    @asynccontextmanager
    async def working(self, *, at_once: int = 1_000, keep: int = 100) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.worker(at_once=at_once, keep=keep).run(stop))
            yield
            stop.set()

    async def send(self, *numbers: int) -> None:
        """Messages, each with an attempt and an answer."""
        for number in numbers:
            message = Message("shop", f"m-{number}", ("ci",), payload=b"{}")
            _, tried = attempt(f"m-{number}", offset=0, at=number)
            hop = Hop(DeliveryId("ci", "shop", f"m-{number}"), attempt=1, outcome="answered", answer_status=200)
            await self.log.append(
                [
                    NewRecord(TOPICS.from_sender, b"shop", message.payload, message_headers(message)),
                    NewRecord(TOPICS.delivery_attempts, key_of(tried), encode_attempt(tried)),
                    NewRecord(TOPICS.to_sender, b"shop", b"ok", result_headers(hop)),
                ]
            )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - the condition reads dictionaries
                await asyncio.sleep(0.005)

    async def until_has(self, count: int) -> None:
        """So many messages, with all that is known of them."""
        await self.until(lambda: sum(self.history._positions.values()) >= 3 * count)


def _read() -> tuple[str, ...]:
    return TOPICS.from_sender, TOPICS.to_sender, TOPICS.failed_messages, TOPICS.delivery_attempts


async def built() -> World:
    world = World()
    await world.begin()
    return world


@pytest.fixture
async def world() -> World:
    return await built()


async def test_what_happened_is_in_the_store(world: World) -> None:
    async with world.working():
        await world.send(1, 2)
        await world.until_has(2)

    found = await world.history.message(MessageId("shop", "m-1"))
    assert found is not None
    assert (found.arrival.size, found.arrival.body) == (2, b"{}")
    assert [(one.receiver, one.status, one.attempts) for one in found.deliveries] == [
        ("ci", "response_received_from_receiver", 1)
    ]
    assert (world.heard.records, world.heard.unreadable) == (6, 0)
    assert await lag(world.log, TOPICS.group("history"), TOPICS.from_sender) == 0


async def test_rubbish_is_counted_and_stops_nothing(world: World) -> None:
    huge = structs.replace(attempt("m", offset=0)[1], generation=2**70)
    await world.log.append(
        [NewRecord(topic, b"shop", value) for topic in _read() for value in (None, b"", b"\xff", b"{}", b"[" * 9_999)]
    )
    await world.log.append([NewRecord(TOPICS.delivery_attempts, b"shop", encode_attempt(huge))])
    world.broker.spoil(TOPICS.from_sender)

    async with world.working():
        await world.send(1)
        await world.until(lambda: world.heard.records >= 24)

    assert world.heard.unreadable >= 20
    assert await world.history.message(MessageId("shop", "m-1")) is not None


async def test_a_process_that_dies_between_write_and_commit_writes_nothing_twice(world: World) -> None:
    await world.send(1, 2, 3)
    dying = MemoryLog(world.broker)
    await dying.start()
    write = world.history.write

    async def die(*given: object) -> None:
        await write(*given)  # type: ignore[arg-type]
        dying.crash()

    world.history.write = die  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(world.worker(dying, at_once=2).run(asyncio.Event()))
    await world.until(lambda: world.history.writes > 0)
    world.history.write = write  # type: ignore[method-assign]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    async with world.working():
        await world.until_has(3)

    expected = await built()
    await expected.send(1, 2, 3)
    async with expected.working():
        await expected.until_has(3)
    assert counts(await everything(world.history)) == counts(await everything(expected.history))
    assert len((await everything(world.history))["messages"]) == 3


def counts(told: dict[str, object]) -> list[object]:
    return [told["minutes"], told["hours"], len(list(told["attempts"]))]  # type: ignore[call-overload]


async def test_while_the_store_is_away_it_waits_and_then_catches_up(world: World) -> None:
    world.history.available = False
    async with world.working(at_once=10):
        await world.send(*range(30))
        await world.until(lambda: world.history.refused >= 3)
        assert await lag(world.log, TOPICS.group("history"), TOPICS.from_sender) == 30
        world.history.available = True
        await world.until_has(30)

    assert (await world.history.size()).messages == 30


async def test_while_the_log_is_away_it_waits_and_goes_on(world: World) -> None:
    async with world.working():
        await world.send(1)
        await world.until_has(1)
        world.broker.available = False
        await asyncio.sleep(0.1)
        world.broker.available = True
        await world.send(2)
        await world.until_has(2)


async def test_it_rests_for_as_long_as_it_is_told_after_a_turn_and_stops_at_once(world: World) -> None:
    stop, told = asyncio.Event(), list[float]()
    world.broker.now_ms = lambda: round((time.time() - 90) * 1_000)

    def throttle(behind_s: float) -> float:
        told.append(behind_s)
        return 3600.0

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(world.worker(throttle=throttle).run(stop))
        await world.send(1)
        await world.until_has(1)
        await world.until(lambda: told != [])
        stop.set()
    (behind_s,) = told
    assert 90 <= behind_s < 150


async def test_it_stops_although_the_store_is_away(world: World) -> None:
    world.history.available = False
    async with world.working():
        await world.until(lambda: world.history.refused >= 2)


async def test_a_store_that_was_cleared_is_built_anew(world: World) -> None:
    async with world.working():
        await world.send(1, 2)
        await world.until_has(2)
        before = await everything(world.history)

        await world.history.clear()
        await world.until_has(2)
        assert await everything(world.history) == before

        await world.history.clear()
        await world.send(3)  # the next write notices
        await world.until_has(3)

    assert world.heard.moves == 2
    assert [one.arrival.message.message_id for one in (await everything(world.history))["messages"]] != []
    assert (await world.history.size()).messages == 3


async def test_tables_that_were_dropped_are_created_again_and_filled(world: World) -> None:
    async with asyncio.timeout(20), world.working():
        await world.send(1, 2)
        await world.until_has(2)

        world.history.dropped = True  # and no message comes
        await world.until(lambda: world.heard.moves == 1)
        await world.until_has(2)

        world.history.dropped = True
        await world.send(3)
        await world.until(lambda: world.heard.moves == 2)
        await world.until_has(3)

    world.history.dropped = True
    async with asyncio.timeout(20), world.working():
        await world.until(lambda: not world.history.dropped)
        world.history.dropped = True  # before or after it has determined where to begin
        await world.until_has(3)
    assert (await world.history.size()).messages == 3


async def test_a_copy_of_before_is_filled_up_although_the_group_is_further(world: World) -> None:
    async with world.working():
        await world.send(1, 2)
        await world.until_has(2)
    before = await everything(world.history)

    world.history = MemoryHistory()  # as after a restore, with nothing new in the log
    async with world.working():
        await world.until_has(2)

    assert await everything(world.history) == before


async def test_what_retention_removed_is_skipped_and_told(world: World) -> None:
    await world.send(1)
    async with world.working():
        await world.until_has(1)
    await world.send(*range(2, 6))
    [place] = {record.partition for record in world.broker.records(TOPICS.from_sender)}
    world.broker.drop_before(Coordinate(TOPICS.from_sender, place, 3))

    async with world.working():
        await world.until(lambda: world.history._positions[TopicPartition(TOPICS.from_sender, place)] == 5)

    assert world.heard.gaps == {TopicPartition(TOPICS.from_sender, place): (1, 3)}
    assert (await world.history.size()).messages == 3


async def test_a_first_start_reports_no_gap_for_what_retention_removed_before(world: World) -> None:
    await world.send(*range(5))
    [place] = {record.partition for record in world.broker.records(TOPICS.from_sender)}
    world.broker.drop_before(Coordinate(TOPICS.from_sender, place, 3))

    async with world.working():
        await world.until(lambda: world.history._positions.get(TopicPartition(TOPICS.from_sender, place)) == 5)

    assert world.heard.gaps == {}


async def test_topics_that_were_made_anew_under_it_are_read_from_their_begin_and_told(world: World) -> None:
    """Also where the relay has moved to another Kafka, and its history stays."""
    anew = {TopicPartition(topic, number): 1_000 for topic in _read() for number in range(10)}
    await world.history.write(FactBatch(), anew, {})
    await world.send(1)

    async with world.working():
        await world.until(lambda: bool(world.heard.far))
        await world.send(2)
        await world.until_has(2)

    assert world.heard.far == anew
    told = await everything(world.history)
    assert len(told["messages"]) == len(told["attempts"]) == 2


async def test_new_records_in_place_of_those_that_the_log_has_lost_are_taken(world: World) -> None:
    async with world.working():
        await world.send(*range(1, 6))
        await world.until_has(5)
    [place] = {record.partition for record in world.broker.records(TOPICS.from_sender)}
    for topic in (TOPICS.from_sender, TOPICS.to_sender, TOPICS.delivery_attempts):
        for number in range(10):
            world.broker.cut(Coordinate(topic, number, 2 if number == place else 0))
    await world.send(6, 7)

    async with world.working():
        await world.until(lambda: {("shop", "m-6"), ("shop", "m-7")} <= world.history._arrivals.keys())
    assert world.heard.far[TopicPartition(TOPICS.from_sender, place)] == 5


async def test_two_workers_share_the_partitions(world: World) -> None:
    other = MemoryLog(world.broker)
    await other.start()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.worker().run(stop))
        await world.send(1)
        await world.until_has(1)
        tasks.create_task(world.worker(other).run(stop))
        await world.send(*range(2, 20))
        await world.until_has(19)
        stop.set()

    told = await everything(world.history)
    assert len(told["messages"]) == len(told["attempts"]) == 19
    assert sum(sum(span.counts) for span in told["hours"]) == 38  # by outcome, and by time


async def test_a_partition_that_another_worker_had_meanwhile_goes_on_where_the_store_is(world: World) -> None:
    worker, at = world.worker(), TopicPartition(TOPICS.from_sender, 0)
    for start, is_placed in ((4, True), (9, False)):  # moved to 4, and assigned there, or later at 9
        worker._moved[at] = 4
        await worker._assigned([Assignment(at, 1, start)])
        assert (worker._next.pop(at, None), at in worker._fresh) == ((4, False) if is_placed else (None, True))
        assert not worker._moved


async def test_what_is_too_old_is_pruned_now_and_then(world: World) -> None:
    async with world.working():
        await world.until(lambda: world.heard.prunes >= 3)


class _Measured(MemoryHistory):
    """`largest`: bytes of the bodies of the largest batch."""

    largest = 0

    async def write(
        self, batch: FactBatch, next_offsets: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
    ) -> None:
        self.largest = max(self.largest, sum(len(one.body or b"") for one in batch.arrivals))
        await super().write(batch, next_offsets, first)


async def test_large_bodies_are_held_in_memory_up_to_a_limit(world: World) -> None:
    world.history = history = _Measured()
    size, count = 1_000_000, 3 * GATHERED_BYTES // 1_000_000
    for number in range(count):
        message = Message("shop", f"m-{number}", ("ci",), payload=bytes(size))
        await world.log.append([NewRecord(TOPICS.from_sender, b"shop", message.payload, message_headers(message))])

    async with world.working(keep=2 * size):
        await world.until(lambda: sum(history._positions.values()) == count)

    assert 2 * size < history.largest <= GATHERED_BYTES + size
