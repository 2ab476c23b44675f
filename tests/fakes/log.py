"""A log in memory. The broker keeps records, offsets and groups; each process of a test has a client of it, MemoryLog,
and dies with `crash`."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from relay.domain.errors import LogUnavailable, OffsetMissing, PartitionLost, RecordTooLarge
from relay.domain.rights import Right
from relay.domain.topics import TopicSpec
from relay.log.group_consumer import Commit, Fetched, GroupConsumer, Position, TakenPartition
from relay.log.groups import ConsumerGroup, Watchers
from relay.log.partitioner import place_of
from relay.log.port import (
    Backlog,
    Consumer,
    Coordinate,
    Flaw,
    NewRecord,
    OnAssigned,
    OnRevoked,
    Record,
    Subscription,
    TopicPartition,
    TopicState,
)
from relay.log.streams.histories import Cuts


class _Partition:
    """Every record ever appended; those before `first` count as gone. Compaction is done when reading.

    `hidden`: offsets that no one reads: markers, and what was written in transactions that were aborted. `cuts`: where
    it has lost its end, each time; how often that was names its history.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.first = 0
        self.hidden: set[int] = set()
        self.open: set[int] = set()
        """First offsets of transactions that have not ended."""
        self.cuts = Cuts()

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def tip(self) -> Position:
        """The position of a reader that has read all of it."""
        return Position(self.end, self.history)

    @property
    def stable(self) -> int:
        """The offset before which all can be read."""
        return min(self.open, default=self.end)

    def read(self, start: int, end: int, count: int | None = None) -> list[Record]:
        """At most `count` of those from `start` on, before `end`, that can be read."""
        if start >= end:
            return []  # as of most partitions at most fetches
        offsets = (n for n in range(max(start, self.first), min(end, self.stable)) if n not in self.hidden)
        return [self.records[n] for n in islice(offsets, count)]

    def written(self, end: int | None = None) -> list[Record]:
        """All records before `end` that can be read or could be read before retention removed them."""
        upto = self.stable if end is None else min(end, self.stable)
        return [self.records[n] for n in range(upto) if n not in self.hidden]

    def cut(self, end: int) -> None:
        """It loses all from `end` on, acknowledged or not."""
        del self.records[end:]
        self.hidden = {offset for offset in self.hidden if offset < end}
        self.open = {offset for offset in self.open if offset < end}
        self.cuts.cut(end)

    @property
    def history(self) -> int:
        return self.cuts.history

    def divergence(self, position: Position) -> int | None:
        """Where it parts from what was read up to `position`; None: it does not."""
        return self.cuts.divergence(position)

    def behind_hidden(self, offset: int) -> int:
        """The next offset from `offset` on that can be read, now or once it is written."""
        while offset in self.hidden and offset < self.stable:
            offset += 1
        return offset

    def put(self, new: NewRecord, at: TopicPartition, now_ms: int) -> Record:
        record = Record(*at, self.end, new.key, new.value, new.headers, now_ms)
        self.records.append(record)
        return record

    def holds(self, position: int) -> bool:
        """Whether a reader can continue at `position`."""
        return self.first <= position <= self.end

    def get(self, offset: int) -> Record | None:
        there = self.first <= offset < self.stable and offset not in self.hidden
        return self.records[offset] if there else None

    def table(self) -> dict[bytes | None, Record]:
        """The newest record of each key, tombstones left out, in offset order."""
        newest = {record.key: record for record in _readable(self.read(0, self.end))}
        kept = sorted((r for r in newest.values() if r.value is not None), key=lambda record: record.offset)
        return {record.key: record for record in kept}


def _readable(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if not record.is_gap]


