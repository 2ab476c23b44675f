"""Connections to servers, each of which carries one request at a time: requests in flight with their timeouts, and the
pool that keeps connections open in between."""

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
from math import inf
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


_IDLE_S: Final = 4.0
"""Idle connections are closed before common servers close them (5 s): a request that races with a server's close is
ambiguous."""

_AGE_S: Final = 60.0
"""Older connections are not used again, however busy they are. So a name that moves to another address, a certificate
that was replaced, or a new server behind a load balancer is noticed while the old server still responds."""

_HASTY_S: Final = 0.5
_HASTY_KEPT_S: Final = 60.0
"""A server that closes connections within `_HASTY_S` after their first response does so after each one, without having
announced it. For `_HASTY_KEPT_S`, its connections are not used again: a request could race with the close. Those of one
that closes idle ones later are used for half of that time."""

_UNUSED_S: Final = 60.0
_UNUSED: Final = 4096
"""How long, and how many, connections are kept that were too late for a slot of a rate. The next slot may be later than
`_IDLE_S`, or than other origins would leave them: each slot would find none, and be missed."""

_PER_ORIGIN: Final = 256
_IN_ALL: Final = 512
MOST_OPEN: Final = 10_000

_STALE_TRIES: Final = 3
"""A restarted server leaves several dead connections. After this many, a new connection is the better choice."""

_SWEEP_S: Final = 1.0


class ConnectionPool:
    """All connections of a transport, with idle ones by origin, most recently used first. Idle connections count
    towards `most_open` and are evicted first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most_open: int) -> None:
        self._loop = loop
        self._most_open = most_open
        self._open: set[ClientConnection] = set()
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._since: dict[ClientConnection, float] = {}
        """Since when each idle connection is idle, in the loop's time; longest first."""
        self._unused: dict[Origin, ClientConnection] = {}
        """A connection of each origin that has not been used yet; longest open first."""
        self._limits: dict[Origin, tuple[float, float]] = {}
        """Of origins that close connections early: seconds for which an idle one can be used, and when that was
        noticed."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Future[None] | None = None

    def take(self, origin: Origin, now: float) -> ClientConnection | None:
        """An idle connection that appears usable; None if there is none."""
        idle = self._idle.get(origin)
        if not idle:
            return self._take_unused(origin, now) if self._unused else None
        limit_s = self._limits[origin][0] if origin in self._limits else _IDLE_S
        for _ in range(min(_STALE_TRIES, len(idle))):
            connection = idle.pop()
            since = self._since.pop(connection)
            if connection.is_stale():
                self._note_idle_close(connection, since, now)
            elif now - since < limit_s:
                connection.idle_at = since if connection.idle_at is None else -inf
                return connection
            connection.close()
        return self._take_unused(origin, now)

    def _take_unused(self, origin: Origin, now: float) -> ClientConnection | None:
        connection = self._unused.pop(origin, None)
        if connection is None:
            return None
        if now - connection.opened_at < _UNUSED_S and not connection.is_stale():
            return connection
        connection.close()
        return None

    def keep_unused(self, connection: ClientConnection) -> None:
        """The connection is new, and too late for its request, which will be made again."""
        if connection.origin in self._unused or self._all_lost is not None:
            self.keep(connection)
            return
        self._unused[connection.origin] = connection
        if len(self._unused) > _UNUSED:
            self._drop_unused()
        self._sweep_later()

    def keep(self, connection: ClientConnection) -> None:
        now = self._loop.time()
        is_old = now - connection.opened_at >= _AGE_S
        is_hasty = connection.origin in self._limits and not self._limits[connection.origin][0]
        if is_old or is_hasty or self._all_lost is not None:
            connection.close()
            return
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = []
        idle.append(connection)
        self._since[connection] = now
        if len(idle) > _PER_ORIGIN:
            self._drop(idle[0])
        elif len(self._since) > _IN_ALL:
            self._drop_oldest()
        self._sweep_later()

    def make_room(self, opening: int) -> None:
        """Evict idle connections before `opening` new ones are opened."""
        excess = len(self._open) + opening - self._most_open
        for _ in range(min(len(self._since) + len(self._unused), excess)):
            self._drop_oldest()

    def drop_idle(self) -> None:
        """Close all idle connections, because the process has no resources left."""
        while self._since or self._unused:
            self._drop_oldest()

    def opened(self, connection: ClientConnection) -> None:
        """Called once the dial has ended: after one that was cancelled, uvloop closes the connection without a
        `connection_lost`."""
        connection.opened_at = self._loop.time()
        if not connection.is_closing():
            self._open.add(connection)

    def unanswered(self, connection: ClientConnection) -> None:
        if connection.idle_at is not None:
            now = self._loop.time()
            self._note_close(connection.origin, now - connection.idle_at, now)

    def lost(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        since = self._since.pop(connection, None)
        if since is not None:
            self._idle[connection.origin].remove(connection)
            self._note_idle_close(connection, since, self._loop.time())
        elif self._unused.get(connection.origin) is connection:
            del self._unused[connection.origin]
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)

    async def close(self) -> None:
        """Close every connection, and wait until the event loop has released them."""
        self._all_lost = self._loop.create_future()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._open:
            connection.close()
        if self._open:
            await self._all_lost

    def _note_idle_close(self, connection: ClientConnection, since: float, now: float) -> None:
        """The server has closed a connection that was idle."""
        if connection.idle_at is None or now - since >= _HASTY_S:
            self._note_close(connection.origin, now - since, now)

    def _note_close(self, origin: Origin, idle_s: float, now: float) -> None:
        """A server has closed a connection after it was idle for so long."""
        limit_s = 0.0 if idle_s < _HASTY_S else idle_s / 2
        if limit_s < _IDLE_S:
            known_s = self._limits[origin][0] if origin in self._limits else _IDLE_S
            self._limits[origin] = min(limit_s, known_s), now

    def _drop_oldest(self) -> None:
        if self._since:
            self._drop(next(iter(self._since)))
        else:
            self._drop_unused()

    def _drop_unused(self) -> None:
        self._unused.pop(next(iter(self._unused))).close()

    def _drop(self, connection: ClientConnection) -> None:
        self._idle[connection.origin].remove(connection)
        del self._since[connection]
        connection.close()

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and forget origins of which there is nothing to remember."""
        now = self._loop.time()
        for connection in [each for each, _ in takewhile(lambda idle: idle[1] <= now - _IDLE_S, self._since.items())]:
            self._drop(connection)
        while self._unused and next(iter(self._unused.values())).opened_at <= now - _UNUSED_S:
            self._drop_unused()
        self._idle = {origin: idle for origin, idle in self._idle.items() if idle}
        self._limits = {origin: limit for origin, limit in self._limits.items() if limit[1] > now - _HASTY_KEPT_S}
        self._sweeper = None
        if self._idle or self._limits or self._unused:
            self._sweep_later()

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
