"""Opens connections: DNS, the address guard's check, TCP and TLS, directly or through a proxy."""

import asyncio
import encodings.idna  # noqa: F401  needed for names; it could not be imported without free descriptors
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from itertools import chain, islice, zip_longest
from typing import Final

from relay.delivery.connection import ClientConnection
from relay.delivery.guard import AddressGuard
from relay.delivery.proxy import EgressProxy, TunnelRefused, is_answered
from relay.delivery.tls import Contexts, PinMismatch, check_pins
from relay.domain.egress import Tls
from relay.domain.errors import UserError
from relay.domain.fair_share import FairShare
from relay.domain.shown_exchange import tls_failure
from relay.domain.urls import UrlParts

_CONNECT_S: Final = 5.0
"""Timeout of DNS, TCP and TLS together: an address that has not answered by then will not."""

_PROXY_S: Final = 3.0
"""Part of `_CONNECT_S` for the connection to the egress proxy."""

_STAGGER_S: Final = 0.25
"""Delay before the next address is tried in parallel (RFC 8305, section 5)."""

_REFUSAL_S: Final = 0.25
"""Maximum wait for a server to reject our certificate before the request is sent; normally two round trips."""

_RECEIVED: Final = 4096
"""Bytes of a proxy's response that are read at a time."""

_NAMES_KEPT_S: Final = 10.0
_NAMES_KEPT: Final = 1024

_MOST_ADDRESSES: Final = 16
"""Addresses of a name that are tried. An owner of a domain can publish thousands; with these, each request would cost
half a second of CPU, and reach as many hosts."""

_LOOKUPS_AT_ONCE: Final = 28
"""Fewer than the threads for lookups (`relay/run/event_loop.py`); the others are for the names of Kafka and Redis. A
name server that does not respond occupies one for 10 s."""
_SLOW_S: Final = 1.0
_SLOW_AT_ONCE: Final = 16
"""Concurrent lookups of names whose last lookup took longer than `_SLOW_S`."""
_SLOW_KEPT: Final = 16_384
_REGISTRIES: Final = frozenset({"ac", "co", "com", "edu", "gov", "ne", "net", "or", "org"})
"""Labels below the domains of countries under which everyone may have a name (`co.uk`)."""

_Address = tuple[int, tuple[str | int | bytes, ...]]
"""(address family, socket address)"""


_NO_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, socket.EAI_MEMORY})
_UNREACHABLE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})
_TELLING: Final = ("refused", "no_resources", "unreachable", "no_local_address")
"""Kinds of failure, most informative first: the host's own response before an address family this machine lacks."""


