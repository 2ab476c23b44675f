"""The transport on aiohttp, which speaks to egress proxies: careful about what was sent, and not the fastest."""

import asyncio
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Final

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from relay.delivery.guard import AddressGuard, malformed
from relay.delivery.http1 import BODY_CAP
from relay.delivery.port import Transport
from relay.delivery.tls import client_context
from relay.domain.exchange import Exchange, NoResponse, Request, Response

_CONNECT_S: Final = 5.0
"""Longest time for DNS, TCP and TLS together: an address that does not answer by then is not going to."""

_KEEPALIVE_S: Final = 4.0
"""Idle connections are dropped before the usual servers do it (5 s): a request that crosses a server's close would be
ambiguous."""

_STALE_TRIES: Final = 3
"""A restarted server leaves several dead connections in the pool. After so many, say that it is disconnected."""

_NOT_OURS: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add by itself; the request says all that is to be sent."""


class _Blocked(OSError):
    """The guard refused to dial. All have the same text, or several at once (a name with two addresses) would come
    back as a plain OSError."""

    def __init__(self, reason: str) -> None:
        super().__init__("blocked by the address guard")
        self.reason = reason


@dataclass(slots=True)
class _Progress:
    """How far a request has come; it stays when the call that filled it is cancelled by the timeout."""

    sent: bool = False
    reused: bool = False
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False

    def response(self) -> Response | None:
        if self.status is None:
            return None
        return Response(self.status, self.headers, bytes(self.body), not self.complete)


class _Body(Payload):
    """A request body that knows whether the connection took any of the request.

    aiohttp writes headers and body with a single call, from here. Its UploadTracker counts what the kernel took, but
    keeps an old count when the connection breaks, so that a request half sent may look like one never sent.
    """

    def __init__(self, body: bytes, progress: _Progress) -> None:
        super().__init__(body)
        self._body = body
        self._size = len(body)
        self._progress = progress

    @property
    def consumed(self) -> bool:
        return True  # keeps aiohttp from repeating a request on its own

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._body.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        transport = writer.transport
        if transport is None or transport.is_closing() or (self._progress.reused and _has_news(transport)):
            raise aiohttp.ClientConnectionResetError("the connection was closed before anything was sent")
        self._progress.sent = True
        await writer.write(self._body)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await self.write(writer)  # the length is always that of the body


def _has_news(transport: asyncio.WriteTransport) -> bool:
    """Whether an idle connection has something to read: then the server has closed it, and we have not noticed yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


