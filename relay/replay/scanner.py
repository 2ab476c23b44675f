"""Scans the log for a job: partitions are merged in order of failure, and their records are in chunks, each with the
position behind it."""

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from relay.domain.errors import UserError
from relay.domain.hop import NO_RECEIVER, Hop, hop_of
from relay.domain.identity import DeliveryId
from relay.domain.replay_job import OffsetSpan, ReplayOrder
from relay.domain.topics import Topics
from relay.log.port import Coordinate, LogReader, Record
from relay.replay.cancel import is_copy_of_another_stage
from relay.replay.letter import Letter, read_dead_letter

NEAR: Final = 1_000
"""Up to this many records are scanned instead of being requested one by one."""


class _Head:
    """One partition, partly read."""

    def __init__(self, log: LogReader, span: OffsetSpan, position: int) -> None:
        start = max(position, span.start)
        self._batches = log.scan(span.topic, span.partition, start=start, end=span.end)
        self._read: deque[Record] = deque()
        self._over = start >= span.end

    async def first(self) -> Record | None:
        """The next record; None if none is left."""
        while not self._read and not self._over:
            batch = await anext(self._batches, None)
            if batch is None:
                self._over = True
            else:
                self._read.extend(batch)
        return self._read[0] if self._read else None

    def take(self) -> Record:
        return self._read.popleft()


async def merged(
    log: LogReader, spans: Sequence[OffsetSpan], positions: Sequence[int]
) -> AsyncIterator[tuple[int, Record]]:
    """Records of all `spans`, each with the number of its span: in offset order within each partition, and oldest
    first among the partitions' next records. `positions`: the start offset in each; empty: at the start of the
    spans."""
    starts = positions or [span.start for span in spans]
    heads = [_Head(log, span, position) for span, position in zip(spans, starts, strict=True)]
    while True:
        nexts = [(record.timestamp_ms, number) for number, head in enumerate(heads) if (record := await head.first())]
        if not nexts:
            return
        _, number = min(nexts)
        yield number, heads[number].take()


async def start_at(log: LogReader, span: OffsetSpan, moment_ms: int) -> OffsetSpan:
    """`span` without most of the records that were appended before `moment_ms`."""
    low, high = span.start, span.end
    while high - low > NEAR:
        middle = (low + high) // 2
        (record,) = await log.read([(Coordinate(span.topic, span.partition, middle), None)])
        if record is None:  # offsets may have gaps: then more is read
            break
        if record.timestamp_ms < moment_ms:
            low = middle
        else:
            high = middle
    return span._replace(start=low)


SCANNED: Final = 2_000
"""Most records read for one chunk, matching or not."""
BYTES: Final = 8 * 1024 * 1024
"""Bytes of values read for one chunk; the last record may exceed it."""
MOST_REPLAYED: Final = 200_000
"""Most deliveries of a partition with more than one generation; each of them is kept in memory."""


@dataclass(slots=True)
class ScanChunk:
    """Records that a job reads and plans together. `group`, `positions`: as in `ReplayProgress`, behind this chunk.
    `numbers`: the span of each of `records`.

    In group 0 `letters` are parsed from `records`. In a lane `hops` are, and `newest` is the last generation of each of
    these deliveries when the job was made.
    """

    group: int
    positions: tuple[int, ...] = ()
    numbers: list[int] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    newest: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def receivers(self) -> set[str]:
        """The receivers of its letters and hops; `-` for letters without one."""
        return {letter.facts.receiver or NO_RECEIVER for letter in self.letters} | {
            hop.delivery.receiver for hop in self.hops
        }


