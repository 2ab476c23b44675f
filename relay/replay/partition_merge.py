"""Merges several partitions into one stream, in order of failure, from a start time on."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from relay.domain.replay_job import OffsetSpan
from relay.log.port import Coordinate, LogReader, Record

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
