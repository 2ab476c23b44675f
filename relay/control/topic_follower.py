"""How a process follows `receiver_config`: from where it reads on, what it has read by now, and who waits for that."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

from relay.control.changes import Changes
from relay.control.shared_index import AT_ONCE, IndexBroken
from relay.domain.errors import LogUnavailable, OffsetMissing
from relay.log.port import LogReader, Record, TopicPartition

RESUMED_S: Final = 6 * 3600.0
"""For so long after a break in following it is gone on with where it was: tombstones stay on a log for a day."""


class Taker(Protocol):
    """Who keeps what the topic says."""

    async def load(self, records: AsyncIterator[Record | None], end: int) -> int:
        """Take what is there by now, at least all before `end`, in place of all that was known. The offset before which
        all is taken."""
        ...

    def loaded(self) -> None:
        """Whoever waits may know of what was loaded."""
        ...

    def take(self, record: Record) -> None:
        """One that has come since."""
        ...

    def take_routes(self, records: Sequence[Record]) -> None:
        """Of records that may not have been taken yet, those of routes."""
        ...


class Following:
    """One process' reading of `topic`, of which `taker` is told. `ready` is set once it has been read to its end."""

    def __init__(self, topic: str, taker: Taker) -> None:
        self._topic = topic
        self._taker = taker
        self._log: LogReader | None = None
        self._routes_to = 0  # the offset before which every route is known here
        self._position: int | None = None  # the offset before which all is taken; None: not even what was there
        self._left_at = 0.0  # when it was known to be so, on the event loop's clock
        self._reads = 0
        self._reading = asyncio.Lock()
        self._taken = Changes()
        self.ready = asyncio.Event()

    async def follow(self, log: LogReader) -> None:
        """Read the topic, for ever. Raises LogUnavailable; then call it again: what was there stays in force."""
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
            raise LogUnavailable(f"{self._topic} has to be read anew: {error}") from error

    async def reach(self, offset: int) -> None:
        """Return when all that the topic has before `offset` is known here. Raises LogUnavailable."""
        await self.ready.wait()
        newest, log = 0, self._log
        if log is not None and self._position is not None and self._position < offset:
            async for records in log.scan(self._topic, 0, start=self._position, end=offset):
                newest = records[-1].offset + 1 if records else newest  # behind it all may be compacted away
        async for _ in self._taken.follow():
            if self._position is not None and self._position >= newest:
                return

    async def catch_up(self) -> None:
        """Return when every move that was announced before this call is known here. Raises LogUnavailable."""
        asked_at = self._reads
        async with self._reading:
            if self._reads == asked_at:  # else one has begun since, on somebody else's behalf
                self._reads += 1
                await self._read_routes()

    async def _read_routes(self) -> None:
        if self._log is None:
            raise LogUnavailable(f"{self._topic} is not read yet")
        [end] = (await self._log.ends([TopicPartition(self._topic, 0)])).values()
        if self._routes_to > end:  # it was made anew
            self._routes_to = 0
        if self._routes_to == end:
            return
        async for records in self._log.scan(self._topic, 0, start=self._routes_to, end=end):
            self._taker.take_routes(records)
        self._routes_to = max(self._routes_to, end)

    async def _follow_anew(self, log: LogReader) -> None:
        self._position = None
        # Of tombstones at the end, a reading from the beginning may show nothing: all the same they are behind it.
        [there] = (await log.ends([TopicPartition(self._topic, 0)])).values()
        records = log.follow(self._topic)
        self._reached(await self._taker.load(records, there))
        self.ready.set()
        self._taker.loaded()
        await self._go_on(records, in_touch=True)

    async def _go_on(self, records: AsyncIterator[Record | None], *, in_touch: bool) -> None:
        """`in_touch`: all that was on the topic when `records` began has been taken."""
        taken = 0
        try:
            async for record in records:
                if record is None:
                    in_touch = True
                    continue
                self._taker.take(record)
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
        self._taken.tell()
