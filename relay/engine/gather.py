"""Batches without waiting: handle together whatever came while the previous batch was under way."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Gather(Generic[T]):
    """A queue whose items are handled in order, in batches of at most `limit`, one batch at a time."""

    def __init__(self, handle: Callable[[list[T]], Awaitable[None]], *, limit: int = 1000) -> None:
        self._handle = handle
        self._limit = limit
        self._items: deque[T] = deque()
        self._wake = asyncio.Event()
        self._busy = 0

    def put(self, item: T) -> None:
        self._items.append(item)
        self._wake.set()

    def __len__(self) -> int:
        """Items waiting or being handled."""
        return len(self._items) + self._busy

    async def run(self) -> None:
        """Handle for ever; ends by cancellation, or by the handler's exception."""
        while True:
            await self._wake.wait()
            batch = self._next()
            self._busy = len(batch)
            await self._handle(batch)
            self._busy = 0

    def _next(self) -> list[T]:
        batch = [self._items.popleft() for _ in range(min(self._limit, len(self._items)))]
        if not self._items:
            self._wake.clear()
        return batch
