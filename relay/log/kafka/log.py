"""The log on Kafka, assembled from its parts in the modules beside this one."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final
from weakref import WeakSet

from aiokafka import codec
from aiokafka.record.default_records import DefaultRecordBatch

from relay.domain.errors import LogUnavailable, UserError
from relay.domain.topics import TopicSpec
from relay.log.kafka.admin import KafkaAdmin
from relay.log.kafka.client import KafkaClient, no_topic
from relay.log.kafka.cluster import GroupTiming, KafkaCluster
from relay.log.kafka.consumer import KafkaConsumer
from relay.log.kafka.feed import FetchMemory
from relay.log.kafka.fetch_loop import HELD_BYTES, OPENED_BYTES, FetchLoop
from relay.log.kafka.leader_epochs import ReadHistory
from relay.log.kafka.producer import KafkaProducer
from relay.log.kafka.reader import KafkaReader
from relay.log.port import Coordinate, NewRecord, OnAssigned, OnRevoked, Record, Subscription, TopicPartition

_HEARTBEAT_MS: Final = 1_000
_COMMIT_S: Final = 10.0


class KafkaLog(KafkaAdmin):
    """A log on a Kafka cluster. `replication_factor` None: the broker's default. `fetch_budget`: bytes of records that
    are fetched and not taken."""

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        replication_factor: int | None = None,
        session_timeout_ms: int = 15_000,
        heartbeat_interval_ms: int | None = None,
        fetch_budget: int = 4 * OPENED_BYTES,
    ) -> None:
        super().__init__(cluster, replication_factor)
        self._timing = GroupTiming(
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms or min(_HEARTBEAT_MS, session_timeout_ms // 3),
            commit_timeout_s=min(_COMMIT_S, cluster.request_timeout_s),
        )
        self._fetch_budget = fetch_budget
        self._fetching = [self._new_fetching()]
        self._fetched: list[dict[str, set[str]]] = [{}]
        """Of each loop: which topics it fetches for which group. A loop has a partition for one group only."""
        self._closing_loops: set[asyncio.Task[None]] = set()
        self._producer = KafkaProducer(cluster, self._client)
        reader = KafkaReader(self._client, self._specs_of)
        self.read, self.scan = reader.read, reader.scan
        self._specs: dict[str, TopicSpec] = {}
        self._consumers: WeakSet[KafkaConsumer] = WeakSet()
        self._followers: set[KafkaClient] = set()
        self._files: asyncio.Task[None] | None = None
        self._followed: dict[str, ReadHistory] = {}
        """By topic, so that a follower that continues after a pause notices whether the log has lost its end."""

    async def start(self) -> None:
        """Raises LogUnavailable if no broker answers, UserError if one rejects us, or the client library is
        incomplete."""
        _check_library()
        try:
            await self._producer.start()
        except LogUnavailable as error:
            if (why := await self._cluster.refusal()) is not None:
                raise UserError(why) from error
            raise
        self._fetching[0].start()
        self._files = asyncio.create_task(self._cluster.follow_files())

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        return await self._producer.append(records) if records else []

    def consumer(self, subscription: Subscription, on_assigned: OnAssigned, on_revoked: OnRevoked) -> KafkaConsumer:
        """As the port says. `on_revoked` has to return within the rebalance timeout, 20 s, when it is called because
        this member leaves: then the group continues."""
        consumer = KafkaConsumer(
            self._cluster,
            self._timing,
            subscription,
            on_assigned,
            on_revoked,
            self._client,
            self._working_fetching(self._loop_for(subscription.group, subscription.topics)),
        )
        self._consumers.add(consumer)
        return consumer

    def _new_fetching(self) -> FetchLoop:
        held, opened = min(HELD_BYTES, self._fetch_budget // 4), min(OPENED_BYTES, self._fetch_budget // 2)
        return FetchLoop(self._cluster, self._client.layout, self._client.epoch_ends, FetchMemory(held, opened))

    def _loop_for(self, group: str, topics: Collection[str]) -> int:
        """The number of the first loop in which no other group reads any of `topics`."""
        number = 0
        while any(other != group and set(topics) & theirs for other, theirs in self._fetched[number].items()):
            number += 1
            if number == len(self._fetched):
                self._fetched.append({})
                self._fetching.append(self._new_fetching())
                self._fetching[number].start()
        self._fetched[number].setdefault(group, set()).update(topics)
        return number

    def _working_fetching(self, number: int) -> FetchLoop:
        """The loop with this number; a new one if it is broken."""
        if self._fetching[number].is_broken:
            closing = asyncio.create_task(self._fetching[number].close())
            self._closing_loops.add(closing)
            closing.add_done_callback(self._closing_loops.discard)
            self._fetching[number] = self._new_fetching()
            self._fetching[number].start()
        return self._fetching[number]

    async def cluster_id(self) -> str:
        return (await self._client.layout([])).cluster or ""

    async def topic_id(self, topic: str) -> str:
        return (await self._client.layout([topic])).ids.get(topic, "").rpartition("/")[2]

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._client.offsets(partitions, "latest")

    async def follow(self, topic: str, *, start: int | None = None) -> AsyncGenerator[Record | None, None]:
        client = KafkaClient(self._cluster)
        self._followers.add(client)
        try:
            history = self._followed.get(topic, ReadHistory()) if start is not None else ReadHistory()
            self._followed[topic] = history
            async with aclosing(KafkaReader(client, self._specs_of).follow(topic, history, start)) as records:
                async for record in records:
                    yield record
        finally:
            self._followers.discard(client)
            await client.close()

    async def close(self) -> None:
        """Consumers that are still open leave their groups; appends in flight get 5 s."""
        if self._files is not None:
            self._files.cancel()
        await asyncio.gather(*(consumer.close() for consumer in self._consumers))
        await asyncio.gather(*(loop.close() for loop in self._fetching), *self._closing_loops)
        await asyncio.gather(*(client.close() for client in self._followers), self._producer.close())
        await self._client.close()

    async def _specs_of(self, partitions: Collection[TopicPartition]) -> Mapping[str, TopicSpec]:
        """The topics of these partitions, looked up again where one did not have that partition before. Raises
        LogUnavailable if one is missing."""
        known = self._specs
        unknown = {at.topic for at in partitions if at.topic not in known or at.partition >= known[at.topic].partitions}
        if unknown:
            states = await self.describe(sorted(unknown))
            if missing := unknown - states.keys():
                raise no_topic(*sorted(missing))
            known |= {topic: state.spec for topic, state in states.items()}
        return known


def _check_library() -> None:
    """Without a codec the first record that a sender compressed with it blocks its partition for ever; without its C
    extension the library is many times slower, without a warning."""
    if not (codec.has_lz4() and codec.has_snappy() and codec.has_zstd()):
        raise UserError("aiokafka lacks its compression codecs; install them: pip install 'webhook-relay[zstd]'")
    if DefaultRecordBatch.__module__ == "aiokafka.record.default_records":
        raise UserError("aiokafka runs without its C extension; install a wheel, and unset AIOKAFKA_NO_EXTENSIONS")
