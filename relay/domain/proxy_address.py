"""Parses the URL of an egress proxy."""

import base64
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

_USUAL_PORT: Final = 80


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """`authorization`: value of the header Proxy-Authorization."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


def proxy_address(url: str) -> ProxyAddress:
    """`url`: `http://[user:password@]host[:port]`. Raises ValueError, without the URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme != "http" or port == 0 or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("not the URL of a proxy; write it as http://[user:password@]host:port")
    login = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return ProxyAddress(host, port or _USUAL_PORT, None if login is None else _basic(login))


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"
