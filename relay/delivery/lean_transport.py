"""Transport for many requests per second: HTTP/1.1 on plain asyncio protocols, a few microseconds per request.

On an open connection, a request costs one write and no task, future or timer. Rare operations (dialling, timeouts) are
optimized for clarity instead.
"""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache, partial
from typing import Final

from msgspec import structs

from relay.delivery.connection import ClientConnection, OpenRequest, OpenRequests, Origin
from relay.delivery.connection_pool import MOST_OPEN, ConnectionPool
from relay.delivery.dial import DialError, Dialler
from relay.delivery.guard import AddressGuard
from relay.delivery.http1 import BODY_CAP, head_of, start_of_head
from relay.delivery.oauth2 import Authorized, Tokens
from relay.delivery.port import Transport
from relay.delivery.proxy import EgressProxy
from relay.delivery.tls import Contexts
from relay.domain.egress import Egress, ProxyChoice
from relay.domain.exchange import LATE, WITH_BODY, Exchange, NoResponse, Request, Response
from relay.domain.urls import UrlParts, malformed, url_parts

_ROUTES_KEPT: Final = 4096
_KEPT_URL: Final = 1_024
"""Characters of the longest URL whose route is cached; receivers choose the URLs of their jobs."""
_LIKE_ALL: Final = Egress()


@dataclass(frozen=True, slots=True)
class _Route:
    """How requests to a URL are sent. `start`: of the request's head. `credentials`: for a forwarding proxy."""

    url: UrlParts
    origin: Origin
    start: str
    proxy: EgressProxy | None
    credentials: tuple[tuple[str, str], ...] = ()


class _Dialling:
    """Carries a request until its connection is open. `is_looking_up()`: whether its DNS lookup is in progress."""

    __slots__ = ("is_looking_up", "task")

    def __init__(self, task: asyncio.Task[None], is_looking_up: Callable[[], bool]) -> None:
        self.task = task
        self.is_looking_up = is_looking_up

    def abandon(self, kind: str, detail: str) -> Exchange:
        self.task.cancel()
        if kind == "timeout":
            kind = "dns_silent" if self.is_looking_up() else "connect_timeout"
        return NoResponse(kind, detail, sent=False)


