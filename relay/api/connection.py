"""One connection to the API, with limits that aiohttp lacks: time and bytes of a request head, and the number of
connections.

aiohttp parses, and closes connections that are idle for long. Here are the limits for a head that never ends, a
response that the client does not read, and the number of connections. When that is reached, the connection that has
waited longest without a complete request head is evicted: new clients are always admitted while others just hold
connections open, however many do.

Pages call the API over a unix socket that only this process can reach. A header has the visitor's address; it counts on
that socket only, and is ignored everywhere else."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import InvalidURLError, LineTooLong

from relay.api.connection_limiter import ConnectionLimiter
from relay.api.problem_details import response_of
from relay.api.problems import HEADERS_TOO_LARGE, INTERNAL, INVALID, Problem
from relay.config.limits import ApiLimits
from relay.telemetry.logging import get_logger
from relay.telemetry.throttle import Throttle

SWEEP_S: Final = 1.0
MAX_LINE_BYTES: Final = 80_000
"""Maximum size of a request line: 1,000 receivers with the longest names fit in."""
MAX_HEADERS: Final = 64
MAX_PIPELINED: Final = 2
"""Requests that may wait behind the one in progress before a connection is read no further: the memory for their heads
is in no other limit."""
MAX_AHEAD: Final = 8 * 1024
"""Bytes of the next head that may come before the response to a request: they came together with that request, so they
are not among the bytes of unfinished heads."""
_TOO_MANY_HEADERS: Final = "Too many headers received"
"""The message of aiohttp's error, which has no class of its own."""
FIXED_HEADERS: Final = {"Server": "relay", "X-Content-Type-Options": "nosniff"}
_LOG_EVERY_S: Final = 60.0

_log = get_logger("relay.api")


