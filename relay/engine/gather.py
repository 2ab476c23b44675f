"""Batches: handle together whatever came while the previous batch was under way, and a little more when busy."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def at_once() -> float:
    """Waits for nothing."""
    return 0.0


class Gather(Generic[T]):
    """A queue whose items are handled in order, in batches of at most `limit`, one batch at a time.

    `linger_s`: how long to wait, now, for more items before a batch that is not full is handled.
    """

    def __init__(
        self,
        handle: Callable[[list[T]], Awaitable[None]],
        *,
        limit: int = 128,
        linger_s: Callable[[], float] = at_once,
    ) -> None:
        self._handle = handle
        self._limit = limit
        self._linger_s = linger_s
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
            if len(self._items) < self._limit and (pause := self._linger_s()) > 0:
                await asyncio.sleep(pause)
            batch = self._next()
            self._busy = len(batch)
            await self._handle(batch)
            self._busy = 0

    def _next(self) -> list[T]:
        batch = [self._items.popleft() for _ in range(min(self._limit, len(self._items)))]
        if not self._items:
            self._wake.clear()
        return batch
