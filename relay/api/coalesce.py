"""Coalesces calls: requests that arrive while a call is in progress share the next one, or a result for a while.

A call of the state costs as much for one message as for ten, so the cost per request falls under load; a single request
does not wait. Unlike the engine's Gather this gives each caller its own results, and needs no task: the first caller of
a group makes the call for all of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from relay.clock import Clock
from relay.domain.errors import Unavailable

T = TypeVar("T")
R = TypeVar("R")

LIMIT: Final = 1_000
"""Items of a group at which the next caller begins another one; one caller's items stay together."""

Call = Callable[[Sequence[T]], Awaitable[Sequence[R]]]


FRESH_S: Final = 1.0
COST: Final = 10.0
"""A reused result is valid for this many times the duration of its call, so that calls take at most a tenth of the
time; and for FRESH_S at least."""


class Reused(Generic[R]):
    """One result of `call` for all callers, made again when it is no longer valid."""

    def __init__(self, clock: Clock, call: Callable[[], Awaitable[R]]) -> None:
        self._clock = clock
        self._call = call
        self._turn = asyncio.Lock()
        self._results: list[R] = []
        self._good_until = 0.0

    async def __call__(self) -> R:
        async with self._turn:
            begun = self._clock.monotonic()
            if not self._results or begun >= self._good_until:
                self._results = [await self._call()]
                self._good_until = begun + max(FRESH_S, COST * (self._clock.monotonic() - begun))
            return self._results[0]


class _CallGroup(Generic[T, R]):
    def __init__(self) -> None:
        self.items: list[T] = []
        self._followers: list[tuple[slice, asyncio.Future[Sequence[R]]]] = []

    def join(self, items: Sequence[T]) -> asyncio.Future[Sequence[R]]:
        future = asyncio.get_running_loop().create_future()
        self._followers.append((slice(len(self.items), len(self.items) + len(items)), future))
        self.items.extend(items)
        return future

    def deliver(self, results: Sequence[R]) -> None:
        for part, future in self._followers:
            if not future.done():  # its request may have been cancelled
                future.set_result(results[part])

    def fail(self, error: Exception) -> None:
        for _, future in self._followers:
            if not future.done():
                future.set_exception(error)


class Coalescer(Generic[T, R]):
    """Makes `call` with the items of many callers, one call at a time, in the order in which they came.

    `call` gives one result for each item, in their order. What it raises is raised in every caller of the group.
    """

    def __init__(self, call: Call[T, R]) -> None:
        self._call = call
        self._turn = asyncio.Lock()
        self._open: _CallGroup[T, R] | None = None

    @property
    def idle(self) -> bool:
        """Whether no call is in progress or waiting."""
        return self._open is None and not self._turn.locked()

    async def __call__(self, items: Sequence[T]) -> Sequence[R]:
        """The results of `items`."""
        group = self._open
        if group is not None and len(group.items) < LIMIT:
            return await group.join(items)
        group = self._open = _CallGroup()
        group.items.extend(items)
        return (await self._lead(group))[: len(items)]

    async def _lead(self, group: _CallGroup[T, R]) -> Sequence[R]:
        try:
            async with self._turn:
                await asyncio.sleep(0)  # the other requests of this turn of the loop come along
                self._close(group)
                results = await self._call(group.items)
        except Exception as error:
            group.fail(error)
            raise
        except BaseException:
            self._close(group)  # cancelled, perhaps while it still waited for its turn
            group.fail(Unavailable("the request that called for this one, too, was cut off"))
            raise
        group.deliver(results)
        return results

    def _close(self, group: _CallGroup[T, R]) -> None:
        if self._open is group:
            self._open = None
