"""Reads lags, dead letters and parked records from the log, with clients of its own."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition

from relay.domain.coordinate import Headers
from relay.domain.dead_letter import identity_of, parse_dead_letter
from relay.domain.numbering import PREFIX
from relay.domain.reasons import replaced_by
from relay.domain.topics import Topics
from relay.engine.parked_copy import LIFE_KEY, OWNER_HEADER
from tests.faults.harness.history import Died

_REQUEST_MS: Final = 10_000
_POLL_MS: Final = 1_000


class TopicReader:
    """Reads new records. Connects each time, because the brokers are killed; may raise KafkaError."""

    def __init__(self, bootstrap: str, topics: Topics) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._next: dict[TopicPartition, int] = {}
        self._counts: dict[str, int] = {}
        self._parked: dict[bytes | None, Headers] = {}
        self.died: list[Died] = []

    @property
    def parked(self) -> list[str]:
        """Parked records without a tombstone, as of the last `catch_up`: key and owner."""
        return [
            f"{key!r} of {dict(headers).get(OWNER_HEADER)!r}"
            for key, headers in self._parked.items()
            if key != LIFE_KEY and not (key or b"").startswith(PREFIX)
        ]

    async def catch_up(self) -> None:
        """Read dead letters and parked records up to the current end."""
        async with AsyncExitStack() as stack:
            admin, consumer = await self._clients(stack)
            partitions = await self._partitions(admin, [self._topics.failed_messages, self._topics.parked_messages])
            ends = await consumer.end_offsets(partitions)
            behind = [partition for partition in partitions if self._next.get(partition, 0) < ends[partition]]
            if behind:
                await self._read(consumer, behind, ends)

    async def records(self, topic: str) -> list[ConsumerRecord]:
        """All records of `topic`, as of now."""
        async with AsyncExitStack() as stack:
            admin, consumer = await self._clients(stack)
            partitions = await self._partitions(admin, [topic])
            ends = await consumer.end_offsets(partitions)
            return await _between(consumer, dict.fromkeys(partitions, 0), ends)

    async def lags(self, groups: Mapping[str, str]) -> dict[str, int]:
        """The number of uncommitted records of each group that has some. `groups`: topic -> group. The relay commits
        offset 0 when it creates a topic. If the coordinator returns no offset, as an overloaded one may, this raises
        KafkaError, and the caller repeats it.
        """
        async with AsyncExitStack() as stack:
            admin, consumer = await self._clients(stack)
            partitions = await self._partitions(admin, list(groups))
            ends = await consumer.end_offsets(partitions)
            left: Counter[str] = Counter()
            for topic, group in groups.items():
                committed = await admin.list_consumer_group_offsets(group)
                for partition, end in ends.items():
                    if partition.topic == topic:
                        left[group] += end - _offset(committed.get(partition))
            return dict(+left)

    async def _clients(self, stack: AsyncExitStack) -> tuple[AIOKafkaAdminClient, AIOKafkaConsumer]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=_REQUEST_MS)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            request_timeout_ms=_REQUEST_MS,
        )
        stack.push_async_callback(admin.close)
        stack.push_async_callback(consumer.stop)
        async with asyncio.timeout(2 * _REQUEST_MS / 1000):
            await admin.start()
            await consumer.start()
        return admin, consumer

    async def _partitions(self, admin: AIOKafkaAdminClient, topics: Sequence[str]) -> list[TopicPartition]:
        """Cached, because their number does not change."""
        if missing := [topic for topic in topics if topic not in self._counts]:
            for about in await admin.describe_topics(missing):
                self._counts[about["topic"]] = len(about["partitions"])
        return [TopicPartition(topic, number) for topic in topics for number in range(self._counts[topic])]

    async def _read(
        self, consumer: AIOKafkaConsumer, behind: list[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> None:
        starts = {partition: self._next.get(partition, 0) for partition in behind}
        for record in await _between(consumer, starts, ends):
            self._take(record.topic, record.key, record.value, tuple(record.headers))
        self._next.update({partition: ends[partition] for partition in behind})

    def _take(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        if topic == self._topics.failed_messages:
            receiver, source, message_id = identity_of(value, headers)
            dead = parse_dead_letter(headers)
            newer = replaced_by(dead.reason, dead.detail) or ""
            self.died.append(Died(dead.reason, source or "", message_id or "", receiver or "", newer))
        elif value is None:
            self._parked.pop(key, None)
        else:
            self._parked[key] = headers


async def _between(
    consumer: AIOKafkaConsumer, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[ConsumerRecord]:
    """The records from `starts` to before `ends`, in order of offset within each partition."""
    found: list[ConsumerRecord] = []
    behind = [partition for partition, start in starts.items() if start < ends[partition]]
    if not behind:
        return found
    consumer.assign(behind)
    for partition in behind:
        consumer.seek(partition, starts[partition])
    while any([await consumer.position(partition) < ends[partition] for partition in behind]):
        for records in (await consumer.getmany(timeout_ms=_POLL_MS)).values():
            found += records
    return found


def _offset(committed: OffsetAndMetadata | None) -> int:
    if committed is None or committed.offset < 0:
        raise KafkaError("no committed offset")
    return int(committed.offset)
