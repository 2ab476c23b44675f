"""Settings of an endpoint's outgoing connections: TLS, proxy and OAuth 2; and the URL of an egress proxy. Pure."""

import base64
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

_USUAL_PORT: Final = 80


@dataclass(frozen=True, slots=True)
class Tls:
    """Trusted authorities and the client certificate. Certificates and the key are PEM.

    `ca`: the only trusted authorities; None for those of all endpoints. `pinned`: SHA-256 digests, one of which must be
    that of the server's certificate or public key; empty if any certificate is accepted.
    """

    ca: str | None = None
    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)
    pinned: tuple[bytes, ...] = ()


ClientAuth = Literal["basic", "body"]


@dataclass(frozen=True, slots=True)
class OAuth2:
    """The source of the token in the header `Authorization` (client credentials: RFC 6749, section 4.4).

    `auth`: how the client authenticates at the token endpoint: in a header, or in the body.
    """

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    audience: str | None = None
    auth: ClientAuth = "basic"


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """Address of an HTTP proxy. `authorization`: value of the header Proxy-Authorization."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


ProxyChoice = ProxyAddress | Literal["none"]


@dataclass(frozen=True, slots=True)
class Egress:
    """Settings of one endpoint; None for the process's defaults. Also a pool key: a connection is reused only for equal
    settings. `proxy`: overrides the process's proxy; `none` for a direct connection."""

    tls: Tls | None = None
    proxy: ProxyChoice | None = None
    oauth2: OAuth2 | None = None


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
    return ProxyAddress(host, port or _USUAL_PORT, None if login is None else basic_authorization(login))


def basic_authorization(login: str) -> str:
    """The value of a header for `user:password`."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"
