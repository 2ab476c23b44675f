"""The egress proxy: which requests go through it, and how it is asked for a tunnel. No connection is made here."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from relay.delivery.guard import UrlParts
from relay.domain.proxy_address import ProxyAddress, proxy_address

HEAD_CAP: Final = 16 * 1024
"""Bytes of a proxy's answer to CONNECT."""

_HEAD_END: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")
_PORT: Final = re.compile(r"(.+?)(?::([0-9]{1,5}))?")


class TunnelRefused(Exception):
    """The proxy gave no tunnel. `ours`: it wants nothing to do with us, whoever the receiver is."""

    def __init__(self, detail: str, *, ours: bool = False) -> None:
        super().__init__(f"the egress proxy {detail}")
        self.ours = ours


@dataclass(frozen=True, slots=True)
class _Direct:
    """An entry of the list of what needs no proxy: a name with all under it, or a network of literal addresses."""

    name: str | None
    network: IPv4Network | IPv6Network | None
    port: int | None

    def covers(self, host: str, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if self.network is not None:
            try:
                return ip_address(host) in self.network
            except ValueError:
                return False
        return self.name in ("*", host) or host.endswith(f".{self.name}")


@dataclass(frozen=True, slots=True)
class EgressProxy:
    """`direct`: what does not go through it. `own`: it is that of one endpoint, whose fault it is where it fails."""

    address: ProxyAddress
    direct: tuple[_Direct, ...] = ()
    own: bool = False

    def takes(self, url: UrlParts) -> bool:
        """Whether requests to `url` go through it."""
        host = url.host.strip("[]").removesuffix(".")
        return not any(entry.covers(host, url.port) for entry in self.direct)

    def connect_head(self, url: UrlParts) -> bytes:
        """The request for a tunnel to the server of `url`."""
        target = f"{url.host.removesuffix('.')}:{url.port}"
        login = self.address.authorization
        credentials = "" if login is None else f"Proxy-Authorization: {login}\r\n"
        return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{credentials}\r\n".encode()


def is_answered(received: bytes) -> bool:
    """Whether `received`, all that came after a `connect_head`, is a tunnel; False while more is to come.

    Raises TunnelRefused.
    """
    head, end, rest = received.partition(_HEAD_END)
    if not end:
        if len(received) > HEAD_CAP:
            raise TunnelRefused(f"answered CONNECT with more than {HEAD_CAP} bytes")
        return False
    status = _STATUS.match(head + b"\r")
    if status is None:
        raise TunnelRefused("did not answer CONNECT in HTTP")
    if not 200 <= int(status[1]) < 300:
        raise TunnelRefused(f"answered {int(status[1])} to CONNECT", ours=int(status[1]) == 407)
    if rest:  # TLS begins with the client
        raise TunnelRefused("sent something before it was asked")
    return True


def proxy_of(url: str, direct: Iterable[str]) -> EgressProxy:
    """`url`: `http://[user:password@]host[:port]`. `direct`: see `direct_entry`. Raises ValueError, without the URL."""
    return EgressProxy(proxy_address(url), tuple(map(direct_entry, direct)))


def direct_entry(text: str) -> _Direct:
    """One of NO_PROXY: `*`, a name (with all under it), an address or a network, the former also with `:port`."""
    entry = text.strip().lower()
    try:
        return _Direct(None, ip_network(entry.strip("[]"), strict=False), None)
    except ValueError:
        pass
    match = _PORT.fullmatch(entry)
    host, port = (match[1], match[2]) if match else (entry, None)
    try:
        return _Direct(None, ip_network(host.strip("[]")), int(port) if port else None)
    except ValueError:
        return _Direct(host.removeprefix("*.").strip(".") or "-", None, int(port) if port else None)
