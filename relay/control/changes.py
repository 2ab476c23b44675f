"""Lets any number of tasks wait for the next change of something."""

import asyncio
from collections.abc import AsyncIterator


class Changes:
    """`tell` of a change, and each who follows hears of it; of several while it is busy as of one."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, after: asyncio.Event | None = None) -> AsyncIterator[int]:
        """Yields a growing number: at once, or when `after` is set, then after every change."""
        if after is not None:
            await after.wait()
        seen = -1
        while True:
            while seen == self.version:
                await self._changed.wait()
            seen = self.version
            yield seen
