"""Requests that stay open until a delivery is over, in whichever process that happens: `?wait=`.

The process that finishes it publishes a hint. A hint may be lost, and is published only if the message was sent by a
request that waits; so the state is read when a request begins to wait, and then each second for all of them in one
call. A waiting request takes one of a bounded number of places until the client hangs up or the server stops.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from aiohttp import web

from relay.api.bounds import bounds_of
from relay.api.connection import ApiConnection
from relay.api.limits import ApiLimits
from relay.api.problems import Problem
from relay.api.status import StatusReader
from relay.api.untrusted_body import foreign_response
from relay.api.wait_query import WaitAsked
from relay.api.wait_response import AnswerGiven, ended, is_over
from relay.domain.errors import Unavailable
from relay.domain.identity import DeliveryId
from relay.engine.supervision import end
from relay.state.port import State
from relay.state.rows import RowKey, delivery_row

ASK_AGAIN_S: Final = 1
"""`Retry-After` of responses to requests that waited too shortly."""


@dataclass(eq=False, slots=True)
class _Waiter:
    """`woken`: there may be a result, or the client is gone (`gone`)."""

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False

    def leave(self) -> None:
        self.gone = True
        self.woken.set()


class WaitResult(NamedTuple):
    """What came of waiting. `response` None: it takes longer, or so many wait already that this one must not; then
    `headers` are for the response that says so."""

    response: web.Response | None = None
    headers: Mapping[str, str] = MappingProxyType({})


class Waiters:
    """All those of a process."""

    def __init__(self, reader: StatusReader, state: State, limits: ApiLimits) -> None:
        self._reader = reader
        self._state = state
        self._limits = limits
        self._waiting: dict[RowKey, set[_Waiter]] = {}
        self._of_digest: dict[bytes, RowKey] = {}
        self._count = 0
        self._closed = False
        self._looking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, _app: web.Application | None = None) -> None:
        """Listen to hints, until `close`."""
        self._listening = asyncio.create_task(self._listen())

    @property
    def count(self) -> int:
        return self._count

    async def close(self, _app: web.Application | None = None) -> None:
        """End all waits, and accept no more: the server stops."""
        self._closed = True
        for waiter in self._all():
            waiter.leave()
        await end([task for task in (self._looking, self._listening) if task is not None])

    async def wait(
        self, request: web.Request, delivery: DeliveryId, asked: WaitAsked, *, generation: int = 0
    ) -> WaitResult:
        """200 with the answer, if it comes in time; not with that of a life before `generation`. Raises a Problem
        where the delivery failed for good."""
        if self._closed or self._count >= self._limits.waiters:
            return WaitResult()
        bounds_of(request).room.shrink(0)  # the body is on the log, and others may need its memory
        try:
            answer = await self._answer(request, delivery, generation, asked.seconds)
        except Problem as problem:
            problem.headers |= asked.applied
            raise
        if answer is None:
            return WaitResult(headers=asked.applied)
        return WaitResult(foreign_response(answer.body, answer.content_type, {**answer.headers, **asked.applied}))

    async def _answer(
        self, request: web.Request, delivery: DeliveryId, generation: int, seconds: float
    ) -> AnswerGiven | None:
        until = asyncio.get_running_loop().time() + seconds
        with self._place(request, delivery_row(delivery)) as waiter:
            while not waiter.gone:
                waiter.woken.clear()
                with suppress(Unavailable):  # the next look may find it
                    row, record = await self._reader.outcome(delivery)
                    if is_over(row) and row.generation >= generation:
                        return ended(delivery, row, record)
                if not await _woken(waiter, until):
                    return None
        return None

    @contextmanager
    def _place(self, request: web.Request, row: RowKey) -> Iterator[_Waiter]:
        waiter = _Waiter(gone=request.transport is None)
        self._count += 1
        self._waiting.setdefault(row, set()).add(waiter)
        self._of_digest[row.digest] = row
        connection = request.protocol
        if isinstance(connection, ApiConnection):
            connection.when_lost = waiter.leave
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield waiter
        finally:
            if isinstance(connection, ApiConnection):
                connection.when_lost = None
            self._waiting[row].discard(waiter)
            if not self._waiting[row]:
                del self._waiting[row], self._of_digest[row.digest]
            self._count -= 1

    def _all(self) -> list[_Waiter]:
        return [waiter for waiters in self._waiting.values() for waiter in waiters]

    async def _look(self) -> None:
        """Wake those whose delivery is over, as long as anybody waits."""
        while True:
            await asyncio.sleep(self._limits.look_s)
            rows = list(self._waiting)
            if not rows:
                return
            with suppress(Unavailable):
                for row, seen in zip(rows, await self._state.watch(rows), strict=True):
                    if is_over(seen.row):
                        self._wake(row)

    async def _listen(self) -> None:
        while True:
            with suppress(Unavailable):
                async with self._state.hints() as hints:
                    async for digest in hints:
                        if (row := self._of_digest.get(digest)) is not None:
                            self._wake(row)
            await asyncio.sleep(self._limits.look_s)

    def _wake(self, row: RowKey) -> None:
        for waiter in self._waiting.get(row, ()):
            waiter.woken.set()


async def _woken(waiter: _Waiter, until: float) -> bool:
    """Whether it was before `until`, of the loop's clock."""
    try:
        async with asyncio.timeout_at(until):
            await waiter.woken.wait()
    except TimeoutError:
        return False
    return True
