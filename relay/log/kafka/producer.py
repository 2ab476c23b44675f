"""Producer for Kafka: acknowledged by all in-sync replicas, in order per partition, given up in bounded time."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import TopicPartition as KafkaPartition

from relay.domain.errors import LogUnavailable
from relay.log.kafka.accumulator import Accumulator
from relay.log.kafka.client import KafkaClient, kafka_errors
from relay.log.kafka.cluster import KafkaCluster, ends_within, translate_lost_connections
from relay.log.port import Coordinate, NewRecord, TopicPartition

_MARGIN_S: Final = 5.0
"""Seconds that an append may take longer than its batch, so that it usually ends after its records were given up, not
while they may still be sent."""

_BATCH_BYTES: Final = 131_072
"""Before compression. The library's 16 KiB hold 8 records of 2 kB; there is one batch per partition in flight."""

_COMPRESSION: Final = "snappy"
"""The least CPU of producer, broker and consumer together, for JSON of 1 kB in batches of ten and more, and half the
bytes: it saves more copying than it costs. lz4 as the library does it (level 9) costs five times as much."""

_REQUEST_BYTES: Final = 16 * 1024**2
"""Bytes of the batches in one request, before compression. A broker closes the connection at more than
`socket.request.max.bytes`, 100 MiB by default, and at each repetition."""

_STALE_S: Final = 60.0
"""After failing for this long, the producer starts again from the bootstrap servers: the cluster may have other
addresses."""

_LOOKS: Final = 20
_LOOK_S: Final = 0.1
"""How often a producer looks for partitions that a topic should have: another broker may not know of them yet. A topic
that has really fewer must not block it."""

_FLUSH_S: Final = 5.0
_CLOSE_S: Final = 3.0


class _LibrarySender:
    """The library's producer, adapted to the accumulator. `send_batch` would create a coroutine and two futures for
    each batch, to wait for facts that are known here: the topic, and that no other batch of the partition is there.
    Its sender would put a batch of every waiting partition of a broker into one request, however large that becomes.

    Written for aiokafka 0.14.
    """

    def __init__(self, producer: AIOKafkaProducer, read_partitions: Mapping[str, int]) -> None:
        self._producer = producer
        self._read = read_partitions
        self._batches = producer._message_accumulator
        self._drain = self._batches.drain_by_nodes
        self._batches.drain_by_nodes = self._drain_some

    def new_batch(self) -> BatchBuilder:
        return self._producer.create_batch()

    def send(self, batch: BatchBuilder, place: TopicPartition) -> asyncio.Future[Any]:
        if self._batches._exception is not None or self._batches._closed:
            raise KafkaError("the producer has stopped")
        delivery: asyncio.Future[Any] = self._batches._append_batch(batch, KafkaPartition(*place)).future
        return delivery

    def partitions(self, topic: str) -> int:
        there = len(self._producer.client.cluster.partitions_for_topic(topic) or ())
        return min(there, self._read.get(topic, there))

    def _drain_some(self, ignore_nodes: Collection[int], muted_partitions: Set[KafkaPartition]) -> Any:
        """What the library sends now: by broker the batches that fit in one request, at least one. The others keep
        their places, and follow with the next request."""
        sizes: dict[int | None, int] = defaultdict(int)
        late: set[KafkaPartition] = set()
        for place, batches in self._batches._batches.items():
            if place not in muted_partitions:
                leader, size = self._producer.client.cluster.leader_for_partition(place), batches[0]._builder.size()
                if 0 < sizes[leader] > _REQUEST_BYTES - size:
                    late.add(place)
                else:
                    sizes[leader] += size
        return self._drain(ignore_nodes, muted_partitions | late)


class _RunningProducer(NamedTuple):
    """A producer of the library, and the accumulator that feeds it."""

    producer: AIOKafkaProducer
    accumulator: Accumulator