class DialError(Exception):
    """The connection could not be opened. `kind`: as in NoResponse."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(slots=True, eq=False)
class _Lookup:
    """A DNS lookup that requests share. `waiting`: how many wait for it; `begun`: it has had its turn."""

    waiting: int = 0
    begun: bool = False
    task: asyncio.Task[list[_Address]] = field(init=False)


@dataclass(eq=False, repr=False)
class Dialler:
    """Opens connections to addresses that `guard` allows.

    DNS results are cached for some seconds, because many requests dial at once; each address is checked at every dial.
    Names that were slow to look up wait for each other, and names of a zone have their share of the lookups at a time,
    so that those of unresponsive name servers delay no other.
    """

    loop: asyncio.AbstractEventLoop
    guard: AddressGuard
    contexts: Contexts
    _lookups: dict[tuple[str, int], _Lookup] = field(default_factory=dict)
    _slow: dict[str, None] = field(default_factory=dict)
    _turns: FairShare = field(default_factory=lambda: FairShare(_LOOKUPS_AT_ONCE))
    _slow_turns: FairShare = field(default_factory=lambda: FairShare(_SLOW_AT_ONCE))

    async def connect(
        self, url: UrlParts, make: Callable[[], ClientConnection], *, proxy: EgressProxy | None, tls: Tls | None
    ) -> ClientConnection:
        """An open connection. `proxy`: None for a direct one; `tls`: the endpoint's own settings. Raises DialError."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                if proxy is not None:
                    sock = await self._through(proxy, url)
                else:
                    sock = await self._tcp(await self._addresses(url))
                if url.scheme == "https":
                    return await self._handshaken(sock, url, make, tls)
                _, connection = await self.loop.create_connection(make, sock=sock)
                return connection
        except TimeoutError as error:
            kind = "dns_silent" if self.is_looking_up(url) else "connect_timeout"
            raise DialError(kind, str(error) or f"no connection within {_CONNECT_S:g} s") from error
        except (ssl.SSLError, PinMismatch, UserError) as error:
            raise DialError("tls", tls_failure(str(error))) from error
        except OSError as error:
            why = error.strerror or str(error) or "the server ended the TLS handshake"
            raise DialError(_kind_of(error), why) from error

    def is_looking_up(self, url: UrlParts) -> bool:
        """Whether a DNS lookup of the URL's host is in progress."""
        lookup = self._lookups.get((url.host, url.port))
        return lookup is not None and not lookup.task.done()

    async def close(self) -> None:
        lookups = [lookup.task for lookup in self._lookups.values()]
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)

    async def _handshaken(
        self, sock: socket.socket, url: UrlParts, make: Callable[[], ClientConnection], tls: Tls | None
    ) -> ClientConnection:
        """The connection over TLS, with the server's certificate verified, and pinned if configured."""
        try:
            context = await self.contexts.of(tls)
        except BaseException:
            sock.close()
            raise
        name, begun = url.host.strip("[]").rstrip("."), self.loop.time()
        transport, connection = await self.loop.create_connection(make, sock=sock, ssl=context, server_hostname=name)
        try:
            if tls is not None and tls.pinned:
                check_pins(tls.pinned, transport.get_extra_info("ssl_object").getpeercert(binary_form=True))
            if tls is not None and tls.client_certificate is not None:
                # With TLS 1.3 the server checks our certificate after the handshake has ended on our side. A request
                # sent before that is ambiguous if the server then closes the connection, so give it time to reject.
                await asyncio.sleep(min(2 * (self.loop.time() - begun), _REFUSAL_S))
                if connection.is_closing():
                    why = connection.lost_by or "without a reason"
                    raise DialError("tls", f"the server ended the TLS handshake: {why}")
        except BaseException:
            transport.abort()
            raise
        return connection

    # --- through a proxy -----------------------------------------------------------------------------------------

    async def _through(self, proxy: EgressProxy, url: UrlParts) -> socket.socket:
        """A socket to the proxy; for https a tunnel. A failure of the global proxy is not the receiver's fault."""
        try:
            async with asyncio.timeout(_PROXY_S):
                sock = await self._tcp(await self._found(proxy.address.host, proxy.address.port))
        except (DialError, OSError) as error:  # also TimeoutError
            kind = error.kind if isinstance(error, DialError) else _kind_of(error)
            said = getattr(error, "strerror", None) or str(error) or "it does not answer"
            why = f"the egress proxy cannot be reached: {said}"
            raise DialError(kind if kind == "no_resources" or proxy.own else "no_proxy", why) from error
        if url.scheme == "https":
            try:
                await self._tunnel(sock, proxy.connect_head(url))
            except TunnelRefused as error:
                sock.close()
                raise DialError("no_proxy" if error.ours and not proxy.own else "refused", str(error)) from error
            except BaseException:
                sock.close()
                raise
        return sock

    async def _tunnel(self, sock: socket.socket, head: bytes) -> None:
        received = b""
        try:
            await self.loop.sock_sendall(sock, head)
            while not is_answered(received):
                more = await self.loop.sock_recv(sock, _RECEIVED)
                if not more:
                    raise ConnectionResetError
                received += more
        except ConnectionError as error:
            raise TunnelRefused("closed the connection instead of answering CONNECT", ours=True) from error

    # --- addresses ----------------------------------------------------------------------------------------------

    async def _addresses(self, url: UrlParts) -> list[_Address]:
        """The URL's addresses that the guard allows."""
        found = await self._found(url.host.strip("[]"), url.port)
        refusals = [self.guard.check_dial(url.scheme, str(address[0]), url.host) for _, address in found]
        if refusals and all(refusals):
            raise DialError("blocked", refusals[0] or "")
        return [address for address, refusal in zip(found, refusals, strict=True) if not refusal]

    async def _found(self, host: str, port: int) -> list[_Address]:
        try:
            return [_literal(host, port)]
        except ValueError:
            return await self._looked_up(host, port)

    async def _looked_up(self, host: str, port: int) -> list[_Address]:
        key = host, port
        lookup = self._lookups.get(key)
        if lookup is None:
            if len(self._lookups) >= _NAMES_KEPT:
                self._lookups.pop(next(iter(self._lookups)))
            lookup = self._lookups[key] = _Lookup()
            lookup.task = self.loop.create_task(self._resolved(host, port, lookup))
            lookup.task.add_done_callback(partial(self._looked, key, lookup))
        lookup.waiting += 1
        try:
            return await asyncio.shield(lookup.task)  # other tasks may wait for it, too
        except (OSError, UnicodeError) as error:
            why = (error.strerror or "").lower() if isinstance(error, OSError) else ""
            raise DialError(_dns_kind_of(error), f"{host}: {why or error}") from error
        finally:
            lookup.waiting -= 1
            if not lookup.begun:  # later, as the caller asks whether it is in progress
                self.loop.call_soon(self._end_unwanted, key, lookup)

    async def _resolved(self, host: str, port: int, lookup: _Lookup) -> list[_Address]:
        zone = _zone_of(host)
        slow_turn = self._turn(self._slow_turns, zone) if host in self._slow else nullcontext()
        async with slow_turn, self._turn(self._turns, zone):
            lookup.begun, begun = True, self.loop.time()
            try:
                return await _resolve(self.loop, host, port)
            finally:
                self._slow.pop(host, None)
                if self.loop.time() - begun > _SLOW_S:
                    if len(self._slow) >= _SLOW_KEPT:
                        del self._slow[next(iter(self._slow))]
                    self._slow[host] = None

    @asynccontextmanager
    async def _turn(self, turns: FairShare, zone: str) -> AsyncIterator[None]:
        """Wait until a name of this zone may be looked up."""
        turn = self.loop.create_future()
        if turns.take(zone):
            turn.set_result(None)
        else:
            turns.wait(zone, partial(_give, turn))
        try:
            await turn
            yield
        finally:
            if not turn.cancelled() and turns.leave(zone):
                turns.call_up()

    def _looked(self, key: tuple[str, int], lookup: _Lookup, task: asyncio.Task[list[_Address]]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._forget(key, lookup)
        else:
            self.loop.call_later(_NAMES_KEPT_S, self._forget, key, lookup)

    def _end_unwanted(self, key: tuple[str, int], lookup: _Lookup) -> None:
        """A lookup that waits for its turn ends if no request waits for it any more."""
        if not lookup.waiting and not lookup.begun:
            self._forget(key, lookup)
            lookup.task.cancel()

    def _forget(self, key: tuple[str, int], lookup: _Lookup) -> None:
        if self._lookups.get(key) is lookup:
            del self._lookups[key]

    # --- TCP ----------------------------------------------------------------------------------------------------

    async def _tcp(self, addresses: Sequence[_Address]) -> socket.socket:
        """A socket connected to the first address that answers; attempts start one after the other."""
        attempts: set[asyncio.Task[socket.socket]] = set()
        failures: list[OSError] = []
        waiting = list(reversed(addresses))
        try:
            while waiting or attempts:
                if waiting:
                    attempts.add(self.loop.create_task(self._tcp_to(waiting.pop())))
                ended, _ = await asyncio.wait(
                    attempts, timeout=_STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for attempt in ended:
                    attempts.discard(attempt)
                    error = attempt.exception()
                    if error is None:
                        return attempt.result()
                    if not isinstance(error, OSError):
                        raise error
                    failures.append(error)
            raise min(failures, key=_telling, default=OSError("the name has no address"))
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(_close_if_connected)

    async def _tcp_to(self, address: _Address) -> socket.socket:
        family, target = address
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self.loop.sock_connect(sock, target)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, _connect_failure(error, str(target[0]), int(target[1]))) from error
        except BaseException:
            sock.close()
            raise
        return sock


def _connect_failure(error: OSError, host: str, port: int) -> str:
    """Describes a failure, e.g. "connection refused by 127.0.0.1:9000" or "no route to host: 10.0.0.1:443"."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.ECONNREFUSED:
        return f"connection refused by {where}"
    return f"{os.strerror(error.errno).lower()}: {where}" if error.errno else f"{error}: {where}"


def _kind_of(error: OSError) -> str:
    if error.errno in _NO_RESOURCES:
        return "no_resources"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no_local_address"
    return "unreachable" if error.errno in _UNREACHABLE else "refused"


def _telling(error: OSError) -> int:
    return _TELLING.index(_kind_of(error))


def _dns_kind_of(error: OSError | UnicodeError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in _NO_RESOURCES:
        return "no_resources"
    return "dns_silent" if number == socket.EAI_AGAIN else "dns"


def _zone_of(host: str) -> str:
    """The registered domain of this name, approximately: a list of all registries would be exact."""
    labels = host.rstrip(".").split(".")
    of_country = len(labels[-1]) == 2 and len(labels) > 1 and labels[-2] in _REGISTRIES
    return ".".join(labels[-3 if of_country else -2 :])


def _give(turn: asyncio.Future[None]) -> bool:
    if not turn.done():
        turn.set_result(None)
        return True
    return False


def _literal(host: str, port: int) -> _Address:
    """A literal IP address. Raises ValueError for a name."""
    if ip_address(host).version == 4:
        return socket.AF_INET, (host, port)
    return socket.AF_INET6, (host, port, 0, 0)


async def _resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[_Address]:
    """The first addresses in the system's order, but alternating between families, because one may be unreachable."""
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    families: dict[int, list[_Address]] = {}
    for family, _, _, _, target in found:
        families.setdefault(family, []).append((family, target))
    alternating = chain.from_iterable(zip_longest(*families.values()))
    return list(islice((address for address in alternating if address is not None), _MOST_ADDRESSES))


def _close_if_connected(attempt: asyncio.Task[socket.socket]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
