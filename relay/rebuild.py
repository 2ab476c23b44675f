"""The dedup memory from the topics, after a total loss of the state (`relay recover --dedup`).

What each record proves, `workers/evidence.py` says; here the topics are read whole, one after the other, and the rows
are written. It may be repeated, and run beside a working relay: every call only raises rows, and leaves those alone
that a later generation or another message has.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relay.domain.errors import RelayError, StateRecovering
from relay.domain.receiver import Source
from relay.domain.topics import SHARED, Topics
from relay.log.port import Log, Record
from relay.state.port import State
from relay.state.rows import Arrival, Mark, Row, Stage
from workers import evidence
from workers.evidence import Returned

BATCH = 500


class MemoryLostAgain(RelayError):
    """Rows that were written before are gone."""


@dataclass(slots=True)
class Read:
    """What has been read of a topic so far. `rows`: how many of what were proved, also such as were there before."""

    topic: str
    records: int = 0
    rows: Counter[str] = field(default_factory=Counter)


class Rebuild:
    """One run. `lanes`: of receivers that have one of their own. `source`: the settings of a source. `since_ms`: rows
    of older records (Unix ms) would be forgotten by now. `dry_run`: nothing is written. `told`: after each batch."""

    def __init__(
        self,
        log: Log,
        state: State,
        topics: Topics,
        *,
        lanes: Iterable[str],
        source: Callable[[str], Source],
        since_ms: int,
        dry_run: bool = False,
        told: Callable[[Read], None] = lambda read: None,
    ) -> None:
        self._log = log
        self._state = state
        self._topics = topics
        self._lanes = frozenset(lanes)
        self._source = source
        self._since_ms = since_ms
        self._dry_run = dry_run
        self._told = told
        self._turned_away: set[tuple[int, int]] = set()  # messages on from_sender that never became deliveries
        self._parked: set[bytes] = set()  # keys of parked callbacks

    async def run(self) -> list[Read]:
        """What was read of each topic. Raises MemoryLostAgain, and what the log and the state raise; repeat it then."""
        try:
            return await self._run()
        except StateRecovering as error:
            raise MemoryLostAgain("the state lost its memory again while it was rebuilt: run it once more") from error

    async def _run(self) -> list[Read]:
        # Offsets first: all that they prove to be acknowledged is on the other topics by now, and is read after them.
        topics = self._topics
        routed = await self._committed(topics.from_sender)
        handed_over = await self._committed(topics.to_sender)
        await self._find_parked_callbacks()
        failed = await self._read(topics.failed_messages, self._take_failed)
        sent = await self._read(topics.from_sender, self._take_sent, ends=routed)
        returned = await self._read(topics.to_sender, lambda read, some: self._take_returned(read, some, handed_over))
        awaited = [await self._read(topic, self._take_awaited) for topic in await self._pending_topics()]
        return [sent, returned, failed, *awaited]

    async def _committed(self, topic: str) -> dict[int, int]:
        """The next offset of the topic's group, by partition; a group without one has committed nothing."""
        backlogs = await self._log.backlogs({topic: self._topics.fixed_groups()[topic]})
        return {each.partition.partition: each.committed or 0 for each in backlogs}

    async def _pending_topics(self) -> list[str]:
        return sorted(await self._log.describe([self._topics.pending(lane) for lane in self._lanes | {SHARED}]))

    async def _find_parked_callbacks(self) -> None:
        prefix = b"to_sender:"
        parked = self._topics.parked()
        async for batch in self._batches(parked.name, {}):
            for record in batch:
                if record.key is not None and record.key.startswith(prefix):
                    (self._parked.discard if record.value is None else self._parked.add)(record.key)

    # reading

    async def _read(
        self,
        topic: str,
        take: Callable[[Read, Sequence[Record]], Awaitable[None]],
        *,
        ends: Mapping[int, int] | None = None,
    ) -> Read:
        read = Read(topic)
        async for batch in self._batches(topic, ends or {}):
            await take(read, batch)
            read.records += len(batch)
            self._told(read)
        return read

    async def _batches(self, topic: str, ends: Mapping[int, int]) -> AsyncIterator[Sequence[Record]]:
        spec = (await self._log.describe([topic]))[topic].spec
        for partition in range(spec.partitions):
            async for batch in self._log.scan(topic, partition, end=ends.get(partition), batch=BATCH):
                yield batch

    # what it proves

    async def _take_failed(self, read: Read, batch: Sequence[Record]) -> None:
        found = [evidence.failed(record, self._topics) for record in batch]
        self._turned_away.update(one.turned_away for one in found if one.turned_away is not None)
        young = [one.mark for one, record in zip(found, batch, strict=True) if self._is_young(record)]
        await self._mark(read, young)
        read.rows["indexed"] += len(found)
        if not self._dry_run:
            await self._state.index_failed([one.entry for one in found])

    async def _take_sent(self, read: Read, batch: Sequence[Record]) -> None:
        routed = [record for record in batch if (record.partition, record.offset) not in self._turned_away]
        arrivals: list[Arrival] = [one for one in map(evidence.enqueued, routed) if one is not None]
        read.rows["enqueued"] += len(arrivals)
        if arrivals and not self._dry_run:
            await self._state.enqueued(arrivals)

    async def _take_returned(self, read: Read, batch: Sequence[Record], committed: Mapping[int, int]) -> None:
        young = filter(self._is_young, batch)
        found = [one for one in map(evidence.returned, young) if one is not None]
        ended = await self._callbacks(found)
        marks = []
        for one, row in zip(found, ended, strict=True):
            over = evidence.is_over(one, committed.get(one.at[0], 0), self._parked)
            given_up = row.code if row.stage is Stage.DONE else None
            source = self._source(one.hop.delivery.source_id)
            marks.append(evidence.handed_over(one, source, over=over, given_up=given_up))
        await self._mark(read, marks)

    async def _callbacks(self, found: Sequence[Returned]) -> list[Row]:
        """The rows of their callbacks: those that failed have one since their dead letters were read."""
        keys = [one.callback for one in found if one.callback is not None]
        rows = dict(zip(keys, await self._state.peek(keys), strict=True)) if keys and not self._dry_run else {}
        return [rows.get(one.callback, Row()) if one.callback is not None else Row() for one in found]

    async def _take_awaited(self, read: Read, batch: Sequence[Record]) -> None:
        await self._mark(read, [evidence.awaited(record) for record in batch if self._is_young(record)])

    def _is_young(self, record: Record) -> bool:
        return record.timestamp_ms >= self._since_ms

    async def _mark(self, read: Read, proved: Iterable[Mark | None]) -> None:
        marks = [mark for mark in proved if mark is not None]
        read.rows.update(mark.stage.name.lower() for mark in marks)
        if marks and not self._dry_run:
            await self._state.mark(marks)