@dataclass(eq=False, repr=False)
class LeanTransport(Transport):
    """`body_cap`: maximum bytes of a response body. `ca_file`: PEM file of additional trusted authorities.

    `proxy`: the proxy for URLs that it `takes`; it resolves names, so only literal addresses are checked here.
    `most_open`: maximum open connections, unless requests in flight need more; idle ones are closed first.
    """

    guard: AddressGuard
    _: KW_ONLY
    body_cap: int = BODY_CAP
    ca_file: str | None = None
    proxy: EgressProxy | None = None
    most_open: int = MOST_OPEN
    _dials: set[asyncio.Task[None]] = field(default_factory=set)
    _running: bool = False

    def __post_init__(self) -> None:
        self._contexts = Contexts(self.ca_file)
        self._route = lru_cache(maxsize=_ROUTES_KEPT)(self._find_route)
        self._own_route = lru_cache(maxsize=_ROUTES_KEPT)(self._find_route)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = OpenRequests(self._loop)
        self._pool = ConnectionPool(self._loop, self.most_open)
        self._dialler = Dialler(self._loop, self.guard, self._contexts)
        self._authorized = Authorized(self.send, Tokens(self.exchange, self._loop.time))
        self._running = True

    async def close(self) -> None:
        if not self._running:
            return
        self._running = False
        self._calls.close()
        await self._authorized.close()
        await asyncio.gather(*self._dials, return_exceptions=True)
        await self._dialler.close()
        await self._contexts.close()
        await self._pool.close()
        await asyncio.sleep(0)  # callbacks of abandoned requests have run by then

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        if not self._running:
            refusal = NoResponse("disconnected", "the transport is not running", sent=False)
            asyncio.get_running_loop().call_soon(done, refusal)
            return
        egress = request.egress
        if egress is not None and egress.oauth2 is not None:
            self._authorized.send(request, egress, done)
            return
        if len(request.url) > _KEPT_URL:
            route = self._find_route(request.url, egress)
        else:  # two caches, because the lookup by URL alone is faster
            route = self._route(request.url) if egress is None else self._own_route(request.url, egress)
        if isinstance(route, NoResponse):
            self._loop.call_soon(done, route)
            return
        if route.proxy is not None and route.url.scheme == "http":
            done = partial(_forwarded, route.proxy, done)
        if route.credentials:
            request = structs.replace(request, headers=request.headers + route.credentials)
        try:
            head = head_of(request, route.start)
        except ValueError as error:
            self._loop.call_soon(done, NoResponse("invalid_header", str(error), sent=False))
            return
        body = request.body if request.method in WITH_BODY else b""
        now = self._loop.time()
        call = self._calls.begin(done, request.timeout_s, now)
        connection = self._pool.take(route.origin, now)
        if connection is not None:
            connection.ask(call, head, body)
        else:
            self._dial(call, route, head, body, now + request.start_within_s)

    def _find_route(self, url: str, egress: Egress | None = None) -> _Route | NoResponse:
        if fault := malformed(url):
            return NoResponse("invalid_url", fault, sent=False)
        if fault := self.guard.check_host(url):
            return NoResponse("blocked", fault, sent=False)
        parts = url_parts(url)
        egress = egress or _LIKE_ALL
        secure, proxy = parts.scheme == "https", self._proxy_for(parts, egress.proxy)
        origin = (parts.scheme, parts.host, parts.port, egress.tls if secure else None, egress.proxy)
        if proxy is None or secure:
            return _Route(parts, origin, start_of_head(parts), proxy)
        login = proxy.address.authorization
        credentials = () if login is None else (("Proxy-Authorization", login),)
        return _Route(parts, origin, start_of_head(parts, absolute=True), proxy, credentials)

    def _proxy_for(self, parts: UrlParts, own: ProxyChoice | None) -> EgressProxy | None:
        if own is not None:
            return None if own == "none" else EgressProxy(own, own=True)
        return self.proxy if self.proxy is not None and self.proxy.takes(parts) else None

    def _dial(self, call: OpenRequest, route: _Route, head: bytes, body: bytes, start_by: float) -> None:
        self._pool.make_room(len(self._dials) + 1)
        dial = self._loop.create_task(self._dial_and_ask(call, route, head, body, start_by))
        call.carrier = _Dialling(dial, partial(self._dialler.is_looking_up, route.url))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)

    async def reach(self, url: str, egress: Egress | None = None) -> float | NoResponse | None:
        """Connect like a request, but send none. Returns when the server's certificate expires (Unix seconds; None
        without TLS), or why it could not connect."""
        route = self._find_route(url, egress)
        if isinstance(route, NoResponse):
            return route
        try:
            connection = await self._connected(route)
        except DialError as error:
            return NoResponse(error.kind, str(error), sent=False)
        expires = connection.certificate_expires
        connection.close()
        return expires

    async def _connected(self, route: _Route) -> ClientConnection:
        make = partial(ClientConnection, route.origin, self._pool, self._calls, self.body_cap)
        connection = await self._dialler.connect(route.url, make, proxy=route.proxy, tls=route.origin[3])
        self._pool.opened(connection)
        return connection

    async def _dial_and_ask(self, call: OpenRequest, route: _Route, head: bytes, body: bytes, start_by: float) -> None:
        try:
            connection = await self._connected(route)
        except DialError as error:
            if error.kind == "no_resources":
                self._pool.drop_idle()
            self._calls.finish(call, NoResponse(error.kind, str(error), sent=False))
            return
        except Exception as error:
            self._calls.finish(call, NoResponse("failed", f"{type(error).__name__}: {error}", sent=False))
            raise
        if connection.is_closing():
            unsent = NoResponse("disconnected", "closed before anything was sent", sent=False)
            self._calls.finish(call, connection.early or unsent)
        elif self._loop.time() >= start_by:  # a clock in whole milliseconds may not have moved while it connected
            self._pool.keep_unused(connection)
            self._calls.finish(call, NoResponse(LATE, "it had to wait for a connection", sent=False))
        else:
            connection.ask(call, head, body)


def _forwarded(proxy: EgressProxy, done: Callable[[Exchange], None], exchange: Exchange) -> None:
    """A request that the proxy rejects for its credentials has not got to the server, as with a tunnel."""
    if isinstance(exchange, Response) and exchange.status == 407:
        exchange = NoResponse("refused" if proxy.own else "no_proxy", "the egress proxy answered 407", sent=False)
    done(exchange)