class ReplayScanner:
    """Its methods raise LogUnavailable."""

    def __init__(self, log: LogReader, topics: Topics, order: ReplayOrder) -> None:
        self._log = log
        self._topics = topics
        self._order = order

    async def chunks(self, group: int = 0, positions: Sequence[int] = (), *, size: int) -> AsyncIterator[ScanChunk]:
        """The matching records from there on; at most `size` at once, and some chunks may be empty. Raises
        UserError."""
        for number in range(group, 1 + len(self._order.lanes)):
            begin = positions if number == group else ()
            each = self._letters(begin, size) if number == 0 else self._of_lane(number, begin, size)
            async for chunk in each:
                yield chunk

    async def _letters(self, positions: Sequence[int], most: int) -> AsyncIterator[ScanChunk]:
        spans, selection = self._order.letters, self._order.selection
        place = list(positions or [span.start for span in spans])
        chunk, scanned, size = ScanChunk(0), 0, 0
        async for number, record in merged(self._log, spans, place):
            place[number] = record.offset + 1
            scanned += 1
            size += len(record.value or b"")
            letter = read_dead_letter(record, self._topics)
            if selection.takes(letter.facts):
                chunk.numbers.append(number)
                chunk.records.append(record)
                chunk.letters.append(letter)
            if len(chunk) >= most or scanned >= SCANNED or size >= BYTES:
                chunk.positions = tuple(place)
                yield chunk
                chunk, scanned, size = ScanChunk(0), 0, 0
        chunk.positions = tuple(place)
        yield chunk

    async def _of_lane(self, group: int, positions: Sequence[int], most: int) -> AsyncIterator[ScanChunk]:
        span = self._order.lanes[group - 1]
        last, place = await self._last_generations(group), max(span.start, *positions, 0)
        taken = await self._taken(span._replace(end=place), last)
        chunk, scanned, size = ScanChunk(group, (place,)), 0, 0
        async for batch in self._log.scan(span.topic, span.partition, start=place, end=span.end):
            for record in batch:
                place = record.offset + 1
                scanned += 1
                size += len(record.value or b"")
                hop = self._selected(record)
                if hop is not None and hop.delivery not in taken:
                    if hop.delivery in last:  # it may appear again in this partition
                        taken.add(hop.delivery)
                    chunk.numbers.append(0)
                    chunk.records.append(record)
                    chunk.hops.append(hop)
                    chunk.newest.append(last.get(hop.delivery, hop.generation))
                if len(chunk) >= most or scanned >= SCANNED or size >= BYTES:
                    chunk.positions = (place,)
                    yield chunk
                    chunk, scanned, size = ScanChunk(group, (place,)), 0, 0
        chunk.positions = (place,)
        yield chunk

    async def _taken(self, before: OffsetSpan, last: Mapping[DeliveryId, int]) -> set[DeliveryId]:
        """The deliveries in `last` that a resumed job has read in the span `before`."""
        found = set[DeliveryId]()
        if last and before.start < before.end:
            async for batch in self._log.scan(before.topic, before.partition, start=before.start, end=before.end):
                hops = filter(None, map(self._selected, batch))
                found.update(hop.delivery for hop in hops if hop.delivery in last)
        return found

    def _selected(self, record: Record) -> Hop | None:
        hop = hop_of(record.headers)  # of one without, the outcome is a dead letter
        if hop is None or record.value is None or is_copy_of_another_stage(record, self._topics, hop):
            return None
        moment_ms = hop.accepted_ms if self._order.action == "cancel" else record.timestamp_ms
        return hop if self._order.selection.takes_delivery(*hop.delivery, moment_ms, hop.life) else None

    async def _last_generations(self, group: int) -> dict[DeliveryId, int]:
        """The last generation in the partition of each delivery that was replayed."""
        span = self._order.lanes[group - 1]
        found: dict[DeliveryId, int] = {}
        async for batch in self._log.scan(span.topic, span.partition, start=span.start, end=span.end):
            for record in batch:
                is_first = ("relay-generation", b"0") in record.headers
                if not is_first and (hop := hop_of(record.headers)) is not None:
                    found[hop.delivery] = max(hop.generation, found.get(hop.delivery, 0))
            if len(found) > MOST_REPLAYED:
                raise UserError(
                    f"more than {MOST_REPLAYED} messages of {span.topic} were replayed before: ask for fewer"
                )
        return found
