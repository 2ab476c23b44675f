"""Bounds of each request: memory for its body, bytes of its headers, and the requests that are served at the cap.

Memory for a whole body is reserved before it is read, so every request that has begun can finish; when the budget is
used up, requests wait for others to finish: first those of the caller that holds the least, so that one who sends
slowly does not delay others, and those of one caller in order of arrival. Small bodies have a budget of their own: slow
large ones do not delay them. Time and number of connections are bounded where they are accepted: see `connection`."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler, Middleware

from relay.api.connection import ApiConnection
from relay.api.landing import MONITORING
from relay.api.problem_details import template_of
from relay.api.problems import HEADERS_TOO_LARGE, Problem, busy, invalid
from relay.config.limits import ApiLimits

SMALL: Final = 256 * 1024
"""Bytes of a small body: messages have a few kB."""
_FOR_SMALL: Final = 4
"""One in this many bytes is reserved for small bodies."""
JUDGED_S: Final = 3.0
"""Between two checks of the caller's rights in a long response: a revoked key gets nothing after this time."""


class BodyBudget:
    """`size` bytes, in turns."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._held: Counter[str] = Counter()
        self._turns: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    def take_now(self, size: int, caller: str = "") -> bool:
        """Take `size` bytes for a caller, if they are free and no request has to come first."""
        if size > self._free or any(self._held[other] <= self._held[caller] for other in self._turns):
            return False
        self._take(size, caller)
        return True

    async def take(self, size: int, caller: str = "") -> None:
        """Wait for `size` bytes, which must not be more than there are in all; cancelled, nothing was taken."""
        if self.take_now(size, caller):
            return
        turn = asyncio.get_running_loop().create_future()
        self._turns.setdefault(caller, deque()).append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size, caller)
            else:
                self._turns[caller].remove((size, turn))
                self.give_back(0, caller)  # the next one may be smaller
            raise

    def give_back(self, size: int, caller: str = "") -> None:
        self._take(-size, caller)
        self._turns = {name: turns for name, turns in self._turns.items() if turns}
        while self._turns:
            first = min(self._turns, key=self._held.__getitem__)
            wanted, turn = self._turns[first][0]
            if wanted > self._free:
                return
            self._turns[first].popleft()
            if not self._turns[first]:
                del self._turns[first]
            self._take(wanted, first)
            turn.set_result(None)

    def _take(self, size: int, caller: str) -> None:
        self._free -= size
        self._held[caller] += size
        if not self._held[caller]:
            del self._held[caller]


class BodyMemory:
    """The two parts of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._small = BodyBudget(size // _FOR_SMALL)
        self._large = BodyBudget(size - size // _FOR_SMALL)

    def room(self) -> "BodyReservation":
        """A reservation for one request, empty at first."""
        return BodyReservation(self._small, self._large)


class BodyReservation:
    """The memory reserved by one request, until `leave`."""

    __slots__ = ("_caller", "_held", "_large", "_pool", "_small")

    def __init__(self, small: BodyBudget, large: BodyBudget) -> None:
        self._small = small
        self._large = large
        self._pool: BodyBudget | None = None
        self._held = 0
        self._caller = ""

    def take_now(self, size: int, caller: str = "") -> bool:
        """Reserve memory for a body of at most `size` bytes; returns whether there is enough. Once for each request."""
        pool = self._small if size <= SMALL else self._large
        if not pool.take_now(size, caller):
            return False
        self._pool, self._held, self._caller = pool, size, caller
        return True

    async def take(self, size: int, caller: str = "") -> None:
        """Wait until there is some."""
        pool = self._small if size <= SMALL else self._large
        await pool.take(size, caller)
        self._pool, self._held, self._caller = pool, size, caller

    def shrink(self, size: int) -> None:
        """The body has only `size` bytes."""
        if self._pool is not None and size < self._held:
            freed, self._held = self._held - size, size
            self._pool.give_back(freed, self._caller)

    def leave(self) -> None:
        """Release the reservation: the request has ended."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.give_back(self._held, self._caller)


_FEW_HEADERS: Final = 7
"""Number of headers that cannot exceed the limit of their sum, even if each has the parser's maximum size."""


def _may_go_on() -> None:
    """For requests without a key."""


@dataclass(slots=True)
class RequestBounds:
    """The bounds of one request. `framed_oddly`: its body has none that a proxy in front is sure to see, too.
    `check_again`: raises a Problem if the caller has lost its rights since the request began."""

    limits: ApiLimits
    room: BodyReservation
    framed_oddly: bool
    check_again: Callable[[], None] = _may_go_on


_BOUNDS: Final = web.RequestKey("bounds", RequestBounds)


def bounds_of(request: web.Request) -> RequestBounds:
    """The bounds of a request that `limit_requests` has admitted."""
    return request[_BOUNDS]


class RightsCheck:
    """The caller's rights in a long response. `due`: when they are checked next, in the loop's time."""

    def __init__(self, request: web.Request) -> None:
        self._check_again = bounds_of(request).check_again
        self._time = asyncio.get_running_loop().time
        self.due = self._time() + JUDGED_S

    def check(self) -> None:
        """Raises a Problem if it is due, and the caller has lost its rights since the request began."""
        if self._time() >= self.due:
            self._check_again()
            self.due = self._time() + JUDGED_S


def limit_requests(limits: ApiLimits) -> Middleware:
    """The outermost middleware: releases a request's reservation when the request has ended."""
    memory = BodyMemory(limits.body_bytes)

    @web.middleware
    async def seated(request: web.Request, handler: Handler) -> web.StreamResponse:
        room = memory.room()
        request[_BOUNDS] = bounds = RequestBounds(limits, room, _is_framed_oddly(request))
        try:
            response = await handler(request)
        finally:
            room.leave()
        if _in_reserve(request) or bounds.framed_oddly:
            response.force_close()
        return response

    return seated


def refuse_excess(request: web.Request) -> None:
    """503 for work on a connection beyond the cap, which is there for monitoring; 431 for too many bytes of headers."""
    if _in_reserve(request) and template_of(request) not in MONITORING:
        raise busy("All connections that the API may have are at work; repeat the request.")
    raw, most = request.raw_headers, bounds_of(request).limits.head_bytes
    if len(raw) > _FEW_HEADERS and sum(len(name) + len(value) for name, value in raw) > most:
        raise Problem(HEADERS_TOO_LARGE, f"The headers may have at most {most:,} bytes in all.")


def refuse_odd_framing(request: web.Request) -> None:
    """400 for a body that a proxy in front may end elsewhere, and take the rest for another request (RFC 9112, 6.1)."""
    if bounds_of(request).framed_oddly:
        raise invalid("The only transfer coding is `chunked`, in HTTP/1.1.", header="Transfer-Encoding")


def _is_framed_oddly(request: web.Request) -> bool:
    coding = request.headers.get("Transfer-Encoding")
    return coding is not None and (coding.strip().lower() != "chunked" or request.version < HttpVersion11)


def _in_reserve(request: web.Request) -> bool:
    connection = request.protocol
    return isinstance(connection, ApiConnection) and connection.in_reserve
