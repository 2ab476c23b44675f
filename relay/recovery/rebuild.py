"""Rebuilds the dedup memory from the topics after a loss of the state: the relay does so in the background, and `relay
recover --dedup` at once.

`workers/row_reconstruction.py` says what each record proves; here the topics are read, newest records first, and the
rows are written. A rebuild may be repeated, and run beside a working relay: only unknown rows are written. Memory holds
one fetch, and the offsets of rejected messages.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import inf
from typing import Final, NamedTuple, Protocol, TypeVar

from relay.domain.errors import RelayError, StateRecovering
from relay.domain.receiver import Source
from relay.domain.topics import SHARED, Topics
from relay.log.port import Backlog, Log, Record, TopicPartition
from relay.state.port import FailedEntry
from relay.state.replies import Refusal, answered
from relay.state.rows import TAGS, Arrival, Mark, Row, RowKey, Stage, tag_of
from workers import row_reconstruction
from workers.row_reconstruction import Returned

T = TypeVar("T")

BATCH: Final = 500
BLOCK: Final = 5_000
"""Offsets read of one partition before another has its turn."""
MOST_TURNED_AWAY: Final = 500_000
"""Offsets kept (60 B each). Beyond that, no row of a message is written: its deliveries still have theirs."""
TAIL: Final = 50_000
"""Offsets of a partition that a lane may have finished before the loss and not committed; more than its window."""


class MemoryLostAgain(RelayError):
    """Rows that were written before are lost again."""


@dataclass(slots=True)
class Read:
    """Progress in one topic. `rows`: how many rows were proved, including those that existed already. `reached_ms`:
    all records since then have been read, in all topics that are read together (Unix ms)."""

    topic: str
    records: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    reached_ms: float = inf


class Block(NamedTuple):
    """Offsets from `start` to before `end` of a partition."""

    at: TopicPartition
    start: int
    end: int


@dataclass(slots=True)
class _Rest:
    """The unread part of a partition: from `first` to before `end`. `newest_ms`, `oldest_ms`: timestamps of the block
    after it."""

    at: TopicPartition
    first: int
    end: int
    newest_ms: float = inf
    oldest_ms: float = inf


class ReverseScan:
    """The order in which partitions are read backwards: in blocks of at most `size` offsets, always the newest unread
    one next. Pure. A partition is finished when a whole block of it was older than `since_ms`
    (Unix ms); that may be lowered, to go on."""

    def __init__(self, spans: Iterable[Block], *, since_ms: float, size: int) -> None:
        self._rests = [_Rest(*span) for span in spans]
        self._size = size
        self.since_ms = since_ms

    @property
    def reached_ms(self) -> float:
        """All records since then have been read, by the log's clock; -inf: all records."""
        return max((rest.oldest_ms for rest in self._open()), default=-inf)

    def next(self) -> Block | None:
        """The next block to read; None if none is left."""
        rest = max(self._open(), key=lambda rest: rest.oldest_ms, default=None)
        return None if rest is None else Block(rest.at, max(rest.first, rest.end - self._size), rest.end)

    def read(self, block: Block, timestamps: Iterable[int]) -> None:
        """All records of `block` have been read; they had these timestamps."""
        known = list(timestamps)
        rest = next(each for each in self._rests if each.at == block.at)
        rest.end = block.start
        if known:  # otherwise retention has deleted them all, and their age is unknown
            rest.newest_ms, rest.oldest_ms = max(known), min(rest.oldest_ms, *known)

    def _open(self) -> list[_Rest]:
        return [rest for rest in self._rests if rest.end > rest.first and rest.newest_ms >= self.since_ms]