class ApiConnection(web.RequestHandler):
    """The protocol that aiohttp runs for a connection, with a gate that admits it. `of_pages`: it is from our own
    pages.

    `_messages` is aiohttp's: requests whose heads are complete, and whose handlers have not begun.
    """

    __slots__ = ("_body", "_gate", "_received", "_works", "head_bytes", "in_reserve", "is_of_pages", "when_lost")

    def __init__(
        self,
        manager: web.Server,
        gate: "ConnectionGate",
        loop: asyncio.AbstractEventLoop,
        *,
        of_pages: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(manager, loop=loop, **options)
        self._max_msg_queue_size, self._msg_queue_resume_size = MAX_PIPELINED, MAX_PIPELINED // 2
        self._gate = gate
        self.is_of_pages = of_pages
        self._works = False
        self.head_bytes = 0
        """Bytes received of an incomplete head."""
        self._received = 0
        """Bytes since it last waited, without those of requests that are answered."""
        self._body: Any = None
        """Of a request that was answered before all of it had come."""
        self.in_reserve = False
        """Whether it gets only what monitoring asks."""
        self.when_lost: Callable[[], None] | None = None
        """Called when the client has hung up: aiohttp lets the handler of its request continue."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        if self._gate.enter(self, peer[0] if isinstance(peer, tuple) else None):
            super().connection_made(transport)
        else:
            cast(asyncio.Transport, transport).abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._gate.leave(self)
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._received += len(data)
        if self._works:
            return
        body = self._body
        if body is not None and body.is_eof():  # the rest of what was answered before it came
            self._received -= _framed(body)
            self._body = None
        if self._messages:
            self._gate.works(self)
            self._works = True
            self.head_bytes = 0
        elif body is not None:
            if self._body is None and self._received > MAX_AHEAD:
                self.force_close()
        elif data and self.transport is not None:
            self.head_bytes += len(data)
            self._gate.head_grew(self, len(data))

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if not self._messages and request.content.is_eof() and self._ahead_of(request) > MAX_AHEAD:
            resp.force_close()
        try:
            resp, is_lost = await super().finish_response(request, resp, start_time)
        finally:
            self._received = self._ahead_of(request)
            if not self._messages:
                self._works = False
                self._body = None if request.content.is_eof() else request.content
                self._gate.waits(self)
        if not self._messages and self._body is None:
            if self._received > MAX_AHEAD:
                resp.force_close()
            self._received = 0
        return resp, is_lost

    def _ahead_of(self, request: web.BaseRequest) -> int:
        """Bytes that have come behind `request`, or behind its head if its body has not come: about, and half of
        MAX_AHEAD too many at most."""
        ahead = self._received - (_framed(request.content) if request.content.is_eof() else 0)
        if ahead <= MAX_AHEAD // 2:  # nearly always, and then the head need not be measured
            return ahead
        line = len(f"{request.method} {request.raw_path} HTTP/1.1\r\n")
        return ahead - line - sum(len(name) + len(value) + 4 for name, value in request.raw_headers) - 2

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answers a request that is not valid HTTP with a problem, which does not repeat its bytes."""
        super().handle_error(request, status, exc, message)
        if isinstance(exc, LineTooLong):
            problem = Problem(HEADERS_TOO_LARGE, f"A line of the request's head has more than {exc.args[1]} bytes.")
        elif message == _TOO_MANY_HEADERS:
            problem = Problem(HEADERS_TOO_LARGE, f"A request may have at most {MAX_HEADERS} headers.")
        elif status < HTTPStatus.INTERNAL_SERVER_ERROR:
            said = "Invalid URL" if isinstance(exc, InvalidURLError) else message or ""  # its message is the URL
            why = said.partition("\n")[0].rstrip(":.") or HTTPStatus(status).phrase
            problem = Problem(INVALID, f"The request is not valid HTTP: {why}.")
        else:
            problem = Problem(INTERNAL, "This is a bug in the relay; it is in the log.")
        response = response_of(problem, request)
        response.headers.update(FIXED_HEADERS)
        response.force_close()
        return response

    def pause_writing(self) -> None:
        super().pause_writing()
        self._gate.blocked(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._gate.unblocked(self)

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


def _framed(body: StreamReader) -> int:
    """At most the bytes in which a client sends a body, unless its chunks are tiny."""
    return body.total_bytes + body.total_bytes // 64


class ConnectionGate:
    """Admits connections, and closes those that timed out or whose place another one needs."""

    def __init__(self, limits: ApiLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._limits = limits
        self._loop = loop
        self._heads: OrderedDict[ApiConnection, float] = OrderedDict()
        """Those that owe us the rest of a head -> since when; the longest first."""
        self._blocked: OrderedDict[ApiConnection, float] = OrderedDict()
        self._heads_bytes = 0
        self._throttle = Throttle(every_s=_LOG_EVERY_S, overall=10, keys=10)
        self.seats: ConnectionLimiter[ApiConnection] = ConnectionLimiter(
            most=limits.connections, per_address=limits.per_address, reserve=limits.reserve
        )

    def enter(self, one: ApiConnection, address: str | None) -> bool:
        """Whether a newcomer gets in; another one may have to go for it."""
        seated = self.seats.enter(one, None if address is None else network_of(address))
        if seated is None:
            self._log_full("refused", address)
            return False
        if seated.closes is not None:
            self._forget_head(seated.closes)
            seated.closes.refuse(None)
        if seated.closes is not None or seated.reserve:
            self._log_full("reserve" if seated.reserve else "closed_for_another", address)
        one.in_reserve = seated.reserve
        self._heads[one] = self._loop.time()
        return True

    def works(self, one: ApiConnection) -> None:
        """Note that the head of a request is complete: the connection is busy."""
        self._forget_head(one)
        self.seats.works(one)

    def waits(self, one: ApiConnection) -> None:
        """Note that the request is answered: the connection is idle, and may send the next head."""
        self.seats.waits(one)

    def leave(self, one: ApiConnection) -> None:
        """Forget a connection that was closed."""
        self._forget_head(one)
        self._blocked.pop(one, None)
        self.seats.leave(one)

    def head_grew(self, one: ApiConnection, size: int) -> None:
        """More bytes of an incomplete head arrived."""
        self._heads.setdefault(one, self._loop.time())
        self._heads_bytes += size
        # What ends within these bytes may still be too much: of a complete head, the middleware counts the headers.
        if one.head_bytes > self._limits.head_bytes + MAX_LINE_BYTES:
            self._end(one, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        while self._heads_bytes > self._limits.heads_bytes:
            self._log_full("heads", None)
            self._end(next(iter(self._heads)), HTTPStatus.REQUEST_TIMEOUT)

    def blocked(self, one: ApiConnection) -> None:
        """The client does not read what was written."""
        self._blocked[one] = self._loop.time()

    def unblocked(self, one: ApiConnection) -> None:
        self._blocked.pop(one, None)

    async def keep(self) -> None:
        """Closes connections that timed out, until cancelled."""
        while True:
            await asyncio.sleep(min(SWEEP_S, self._limits.head_s))
            self.sweep(self._loop.time())

    def sweep(self, now: float) -> None:
        """Closes connections that timed out by `now`, on the loop's clock."""
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

    def _log_full(self, what: str, address: str | None) -> None:
        before = self._throttle.admit(what, self._loop.time())
        if before is not None:
            _log.warning("api_full", what=what, remote=address, open=len(self.seats), before=before)


@contextmanager
def on_loss(request: web.Request, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` if the client closes the connection meanwhile."""
    connection = request.protocol
    if not isinstance(connection, ApiConnection):
        yield
        return
    connection.when_lost = act
    try:
        yield
    finally:
        connection.when_lost = None


VISITOR_ADDRESS: Final = "Relay-Visitor-Address"


def address_of(request: web.Request) -> str | None:
    """An IP address, or None for a request over a unix socket without a known visitor."""
    if isinstance(request.protocol, ApiConnection) and request.protocol.is_of_pages:
        return request.headers.get(VISITOR_ADDRESS) or None
    return request.remote or None


_PREFIX = 64


def network_of(address: str | None) -> str:
    """The unit that counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    if address is None:
        return ""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_network((found.packed[:8] + bytes(8), _PREFIX)))