class MemoryBroker:
    """What outlives its clients. `available` False: every call of every client raises LogUnavailable.

    `now_ms`: Unix time of appends. `cluster`: its id.
    """

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = lambda: 1_700_000_000_000,
        max_message_bytes: int = 2**21,
        cluster: str = "own",
    ) -> None:
        self.now_ms = now_ms
        self.cluster = cluster
        self.max_message_bytes = max_message_bytes
        self.topic_ids: dict[str, int] = defaultdict(int)
        self.limits: dict[str, int] = {}
        """Of topics that take less, or more, than `max_message_bytes`."""
        self.available = True
        self.specs: dict[str, TopicSpec] = {}
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        """Next offset of (group, partition)."""
        self.histories: dict[tuple[str, TopicPartition], int] = {}
        """Of the log that was read up to that offset."""
        self.epochs: dict[tuple[str, TopicPartition], int] = defaultdict(int)
        self.groups: dict[str, ConsumerGroup] = {}
        self.fetch_s = 0.0
        """How long a fetch takes."""
        self.watchers = Watchers()
        self._partitions: dict[TopicPartition, _Partition] = defaultdict(_Partition)

    def records(self, topic: str) -> list[Record]:
        """All records of a topic that are still there, partition by partition."""
        return [r for at in self.partitions_of(topic) for r in self[at].read(0, self[at].end)]

    def written(self, topic: str) -> list[Record]:
        """All records of a topic, also those that retention has removed, partition by partition."""
        return [r for at in self.partitions_of(topic) for r in self[at].written()]

    def ends(self) -> dict[TopicPartition, int]:
        """Of the partitions that have records, or had some that retention removed: most never have any."""
        return {at: partition.end for at, partition in self._partitions.items() if partition.end}

    def drop_before(self, at: Coordinate) -> None:
        """Remove the records of that partition before `at`, as retention would."""
        self[TopicPartition(at.topic, at.partition)].first = at.offset

    def cut(self, at: Coordinate) -> None:
        """The broker comes back without that partition's records from `at` on."""
        self[TopicPartition(at.topic, at.partition)].cut(at.offset)
        self.watchers.notify({at.topic})

    def create_again(self, topic: str) -> None:
        """The topic is deleted, with the offsets of its groups, and created again."""
        self.topic_ids[topic] += 1
        for at in self.partitions_of(topic):
            self[at].cut(0)
            for key in [key for key in self.offsets if key[1] == at]:
                del self.offsets[key]
        self.watchers.notify({topic})

    def spoil(self, topic: str, *, gap: bool = True) -> Record:
        """Append a record that no reader can decode to the first partition. `gap`: its offset is missing; otherwise its
        content is wrong."""
        partition = self[TopicPartition(topic, 0)]
        flaw = Flaw("invalid", "it cannot be read", first_offset=partition.end if gap else None)
        value = None if gap else b"spoilt"
        record = Record(topic, 0, partition.end, None, value, (), self.now_ms(), flaw)
        partition.records.append(record)
        self.watchers.notify({topic})
        return record

    def committed(self, group: str, at: TopicPartition) -> Position | None:
        offset = self.offsets.get((group, at))
        return None if offset is None else Position(offset, self.histories.get((group, at), 0))

    def finished(self, group: str, at: TopicPartition) -> int:
        """The offset before which the group has finished what the log has there now."""
        position = self.committed(group, at) or Position(0)
        divergence = self[at].divergence(position)
        return self[at].behind_hidden(position.offset if divergence is None else divergence)

    def transaction(self) -> "MemoryTransaction":
        return MemoryTransaction(self)

    def spec(self, topic: str) -> TopicSpec:
        if topic not in self.specs:
            raise LogUnavailable(f"topic {topic} does not exist")
        return self.specs[topic]

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for n in range(self.spec(topic).partitions)]

    def __getitem__(self, partition: TopicPartition) -> _Partition:
        return self._partitions[partition]


