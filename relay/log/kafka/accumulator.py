"""Accumulator of the records that all tasks of the process append: one batch after another per partition.

Each partition has one batch in flight; later appends go into the next one, which is sent as soon as the first is
acknowledged. So batches grow with the load, and none overtakes one that failed. A call of
`append` waits for one future, whatever the number of its records; their offsets follow from those of the batches.

The library's sender has one request in flight per broker, with one batch of each partition that has one waiting. A
batch that it has not taken yet still accepts records.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder

from relay.domain.errors import LogUnavailable, PartlyAppended, RecordTooLarge, RelayError
from relay.log.kafka.client import described
from relay.log.partitioner import place_of
from relay.log.port import Coordinate, NewRecord, TopicPartition, size_of

_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)
_NOWHERE: Final = Coordinate("", -1, -1)


class Sender(Protocol):
    """Sends the batches. `send` is called for one batch of a partition at a time."""

    def new_batch(self) -> BatchBuilder: ...

    def send(self, batch: BatchBuilder, place: TopicPartition) -> asyncio.Future[Any]:
        """The future gives an object with `offset`, that of the first record, or raises KafkaError; so does this."""
        ...

    def partitions(self, topic: str) -> int:
        """Number of partitions; 0 if the topic is not known."""
        ...


@dataclass(eq=False, slots=True)
class Append:
    """One call of `append`. It has ended when no batch holds any of its records; with `error` set it has failed."""

    records: Sequence[NewRecord]
    deadline: float
    outcome: asyncio.Future[None]
    coordinates: list[Coordinate]
    """One for each record; _NOWHERE until it is acknowledged."""
    holders: int = 0
    """Batches that hold records of it."""
    error: RelayError | None = None

    def fail(self, error: RelayError) -> None:
        """RecordTooLarge takes precedence over other errors, because a repeat cannot succeed."""
        if isinstance(self.error, RecordTooLarge) and isinstance(error, RecordTooLarge):
            error.rejected |= self.error.rejected
        if self.error is None or isinstance(error, RecordTooLarge):
            self.error = error

    def end(self) -> None:
        """Set the result of the caller, unless it no longer waits."""
        if self.outcome.done():
            return
        if self.error is None:
            self.outcome.set_result(None)
        else:
            self.outcome.set_exception(self._with_places(self.error))

    def _with_places(self, error: RelayError) -> RelayError:
        """`error`, with the coordinates of the records that are acknowledged nevertheless."""
        places = {index: at for index, at in enumerate(self.coordinates) if at is not _NOWHERE}
        if not places or not isinstance(error, LogUnavailable):
            return error
        partly = PartlyAppended(str(error), places)
        partly.__cause__ = error.__cause__
        return partly

    def leave(self) -> None:
        """The caller no longer waits."""
        if not self.outcome.cancel() and not self.outcome.cancelled():
            self.outcome.exception()


@dataclass(eq=False, slots=True)
class Batch:
    """Records of one partition. `shares`: the calls, in order, each with the indexes of its records."""

    builder: BatchBuilder
    shares: list[tuple[Append, list[int]]] = field(default_factory=list)

    def add(self, call: Append, index: int) -> bool:
        """False if the batch is full."""
        record = call.records[index]
        headers = list(record.headers)
        if self.builder.append(timestamp=None, key=record.key, value=record.value, headers=headers) is None:
            return False
        if self.shares and self.shares[-1][0] is call:
            self.shares[-1][1].append(index)
        else:
            self.shares.append((call, [index]))
            call.holders += 1
        return True


@dataclass(eq=False, slots=True)
class PartitionQueue:
    """The batches of a partition: the one `sent` and not acknowledged, and those `waiting` behind it, in order."""

    place: TopicPartition
    sent: Batch | None = None
    waiting: deque[Batch] = field(default_factory=deque)
    newest: Batch | None = None
    """The last of them, if it may take more records."""
    is_ready: bool = False
    """It is among those to be sent next."""

    def retire(self, batch: Batch) -> None:
        """`batch` has ended."""
        if self.newest is batch:
            self.newest = None


class Accumulator:
    """Collects records into batches, one for each partition, and has them sent. `max_record_bytes`: larger records,
    with the header of their batch, are rejected. `patience_s`: for one call."""

    def __init__(self, sender: Sender, max_record_bytes: int, patience_s: float) -> None:
        self._sender = sender
        self._patience_s = patience_s
        self._max_record_bytes = max_record_bytes
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[TopicPartition, PartitionQueue] = {}
        self._topics: dict[str, list[PartitionQueue]] = {}
        self._looked_for: dict[str, int] = {}
        self._calls: dict[Append, None] = {}
        self._ready: list[PartitionQueue] = []
        self._flushing: asyncio.Handle | None = None
        self._expiring: asyncio.TimerHandle | None = None

    def unknown(self, records: Sequence[NewRecord]) -> list[str]:
        """The topics of these records whose partitions are not all known yet."""
        topics = self._topics
        found: dict[str, None] = {}
        for record in records:
            lanes = topics.get(record.topic) or self._learn(record.topic)
            if not lanes or len(lanes) < record.spread > self._looked_for.get(record.topic, 0):
                found[record.topic] = None
        return list(found)

    def take_as_they_are(self, topics: Collection[str], records: Sequence[NewRecord]) -> None:
        """These topics have fewer partitions than the records say: use the existing ones."""
        for record in records:
            if record.topic in topics:
                self._looked_for[record.topic] = max(record.spread, self._looked_for.get(record.topic, 0))

    def forget_topics(self) -> None:
        """The cluster's metadata have changed: read the numbers of partitions again."""
        self._topics.clear()
        self._looked_for.clear()
        self._lanes = {place: lane for place, lane in self._lanes.items() if lane.sent or lane.waiting}

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        """Where each record went. Their topics are known. Raises LogUnavailable, RecordTooLarge."""
        deadline, outcome = self._loop.time() + self._patience_s, self._loop.create_future()
        call = Append(records, deadline, outcome, [_NOWHERE] * len(records))
        self._calls[call] = None
        try:
            self._place(call)
            self._schedule()
            if self._expiring is None:
                self._expiring = self._loop.call_at(call.deadline, self._expire)
            if not call.holders:
                call.end()
            await call.outcome
        except BaseException as error:
            call.fail(LogUnavailable(f"Kafka: appending: given up: {error!r}"))  # records that were not sent never are
            call.leave()
            raise
        finally:
            del self._calls[call]
        return call.coordinates

    async def flush(self, timeout_s: float) -> None:
        """Wait until all present appends have ended."""
        if outcomes := [call.outcome for call in self._calls]:
            await asyncio.wait(outcomes, timeout=timeout_s)

    def close(self) -> None:
        """Fail the remaining appends, and send no more."""
        for timer in (self._expiring, self._flushing):
            if timer is not None:
                timer.cancel()
        for call in self._calls:
            call.fail(LogUnavailable("Kafka: appending: the log was closed"))
            call.end()
        for lane in self._lanes.values():
            lane.waiting.clear()

    def _learn(self, topic: str) -> list[PartitionQueue]:
        places = [TopicPartition(topic, number) for number in range(self._sender.partitions(topic))]
        lanes = [self._lanes.setdefault(place, PartitionQueue(place)) for place in places]
        if lanes:
            self._topics[topic] = lanes
        return lanes

    def _place(self, call: Append) -> None:
        topics = self._topics
        for index, record in enumerate(call.records):
            lanes = topics[record.topic]
            lane = lanes[place_of(record.key, record.spread, len(lanes))]
            if lane.newest is None or not lane.newest.add(call, index):
                if (size := size_of(record)) > self._max_record_bytes:  # before it is copied into a batch
                    call.fail(_too_large(lane.place, [index], size, f"{self._max_record_bytes} are allowed"))
                    return
                batch = Batch(self._sender.new_batch())
                batch.add(call, index)
                if batch.builder.size() > self._max_record_bytes:
                    call.holders -= 1
                    size = batch.builder.size()
                    call.fail(_too_large(lane.place, [index], size, f"{self._max_record_bytes} are allowed"))
                    return
                lane.newest = batch
                lane.waiting.append(batch)
                self._make_ready(lane)

    def _make_ready(self, lane: PartitionQueue) -> None:
        if lane.sent is None and not lane.is_ready:
            lane.is_ready = True
            self._ready.append(lane)

    def _schedule(self) -> None:
        """Send the ready batches after this iteration of the event loop, so that all its callers share them."""
        if self._ready and self._flushing is None:
            self._flushing = self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        self._flushing = None
        ready, self._ready = self._ready, []
        for lane in ready:
            lane.is_ready = False
            self._send_next(lane)

    def _send_next(self, lane: PartitionQueue) -> None:
        while lane.waiting and lane.sent is None:
            batch = self._living(lane, lane.waiting.popleft())
            if not batch.shares:
                continue
            try:
                delivery = self._sender.send(batch.builder, lane.place)
            except KafkaError as error:
                self._failed(lane, batch, error)
                continue
            lane.sent = batch
            delivery.add_done_callback(partial(self._delivered, lane, batch))

    def _living(self, lane: PartitionQueue, batch: Batch) -> Batch:
        """`batch` without the records of calls that have failed meanwhile: these will be appended again."""
        if all(call.error is None for call, _ in batch.shares):
            return batch
        living = Batch(self._sender.new_batch())
        for call, indexes in batch.shares:
            if call.error is None and not all(living.add(call, index) for index in indexes):
                # A clock that was set back makes the same records a few bytes longer.
                call.fail(LogUnavailable("Kafka: appending: the records do not fit in their batch any more"))
            self._release(call)
        if lane.newest is batch:
            lane.newest = living if living.shares else None
        return living

    def _delivered(self, lane: PartitionQueue, batch: Batch, delivery: asyncio.Future[Any]) -> None:
        lane.sent = None
        error = delivery.exception()
        if error is None:
            self._acknowledged(lane, batch, delivery.result().offset)
        else:
            self._failed(lane, batch, error)
        if lane.waiting:
            self._make_ready(lane)
            self._schedule()

    def _acknowledged(self, lane: PartitionQueue, batch: Batch, offset: int) -> None:
        lane.retire(batch)
        topic, partition = lane.place
        for call, indexes in batch.shares:
            for index in indexes:
                call.coordinates[index] = Coordinate(topic, partition, offset)
                offset += 1
            self._release(call)

    def _failed(self, lane: PartitionQueue, batch: Batch, error: BaseException) -> None:
        lane.retire(batch)
        if isinstance(error, _TOO_LARGE) and batch.builder.record_count() > 1:
            lane.waiting.extendleft(reversed(self._split(batch)))  # the topic has a lower limit: find the record
            return
        for call, indexes in batch.shares:
            call.fail(_failure(lane.place, indexes, batch, error))
            self._release(call)

    def _split(self, batch: Batch) -> list[Batch]:
        """Its records, each in a batch of its own."""
        singles: list[Batch] = []
        for call, indexes in batch.shares:
            for index in indexes:
                singles.append(Batch(self._sender.new_batch()))
                singles[-1].add(call, index)
            self._release(call)
        return singles

    def _release(self, call: Append) -> None:
        call.holders -= 1
        if not call.holders:
            call.end()

    def _expire(self) -> None:
        """Fails the calls that timed out. Records that the library already has may still be stored."""
        self._expiring = None
        overdue: list[Append] = []
        for call in self._calls:
            if call.deadline > self._loop.time():
                self._expiring = self._loop.call_at(call.deadline, self._expire)
                break
            overdue.append(call)
        for call in overdue:
            call.fail(LogUnavailable("Kafka: appending: no answer in time"))
            call.end()


def _failure(place: TopicPartition, indexes: Sequence[int], batch: Batch, error: BaseException) -> RelayError:
    """A copy for each call: an exception that several tasks raise would collect all their tracebacks."""
    if isinstance(error, _TOO_LARGE):
        failure: RelayError = _too_large(place, indexes, batch.builder.size(), "more than its topic takes")
    else:
        failure = LogUnavailable(f"Kafka: appending to {place}: {described(error)}")
    failure.__cause__ = error
    return failure


def _too_large(place: TopicPartition, indexes: Sequence[int], size: int, limit: str) -> RecordTooLarge:
    return RecordTooLarge(f"{place.topic}: a record of {size} bytes; {limit}", indexes)
