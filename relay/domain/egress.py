"""Settings of an endpoint's outgoing connections: TLS, proxy and OAuth 2. Pure."""

from dataclasses import dataclass, field
from typing import Literal

from relay.domain.proxy_address import ProxyAddress


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
    auth: Literal["basic", "body"] = "basic"


ProxyChoice = ProxyAddress | Literal["none"]


@dataclass(frozen=True, slots=True)
class Egress:
    """Settings of one endpoint; None for the process's defaults. Also a pool key: a connection is reused only for equal
    settings. `proxy`: overrides the process's proxy; `none` for a direct connection."""

    tls: Tls | None = None
    proxy: ProxyChoice | None = None
    oauth2: OAuth2 | None = None
