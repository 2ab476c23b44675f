"""A byte budget for request bodies: when it is used up, requests wait in order of arrival for others to finish.

Memory for a whole body is reserved before it is read, so every request that has begun can finish. Small bodies have a
budget of their own: slow large ones do not delay them.
"""

import asyncio
from collections import deque
from typing import Final

SMALL: Final = 256 * 1024
"""Bytes of a small body: messages have a few kB."""
_FOR_SMALL: Final = 4
"""One in so many bytes is for them."""


class BodyBudget:
    """`size` bytes, in turns."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._turns: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, size: int) -> bool:
        """Take `size` bytes, if they are free and no request waits for some."""
        if size > self._free or self._turns:
            return False
        self._free -= size
        return True

    async def take(self, size: int) -> None:
        """Wait for `size` bytes, which must not be more than there are in all; cancelled, nothing was taken."""
        if self.take_now(size):
            return
        turn = asyncio.get_running_loop().create_future()
        self._turns.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)
            else:
                self._turns.remove((size, turn))
                self.give_back(0)  # the next one may be smaller
            raise

    def give_back(self, size: int) -> None:
        self._free += size
        while self._turns and self._turns[0][0] <= self._free:
            wanted, turn = self._turns.popleft()
            self._free -= wanted
            turn.set_result(None)


class BodyMemory:
    """The two parts of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._small = BodyBudget(size // _FOR_SMALL)
        self._large = BodyBudget(size - size // _FOR_SMALL)

    def room(self) -> "BodyReservation":
        """What one request has of it: nothing yet."""
        return BodyReservation(self._small, self._large)


class BodyReservation:
    """What one request has taken, until `leave`."""

    __slots__ = ("_held", "_large", "_pool", "_small")

    def __init__(self, small: BodyBudget, large: BodyBudget) -> None:
        self._small = small
        self._large = large
        self._pool: BodyBudget | None = None
        self._held = 0

    def take_now(self, size: int) -> bool:
        """Take room for a body of at most `size` bytes, if there is some. Once for each request."""
        pool = self._small if size <= SMALL else self._large
        if not pool.take_now(size):
            return False
        self._pool, self._held = pool, size
        return True

    async def take(self, size: int) -> None:
        """Wait until there is some."""
        pool = self._small if size <= SMALL else self._large
        await pool.take(size)
        self._pool, self._held = pool, size

    def shrink(self, size: int) -> None:
        """The body has only `size` bytes."""
        if self._pool is not None and size < self._held:
            freed, self._held = self._held - size, size
            self._pool.give_back(freed)

    def leave(self) -> None:
        """The request is over."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.give_back(self._held)
