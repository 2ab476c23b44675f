"""The egress proxy: decides which requests use it, and builds and parses CONNECT. Pure, without I/O."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from relay.domain.egress import ProxyAddress, proxy_address
from relay.domain.urls import UrlParts

HEAD_CAP: Final = 16 * 1024
"""Maximum bytes of a proxy's response to CONNECT."""

_HEAD_END: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")
_PORT: Final = re.compile(r"(.+?)(?::([0-9]{1,5}))?")


class TunnelRefused(Exception):
    """The proxy opened no tunnel. `ours`: it fails, or rejects us, independently of the receiver."""

    def __init__(self, detail: str, *, ours: bool = False) -> None:
        super().__init__(f"the egress proxy {detail}")
        self.ours = ours


@dataclass(frozen=True, slots=True)
class _Direct:
    """An entry of NO_PROXY: a name with its subdomains, or a network of literal addresses."""

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
    """`direct`: targets that do not use it. `own`: it belongs to one endpoint, to which its failures are attributed."""

    address: ProxyAddress
    direct: tuple[_Direct, ...] = ()
    own: bool = False

    def takes(self, url: UrlParts) -> bool:
        """Whether requests to `url` use the proxy."""
        host = url.host.strip("[]").removesuffix(".")
        return not any(entry.covers(host, url.port) for entry in self.direct)

    def connect_head(self, url: UrlParts) -> bytes:
        """The CONNECT request for a tunnel to the server of `url`."""
        target = f"{url.host.removesuffix('.')}:{url.port}"
        login = self.address.authorization
        credentials = "" if login is None else f"Proxy-Authorization: {login}\r\n"
        return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{credentials}\r\n".encode()


def is_answered(received: bytes) -> bool:
    """Whether `received`, all data after a `connect_head`, opens the tunnel; False while the response is incomplete.

    Raises TunnelRefused.
    """
    head, end, rest = received.partition(_HEAD_END)
    if not end:
        if len(received) > HEAD_CAP:
            raise TunnelRefused(f"answered CONNECT with more than {HEAD_CAP} bytes", ours=True)
        return False
    status = _STATUS.match(head + b"\r")
    if status is None:
        raise TunnelRefused("did not answer CONNECT in HTTP", ours=True)
    if not 200 <= int(status[1]) < 300:
        raise TunnelRefused(f"answered {int(status[1])} to CONNECT", ours=int(status[1]) == 407)
    if rest:  # TLS begins with the client
        raise TunnelRefused("sent data before the TLS handshake")
    return True


def proxy_of(url: str, direct: Iterable[str]) -> EgressProxy:
    """`url`: `http://[user:password@]host[:port]`. `direct`: see `direct_entry`. Raises ValueError, without the URL."""
    return EgressProxy(proxy_address(url), tuple(map(direct_entry, direct)))


def direct_entry(text: str) -> _Direct:
    """Parses an entry of NO_PROXY: `*`, a name (with its subdomains), an address (all also with `:port`) or a
    network."""
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
