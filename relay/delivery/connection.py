"""Connections to servers, each of which carries one request at a time, and the requests in flight with their
timeouts."""

import asyncio
import fcntl
import os
import re
import select
import ssl
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, takewhile
from typing import Final, Protocol, cast

from relay.delivery.http1 import ResponseReader
from relay.domain.egress import ProxyChoice, Tls
from relay.domain.exchange import Exchange, NoResponse, Response

Origin = tuple[str, str, int, Tls | None, ProxyChoice | None]
"""Key of interchangeable connections: scheme, host, port, and the endpoint's own TLS and proxy settings."""

_REFUSED_US: Final = re.compile(r"ALERT_.*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")
"""TLS alerts of a server that has rejected the handshake."""

_JOINED: Final = 64 * 1024
"""Up to this size the body is copied into one buffer with the head, which is faster than writing two."""


_TICK_S: Final = 0.001
"""An event loop may have millisecond resolution and call a timer slightly early."""


class Carrier(Protocol):
    """The current stage of a request: dialling or a connection."""

    def abandon(self, kind: str, detail: str) -> Exchange:
        """Stop working on the request. Returns its result so far; a NoResponse of `kind` if it has no response."""


class OpenRequest:
    """One request. `deadline`: when it times out, in the loop's time."""

    __slots__ = ("carrier", "deadline", "done", "timeout_s")

    carrier: Carrier

    def __init__(self, done: Callable[[Exchange], None], timeout_s: float, now: float) -> None:
        self.done = done
        self.timeout_s = timeout_s
        self.deadline = now + timeout_s