class KafkaProducer:
    """One producer for the process, shared by all its tasks.

    Idempotence is off: a batch of an idempotent producer that fails for good blocks all later ones (aiokafka #1017).
    `client`: to look for topics; the library would create a missing one, or wait for it.
    """

    def __init__(self, cluster: KafkaCluster, client: KafkaClient) -> None:
        self._cluster = cluster
        self._client = client
        self._patience_s = cluster.request_timeout_s + _MARGIN_S
        self._running: _RunningProducer | None = None
        self._starting = asyncio.Lock()
        self._failing_since: float | None = None
        self._closed = False

    async def start(self) -> None:
        """Raises LogUnavailable when no broker answers."""
        with kafka_errors(f"no broker answers at {self._cluster.servers} (RELAY_KAFKA_BOOTSTRAP_SERVERS)"):
            async with asyncio.timeout(self._patience_s):
                await self._started()

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        """As the port says. When it raises, no part of it is in flight any more, unless the broker hangs.

        Order also holds between calls: that of the calls; for the first call that names a topic, that in which its
        topics became known.
        """
        try:
            coordinates = await self._append(records)
        except LogUnavailable:
            self._failing_since = self._failing_since or asyncio.get_running_loop().time()
            raise
        self._failing_since = None
        return coordinates

    async def close(self) -> None:
        self._closed = True
        running, self._running = self._running, None
        if running is not None:
            await _stop(running)

    async def _append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        running = self._running
        if running is not None and not self._is_spent(running) and not running.accumulator.unknown(records):
            return await running.accumulator.append(records)
        with kafka_errors("appending"):
            async with asyncio.timeout(self._patience_s):
                accumulator = await self._prepared(records)
                return await accumulator.append(records)

    async def _prepared(self, records: Sequence[NewRecord]) -> Accumulator:
        """An accumulator that knows the topics of `records`. All are looked up together, as the library asks for all
        topics that it knows each time."""
        looks = 0
        while True:
            running = await self._started()
            topics = running.accumulator.unknown(records)
            if not topics:
                return running.accumulator
            await self._client.existing(topics)
            for topic in topics:
                running.producer.client.add_topic(topic)
            for topic in topics:
                await running.producer.partitions_for(topic)
            if grown := running.accumulator.unknown(records):  # by what the records say
                looks += await running.producer.client.force_metadata_update()
                if looks > _LOOKS:
                    running.accumulator.take_as_they_are(grown, records)
                else:
                    await asyncio.sleep(_LOOK_S if looks > 1 else 0)

    async def _started(self) -> _RunningProducer:
        async with self._starting:
            if self._closed:
                raise LogUnavailable("Kafka: this log is closed")
            if self._running is not None and self._is_spent(self._running):
                spent, self._running, self._failing_since = self._running, None, None
                await _stop(spent)
            if self._running is None:
                self._running = await self._new()
            return self._running

    def _is_spent(self, running: _RunningProducer) -> bool:
        """Whether it will never send again: its background task died, or its connection may be dead."""
        if running.producer._sender.sender_task.done():
            return True
        return self._failing_since is not None and asyncio.get_running_loop().time() - self._failing_since > _STALE_S

    async def _new(self) -> _RunningProducer:
        producer = AIOKafkaProducer(
            **self._cluster.arguments(),
            acks="all",
            enable_idempotence=False,
            linger_ms=0,  # the accumulator gathers
            compression_type=_COMPRESSION,
            request_timeout_ms=self._cluster.request_timeout_ms,
            max_batch_size=min(_BATCH_BYTES, self._cluster.max_record_bytes),
        )
        translate_lost_connections(producer.client)
        try:
            await self._cluster.connects(producer.start())
        except BaseException:
            await _disconnect(producer)
            raise
        sender = _LibrarySender(producer, self._cluster.read_partitions)
        accumulator = Accumulator(sender, self._cluster.max_record_bytes, self._patience_s)
        producer.client.cluster.add_listener(lambda _: accumulator.forget_topics())
        return _RunningProducer(producer, accumulator)


async def _stop(running: _RunningProducer) -> None:
    """Send pending records, if that is quick; otherwise fail them, so that no caller waits for them."""
    await running.accumulator.flush(_FLUSH_S)
    running.accumulator.close()
    await _disconnect(running.producer)


async def _disconnect(producer: AIOKafkaProducer) -> None:
    batches = producer._message_accumulator
    batches.fail_all(KafkaError("the log was closed"))  # stop would wait for them
    for queue in batches._batches.values():
        for batch in queue:
            batch._drain_waiter.exception()  # marks it as retrieved: no task waits for it, and that would be logged
    await ends_within(producer.stop(), _CLOSE_S)
    if producer._sender.sender_task is not None:
        await ends_within(producer._sender.close(), _CLOSE_S)
    await ends_within(producer.client.close(), _CLOSE_S)
