"""Follows the topic `receiver_config`: the read position of this process, and waiting for a position."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from relay.control.changes import Changes
from relay.control.effective import InForce
from relay.control.shared_index import AT_ONCE, IndexBroken
from relay.domain.errors import LogUnavailable, OffsetMissing
from relay.log.port import LogReader, Record, TopicPartition

RESUMED_S: Final = 6 * 3600.0
"""After an interruption of at most this long, reading continues at its position: tombstones stay on a log for a day."""


class Following:
    """Reads `topic` and passes its records to `in_force`. `ready` is set once the topic has been read to its end."""

    def __init__(self, topic: str, in_force: InForce) -> None:
        self._topic = topic
        self._in_force = in_force
        self._log: LogReader | None = None
        self._routes_to = 0  # all routes before this offset are known here
        self._position: int | None = None  # all records before this offset are taken; None before the first load
        self._left_at = 0.0  # when reading was interrupted, on the event loop's clock
        self._reads = 0
        self._reading = asyncio.Lock()
        self._taken = Changes()
        self.ready = asyncio.Event()

    async def follow(self, log: LogReader) -> None:
        """Read the topic; never returns. Raises LogUnavailable; then call it again: the entries stay in effect."""
        lately = asyncio.get_running_loop().time() - self._left_at < RESUMED_S
        start = self._position if lately and log is self._log else None
        self._log = log
        try:
            if start is None:
                await self._follow_anew(log)
            else:
                await self._go_on(log.follow(self._topic, start=start), in_touch=False)
        except (OffsetMissing, IndexBroken) as error:
            self._position = None
            raise LogUnavailable(f"{self._topic} has to be read again from its beginning: {error}") from error

    async def reach(self, offset: int) -> None:
        """Return once this process has read the topic up to `offset`. Raises LogUnavailable."""
        await self.ready.wait()
        newest, log = 0, self._log
        if log is not None and self._position is not None and self._position < offset:
            async for records in log.scan(self._topic, 0, start=self._position, end=offset):
                newest = records[-1].offset + 1 if records else newest  # the rest may have been compacted
        async for _ in self._taken.follow():
            if self._position is not None and self._position >= newest:
                return

    async def catch_up(self) -> None:
        """Return once every move announced before this call is known here. Raises LogUnavailable."""
        reads_before = self._reads
        async with self._reading:
            if self._reads == reads_before:  # else another call has started a read since
                self._reads += 1
                await self._read_routes()

    async def _read_routes(self) -> None:
        if self._log is None:
            raise LogUnavailable(f"{self._topic} is not read yet")
        [end] = (await self._log.ends([TopicPartition(self._topic, 0)])).values()
        if self._routes_to > end:  # the topic was recreated
            self._routes_to = 0
        if self._routes_to == end:
            return
        async for records in self._log.scan(self._topic, 0, start=self._routes_to, end=end):
            # `follow` may have taken some meanwhile, and tombstones behind them
            self._in_force.take_routes([each for each in records if each.offset >= self._routes_to])
        self._routes_to = max(self._routes_to, end)

    async def _follow_anew(self, log: LogReader) -> None:
        self._position = None
        # A read from the beginning may not return tombstones at the end, so the end is read first.
        [there] = (await log.ends([TopicPartition(self._topic, 0)])).values()
        records = log.follow(self._topic)
        self._reached(await self._in_force.load(records, there))
        self.ready.set()
        self._in_force.loaded()
        await self._go_on(records, in_touch=True)

    async def _go_on(self, records: AsyncIterator[Record | None], *, in_touch: bool) -> None:
        """Take records. `in_touch`: all records that the topic had when `records` started have been taken."""
        taken = 0
        try:
            async for record in records:
                if record is None:
                    in_touch = True
                    continue
                self._in_force.take(record)
                self._reached(record.offset + 1)
                taken += 1
                if taken % AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            if in_touch:
                self._left_at = asyncio.get_running_loop().time()

    def _reached(self, position: int) -> None:
        self._position = position
        self._routes_to = max(self._routes_to, position)
        self._taken.notify()