class OpenRequests:
    """All requests of a transport. Requests with the same timeout expire in the order in which they began, so each
    timeout needs only one timer, which fires about once per timeout however many requests there are."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lanes: dict[float, dict[OpenRequest, None]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def begin(self, done: Callable[[Exchange], None], timeout_s: float, now: float) -> OpenRequest:
        call = OpenRequest(done, timeout_s, now)
        lane = self._lanes.get(timeout_s)
        if lane is None:
            lane = self._lanes[timeout_s] = {}
            self._timers[timeout_s] = self._loop.call_at(call.deadline, self._sweep, timeout_s)
        lane[call] = None
        return call

    def finish(self, call: OpenRequest, exchange: Exchange) -> None:
        del self._lanes[call.timeout_s][call]
        # Not called directly: it may start another request or raise while our caller is in an inconsistent state.
        self._loop.call_soon(call.done, exchange)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for call in list(chain.from_iterable(self._lanes.values())):
            self.finish(call, call.carrier.abandon("disconnected", "the transport was closed"))

    def _sweep(self, timeout_s: float) -> None:
        lane = self._lanes[timeout_s]
        by = self._loop.time() + _TICK_S
        for call in list(takewhile(lambda call: call.deadline <= by, lane)):
            self.finish(call, call.carrier.abandon("timeout", f"no answer within {timeout_s:g} s"))
        first = next(iter(lane), None)
        if first is not None:
            self._timers[timeout_s] = self._loop.call_at(first.deadline, self._sweep, timeout_s)
        else:
            del self._lanes[timeout_s], self._timers[timeout_s]


class ConnectionOwner(Protocol):
    """Tracks open connections."""

    def keep(self, connection: "ClientConnection") -> None:
        """The connection is idle and can be reused."""

    def unanswered(self, connection: "ClientConnection") -> None:
        """The connection has ended without a response to its request."""

    def lost(self, connection: "ClientConnection") -> None: ...


class ClientConnection(asyncio.Protocol):
    """`opened_at`, `idle_at` (during its second request, since when it was idle before that; None before, -inf after):
    the loop's time, set by its owner. `lost_by`: the error that closed it. `early`: the response of a busy server,
    which came before the request and closed it."""

    __slots__ = (
        *("_call", "_calls", "_home", "_is_large", "_poll", "_reader", "_transport"),
        *("early", "idle_at", "lost_by", "opened_at", "origin"),
    )

    _transport: asyncio.Transport
    _poll: Callable[[int], list[tuple[int, int]]]

    def __init__(self, origin: Origin, home: ConnectionOwner, calls: OpenRequests, body_cap: int) -> None:
        self.origin = origin
        self.opened_at = 0.0
        self.idle_at: float | None = None
        self.lost_by: Exception | None = None
        self.early: Response | None = None
        self._home = home
        self._calls = calls
        self._call: OpenRequest | None = None
        self._reader = ResponseReader(body_cap)

    def ask(self, call: OpenRequest, head: bytes, body: bytes) -> None:
        """Write the request, which counts as sent from now on."""
        self._call = call
        call.carrier = self
        self._reader.begin()
        self._is_large = len(body) > _JOINED
        if self._is_large:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)

    def is_stale(self) -> bool:
        """Whether an idle connection is unusable: it has data or an EOF to read, perhaps not yet noticed by the
        loop."""
        return self._transport.is_closing() or bool(self._poll(0))

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    @property
    def certificate_expires(self) -> float | None:
        """Expiry of the server's certificate, in Unix seconds; None without TLS."""
        shown = self._transport.get_extra_info("peercert")
        return float(ssl.cert_time_to_seconds(shown["notAfter"])) if shown else None

    def close(self) -> None:
        self._transport.abort()  # a graceful TLS shutdown would wait for the server

    def abandon(self, kind: str, detail: str) -> Exchange:
        self._call = None
        self._transport.abort()
        return self._reader.cut(kind, detail)

    def _end(self, call: OpenRequest, exchange: Exchange) -> None:
        self._call = None
        if not self._reader.reusable or self._transport.is_closing() or self._is_sending():
            self._transport.abort()
            if isinstance(exchange, NoResponse):
                self._home.unanswered(self)
        else:
            self._home.keep(self)
        self._calls.finish(call, exchange)

    def _is_sending(self) -> bool:
        """Whether the server has responded before it received the whole request, and may never read the rest."""
        # over TLS, the transport does not count what it has encrypted; the kernel's queue is full then
        return self._transport.get_write_buffer_size() > 0 or (self._is_large and _queued_bytes(self._transport) > 0)

    # --- called by the loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._poll = poll.poll

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:  # data without a request
            self._transport.abort()
            if self.idle_at is None:
                self._hear_early(data)
            return
        exchange = self._reader.feed(data)
        if exchange is not None:
            self._end(call, exchange)

    def _hear_early(self, data: bytes) -> None:
        """Of what a server says before it is asked, only that it is busy is believed."""
        said = self._reader.feed(data) or self._reader.cut("disconnected", "a response without a request")
        if isinstance(said, Response) and said.status in (429, 503):
            self.early = said

    def eof_received(self) -> None:
        if self._call is not None:
            self._end(self._call, self._reader.end())

    def connection_lost(self, exc: Exception | None) -> None:
        self._home.lost(self)
        self.lost_by = exc
        if self._call is not None:
            self._end(self._call, self._reader.end() if exc is None else self._broken(exc))

    def _broken(self, exc: Exception) -> Exchange:
        said = os.strerror(exc.errno).lower() if isinstance(exc, ConnectionError) and exc.errno else str(exc)
        exchange = self._reader.cut("disconnected", said)
        if isinstance(exchange, NoResponse) and isinstance(exc, ssl.SSLError) and _REFUSED_US.search(exc.reason or ""):
            # With TLS 1.3 a client may send before the server has checked its certificate. A server that rejects it
            # has aborted the handshake without reading the request.
            return NoResponse("tls", str(exc), sent=False)
        return exchange


def _queued_bytes(transport: asyncio.Transport) -> int:
    """Bytes in the kernel's send queue that the server has not acknowledged; 0 where the system does not say."""
    queued = bytearray(4)
    with suppress(OSError):
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    return int.from_bytes(queued, sys.byteorder)
