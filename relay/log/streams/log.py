"""The embedded log: Redis Streams on a server whose data this process alone holds (relay/embedded).

Offsets, partitions, groups and retention behave as on Kafka. Groups are coordinated in this process; their offsets and
epochs are on the server, so they survive a restart.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

from relay.clock import set_within
from relay.domain.errors import LogUnavailable, OffsetMissing, RecordTooLarge
from relay.domain.rights import Right
from relay.domain.sliced import sliced
from relay.domain.topics import TopicSpec
from relay.log.checks import HEADROOM_BYTES
from relay.log.group_consumer import Fetched, GroupConsumer, Position
from relay.log.groups import ConsumerGroup, Watchers
from relay.log.partitioner import place_of
from relay.log.port import (
    Backlog,
    Consumer,
    Coordinate,
    NewRecord,
    OnAssigned,
    OnRevoked,
    Record,
    Subscription,
    TopicPartition,
    TopicState,
)
from relay.log.streams.group_commit import GroupCommit, Prepared
from relay.log.streams.scripts import pack
from relay.log.streams.store import PartitionSpan, Slice, StreamStore

MAX_MESSAGE_BYTES: Final = 2 * 1024**2
_TRIM_EVERY_S: Final = 60.0
_FOLLOW_AT_ONCE: Final = 500
_LOOK_AGAIN_S: Final = 5.0
"""A follower is woken by appends of this process; after one that failed half-way it polls without that."""

_log = logging.getLogger(__name__)


def largest_record(payload_bytes: int) -> int:
    """The `max_message_bytes` of a log for payloads of at most `payload_bytes`."""
    return max(MAX_MESSAGE_BYTES, payload_bytes + HEADROOM_BYTES)


@dataclass(eq=False, repr=False)
class StreamsLog:
    """A `relay.log.port.Log` in the database that `url` names. `prefix` goes before all keys.

    `max_message_bytes`: the largest record, with its key and headers. `passed`: groups for which no record is kept
    beyond its retention, whatever their lag.
    """

    url: str
    _: KW_ONLY
    prefix: str = ""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    passed: Collection[str] = ()

    def __post_init__(self) -> None:
        self._store = StreamStore(self.url, self.prefix)
        self._writer = GroupCommit(self._write)
        self._watchers = Watchers()
        self._groups: dict[str, ConsumerGroup] = {}
        self._followers: dict[TopicPartition, list[_Follower]] = defaultdict(list)
        self._followed: dict[str, int] = {}
        """The history of the log that was read, for each followed topic."""
        self._trim_at: dict[TopicPartition, float] = {}

    async def start(self) -> None:
        await self._store.open()
        self._writer.start()

    async def close(self) -> None:
        await self._writer.close()
        await self._store.close()
        self._watchers.notify_all()

    # writing

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        if not records:
            return []
        wanted: dict[str, int] = {}
        for record in records:
            wanted[record.topic] = max(wanted.get(record.topic, 0), record.spread)
        specs = {topic: await self._store.spec(topic, partitions) for topic, partitions in wanted.items()}
        return await self._writer.append([self._prepare(n, each, specs[each.topic]) for n, each in enumerate(records)])

    def _prepare(self, index: int, record: NewRecord, spec: TopicSpec) -> Prepared:
        packed = pack(record)
        if len(packed) > self.max_message_bytes:
            text = f"a record of {len(packed)} bytes; {self.max_message_bytes} are allowed"
            raise RecordTooLarge(text, [index])
        if spec.cleanup == "compact":
            if record.key is None:
                raise ValueError(f"a record of the compacted topic {spec.name} needs a key")
            if record.value is None:
                packed = b""
        partition = place_of(record.key, record.spread, spec.partitions)
        return Prepared(TopicPartition(spec.name, partition), record.key, packed)

    async def _write(self, batch: Sequence[Prepared]) -> list[Coordinate]:
        """Append in one call. Returns the coordinate of each record."""
        by_partition: dict[TopicPartition, list[tuple[bytes, bytes]]] = {}
        for record in batch:
            by_partition.setdefault(record.at, []).append((record.key or b"", record.packed))
        slices = [
            Slice(at, await self._store.spec(at.topic), records, self._floor(at))
            for at, records in by_partition.items()
        ]
        await self._trim(slices)
        try:
            firsts = await self._store.append(slices)
        finally:  # also when the reply was lost: the records may be there
            self._watchers.notify({at.topic for at in by_partition})
        following = dict(zip(by_partition, firsts, strict=True))
        coordinates = []
        for record in batch:
            coordinates.append(Coordinate(*record.at, following[record.at]))
            following[record.at] += 1
        return coordinates

    async def _trim(self, slices: Sequence[Slice]) -> None:
        """Apply the retention where it is due: before the append, because it may make room for it."""
        now = asyncio.get_running_loop().time()
        for at, spec, _, _ in slices:
            if spec.retention_s is not None and now >= self._trim_at.get(at, now):
                await self._store.trim(at, spec.retention_s, self.passed)
                self._trim_at[at] = now + _TRIM_EVERY_S

    def _floor(self, partition: TopicPartition) -> int | None:
        return min((follower.position for follower in self._followers.get(partition, ())), default=None)

    # reading

    def consumer(self, subscription: Subscription, on_assigned: OnAssigned, on_revoked: OnRevoked) -> Consumer:
        members = self._groups.setdefault(subscription.group, ConsumerGroup(subscription.group))
        return GroupConsumer(self._store, self._watchers, members, subscription, on_assigned, on_revoked)

    async def read(self, wanted: Sequence[tuple[Coordinate, bytes | None]]) -> list[Record | None]:
        return [None if record is None or record.is_gap else record for record in await self._store.read(wanted)]

    async def cluster_id(self) -> str:
        """As the port says: it has none, as its state is on the same server."""
        return ""

    async def topic_id(self, topic: str) -> str:
        """As the port says: it has none, as no topic of it is deleted."""
        return ""

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._store.ends(partitions)

    async def scan(
        self, topic: str, partition: int, *, start: int = 0, end: int | None = None, batch: int = 1_000
    ) -> AsyncIterator[Sequence[Record]]:
        at = TopicPartition(topic, partition)
        span = await self._store.span(at)
        if (await self._store.spec(topic)).cleanup == "compact":
            async for records in self._compacted(at, start, span.end if end is None else min(end, span.end), span):
                for some in sliced(records, batch):
                    yield some
            return
        position, stop = max(start, span.first), span.end if end is None else min(end, span.end)
        while position < stop:
            fetched: list[Record] = []
            with suppress(OffsetMissing):
                fetched = (await self._store.fetch_from({at: position}, min(batch, stop - position))).get(at, [])
            if not fetched:  # retention has removed it, or the log has lost its end
                span = await self._store.span(at)
                if span.end < stop:
                    raise LogUnavailable(f"the log: {at} ends at {span.end} now, not at {stop}")
                position = max(position + 1, span.first)
                continue
            if records := _readable(fetched):
                yield records
            position += len(fetched)

    async def _compacted(
        self, at: TopicPartition, start: int, end: int, span: PartitionSpan
    ) -> AsyncIterator[Sequence[Record]]:
        """The records of a compacted partition from `start` to `end`, in order, some at a time; from its changes, where
        they are kept: these are fewer."""
        if at.partition != 0 or start < span.first:  # only the first one has its changes beside it
            async for found in self._store.in_order(at, start, end):
                yield _readable(found)
            return
        with self._following(at) as follower:  # so that the changes that are still to be read stay
            follower.position, follower.history = start, self._store.histories.of(at)
            while follower.position < end:
                yield [record for record in await self._after(follower, at, compact=True) if record.offset < end]

    async def follow(self, topic: str, *, start: int | None = None) -> AsyncIterator[Record | None]:
        at, compact = TopicPartition(topic, 0), (await self._store.spec(topic)).cleanup == "compact"
        with self._watchers.watching(topic) as wake, self._following(at) as follower:
            histories = self._store.histories
            self._followed[topic] = histories.of(at) if start is None else self._followed.get(topic, 0)
            span = await histories.read({}, partial(self._store.span, at))  # of a compacted one: of its changes
            histories.has_read(at, span.end if start is None else start)
            follower.history = self._followed[topic]
            if start is not None and not span.first <= start <= span.end:
                raise OffsetMissing(f"{topic} does not hold what came since offset {start}", [at])
            follower.position = span.first if start is None else start
            if compact and start is None:
                follower.position = span.end
                async for page in self._store.pages(at):
                    for record in _readable(page):
                        if record.offset < span.end:  # younger ones come as changes
                            yield record
            while follower.position < span.end:
                for record in await self._after(follower, at, compact=compact):
                    yield record
            yield None
            while True:
                wake.clear()
                before = follower.position
                for record in await self._after(follower, at, compact=compact):
                    yield record
                self._followed[topic] = follower.history
                if follower.position == before:
                    await set_within(wake, _LOOK_AGAIN_S)

    async def _after(self, follower: "_Follower", at: TopicPartition, *, compact: bool) -> Sequence[Record]:
        """The follower's next records. Its position is behind them then."""
        before = Position(follower.position, follower.history)
        if compact:
            changes = partial(self._store.changes, at, before.offset)
            follower.position, records = await self._store.histories.read({at: before}, changes)
        else:
            records = (await self._store.fetch({at: before}, _FOLLOW_AT_ONCE)).get(at, Fetched([])).records
            follower.position += len(records)
        follower.history = self._store.histories.of(at)
        self._store.histories.has_read(at, follower.position)
        return _readable(records)

    @contextmanager
    def _following(self, partition: TopicPartition) -> Iterator["_Follower"]:
        follower = _Follower()
        self._followers[partition].append(follower)
        try:
            yield follower
        finally:
            self._followers[partition].remove(follower)

    # administration

    async def create(self, specs: Sequence[TopicSpec], groups: Mapping[str, str]) -> list[str]:
        made = [spec.name for spec in specs if await self._store.create_topic(spec)]
        for topic, group in groups.items():
            await self._store.begin_group(group, await self._store.spec(topic))
        return made

    async def grow(self, topic: str, partitions: int) -> None:
        await self._store.grow_topic(topic, partitions)

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        found = await self._store.describe(topics)
        return {name: TopicState(spec, None, None, self.max_message_bytes) for name, spec in found.items()}

    async def backlogs(self, groups: Mapping[str, str]) -> list[Backlog]:
        there = list(await self._store.describe(list(groups)))
        offsets = [offset for topic in there for offset in await self._store.committed(groups[topic], topic)]
        spans = await self._store.spans(await self._store.partitions(there))
        return [
            Backlog(groups[at.topic], at, *span, offset)
            for (at, span), offset in zip(spans.items(), offsets, strict=True)
        ]

    async def lacking(self, rights: Sequence[Right]) -> list[Right]:
        return []

    async def about(self) -> str:
        return await self._store.about()


@dataclass(slots=True, eq=False)  # two at the same position are not the same
class _Follower:
    """A reader of new records. `position`: offset of the next one. `history`: of the log that it read before."""

    position: int = 0
    history: int = 0


def _readable(records: Sequence[Record]) -> list[Record]:
    """The records without unreadable offsets, which are logged."""
    for record in records:
        if record.flaw is not None and record.is_gap:
            _log.error("offsets_skipped", extra={"problem": record.flaw.detail})
    return [record for record in records if not record.is_gap]
