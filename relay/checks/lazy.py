"""A resource that is opened once for all its users, and closed at the end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


async def _nothing(_it: object) -> None:
    return


class Opened(Generic[T]):
    """`make`: opens it. The first caller starts that; all callers get the result or the error."""

    def __init__(self, make: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[None]] = _nothing) -> None:
        self._make = make
        self._close = close
        self._making: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Raises the errors of `make`."""
        if self._making is None:
            self._making = asyncio.ensure_future(self._made())
        return await asyncio.shield(self._making)

    @property
    def is_open(self) -> bool:
        return (
            self._making is not None
            and self._making.done()
            and not self._making.cancelled()
            and (self._making.exception() is None)
        )

    async def close(self) -> None:
        """Also while it is being opened; never raises the errors of opening."""
        if self._making is None:
            return
        if not self._making.done():
            self._making.cancel()
        await asyncio.wait([self._making])
        if self.is_open:
            await self._close(self._making.result())

    async def _made(self) -> T:
        return await self._make()
