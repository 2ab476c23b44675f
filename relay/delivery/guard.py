"""Address guard: the URLs and addresses to which the relay may connect, as protection against SSRF.

For names, the address that is about to be dialled is checked, so that DNS rebinding has no effect. Every spelling of an
IPv4 address is normalized before any rule, because behind an egress proxy the relay sees no dialled address.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from relay.domain.urls import malformed, url_parts

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# `is_global` of the standard library does not exclude these, at least in one supported version of Python.
_DENIED_4: Final = tuple(
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # shared address space; some clouds have their metadata service there
        "168.63.129.16/32",  # Azure's wire server
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata service
        "192.88.99.0/24",  # 6to4 relays
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_DENIED_6: Final = tuple(IPv6Network(net) for net in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_OF_CLOUDS_4: Final = tuple(
    IPv4Network(net) for net in ("169.254.0.0/16", "168.63.129.16/32", "192.0.0.192/32", "100.100.100.200/32")
)
_OF_CLOUDS_6: Final = tuple(IPv6Network(net) for net in ("fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128"))
"""Metadata services and link-local addresses. No receiver is there, so errors do not say how to allow them."""
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")

_BY_NAME: Final = tuple(
    ip_network(net)
    for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "fc00::/7", "::1/128")
)
"""Addresses to which an allowed name may resolve: private and loopback, except those of clouds."""

_LOW_32: Final = 0xFFFFFFFF
_IN_LOW_BITS: Final = tuple(
    IPv6Network(net)
    for net in (
        "::ffff:0:0/96",  # IPv4-mapped
        "::ffff:0:0:0/96",  # IPv4-translated
        "::/96",  # IPv4-compatible
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64, local use; the reading with a /96 prefix
    )
)
_ROUTED_BY_IPV4: Final = tuple(IPv6Network(net) for net in ("::ffff:0:0/96", "64:ff9b::/96", "2002::/16"))
"""Embeddings where only the inner IPv4 address decides. The other embeddings are not valid on the public internet."""


def embedded_ipv4(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address embedded in `ip`, for every known kind of embedding; None if there is none."""
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip.teredo is not None:
        return ip.teredo[1]
    return IPv4Address(int(ip) & _LOW_32) if any(ip in net for net in _IN_LOW_BITS) else None


class AddressGuard:
    """The rules of one deployment. `allowed_networks`: always allowed, also with plain http.

    `allowed_names`: names that may resolve to private addresses, then also with plain http; in lower case without a
    trailing dot, `*.internal` for all names below `internal`. `allow_http`: allow plain http to all other addresses,
    too.
    """

    def __init__(
        self, allowed_networks: Sequence[Network] = (), allow_http: bool = False, allowed_names: Sequence[str] = ()
    ) -> None:
        self._allowed = tuple(allowed_networks)
        self._allow_http = allow_http
        self._names = frozenset(allowed_names)
        self._suffixes = tuple(name.removeprefix("*") for name in allowed_names if name.startswith("*."))

    def check_url(self, url: str) -> str | None:
        """Why `url` may not be requested, judged without DNS; None if it may."""
        return malformed(url) or self.check_host(url)

    def check_host(self, url: str) -> str | None:
        """As `check_url`, for a URL that is not `malformed`."""
        scheme, bracketed, _, _ = url_parts(url)
        host = bracketed.strip("[]")
        try:
            ip_address(host)
        except ValueError:
            if self._is_named(host):
                return None  # so far: the dialled address decides
            if _is_loopback_name(host) and all(map(self.check_address, _LOOPBACK)):
                return self.check_address(_LOOPBACK[0])  # because a proxy would resolve the name to itself
            # A name. If some networks are allowed, the dialled address decides.
            return None if scheme == "https" or self._allow_http or self._allowed else _NO_HTTP
        return self.check_dial(scheme, host)

    def check_dial(self, scheme: str, ip: str, host: str = "") -> str | None:
        """Why no connection may be made to the address `ip` for a URL of this scheme; None if it may. `host`: the name
        in the URL that resolved to it."""
        if self._is_named(host) and _may_be_named(ip):
            return None
        if refusal := self.check_address(ip):
            return refusal
        if scheme == "http" and not self._allow_http and not self._is_allowed(_parsed(ip)):
            return f"{ip}: {_NO_HTTP}"
        return None

    def check_address(self, ip: str) -> str | None:
        """Why `ip` may not be dialled; None if it may: it is allowed explicitly, or public."""
        try:
            address = _parsed(ip)
        except ValueError:
            return f"{ip!r} is not an IP address"
        if self._is_allowed(address) or _is_public(address):
            return None
        if _is_of_a_cloud(address):
            return f"{address} is not a public address: cloud metadata services with credentials are there"
        setting = f"RELAY_ALLOW_PRIVATE_NETWORKS={address}/{address.max_prefixlen}"
        return f"{address} is not a public address and in none of the allowed networks; {setting} would allow it"

    def _is_named(self, host: str) -> bool:
        if not self._names:
            return False
        name = host.lower().removesuffix(".")
        return name in self._names or (name.endswith(self._suffixes) and not name.startswith("."))

    def _is_allowed(self, address: Address) -> bool:
        if any(address in net for net in self._allowed):
            return True
        inner = embedded_ipv4(address) if isinstance(address, IPv6Address) else None
        return inner is not None and any(inner in net for net in self._allowed)


_LOOPBACK: Final = ("127.0.0.1", "::1")
_NO_HTTP: Final = "plain http is only for allowed networks and names; use https, or set RELAY_ALLOW_HTTP=true"


def _is_loopback_name(host: str) -> bool:
    """RFC 6761, section 6.3."""
    return f".{host.removesuffix('.')}".endswith(".localhost")


def _may_be_named(ip: str) -> bool:
    address = _parsed(ip)
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return any(address in net for net in _BY_NAME) and not _is_of_a_cloud(address)


def _parsed(ip: str) -> Address:
    return ip_address(ip.partition("%")[0])  # a zone does not change what kind of address it is


def _is_of_a_cloud(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return any(address in net for net in _OF_CLOUDS_4)
    inner = embedded_ipv4(address)
    return any(address in net for net in _OF_CLOUDS_6) or (inner is not None and _is_of_a_cloud(inner))


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in net for net in _DENIED_4)
    if any(address in net for net in _ROUTED_BY_IPV4):
        inner = embedded_ipv4(address)
        return inner is not None and _is_public(inner)
    return address in _GLOBAL_UNICAST and address.is_global and not any(address in net for net in _DENIED_6)