class Pace(Protocol):
    """The pace of a rebuild, and its retries."""

    async def until_done(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, which may be repeated."""
        ...

    async def after(self, records: int) -> None:
        """Call it after `records` were read and written; it waits as long as the pace requires."""
        ...


class FullSpeed:
    """Pace of a manual run: full speed, and an unavailable log or state is an error."""

    async def until_done(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    async def after(self, records: int) -> None:
        return


class RebuildTarget(Protocol):
    """Takes the proved rows: the state, or an export for another relay. As in `State`."""

    async def enqueued(self, arrivals: Sequence[Arrival]) -> list[Refusal | None]: ...

    async def remember(self, marks: Sequence[Mark]) -> None: ...

    async def index_failed(self, entries: Sequence[FailedEntry]) -> None: ...

    async def peek(self, rows: Sequence[RowKey]) -> list[Row | Refusal]: ...


Take = Callable[[Read, Sequence[Record]], Awaitable[None]]


@dataclass(eq=False)
class Rebuild:
    """One run. `lanes`: receivers with topics of their own. `source`: returns the settings of a source. `since_ms`:
    rows of older records (Unix ms) would be expired by now, or exist. `tags`: only rows of these hash tags.
    `everything`: the index of dead letters was lost, too. `dry_run`: nothing is written. `report`: called after each
    block."""

    log: Log
    state: RebuildTarget
    topics: Topics
    _: KW_ONLY
    lanes: Collection[str]
    source: Callable[[str], Source]
    since_ms: float
    tags: Collection[int] = range(TAGS)
    everything: bool = True
    dry_run: bool = False
    report: Callable[[Read], None] = lambda read: None
    pace: Pace = field(default_factory=FullSpeed)
    _reads: dict[str, Read] = field(default_factory=dict)
    _committed: dict[TopicPartition, int] = field(default_factory=dict)
    _turned_away: set[tuple[int, int]] = field(default_factory=set)  # rejected messages on from_sender
    _tails: list[Block] = field(default_factory=list)
    _ends: dict[TopicPartition, int] = field(default_factory=dict)  # up to where failed_messages was read

    async def run(self) -> list[Read]:
        """Runs the rebuild, and returns the records read of each topic. Raises MemoryLostAgain, and the errors of the
        log and the state; then run it again."""
        topics = self.topics
        # Offsets first: all output that they prove acknowledged is on the other topics by now, and is read after them.
        own, pending = (topics.from_sender, topics.to_sender, topics.failed_messages), self._pending_topics()
        spans = await self._backlogs((*own, *pending))
        self._reads = {topic: Read(topic) for topic in (*own, *pending) if any(_is_of(span, topic) for span in spans)}
        self._committed = {span.partition: span.finished for span in spans}
        sent, returned, failed = ([span for span in spans if _is_of(span, topic)] for topic in own)
        awaited = [span for topic in pending for span in spans if _is_of(span, topic)]
        letters = ReverseScan(map(_whole, failed), since_ms=self.since_ms, size=BLOCK)
        # failures first: a rejected message gets no row, and a callback that was given up overrides one that was sent
        await self._back(letters)
        await self._back(self._newest_first([*map(_finished, sent), *map(_whole, returned)]))
        await self._back(self._newest_first(map(_whole, awaited)))
        self._tails = [_tail(span) for span in (*sent, *returned)]
        self._ends = {span.partition: span.end for span in failed}
        await self.read_tails()
        if self.everything:
            letters.since_ms = -inf
            await self._back(letters)
        return list(self._reads.values())

    async def read_tails(self) -> bool:
        """Reads the records that lanes had finished before the loss and have committed since. Returns whether some may
        be uncommitted still, behind one that is in flight; then call it again later."""
        now = {each.partition: each.finished for each in await self._backlogs({tail.at.topic for tail in self._tails})}
        await self._read_on()  # after the offsets: messages rejected before them have a dead letter by now
        rest = []
        for at, start, end in self._tails:
            finished = max(start, min(end, now.get(at, 0)))
            if finished > start:
                self._committed[at] = finished
                await self.pace.until_done("read the log", partial(self._take, Block(at, start, finished)))
            if end > finished:
                rest.append(Block(at, finished, end))
        self._tails = rest
        return bool(rest)

    def _newest_first(self, spans: Iterable[Block]) -> ReverseScan:
        return ReverseScan(spans, since_ms=self.since_ms, size=BLOCK)

    # topics and offsets to read

    async def _backlogs(self, topics: Collection[str]) -> list[Backlog]:
        groups = {topic: group for topic, group in self.topics.groups(self.lanes).items() if topic in topics}
        return await self.pace.until_done("ask for offsets", lambda: self.log.backlogs(groups))

    def _pending_topics(self) -> list[str]:
        own = {lane for lane in self.lanes if tag_of(f"r:{lane}") in self.tags}
        return sorted(map(self.topics.pending, own | {SHARED}))

    # reading

    async def _back(self, order: ReverseScan) -> None:
        while (block := order.next()) is not None:
            timestamps, read = await self.pace.until_done("read the log back", partial(self._take, block))
            order.read(block, timestamps)
            progress = self._reads[block.at.topic]
            progress.records += read.records
            progress.rows.update(read.rows)
            progress.reached_ms = order.reached_ms
            self.report(progress)

    async def _read_on(self) -> None:
        """The records appended to `failed_messages` since its ends were read."""
        if not self._ends:
            return
        ends = await self.pace.until_done("ask for ends", lambda: self.log.ends(list(self._ends)))
        for partition, start in self._ends.items():
            if ends[partition] > start:
                block = Block(partition, start, ends[partition])
                await self.pace.until_done("read the log", partial(self._take, block))
        self._ends = dict(ends)

    async def _take(self, block: Block) -> tuple[list[int], Read]:
        """Timestamps of the block's records, and what they proved. May be repeated."""
        timestamps: list[int] = []
        read, take = Read(block.at.topic), self._how(block.at.topic)
        try:
            async for batch in self.log.scan(*block.at, start=block.start, end=block.end, batch=BATCH):
                await take(read, batch)
                read.records += len(batch)
                of_batch = [record.timestamp_ms for record in batch]
                timestamps += (min(of_batch), max(of_batch))
                await self.pace.after(len(batch))
        except StateRecovering as error:
            raise MemoryLostAgain("the state lost its memory again during the rebuild: run it once more") from error
        return timestamps, read

    def _how(self, topic: str) -> Take:
        own = {
            self.topics.failed_messages: self._take_failed,
            self.topics.from_sender: self._take_sent,
            self.topics.to_sender: self._take_returned,
        }
        return own.get(topic, self._take_awaited)

    # what records prove

    async def _take_failed(self, read: Read, batch: Sequence[Record]) -> None:
        found = [row_reconstruction.failed(record, self.topics) for record in batch]
        for one in found:
            if one.turned_away is not None and len(self._turned_away) < MOST_TURNED_AWAY:
                self._turned_away.add(one.turned_away)
        young = [one.mark for one, record in zip(found, batch, strict=True) if self._is_young(record)]
        await self._remember(read, young)
        listed = [one.entry for one in found if one.listed]
        entries = [entry for entry in listed if tag_of(f"r:{entry.receiver}") in self.tags]
        read.rows["indexed"] += len(entries)
        if entries and not self.dry_run:
            await self.state.index_failed(entries)

    async def _take_sent(self, read: Read, batch: Sequence[Record]) -> None:
        if len(self._turned_away) >= MOST_TURNED_AWAY:
            return
        finished = await self._finished_before(read.topic, batch)
        committed = [record for record in batch if record.offset < finished]
        routed = [record for record in committed if (record.partition, record.offset) not in self._turned_away]
        found: list[Arrival] = [one for one in map(row_reconstruction.enqueued, filter(self._is_young, routed)) if one]
        arrivals = [one for one in found if tag_of(f"s:{one.id.source_id}") in self.tags]
        read.rows["enqueued"] += len(arrivals)
        if arrivals and not self.dry_run:
            await answered(self.state.enqueued(arrivals))

    async def _take_returned(self, read: Read, batch: Sequence[Record]) -> None:
        young = filter(self._is_young, batch)
        found = [one for one in map(row_reconstruction.returned, young) if one is not None]
        ended, committed = await self._callbacks(found), await self._finished_before(read.topic, batch)
        marks = []
        for one, row in zip(found, ended, strict=True):
            over = row_reconstruction.is_over(one, committed, parked=row.park_intent)
            given_up = row.code if row.stage is Stage.DONE else None
            source = self.source(one.hop.delivery.source_id)
            marks.append(row_reconstruction.handed_over(one, source, over=over, given_up=given_up))
        failed = [one for one, row in zip(found, ended, strict=True) if row.stage is Stage.DONE]
        after = [row_reconstruction.next_life(one) for one in failed]
        for one, row in zip(after, await self._callbacks(after), strict=True):
            if row.stage is Stage.DONE:
                source = self.source(one.hop.delivery.source_id)
                marks.append(row_reconstruction.handed_over(one, source, over=True, given_up=row.code))
        await self._remember(read, marks)

    async def _finished_before(self, topic: str, batch: Sequence[Record]) -> int:
        """The offset before which the group has finished the records of `batch`, all of one partition. The log may have
        lost its end since the offsets were read, and have other records there: only a look after the read shows that
        these are the ones that were committed."""
        at = TopicPartition(topic, batch[0].partition)
        now = {each.partition: each.finished for each in await self._backlogs([topic])}
        return min(self._committed.get(at, 0), now.get(at, 0))

    async def _callbacks(self, found: Sequence[Returned]) -> list[Row]:
        """The rows of their callbacks. Failed callbacks have one, as dead letters were read before; those of parked
        records were restored before."""
        keys = [one.callback for one in found if one.callback is not None]
        try:
            rows = dict(zip(keys, await answered(self.state.peek(keys)), strict=True)) if keys else {}
        except StateRecovering:
            if not self.dry_run:
                raise
            rows = {}  # a dry run only counts, and no rows exist yet
        return [rows.get(one.callback, Row()) if one.callback is not None else Row() for one in found]

    async def _take_awaited(self, read: Read, batch: Sequence[Record]) -> None:
        await self._remember(read, [row_reconstruction.awaited(record) for record in batch if self._is_young(record)])

    def _is_young(self, record: Record) -> bool:
        return record.timestamp_ms >= self.since_ms

    async def _remember(self, read: Read, proved: Iterable[Mark | None]) -> None:
        marks = [mark for mark in proved if mark is not None and tag_of(mark.row.owner) in self.tags]
        read.rows.update(mark.stage.name.lower() for mark in marks)
        if marks and not self.dry_run:
            await self.state.remember(marks)


def _is_of(span: Backlog, topic: str) -> bool:
    return span.partition.topic == topic


def _whole(span: Backlog) -> Block:
    return Block(span.partition, span.first, span.end)


def _finished(span: Backlog) -> Block:
    """The records that the group has committed: later ones prove nothing."""
    return Block(span.partition, span.first, span.position)


def _tail(span: Backlog) -> Block:
    """The records that lanes may have finished before the loss, and not committed."""
    return Block(span.partition, span.finished, min(span.end, span.finished + TAIL))
