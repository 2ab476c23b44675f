"""Appends to Kafka: acknowledged by all in-sync replicas, in order per partition, given up in bounded time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder

from relay.domain.errors import LogUnavailable, RecordTooLarge
from relay.log.kafka_client import kafka_errors
from relay.log.kafka_closing import ends_within
from relay.log.kafka_settings import Cluster
from relay.log.partitioner import partition_of
from relay.log.port import Coordinate, NewRecord, TopicPartition

_MARGIN_S: Final = 5.0
"""An append may take longer than a batch lives by so much: mostly it ends because its records were given up, not while
they still may go."""

_BATCH_BYTES: Final = 131_072
"""Before compression. The library's 16 KiB hold 8 records of 2 kB; it has one batch per partition in flight."""

_STALE_S: Final = 60.0
"""Failing for so long, the producer starts anew from the bootstrap servers: the cluster may have other addresses."""

_FLUSH_S: Final = 5.0
_CLOSE_S: Final = 3.0

_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)

EnsureTopic = Callable[[str], Awaitable[None]]


class KafkaProducer:
    """One producer for the process, shared by all its tasks.

    Idempotence is off: a batch of an idempotent producer that fails for good wedges all later ones (aiokafka #1017).
    `ensure_topic` raises LogUnavailable for a topic that is missing; the library would create it, or wait for it.
    """

    def __init__(self, cluster: Cluster, max_record_bytes: int, ensure_topic: EnsureTopic) -> None:
        self._cluster = cluster
        self._max_record_bytes = max_record_bytes
        self._ensure_topic = ensure_topic
        self._patience_s = cluster.request_timeout_s + _MARGIN_S
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._failing_since: float | None = None
        self._closed = False

    async def start(self) -> None:
        """Raises LogUnavailable when no broker answers."""
        with kafka_errors(f"no broker answers at {self._cluster.servers}"):
            async with asyncio.timeout(self._patience_s):
                await self._started()

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        """As the port says. Nothing of it is under way any more when it raises, unless the broker hangs."""
        try:
            with kafka_errors("appending"):
                async with asyncio.timeout(self._patience_s):
                    coordinates = await self._append(records)
        except LogUnavailable as error:
            if isinstance(error.__cause__, _TOO_LARGE):
                raise RecordTooLarge(str(error.__cause__)) from error
            self._failing_since = self._failing_since or asyncio.get_running_loop().time()
            raise
        self._failing_since = None
        return coordinates

    async def close(self) -> None:
        self._closed = True
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stop(producer)

    async def _append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        producer = await self._started()
        places: dict[TopicPartition, list[int]] = {}
        for index, record in enumerate(records):
            places.setdefault(await self._place(producer, record), []).append(index)
        sends: list[asyncio.Future[Any]] = []
        try:
            for place, indexes in places.items():
                sends.append(await self._send(producer, place, [records[n] for n in indexes]))
        except BaseException:
            for send in sends:
                send.cancel()
            raise
        # gather, not a task group: one partition's failure must not leave the others' records half sent and unknown.
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        coordinates: dict[int, Coordinate] = {}
        for (place, indexes), outcome in zip(places.items(), outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise _worst(outcomes)
            offsets = outcome if isinstance(outcome, list) else [outcome.offset]
            coordinates |= {n: Coordinate(*place, offset) for n, offset in zip(indexes, offsets, strict=True)}
        return [coordinates[n] for n in range(len(records))]

    async def _place(self, producer: AIOKafkaProducer, record: NewRecord) -> TopicPartition:
        known = producer.client.cluster.partitions_for_topic(record.topic)
        if known is None:
            await self._ensure_topic(record.topic)
            known = await producer.partitions_for(record.topic)
        return TopicPartition(record.topic, partition_of(record.key, len(known)))

    async def _send(
        self, producer: AIOKafkaProducer, place: TopicPartition, records: Sequence[NewRecord]
    ) -> asyncio.Future[Any]:
        """Hand `records` over; the result gives, and raises, what came of it: RecordMetadata of one, else offsets.

        A single record is no task of its own, and shares a batch with those of other callers, which `linger_ms` waits
        for: records that go to as many topics are the usual case.
        """
        record = records[0]
        if len(records) > 1 or (record.key is None and record.value is None):  # `send` refuses the latter
            return asyncio.ensure_future(self._send_batches(producer, place, records))
        try:
            acknowledged: asyncio.Future[Any] = await producer.send(
                place.topic, record.value, record.key, place.partition, headers=list(record.headers)
            )
        except KafkaError as error:
            acknowledged = asyncio.get_running_loop().create_future()
            acknowledged.set_exception(error)
        return acknowledged

    async def _send_batches(
        self, producer: AIOKafkaProducer, place: TopicPartition, records: Sequence[NewRecord]
    ) -> list[int]:
        """A batch is sent when the one before it is acknowledged, so that none overtakes one that failed."""
        offsets: list[int] = []
        for batch in self._batches(producer, records):
            sent = await (await producer.send_batch(batch, place.topic, partition=place.partition))
            offsets.extend(range(sent.offset, sent.offset + batch.record_count()))
        return offsets

    def _batches(self, producer: AIOKafkaProducer, records: Sequence[NewRecord]) -> list[BatchBuilder]:
        batches = [producer.create_batch()]
        for record in records:
            added = _added(batches[-1], record)
            if added is None:
                batches.append(producer.create_batch())
                added = _added(batches[-1], record)
            if added is None or added > self._max_record_bytes:
                raise MessageSizeTooLargeError(
                    f"{record.topic}: a record of {added} bytes; {self._max_record_bytes} are allowed"
                )
        for batch in batches:
            batch.close()  # else single records of other callers would be added to it
        return batches

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._closed:
                raise LogUnavailable("Kafka: this log is closed")
            if self._producer is not None and self._is_spent(self._producer):
                spent, self._producer, self._failing_since = self._producer, None, None
                await _stop(spent)
            if self._producer is None:
                self._producer = await self._new()
            return self._producer

    def _is_spent(self, producer: AIOKafkaProducer) -> bool:
        """Whether it will never send again: its background task died, or it may be talking to nobody."""
        if producer._sender.sender_task.done():
            return True
        return self._failing_since is not None and asyncio.get_running_loop().time() - self._failing_since > _STALE_S

    async def _new(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._cluster.arguments(),
            acks="all",
            enable_idempotence=False,
            linger_ms=3,
            compression_type="lz4",
            request_timeout_ms=self._cluster.request_timeout_ms,
            max_batch_size=_BATCH_BYTES,
            max_request_size=self._max_record_bytes,
        )
        try:
            await producer.start()
        except BaseException:
            await _stop(producer)
            raise
        return producer


def _worst(outcomes: Sequence[object]) -> BaseException:
    """The failure that counts most: no repeat helps a record that is too large."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    return next((failure for failure in failures if isinstance(failure, _TOO_LARGE)), failures[0])


def _added(batch: BatchBuilder, record: NewRecord) -> int | None:
    """The bytes by which `record` makes `batch` grow; None if it does not fit in any more."""
    added = batch.append(timestamp=None, key=record.key, value=record.value, headers=list(record.headers))
    return None if added is None else added.size


async def _stop(producer: AIOKafkaProducer) -> None:
    """Send what is pending, if that goes quickly; else fail it, so that nobody waits for it."""
    if not await ends_within(producer.stop(), _FLUSH_S):
        producer._message_accumulator.fail_all(KafkaError("the log was closed"))
        await ends_within(producer._sender.close(), _CLOSE_S)
    await ends_within(producer.client.close(), _CLOSE_S)