class AiohttpTransport(Transport):
    """`body_cap`: how many bytes of a response body are read. `ca_file`: PEM file of further trusted authorities.

    `proxy`: URL of an HTTP proxy. It looks names up and dials, so that only literal addresses are checked here.
    """

    def __init__(
        self, guard: AddressGuard, *, body_cap: int = BODY_CAP, ca_file: str | None = None, proxy: str | None = None
    ) -> None:
        self._guard = guard
        self._proxy = proxy
        self._body_cap = body_cap
        self._ssl = client_context(ca_file)
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._under_way: set[asyncio.Task[Exchange]] = set()

    async def start(self) -> None:
        # One session per scheme, because the socket factory is not told which one it dials for.
        for scheme in ("https", "http"):
            self._sessions[scheme] = self._session(scheme)

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for session in sessions.values():
            await session.close()
        await asyncio.sleep(0)  # what was given up has been told by then

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        progress = _Progress()

        def report(task: asyncio.Task[Exchange]) -> None:
            self._under_way.discard(task)
            given_up = NoResponse("disconnected", "the transport was closed", progress.sent)
            done((progress.response() or given_up) if task.cancelled() else task.result())

        task = asyncio.get_running_loop().create_task(self._exchange(request, progress))
        self._under_way.add(task)
        task.add_done_callback(report)

    def _session(self, scheme: str) -> aiohttp.ClientSession:
        traces = aiohttp.TraceConfig()
        traces.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                ssl=self._ssl,
                keepalive_timeout=_KEEPALIVE_S,
                socket_factory=None if self._proxy else _guarded_sockets(self._guard, scheme),
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_OURS,
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_S),  # the total is kept in `exchange`
            trace_configs=[traces],
        )

    async def _exchange(self, request: Request, progress: _Progress) -> Exchange:
        if refusal := self._refusal(request.url):
            return refusal
        failure: NoResponse | None = None
        try:
            async with asyncio.timeout(request.timeout_s):
                await self._converse(request, progress)
        except TimeoutError as error:
            kind = "timeout" if progress.sent else "connect_timeout"
            failure = NoResponse(kind, str(error) or f"no answer within {request.timeout_s:g} s", progress.sent)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = _no_response(error, progress.sent)
        return progress.response() or failure or NoResponse("disconnected", "no response", progress.sent)

    def _refusal(self, url: str) -> NoResponse | None:
        if not self._sessions:
            return NoResponse("disconnected", "the transport is not running", sent=False)
        if fault := malformed(url):
            return NoResponse("invalid_url", fault, sent=False)
        if fault := self._guard.check_host(url):
            return NoResponse("blocked", fault, sent=False)
        return None

    async def _converse(self, request: Request, progress: _Progress) -> None:
        """Send the request and read the response, both into `progress`."""
        response = await self._send(request, progress)
        try:
            progress.headers = {name.lower(): _text(value) for name, value in response.headers.items()}
            progress.status = response.status
            async for chunk in response.content.iter_any():
                progress.body += chunk
                if len(progress.body) > self._body_cap:
                    del progress.body[self._body_cap :]
                    return
            progress.complete = True
        finally:
            response.close()  # a response read to its end has already given its connection back

    async def _send(self, request: Request, progress: _Progress) -> aiohttp.ClientResponse:
        """Get a status line. Repeats only what never left: a request that met a connection already closed."""
        url = URL(request.url, encoded=True)
        session = self._sessions[url.scheme]
        middlewares = (_without_length,) if request.method == "GET" else ()
        for tries_left in reversed(range(_STALE_TRIES)):
            progress.reused = False
            try:
                return await session.request(
                    request.method,
                    url,
                    headers=request.headers,
                    data=_Body(request.body, progress),
                    allow_redirects=False,
                    middlewares=middlewares,
                    proxy=self._proxy,
                    trace_request_ctx=progress,
                )
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                if progress.sent or not progress.reused or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")


def _text(value: str) -> str:
    """A header's value as text that can be encoded again: aiohttp hides foreign bytes in lone surrogates."""
    return value if value.isascii() else value.encode(errors="surrogateescape").decode(errors="replace")


def _guarded_sockets(guard: AddressGuard, scheme: str) -> Callable[[aiohttp.AddrInfoType], socket.socket]:
    def open_socket(target: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = target
        if refusal := guard.check_dial(scheme, str(address[0])):
            raise _Blocked(refusal)
        return socket.socket(family, kind, protocol)

    return open_socket


async def _note_reuse(
    session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    progress: _Progress = context.trace_request_ctx
    progress.reused = True


async def _without_length(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """A GET has no content, hence no length of it (RFC 9110, section 8.6)."""
    request.headers.pop("Content-Length", None)
    return await handler(request)


def _no_response(error: Exception, sent: bool) -> NoResponse:
    detail = str(error) or type(error).__name__
    match error:
        case aiohttp.ClientSSLError():
            return NoResponse("tls", detail, sent)
        case aiohttp.ClientConnectorDNSError():
            return NoResponse("dns", detail, sent)
        case aiohttp.ClientConnectorError(os_error=_Blocked(reason=reason)):
            return NoResponse("blocked", reason, sent)
        case aiohttp.ClientConnectorError():
            return NoResponse("refused", detail, sent)
        case aiohttp.InvalidURL():
            return NoResponse("invalid_url", detail, sent)
        case aiohttp.ClientResponseError():
            return NoResponse("protocol", detail, sent)
        case aiohttp.ClientError() | OSError():
            return NoResponse("disconnected", detail, sent)
        case _:  # ValueError: aiohttp refuses control characters in headers
            return NoResponse("invalid_header", detail, sent)
