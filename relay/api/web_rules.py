"""Decides which hosts and origins belong to the API. Pure."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from relay.config.own_address import is_loopback
from relay.domain.urls import DEFAULT_PORTS

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([^\s\[\]:/?#@\\]{1,255}))(?::([0-9]{1,5}))?", re.IGNORECASE)
_FROM_US: Final = frozenset({"same-origin", "none"})
_KNOWN_AT_ONCE: Final = 256


class Authority(NamedTuple):
    """Host and port of a request or a URL. `port` None: not given."""

    host: str
    port: int | None


class WebRules:
    """The hosts and origins of the API. `names`: exact, or `*.example.com` for all below it."""

    def __init__(self, names: Iterable[str] = (), public_url: str | None = None) -> None:
        lowered = [name.lower() for name in names]
        self._suffixes = tuple(name[1:] for name in lowered if name.startswith("*."))
        self._names = {name for name in lowered if not name.startswith("*.")}
        self._public = _origin(public_url) if public_url else None
        if self._public is not None:
            self._names.add(self._public[1].host)
        self.is_ours = lru_cache(_KNOWN_AT_ONCE)(self._is_ours)  # each request asks, mostly for the same one

    def _is_ours(self, host: str | None) -> bool:
        """Whether `host`, of a Host header, is a name of this API. None: the request has no such header."""
        authority = _authority(host) if host is not None else None
        if authority is None:
            return False
        name = authority.host
        return name in self._names or name.endswith(self._suffixes) or is_loopback(name)

    def is_foreign(self, host: str | None, origin: str | None, fetch_site: str | None) -> bool:
        """Whether a page of another origin than the API's own has made its browser send this request."""
        if fetch_site is not None and fetch_site.strip().lower() not in _FROM_US:
            return True
        if origin is None:
            return False
        found, own = _origin(origin), _authority(host) if host is not None else None
        if found is None or own is None:  # `null`: a page whose origin is kept from us
            return True
        scheme, wanted = found
        # A proxy that ends TLS in front of us passes Host on as it came; which scheme it had is not ours to see.
        same_host = wanted == Authority(own.host, DEFAULT_PORTS[scheme] if own.port is None else own.port)
        return not same_host and found != self._public


def _authority(text: str) -> Authority | None:
    match = _HOST.fullmatch(text)
    if match is None:
        return None
    literal, name, port = match.groups()
    return Authority((literal or name.removesuffix(".")).lower(), None if port is None else int(port))


def _origin(url: str) -> tuple[str, Authority] | None:
    """Scheme and authority, with the scheme's own port where none is given."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    authority = _authority(parts.netloc)
    if authority is None or parts.scheme not in DEFAULT_PORTS:
        return None
    host, port = authority
    return parts.scheme, Authority(host, DEFAULT_PORTS[parts.scheme] if port is None else port)
