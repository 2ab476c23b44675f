"""One connection to the API, with limits that aiohttp lacks: time and bytes of a request head, and the number of
connections.

aiohttp parses, and closes connections that are idle for long. Here are the limits for a head that never ends, a
response that the client does not read, and the number of connections.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web

from relay.api.connection_limiter import ConnectionLimiter
from relay.api.failed_keys import network_of
from relay.api.limits import ApiLimits
from relay.api.problems import INTERNAL, INVALID, Problem, response_of
from relay.telemetry.logging import get_logger
from relay.telemetry.throttle import Throttle

SWEEP_S: Final = 1.0
MAX_LINE_BYTES: Final = 80_000
"""Of a request line: 1,000 receivers with the longest of names fit in."""
MAX_HEADERS: Final = 64
FIXED_HEADERS: Final = {"Server": "relay", "X-Content-Type-Options": "nosniff"}
_TELL_EVERY_S: Final = 60.0

_log = get_logger("relay.api")


class ApiConnection(web.RequestHandler):
    """The protocol that aiohttp runs for a connection, with a gate that admits it. `of_pages`: it is from our own
    pages.

    `_messages` is aiohttp's: requests whose heads are complete, and whose handlers have not begun.
    """

    __slots__ = ("_body", "_door", "_head_bytes", "_works", "in_reserve", "is_of_pages", "when_lost")

    def __init__(
        self,
        manager: web.Server,
        door: "ConnectionGate",
        loop: asyncio.AbstractEventLoop,
        *,
        of_pages: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(manager, loop=loop, **options)
        self._door = door
        self.is_of_pages = of_pages
        self._works = False
        self._head_bytes = 0
        self._body: Any = None
        """Of a request that was answered before all of it had come."""
        self.in_reserve = False
        """Whether it gets only what monitoring asks."""
        self.when_lost: Callable[[], None] | None = None
        """Called when the client has hung up: aiohttp lets the handler of its request continue."""

    @property
    def head_bytes(self) -> int:
        """Of a head that is not complete."""
        return self._head_bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        if self._door.enter(self, peer[0] if isinstance(peer, tuple) else None):
            super().connection_made(transport)
        else:
            cast(asyncio.Transport, transport).abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._door.leave(self)
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._works:
            return
        if self._messages:
            self._door.works(self)
            self._works = True
            self._body = None
            self._head_bytes = 0
        elif self._body is not None:  # the rest of what was answered before it came
            if self._body.is_eof():
                self._body = None
        elif data and self.transport is not None:
            self._head_bytes += len(data)
            self._door.head_grew(self, len(data))

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if not self._messages:
                self._works = False
                self._body = None if request.content.is_eof() else request.content
                self._door.waits(self)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What cannot be read as HTTP gets a problem, as any other mistake does, and not what it said."""
        super().handle_error(request, status, exc, message)
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            why = (message or "").partition("\n")[0].rstrip(":.") or HTTPStatus(status).phrase
            problem = Problem(INVALID, f"It cannot be read as HTTP: {why}.")
        else:
            problem = Problem(INTERNAL, "This is a fault of the relay; it has been logged.")
        response = response_of(problem, request)
        response.headers.update(FIXED_HEADERS)
        response.force_close()
        return response

    def pause_writing(self) -> None:
        super().pause_writing()
        self._door.blocked(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._door.unblocked(self)

    def refuse(self, status: HTTPStatus | None) -> None:
        """Close it without an answer, or with one that only says `status`."""
        if self.transport is not None and status is not None:
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: relay\r\nConnection: close\r\n"
            self.transport.write(f"{head}Content-Length: 0\r\n\r\n".encode())
        self.force_close()

    def abort(self) -> None:
        """Close it, and drop what the client does not read."""
        if self.transport is not None:
            self.transport.abort()


class ConnectionGate:
    """Lets connections in, and closes those whose time is over or whose place another one needs."""

    def __init__(self, limits: ApiLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._limits = limits
        self._loop = loop
        self._heads: OrderedDict[ApiConnection, float] = OrderedDict()
        """Those that owe us the rest of a head -> since when; the longest first."""
        self._blocked: OrderedDict[ApiConnection, float] = OrderedDict()
        self._heads_bytes = 0
        self._throttle = Throttle(every_s=_TELL_EVERY_S, overall=10, keys=10)
        self.seats: ConnectionLimiter[ApiConnection] = ConnectionLimiter(
            most=limits.connections, per_address=limits.per_address, reserve=limits.reserve
        )

    def enter(self, one: ApiConnection, address: str | None) -> bool:
        """Whether a newcomer gets in; another one may have to go for it."""
        seated = self.seats.enter(one, None if address is None else network_of(address))
        if seated is None:
            self._tell("refused", address)
            return False
        if seated.closes is not None:
            self._forget_head(seated.closes)
            seated.closes.refuse(None)
        if seated.closes is not None or seated.reserve:
            self._tell("reserve" if seated.reserve else "closed_for_another", address)
        one.in_reserve = seated.reserve
        self._heads[one] = self._loop.time()
        return True

    def works(self, one: ApiConnection) -> None:
        """Its head is complete."""
        self._forget_head(one)
        self.seats.works(one)

    def waits(self, one: ApiConnection) -> None:
        """It may send the next head."""
        self.seats.waits(one)

    def leave(self, one: ApiConnection) -> None:
        """It is closed."""
        self._forget_head(one)
        self._blocked.pop(one, None)
        self.seats.leave(one)

    def head_grew(self, one: ApiConnection, size: int) -> None:
        """So many more bytes of a head that is not complete."""
        self._heads.setdefault(one, self._loop.time())
        self._heads_bytes += size
        # What ends within these bytes may still be too much: of a complete head, the middleware counts the headers.
        if one.head_bytes > self._limits.head_bytes + MAX_LINE_BYTES:
            self._end(one, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        while self._heads_bytes > self._limits.heads_bytes:
            self._tell("heads", None)
            self._end(next(iter(self._heads)), HTTPStatus.REQUEST_TIMEOUT)

    def blocked(self, one: ApiConnection) -> None:
        """The client does not read what was written."""
        self._blocked[one] = self._loop.time()

    def unblocked(self, one: ApiConnection) -> None:
        self._blocked.pop(one, None)

    async def keep(self) -> None:
        """Close those whose time is over, until cancelled."""
        while True:
            await asyncio.sleep(min(SWEEP_S, self._limits.head_s))
            self.sweep(self._loop.time())

    def sweep(self, now: float) -> None:
        """Close those whose time is over at `now`, of the loop's clock."""
        while self._heads and next(iter(self._heads.values())) + self._limits.head_s <= now:
            one = next(iter(self._heads))
            self._end(one, HTTPStatus.REQUEST_TIMEOUT if one.head_bytes else None)
        while self._blocked and next(iter(self._blocked.values())) + self._limits.write_s <= now:
            one, _ = self._blocked.popitem(last=False)
            one.abort()

    def _end(self, one: ApiConnection, status: HTTPStatus | None) -> None:
        self._forget_head(one)
        self.seats.leave(one)
        one.refuse(status)

    def _forget_head(self, one: ApiConnection) -> None:
        if self._heads.pop(one, None) is not None:
            self._heads_bytes -= one.head_bytes

    def _tell(self, what: str, address: str | None) -> None:
        before = self._throttle.admit(what, self._loop.time())
        if before is not None:
            _log.warning("api_full", what=what, remote=address, open=len(self.seats), before=before)
