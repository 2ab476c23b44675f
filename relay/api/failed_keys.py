"""How many wrong keys came from where: pure, time is passed in."""

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil

_PREFIX = 64


@dataclass(slots=True)
class _Span:
    began: float
    count: int = 0


class FailedKeys:
    """Counts per address: `most` in `span_s` seconds are answered as usual, those beyond are too many.

    Remembers the `addresses` seen last. An IPv6 network of 64 bits counts as one address: a client that has one has
    all.
    """

    def __init__(self, *, most: int, span_s: float, addresses: int) -> None:
        self._most = most
        self._span_s = span_s
        self._addresses = addresses
        self._spans: OrderedDict[str, _Span] = OrderedDict()

    def note(self, address: str | None, now: float) -> int | None:
        """One more. None: not too many yet; else the whole seconds until they are forgotten, at least 1."""
        key = network_of(address)
        span = self._spans.get(key)
        if span is None or now - span.began >= self._span_s:
            span = self._spans[key] = _Span(now)
        self._spans.move_to_end(key)
        if len(self._spans) > self._addresses:
            self._spans.popitem(last=False)
        span.count += 1
        return None if span.count <= self._most else max(1, ceil(span.began + self._span_s - now))


def network_of(address: str | None) -> str:
    """What counts as one caller: an IPv4 address, or the 64 bits of an IPv6 address that a network is given."""
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
