"""How an endpoint is reached that has settings of its own for that; those without are all reached alike."""

from dataclasses import dataclass, field
from typing import Literal

from relay.domain.proxy_address import ProxyAddress


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom we trust, and who we are. Certificates and the key are PEM.

    `ca`: the only authorities that are trusted; None: those of all endpoints. `pinned`: SHA-256 digests, one of which
    has to be that of the server's certificate, or of its public key; empty: any will do.
    """

    ca: str | None = None
    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)
    pinned: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class OAuth2:
    """Where a token comes from that stands in the header `Authorization` (client credentials: RFC 6749, section 4.4).

    `auth`: how we prove there who we are: in a header, or in the body.
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
    """Also a key: connections that were made with one are used for no other. `proxy`: what it is reached through,
    whatever holds for all; `none`: nothing."""

    tls: Tls | None = None
    proxy: ProxyChoice | None = None
    oauth2: OAuth2 | None = None
