"""History: makes past messages and attempts searchable. No delivery waits for it.

1. Read the records of messages, answers, dead letters and attempts; unreadable ones are counted.
2. Extract the facts.
3. Write them and their offsets to the store, in one transaction.
4. Commit the offsets, for operators who look at the group.

The store's own positions decide where reading resumes. It may therefore be an old copy, or empty: it is then rebuilt
from the records that the log still has. While the store or the log is unavailable, the worker waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final

from relay.clock import Clock
from relay.domain.erasure import Erasures
from relay.domain.errors import (
    HistoryMoved,
    HistoryUnavailable,
    InvalidRecord,
    LogUnavailable,
    OffsetMissing,
    PartitionLost,
    Unavailable,
)
from relay.domain.topics import Topics
from relay.engine.runner import OpenConsumer
from relay.engine.supervision import Retrier, unless_stopped
from relay.history.lag import topics_read
from relay.history.port import History
from relay.log.port import Assignment, Backlog, Consumer, LogAdmin, Record, TopicPartition, size_of
from workers.history_facts import Fact, FactReader, batch_of

POLL_S: Final = 1.0
GATHER_S: Final = 0.25
"""How long to wait for more records after the first: a transaction for each record would be slowest."""
GATHERED_BYTES: Final = 8 * 1024**2
"""Bytes of the records of one transaction: with a large RELAY_HISTORY_BODIES, a full one would have GiBs."""
SHORTEST_POLL_S: Final = 0.001
POLL_RECORDS: Final = 250
"""Bounds the time for which one poll blocks the event loop, to some milliseconds."""
CHECK_EVERY_S: Final = 10.0
PRUNE_EVERY_S: Final = 3_600.0


def never_throttle(_behind_s: float) -> float:
    """No throttle, for a process that also does other work."""
    return 0.0


class HistoryEvents:
    """Events of the worker, for logs and metrics; this implementation ignores them."""

    def wrote(self, records: int, unreadable: int) -> None:
        """A batch is in the store. `unreadable`: how many of its records could not be read."""

    def lost(self, gaps: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """The log has deleted these unread: from the first of each pair, up to the second."""

    def ahead(self, partitions: Mapping[TopicPartition, int]) -> None:
        """The store is ahead of the log, which was recreated or has lost its end. It goes on with what the log has."""

    def moved(self) -> None:
        """The store was cleared, or restored to an earlier state: it is filled again."""

    def pruned(self, messages: int) -> None: ...


@dataclass(slots=True)
class _Gathered:
    """Facts, and for each of their partitions the first offset, the next offset and the latest time (Unix ms).
    `unreadable`: records that could not be read. `room`: bytes that further records may have."""

    first: dict[TopicPartition, int] = field(default_factory=dict)
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    until_ms: dict[TopicPartition, int] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    unreadable: int = 0
    room: int = GATHERED_BYTES

    def take(self, record: Record, reader: FactReader) -> None:
        partition = TopicPartition(record.topic, record.partition)
        self.next_offsets[partition] = record.offset + 1
        self.until_ms[partition] = record.timestamp_ms
        self.room -= size_of(record)
        try:
            fact = reader.of(record)
        except InvalidRecord:
            self.unreadable += 1
        else:
            if fact is not None:
                self.facts.append(fact)


@dataclass(eq=False, repr=False)
class HistoryWorker:
    """A service. `at_once`: facts of one transaction, at most. `retention_s`: how long facts are kept. `throttle`:
    returns, after each turn, the seconds to rest; takes the lag in seconds."""

    open_consumer: OpenConsumer
    log: LogAdmin
    history: History
    topics: Topics
    clock: Clock
    retrier: Retrier
    _: KW_ONLY
    keep: int
    retention_s: float
    at_once: int = 1_000
    throttle: Callable[[float], float] = never_throttle
    events: HistoryEvents = field(default_factory=HistoryEvents)
    erasures: Erasures = field(default_factory=Erasures)
    _next: dict[TopicPartition, int] = field(default_factory=dict)
    """The next offset to write, for each assigned partition."""
    _fresh: set[TopicPartition] = field(default_factory=set)
    """Assigned partitions whose starting offset is not known yet."""
    _strayed: set[TopicPartition] = field(default_factory=set)
    """Those of them that the consumer may have read from another offset."""
    _moved: dict[TopicPartition, int] = field(default_factory=dict)
    """Starting offsets of the partitions that are being reassigned on purpose: their records arrive right after
    that."""

    def __post_init__(self) -> None:
        self._consumer: Consumer = self.open_consumer(self._assigned, self._revoked)
        self._groups = dict.fromkeys(topics_read(self.topics), self.topics.group("history"))
        self._facts = FactReader(self.topics, self.keep, self.erasures)
        self._checked_at = self._pruned_at = -PRUNE_EVERY_S

    async def run(self, stop: asyncio.Event) -> None:
        """Raises ConsumerBroken: a new worker in its place may succeed."""
        try:
            if await self._until_done("prepare the history", self.history.start, stop) and await self._until_done(
                "join the group of the history", self._consumer.start, stop
            ):
                while not stop.is_set():
                    await self._rest(await self._turn(stop), stop)
        finally:
            await self._consumer.close()

    async def _until_done(self, what: str, call: Callable[[], Awaitable[object]], stop: asyncio.Event) -> bool:
        """False if it was stopped first."""
        return await unless_stopped(self.retrier.until_done(what, partial(self._prepared, call)), stop)

    async def _prepared(self, call: Callable[[], Awaitable[object]]) -> None:
        """After a failure the tables are prepared for the next try: they may have been dropped, or the file removed."""
        try:
            await call()
        except HistoryUnavailable:
            await self.history.start()
            raise

    async def _rest(self, behind_s: float, stop: asyncio.Event) -> None:
        if seconds := self.throttle(behind_s):
            await self.clock.wait(stop, seconds)

    async def _turn(self, stop: asyncio.Event) -> float:
        """Returns the lag of the batch that was written, in seconds."""
        if self._fresh and not await self._until_done("find where the history resumes", self._place, stop):
            return 0.0
        await self._maintain_store()
        gathered = await self._gather(stop)
        first, next_offsets = gathered.first, gathered.next_offsets
        if not next_offsets:
            return 0.0
        write = partial(self.history.write, batch_of(gathered.facts), next_offsets, first)
        try:
            if not await self._until_done("write the history", write, stop):
                return 0.0
        except HistoryMoved:
            self._begin_again()
            return 0.0
        self._next |= {partition: offset for partition, offset in next_offsets.items() if partition in self._next}
        self.events.wrote(sum(next_offsets[at] - first[at] for at in first), gathered.unreadable)
        await self._commit(next_offsets)
        return self.clock.time() - min(gathered.until_ms.values()) / 1_000

    # intake

    async def _gather(self, stop: asyncio.Event) -> "_Gathered":
        """The records that arrive within a moment, up to the size of one transaction."""
        found, until = _Gathered(), self.clock.monotonic() + POLL_S
        while len(found.facts) < self.at_once and found.room > 0 and not stop.is_set():
            left_s = until - self.clock.monotonic()
            if left_s < SHORTEST_POLL_S:
                break
            was_empty = not found.next_offsets
            for partition, records in (await self._poll(left_s, found.room)).items():
                for record in self._ours(partition, records):
                    found.first.setdefault(partition, self._next[partition])
                    found.take(record, self._facts)
            if self._fresh:
                break  # these need a starting offset first; partitions are reassigned during a poll
            if was_empty and found.next_offsets:
                until = self.clock.monotonic() + GATHER_S
        return found

    async def _poll(self, timeout_s: float, most_bytes: int) -> Mapping[TopicPartition, Sequence[Record]]:
        try:
            return await self._consumer.poll(
                max_records=POLL_RECORDS, timeout_s=timeout_s, max_bytes=lambda: most_bytes
            )
        except LogUnavailable as error:
            await self.retrier.pause("poll for the history", error)
        except OffsetMissing as error:
            missing = {TopicPartition(*place) for place in error.partitions}
            self._next = {at: offset for at, offset in self._next.items() if at not in missing}
            await self._consumer.restart(missing)
        return {}

    def _ours(self, partition: TopicPartition, records: Sequence[Record]) -> Sequence[Record]:
        """The records that the store does not have, if the partition's starting offset is known."""
        if partition in self._fresh or partition not in self._next:
            self._strayed.add(partition)  # read before its starting offset was known: it is read again, from there
            return ()
        return [record for record in records if record.offset >= self._next[partition]]

    async def _commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """For operators only: the store decides where reading resumes."""
        ours = {at: offset for at, offset in next_offsets.items() if at in self._next}
        try:
            await self._consumer.commit(ours)
        except LogUnavailable as error:
            self.retrier.report("commit for the history", error)
        except PartitionLost:
            return  # the revocation that follows takes it away

    # where to begin

    async def _assigned(self, assignments: Sequence[Assignment]) -> None:
        for partition, _, start in assignments:
            if self._moved.pop(partition, None) == start:
                self._next[partition] = start
            else:  # not moved, or another worker had it meanwhile
                self._next.pop(partition, None)
                self._fresh.add(partition)

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._next.pop(partition, None)
            self._fresh.discard(partition)
            self._strayed.discard(partition)

    def _begin_again(self) -> None:
        self.events.moved()
        self._fresh |= self._next.keys()
        self._strayed |= self._next.keys()
        self._next.clear()

    async def _place(self) -> None:
        """Determine where each new partition resumes, and make the consumer read from there. Raises Unavailable."""
        fresh = set(self._fresh)
        stored = await self.history.next_offsets()
        spans = {span.partition: span for span in await self.log.backlogs(self._groups)}
        gaps = {at: (stored.get(at, 0), spans[at].first) for at in fresh & spans.keys()}
        gaps = {at: (has, first) for at, (has, first) in gaps.items() if has < first}
        if gaps:
            await self.history.skip({at: first for at, (_, first) in gaps.items()})
            if lost := {at: gap for at, gap in gaps.items() if at in stored}:
                self.events.lost(lost)
        begins = {at: gaps[at][1] if at in gaps else stored.get(at, 0) for at in fresh}
        ahead = {at: begin for at, begin in begins.items() if at in spans and begin > _end_of_same(spans[at])}
        if ahead:
            again = {at: _begin_again_at(spans[at]) for at in ahead}
            await self.history.rewind(again)
            self.events.ahead(ahead)
            begins |= again
        moves = {at: begin for at, begin in begins.items() if at in spans and spans[at].committed != begin}
        moves |= {at: begins[at] for at in self._strayed & fresh}
        if moves:
            await self._move(moves)
        for at in fresh & self._fresh - moves.keys():  # those that moved are assigned again
            self._next[at] = begins[at]
            self._fresh.discard(at)
            self._strayed.discard(at)

    async def _move(self, begins: Mapping[TopicPartition, int]) -> None:
        try:
            await self._consumer.commit(begins)
        except PartitionLost:
            return
        self._moved |= begins
        await self._consumer.restart(list(begins))

    # the store

    async def _maintain_store(self) -> None:
        """Check now and then that the store still has what was written, and prune it. A failure is retried at the
        next turn."""
        now = self.clock.monotonic()
        if now - self._checked_at < CHECK_EVERY_S:
            return
        self._checked_at = now
        try:
            await self._prepared(self._check_store)
        except Unavailable as error:
            self.retrier.report("maintain the history", error)

    async def _check_store(self) -> None:
        stored = await self.history.next_offsets()
        if any(stored.get(at, 0) < offset for at, offset in self._next.items()):
            self._begin_again()
        elif self._checked_at - self._pruned_at >= PRUNE_EVERY_S:
            self.events.pruned(await self.history.prune(self.clock.time() - self.retention_s))
            await self._erase_again()
            self._pruned_at = self._checked_at

    async def _erase_again(self) -> None:
        """Erases what was read after its erasure was made: attempts, and messages whose receivers were not known."""
        recently = self.clock.time() - 2 * PRUNE_EVERY_S
        for erasure in self.erasures.all():
            if erasure.receiver is not None or erasure.made_at > recently:
                await self.history.erase(erasure)


def _end_of_same(span: Backlog) -> int:
    """The offset before which the log has the records that the group has read, and not others in their place."""
    return span.end if span.lost_from is None else min(span.end, span.lost_from)


def _begin_again_at(span: Backlog) -> int:
    """Where reading resumes if the store is ahead: the offset of a group is deleted with its topic."""
    return max(span.first, min(span.finished, span.end))