class MemoryTransaction:
    """A sender's, as of Kafka's transactional producers. Nothing behind its first record is read until it ends."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._written: dict[TopicPartition, list[Record]] = {}

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        found = []
        for new in records:
            at = TopicPartition(new.topic, place_of(new.key, 0, self._broker.spec(new.topic).partitions))
            record = self._broker[at].put(new, at, self._broker.now_ms())
            if not (written := self._written.setdefault(at, [])):
                self._broker[at].open.add(record.offset)
            written.append(record)
            found.append(record.coordinate)
        return found

    async def commit(self) -> None:
        self._end(aborted=False)

    async def abort(self) -> None:
        self._end(aborted=True)

    def _end(self, *, aborted: bool) -> None:
        for at, written in self._written.items():
            partition = self._broker[at]
            there = [each.offset for each in written if partition.records[each.offset : each.offset + 1] == [each]]
            marker = partition.put(NewRecord(at.topic, None, None), at, self._broker.now_ms())
            partition.hidden.update([marker.offset, *(there if aborted else ())])
            if there:
                partition.open.discard(there[0])
        self._broker.watchers.notify({at.topic for at in self._written})
        self._written.clear()


async def opened_log(
    broker: MemoryBroker, specs: Sequence[TopicSpec] = (), groups: Mapping[str, str] = MappingProxyType({})
) -> "MemoryLog":
    """A client that is started, and has created these topics."""
    log = MemoryLog(broker)
    await log.start()
    await log.create(specs, groups)
    return log


class MemoryLog:
    """A `relay.log.port.Log`: one process's client of `broker`. Every call gives the other tasks a turn."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._open = False
        self._members: list[tuple[ConsumerGroup, GroupConsumer]] = []
        self._followed: dict[str, int] = {}
        """Of topics that were followed, the history of the log that was read."""

    async def start(self) -> None:
        self._open = True
        await self._turn()

    async def close(self) -> None:
        self.crash()

    def crash(self) -> None:
        """The process dies: its members are gone without a word, and every call of it fails from now on."""
        self._open = False
        for _, member in self._members:
            member.abandon()
        self._members.clear()
        self._broker.watchers.notify_all()

    def expel(self) -> None:
        """Its members are put out of their groups, as after a session timeout; they notice at their next poll."""
        for group, member in self._members:
            group.leave(member)
            member.wake()

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        await self._turn()
        for index, record in enumerate(records):
            self._check(index, record)
        coordinates = [self._append(record) for record in records]
        self._broker.watchers.notify({record.topic for record in records})
        return coordinates

    def _check(self, index: int, record: NewRecord) -> None:
        spec = self._broker.spec(record.topic)
        headers = sum(len(name) + len(value) for name, value in record.headers)
        limit = self._broker.limits.get(record.topic, self._broker.max_message_bytes)
        if len(record.key or b"") + len(record.value or b"") + headers > limit:
            raise RecordTooLarge(f"{record.topic}: more than {limit} bytes", [index])
        if spec.cleanup == "compact" and record.key is None:
            raise ValueError(f"a record of the compacted topic {spec.name} needs a key")

    def _append(self, new: NewRecord) -> Coordinate:
        spec = self._broker.spec(new.topic)
        at = TopicPartition(new.topic, place_of(new.key, new.spread, spec.partitions))
        return self._broker[at].put(new, at, self._broker.now_ms()).coordinate

    def consumer(self, subscription: Subscription, on_assigned: OnAssigned, on_revoked: OnRevoked) -> Consumer:
        members = self._broker.groups.setdefault(subscription.group, ConsumerGroup(subscription.group))
        consumer = GroupConsumer(self, self._broker.watchers, members, subscription, on_assigned, on_revoked)
        self._members.append((members, consumer))
        return consumer

    async def read(self, wanted: Sequence[tuple[Coordinate, bytes | None]]) -> list[Record | None]:
        await self._turn()
        return [self._read(at, key) for at, key in wanted]

    def _read(self, at: Coordinate, key: bytes | None) -> Record | None:
        partition = self._broker[TopicPartition(at.topic, at.partition)]
        if self._broker.spec(at.topic).cleanup == "compact":
            return partition.table().get(key)
        record = partition.get(at.offset)
        return None if record is None or record.is_gap else record

    async def cluster_id(self) -> str:
        await self._turn()
        return self._broker.cluster

    async def topic_id(self, topic: str) -> str:
        await self._turn()
        return str(self._broker.topic_ids[topic]) if topic in self._broker.specs else ""

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        await self._turn()
        return {at: self._broker[at].stable for at in partitions}

    async def scan(
        self, topic: str, partition: int, *, start: int = 0, end: int | None = None, batch: int = 1_000
    ) -> AsyncIterator[Sequence[Record]]:
        await self._turn()
        at = self._broker[TopicPartition(topic, partition)]
        position, stop = start, at.stable if end is None else min(end, at.stable)
        while (position := max(position, at.first)) < stop:
            if found := _readable(at.read(position, min(position + batch, stop))):
                yield found
            position += batch
            await self._turn()

    async def follow(self, topic: str, *, start: int | None = None) -> AsyncIterator[Record | None]:
        await self._turn()
        partition = self._broker[TopicPartition(topic, 0)]
        position = partition.stable
        compact = self._broker.spec(topic).cleanup == "compact"
        history = self._followed.get(topic, 0) if start is not None else partition.history
        self._followed[topic] = history
        if start is not None and (
            not partition.holds(start) or partition.divergence(Position(start, history)) is not None
        ):
            raise OffsetMissing(f"{topic} does not hold what came since {start}", [TopicPartition(topic, 0)])
        since = partition.first if start is None else start
        whole = compact and start is None
        for record in partition.table().values() if whole else _readable(partition.read(since, position)):
            yield record
        yield None
        with self._broker.watchers.watching(topic) as wake:
            while True:
                wake.clear()
                if (end := partition.divergence(Position(position, history))) is not None:
                    at = TopicPartition(topic, 0)
                    raise OffsetMissing(f"{topic} lost its end from offset {end} on", [at], {at: (end, position)})
                history = self._followed[topic] = partition.history
                while position < (stable := partition.stable):
                    found, position = _readable(partition.read(position, stable)), stable
                    for record in found:
                        yield record
                await wake.wait()
                await self._turn()

    async def create(self, specs: Sequence[TopicSpec], groups: Mapping[str, str]) -> list[str]:
        await self._turn()
        made = [spec.name for spec in specs if spec.name not in self._broker.specs]
        self._broker.specs |= {spec.name: spec for spec in specs if spec.name in made}
        for topic, group in groups.items():
            for at in self._broker.partitions_of(topic):
                self._broker.offsets.setdefault((group, at), self._broker[at].first)
        return made

    async def grow(self, topic: str, partitions: int) -> None:
        await self._turn()
        spec = self._broker.spec(topic)
        self._broker.specs[topic] = replace(spec, partitions=max(spec.partitions, partitions))

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        await self._turn()
        specs, limit = self._broker.specs, self._broker.max_message_bytes
        return {topic: TopicState(specs[topic], None, None, limit) for topic in topics if topic in specs}

    async def backlogs(self, groups: Mapping[str, str]) -> list[Backlog]:
        await self._turn()
        topics = [(topic, group) for topic, group in groups.items() if topic in self._broker.specs]
        return [self._backlog(group, at) for topic, group in topics for at in self._broker.partitions_of(topic)]

    def _backlog(self, group: str, at: TopicPartition) -> Backlog:
        log, position = self._broker[at], self._broker.committed(group, at)
        stable = log.stable if log.open else None
        if position is None:
            return Backlog(group, at, log.first, log.end, None, stable)
        return Backlog(group, at, log.first, log.end, position.offset, stable, log.divergence(position))

    async def about(self) -> str:
        await self._turn()
        return "memory"

    async def lacking(self, rights: Sequence[Right]) -> list[Right]:
        return []

    # what GroupConsumer needs

    async def there(self, topics: Collection[str]) -> dict[str, int]:
        await self._turn()
        specs = self._broker.specs
        return {topic: specs[topic].partitions for topic in topics if topic in specs}

    async def take(
        self, group: str, partitions: Mapping[TopicPartition, str | None]
    ) -> dict[TopicPartition, TakenPartition]:
        await self._turn()
        broker = self._broker
        for at, former in partitions.items():
            if former is not None and (group, at) not in broker.offsets and (former, at) in broker.offsets:
                broker.offsets[group, at] = broker.offsets.pop((former, at))
                broker.epochs[group, at] = max(broker.epochs[group, at], broker.epochs[former, at])
            broker.epochs[group, at] += 1
        return {at: TakenPartition(broker.epochs[group, at], broker.committed(group, at)) for at in partitions}

    async def fetch(
        self, positions: Mapping[TopicPartition, Position], max_records: int, max_bytes: int
    ) -> dict[TopicPartition, Fetched]:
        if self._broker.fetch_s:
            await asyncio.sleep(self._broker.fetch_s)
        await self._turn()
        found: dict[TopicPartition, Fetched] = {}
        broker = self._broker
        positions = {at: each for at, each in positions.items() if each != broker[at].tip}  # of most nothing is left
        lost: dict[tuple[str, int], tuple[int, int]] = {
            at: (end, each.offset) for at, each in positions.items() if (end := broker[at].divergence(each)) is not None
        }
        gone = [at for at, each in positions.items() if at in lost or not broker[at].holds(each.offset)]
        if gone:
            raise OffsetMissing(f"the log does not hold the next offset of {gone}", gone, lost)
        for at, position in positions.items():
            partition = self._broker[at]
            if records := partition.read(position.offset, partition.end, max_records):
                found[at] = Fetched(records, partition.history)
                max_records -= len(records)
        return found

    async def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        await self._turn()
        for at, commit in commits.items():
            if self._broker.epochs[group, at] != commit.epoch:
                raise PartitionLost(f"{group} has a newer owner of {at.topic}/{at.partition}")
        for at, commit in commits.items():
            self._broker.offsets[group, at] = self._broker[at].behind_hidden(commit.position.offset)
            self._broker.histories[group, at] = commit.position.history

    async def confirm(self, group: str, epochs: Mapping[TopicPartition, int]) -> None:
        await self._turn()
        for at, epoch in epochs.items():
            if self._broker.epochs[group, at] != epoch:
                raise PartitionLost(f"{group} has a newer owner of {at.topic}/{at.partition}")

    async def first(self, partition: TopicPartition) -> int:
        await self._turn()
        return self._broker[partition].first

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        if not (self._open and self._broker.available):
            raise LogUnavailable("the log is away")
