"""One connection to a server: a request at a time, and idle in between."""

import asyncio
import re
import select
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

from relay.delivery.calls import OpenRequest, OpenRequests
from relay.delivery.http1 import ResponseReader
from relay.domain.egress import ProxyChoice, Tls
from relay.domain.exchange import Exchange, NoResponse

Origin = tuple[str, str, int, Tls | None, ProxyChoice | None]
"""Scheme, host and port; and what else makes connections different: settings of its own for TLS, and for a proxy."""

_REFUSED_US: Final = re.compile(r"ALERT_.*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")
"""Alerts of a server that has not accepted the handshake."""

_JOINED: Final = 64 * 1024
"""Up to this size a body is copied behind its head: that is quicker than handing over two buffers."""


class ConnectionOwner(Protocol):
    """Knows about connections for as long as they are open."""

    def opened(self, connection: "ClientConnection") -> None: ...

    def keep(self, connection: "ClientConnection") -> None:
        """It is idle, and may be asked again."""

    def lost(self, connection: "ClientConnection") -> None: ...


class ClientConnection(asyncio.Protocol):
    """`idle_since`: the loop's time, or None while it is not kept idle; set by its home. `lost_by`: the error that
    ended it."""

    __slots__ = ("_call", "_calls", "_home", "_poll", "_reader", "_transport", "idle_since", "lost_by", "origin")

    _transport: asyncio.Transport
    _poll: Callable[[int], list[tuple[int, int]]]

    def __init__(self, origin: Origin, home: ConnectionOwner, calls: OpenRequests, body_cap: int) -> None:
        self.origin = origin
        self.idle_since: float | None = None
        self.lost_by: Exception | None = None
        self._home = home
        self._calls = calls
        self._call: OpenRequest | None = None
        self._reader = ResponseReader(body_cap)

    def ask(self, call: OpenRequest, head: bytes, body: bytes) -> None:
        """Write the request; from now on it counts as sent."""
        self._call = call
        call.carrier = self
        self._reader.begin()
        if len(body) <= _JOINED:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def is_stale(self) -> bool:
        """Whether an idle connection is no longer of use: it has something to read, if only its end, perhaps not yet
        noticed by the loop."""
        return self._transport.is_closing() or bool(self._poll(0))

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    @property
    def certificate_expires(self) -> float | None:
        """Unix seconds. None: the server has shown no certificate."""
        shown = self._transport.get_extra_info("peercert")
        return float(ssl.cert_time_to_seconds(shown["notAfter"])) if shown else None

    def close(self) -> None:
        self._transport.abort()  # a polite end of TLS would wait for the server's

    def abandon(self, kind: str, detail: str) -> Exchange:
        self._call = None
        self._transport.abort()
        return self._reader.cut(kind, detail)

    def _end(self, call: OpenRequest, exchange: Exchange) -> None:
        self._call = None
        if not self._reader.reusable or self._transport.is_closing() or self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._home.keep(self)
        self._calls.finish(call, exchange)

    # --- called by the loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._poll = poll.poll
        self._home.opened(self)

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None:
            self._transport.abort()  # nobody asked
            return
        exchange = self._reader.feed(data)
        if exchange is not None:
            self._end(call, exchange)

    def eof_received(self) -> None:
        if self._call is not None:
            self._end(self._call, self._reader.end())

    def connection_lost(self, exc: Exception | None) -> None:
        self._home.lost(self)
        self.lost_by = exc
        if self._call is not None:
            self._end(self._call, self._reader.end() if exc is None else self._broken(exc))

    def _broken(self, exc: Exception) -> Exchange:
        exchange = self._reader.cut("disconnected", str(exc))
        if isinstance(exchange, NoResponse) and isinstance(exc, ssl.SSLError) and _REFUSED_US.search(exc.reason or ""):
            # With TLS 1.3 a client may speak before the server has looked at its certificate. One that does not accept
            # that has ended the handshake, and not read the request.
            return NoResponse("tls", str(exc), sent=False)
        return exchange
