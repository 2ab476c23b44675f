"""The bounded queue of one listener. A listener that reads too slowly misses events, and gets their number."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from relay.api.tail.event import TailedEvent, encoded_event

MOST_BYTES: Final = 1024**2
"""Events that wait for one listener, at most; further ones are dropped."""

Shown = Callable[[TailedEvent], TailedEvent | None]
"""What a listener gets to see of it; None: nothing."""


class TailQueue:
    """Only `close` wakes one who waits for what never comes."""

    def __init__(self, shown: Shown, most_bytes: int = MOST_BYTES) -> None:
        self.shown = shown
        self.closed = False
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._missed = 0
        self._wake = asyncio.Event()

    def tell(self, happening: TailedEvent) -> None:
        """Of what this listener may and wants to see."""
        shown = self.shown(happening)
        if shown is not None:
            self.put(shown.encoded())

    def put(self, event: bytes) -> None:
        """To be written, unless too much is waiting."""
        if self._missed or self._bytes + len(event) > self._most_bytes:
            self._missed += 1  # until all that waits is taken: what was missed is told in its place
        else:
            self._waiting.append(event)
            self._bytes += len(event)
        self._wake.set()

    def miss(self, count: int) -> None:
        """So many events were not read from the log."""
        self.put(skipped(count))

    async def take(self, patience_s: float) -> bytes:
        """All that waits, once there is something; empty after `patience_s` without, or when it is closed."""
        try:
            async with asyncio.timeout(patience_s):
                await self._wake.wait()
        except TimeoutError:
            return b""
        if not self.closed:
            self._wake.clear()
        taken = b"".join(self._waiting)
        if self._missed:
            taken += skipped(self._missed)
        self._waiting.clear()
        self._bytes = self._missed = 0
        return taken

    def close(self) -> None:
        self.closed = True
        self._wake.set()


def skipped(count: int) -> bytes:
    """The event that says how many were left out."""
    return encoded_event("skipped", {"count": count})
