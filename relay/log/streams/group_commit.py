"""Group commit: appends that arrive during a write wait, and are then written together in one call.

With an fsync per call this makes many small appends fast. Records of one caller stay in order.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from relay.domain.errors import LogUnavailable, PartlyAppended
from relay.log.port import Coordinate, TopicPartition

MAX_RECORDS: Final = 1000
MAX_BYTES: Final = 8 * 1024**2
"""Bounds of one write, which delays all other calls to the server."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record ready to be written to `at`. `packed` is empty for a tombstone of a compacted topic."""

    at: TopicPartition
    key: bytes | None
    packed: bytes


class _Pending:
    """One caller's append, done when its last record is written."""

    def __init__(self, count: int) -> None:
        self.coordinates: list[Coordinate] = []
        self.count = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wrote(self, coordinate: Coordinate) -> None:
        self.coordinates.append(coordinate)
        if len(self.coordinates) == self.count and not self.done.done():
            self.done.set_result(None)

    def failed(self, error: Exception) -> None:
        """Its records are written in order: those that have a coordinate are stored."""
        if self.coordinates and isinstance(error, LogUnavailable):
            error = PartlyAppended(str(error), dict(enumerate(self.coordinates)))
        if not self.done.done():
            self.done.set_exception(error)


Write = Callable[[Sequence[Prepared]], Awaitable[Sequence[Coordinate]]]


class GroupCommit:
    """Calls `write` with batches, one call at a time. `write` returns a coordinate per record, in their order."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._queue: deque[tuple[Prepared, _Pending]] = deque()
        self._ready = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writer = asyncio.create_task(self._run(), name="log-writer")

    async def append(self, records: Sequence[Prepared]) -> list[Coordinate]:
        """Returns when all are written. Raises the error of `write`; then it is unknown which of its records are
        written."""
        if self._writer is None:
            raise LogUnavailable("the log is closed")
        pending = _Pending(len(records))
        self._queue.extend((record, pending) for record in records)
        self._ready.set()
        await pending.done
        return pending.coordinates

    async def close(self) -> None:
        """Let the write in progress end (its timeouts bound it); waiting appends get LogUnavailable."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        # Not cancelled: asyncio.wait_for, which the Redis client sends with, may swallow that on Python 3.11.
        self._ready.set()
        await asyncio.wait([writer])
        self._fail(self._queue, LogUnavailable("the log is closed"))
        self._queue.clear()

    async def _run(self) -> None:
        while self._writer is not None:
            await self._ready.wait()
            self._ready.clear()
            while self._writer is not None and (batch := self._next_batch()):
                await self._flush(batch)

    def _next_batch(self) -> list[tuple[Prepared, _Pending]]:
        batch, size = list[tuple[Prepared, _Pending]](), 0
        while self._queue and len(batch) < MAX_RECORDS and size < MAX_BYTES:
            record, pending = self._queue.popleft()
            if pending.done.done():  # an earlier record of its append failed, or its caller is gone
                continue
            batch.append((record, pending))
            size += len(record.packed)
        return batch

    async def _flush(self, batch: Sequence[tuple[Prepared, _Pending]]) -> None:
        try:
            coordinates = await self._write([record for record, _ in batch])
        except asyncio.CancelledError:
            self._fail(batch, LogUnavailable("the log was closed during the append"))
            raise
        except Exception as error:  # noqa: BLE001 - raised in the callers; the writer must live on
            self._fail(batch, error)
            return
        for (_, pending), coordinate in zip(batch, coordinates, strict=True):
            pending.wrote(coordinate)

    @staticmethod
    def _fail(batch: Sequence[tuple[Prepared, _Pending]], error: Exception) -> None:
        for _, pending in batch:
            pending.failed(error)
