"""Notifies tasks of changes."""

import asyncio
from collections.abc import AsyncIterator


class Changes:
    """Notifies followers of changes: each once for several changes while it is busy. Call `notify` after a change."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, after: asyncio.Event | None = None) -> AsyncIterator[int]:
        """Yields an increasing number: at once, or once `after` is set, then after every change."""
        if after is not None:
            await after.wait()
        seen = -1
        while True:
            while seen == self.version:
                await self._changed.wait()
            seen = self.version
            yield seen
