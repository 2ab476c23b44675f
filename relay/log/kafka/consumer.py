"""A member of a consumer group on Kafka.

The library's getmany(timeout) must not be cancelled, ignores its timeout while partitions are being reassigned, throws
away what it fetched for a paused partition, and loses records where one partition cannot be parsed. So what it fetched
is taken from it directly (`fetched`), of the partitions that are ours and not paused; the waiting is done here. A
partition that waits keeps the one fetch that it has: the library is not told.

The library fetches again as soon as all that it had fetched from a broker has been taken. A busy process holds it back
for a while (`FetchPace`), by pausing it as a whole: else every fetch would bring one or two records.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.structs import TopicPartition as KafkaPartition

from relay.domain.errors import ConsumerClosed, LogUnavailable, OffsetMissing, PartitionLost
from relay.log.kafka import fetched, membership
from relay.log.kafka.client import KafkaClient, described, kafka_errors, no_topic
from relay.log.kafka.closing import ends_within
from relay.log.kafka.record_batches import as_record
from relay.log.kafka.settings import FETCH_ALL_BYTES, FETCH_BYTES, Cluster, GroupTiming
from relay.log.kafka.watchdog import Watchdog
from relay.log.pacing import FetchPace
from relay.log.port import Assignment, OnAssigned, OnRevoked, Record, TopicPartition

_REVOKE_S: Final = 15.0
"""For `on_revoked` when we leave: requests in flight (5 s) and a last commit. Below the rebalance timeout."""

_STOP_S: Final = 10.0
_DISCONNECT_S: Final = 2.0
_START_S: Final = 30.0
_TICK_S: Final = 5.0
"""A waiting poll looks after itself so often."""

_LONE_WAIT_MS: Final = 10_000
"""How long the broker holds an empty fetch; new data ends it at once. Thousands of idle receivers ask so seldom."""

_SHARED_WAIT_MS: Final = 500
"""The same with several partitions: one that was paused meanwhile joins only the next fetch."""


class KafkaConsumer:
    """As the port says. `client`: for what the library's consumer does not tell."""

    def __init__(
        self,
        cluster: Cluster,
        timing: GroupTiming,
        group: str,
        topics: Sequence[str],
        on_assigned: OnAssigned,
        on_revoked: OnRevoked,
        client: KafkaClient,
        pace: FetchPace,
        rank: int = 0,
    ) -> None:
        # groups deal to their members in the order of their ids, which begin with the clients' names
        self._cluster = replace(cluster, client_id=f"{cluster.client_id}-{rank:03d}")
        self._timing = timing
        self._group = group
        self._topics = tuple(topics)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._client = client
        self._consumer: AIOKafkaConsumer | None = None
        self._told: frozenset[TopicPartition] = frozenset()
        self._readable: frozenset[TopicPartition] = frozenset()
        self._paused: set[TopicPartition] = set()
        self._pace = pace
        self._held: list[Any] = []
        self._held_until = 0.0
        self._waiting: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._watchdog = Watchdog(group)
        self._closing = False
        self._ending = asyncio.Lock()

    async def start(self) -> None:
        """Join the group, in the background. Raises LogUnavailable also when a topic is missing."""
        there = await self._client.topics(self._topics)
        if missing := sorted(set(self._topics) - there.keys()):
            raise no_topic(*missing)
        consumer = self._new_consumer(sum(map(len, there.values())))
        try:
            with kafka_errors(f"joining {self._group}"):
                async with asyncio.timeout(_START_S):
                    await consumer.start()
                membership.keep_fetching(consumer)
                consumer.subscribe(list(self._topics), listener=_Listener(self._assigned, self._revoked))
        except BaseException:
            await _stop(consumer)
            raise
        if self._closing:  # meanwhile
            await _stop(consumer)
            return
        self._watchdog.unassigned(_now())
        self._consumer = consumer

    async def poll(self, *, max_records: int, timeout_s: float) -> Mapping[TopicPartition, Sequence[Record]]:
        """As the port says."""
        if self._consumer is None or self._closing:
            raise ConsumerClosed(f"Kafka: {self._group}: the consumer is closed")
        await asyncio.sleep(0)  # nothing below has to wait when records are at hand
        deadline = _now() + timeout_s
        while (consumer := self._consumer) is not None and not self._closing:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            # also while others bring records: one of several partitions may have been forgotten
            self._watchdog.check(consumer, self._ready(), _now())
            records = await self._take(consumer, max_records)
            remaining = deadline - _now()
            if records or remaining <= 0:
                return records
            if self._closing or self._failure is not None:
                continue  # since we looked: taking may wait, and is not woken
            await self._wait(consumer, min(remaining, _TICK_S))
        return {}

    def waits_for(self) -> str | None:
        if self._consumer is None or self._watchdog.is_assigned:
            return None
        session_s = self._timing.session_timeout_ms / 1000
        return f"Kafka: {self._group} waits up to {session_s:g} s for members that ended without a word to come back"

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(self._told.intersection(partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self._nudge()

    async def confirm(self, assignments: Sequence[Assignment]) -> float:
        """As the port says: a heartbeat with their epoch as its generation, which the coordinator accepts, or not."""
        consumer = self._consumer
        for partition, epoch in assignments:
            if consumer is None or partition not in self._readable or membership.generation(consumer) != epoch:
                raise PartitionLost(f"{self._group}: {_named([partition])} is not assigned with epoch {epoch}")
        if consumer is not None:
            with kafka_errors(f"confirming {self._group}"):
                async with asyncio.timeout(self._timing.commit_timeout_s):
                    refusal = await membership.refusal(consumer)
            if refusal is not None:
                raise PartitionLost(f"{self._group}: {refusal.__name__}")
        return min(self._timing.session_timeout_ms, self._timing.rebalance_timeout_ms) / 1000

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """As the port says; in bounded time, 10 s. What is still ours is committed also when another one is lost."""
        consumer = self._consumer
        if consumer is None or membership.generation(consumer) < 0:
            raise PartitionLost(f"{self._group}: not a member of the group")
        assigned = consumer.assignment()
        ours = {KafkaPartition(*p): offset for p, offset in next_offsets.items() if p in assigned}
        try:
            with kafka_errors(f"committing for {self._group}"):
                async with asyncio.timeout(self._timing.commit_timeout_s):  # the library repeats for ever
                    if ours:
                        await consumer.commit(ours)
        except LogUnavailable as error:
            if isinstance(error.__cause__, CommitFailedError | IllegalStateError):
                raise PartitionLost(f"{self._group}: {described(error.__cause__)}") from error
            raise
        if lost := sorted(set(next_offsets) - set(ours)):
            raise PartitionLost(f"{self._group}: {_named(lost)} went to another member")

    async def close(self) -> None:
        self._closing = True
        self._nudge()
        async with self._ending:
            if self._consumer is not None:
                await ends_within(self._revoked(), _REVOKE_S)  # the library does not call it when we leave
                consumer, self._consumer = self._consumer, None
                await _stop(consumer)

    async def _take(self, consumer: AIOKafkaConsumer, max_records: int) -> Mapping[TopicPartition, Sequence[Record]]:
        await self._release()
        if self._closing:
            return {}
        ready = self._ready()
        try:
            membership.keep_alive(consumer)
        except KafkaError as error:
            raise LogUnavailable(f"Kafka: {self._group} cannot go on (coordination): {described(error)}") from error
        if not membership.has_data(consumer, ready):
            return {}
        taken = fetched.take(consumer, ready, max_records, self._read)
        records: Mapping[TopicPartition, Sequence[Record]] = taken.records
        if taken.trouble is not None:
            records = await self._mend(consumer, taken.trouble, max_records)
        count = sum(map(len, records.values()))
        self._pace.took(count)
        if count < max_records:  # else more is at hand
            self._hold(consumer)
        return records

    async def _mend(
        self, consumer: AIOKafkaConsumer, trouble: fetched.Trouble, max_records: int
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """Go on although one partition failed: what the library cannot read of it, we read ourselves."""
        partition, error = trouble
        if isinstance(error, NoOffsetForPartitionError | OffsetOutOfRangeError):
            raise await self._missing(partition) from error
        if not isinstance(error, fetched.UnreadableError):
            where = _named([partition])
            raise LogUnavailable(f"Kafka: {self._group} cannot go on ({where}): {described(error)}") from error
        before = fetched.standing(consumer, partition)
        if before is None:
            return {}
        try:
            chunk = await self._client.fetch(partition, before.position, max_bytes=FETCH_BYTES)
        except OffsetOutOfRangeError as gone:
            raise await self._missing(partition) from gone
        if self._consumer is not consumer or fetched.standing(consumer, partition) != before:
            return {}  # it went to another member meanwhile, and perhaps came back
        records = chunk.records[:max_records]
        beyond = chunk.next_offset if len(records) == len(chunk.records) else records[-1].offset + 1
        fetched.go_on(consumer, partition, beyond)
        return {partition: records} if records else {}

    def _read(self, at: TopicPartition, raw: Any) -> Record:
        return as_record(at, raw, self._cluster.max_record_bytes)

    async def _missing(self, met: TopicPartition) -> OffsetMissing:
        """To be raised. The next consumer begins with the first record that is there: rows absorb what comes again."""
        ours = sorted(self._told)
        committed = await self._client.committed(self._group, ours)
        firsts = await self._client.offsets(ours, "earliest")
        ends = await self._client.offsets(ours, "latest")  # last: so nobody has committed more than there is
        missing = {p: firsts[p] for p in ours if not firsts[p] <= committed.get(p, -1) <= ends[p]}
        await self.commit(missing)
        return OffsetMissing(
            f"{self._group} has no record to go on with on {_named(sorted(missing) or [met])}", missing
        )

    def _hold(self, consumer: AIOKafkaConsumer) -> None:
        """Let records gather at the broker for a while."""
        pause = self._pace.pause()
        if pause > 0:
            self._held, self._held_until = membership.hold(consumer), _now() + pause

    async def _release(self) -> None:
        if self._held:
            await asyncio.sleep(self._held_until - _now())
            held, self._held = self._held, []
            membership.release(held)

    async def _wait(self, consumer: AIOKafkaConsumer, timeout_s: float) -> None:
        """Until something came in, or something changed about our partitions."""
        self._waiting = membership.new_data(consumer)
        timer = asyncio.get_running_loop().call_later(timeout_s, self._nudge)
        try:
            await self._waiting
        except KafkaError:
            pass  # the next poll raises it again
        finally:
            self._waiting = None
            timer.cancel()

    def _ready(self) -> frozenset[TopicPartition]:
        return self._readable - self._paused

    def _nudge(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _assigned(self, partitions: Iterable[KafkaPartition]) -> None:
        consumer = self._consumer
        epoch = -1 if consumer is None or self._closing else membership.generation(consumer)
        if epoch < 0:
            return  # closing; or put out of the group since: the rebalance that follows assigns anew
        membership.drop_fetches(consumer)
        told = sorted(TopicPartition(*partition) for partition in partitions)
        self._told = frozenset(told)
        if told:
            try:
                await self._on_assigned([Assignment(partition, epoch) for partition in told])
            except Exception as error:  # noqa: BLE001 - the library would log and drop it; poll raises it
                self._failure = error
                self._nudge()
                return
        self._readable = self._told  # empty again if close came in between
        self._watchdog.assigned()
        self._nudge()

    async def _revoked(self, _: Iterable[KafkaPartition] = ()) -> None:
        gone, self._told, self._readable = self._told, frozenset(), frozenset()
        self._paused.clear()
        self._watchdog.unassigned(_now())
        self._nudge()
        if not gone:
            return
        try:
            await self._on_revoked(sorted(gone))
        except Exception as error:  # noqa: BLE001 - the library would log and drop it; poll raises it
            self._failure = error
            self._nudge()

    def _new_consumer(self, partitions: int) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            **self._cluster.arguments(),
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),  # one: several join once for each
            session_timeout_ms=self._timing.session_timeout_ms,
            heartbeat_interval_ms=self._timing.heartbeat_interval_ms,
            rebalance_timeout_ms=self._timing.rebalance_timeout_ms,
            request_timeout_ms=self._timing.request_timeout_ms,
            fetch_max_wait_ms=_LONE_WAIT_MS if partitions == 1 else _SHARED_WAIT_MS,
            max_partition_fetch_bytes=FETCH_BYTES,
            fetch_max_bytes=FETCH_ALL_BYTES,
            consumer_timeout_ms=2 * _LONE_WAIT_MS,  # how often its idle fetch loop looks; all of interest wakes it
        )


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the library is untyped
    def __init__(
        self,
        assigned: Callable[[Iterable[KafkaPartition]], Awaitable[None]],
        revoked: Callable[[Iterable[KafkaPartition]], Awaitable[None]],
    ) -> None:
        self._assigned = assigned
        self._revoked = revoked

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPartition]) -> None:
        await self._assigned(assigned)

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPartition]) -> None:
        await self._revoked(revoked)


async def _stop(consumer: AIOKafkaConsumer) -> None:
    await ends_within(consumer.stop(), _STOP_S)
    await ends_within(consumer._client.close(), _DISCONNECT_S)  # which stop leaves out when it raises


def _now() -> float:
    return asyncio.get_running_loop().time()


def _named(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{partition.topic}/{partition.partition}" for partition in partitions)
