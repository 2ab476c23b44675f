"""What came of one HTTP exchange, as far as the core needs to know."""

from collections.abc import Mapping
from math import inf
from typing import Final, Literal

from msgspec import Struct

from relay.domain.egress import Egress

UNAUTHORIZED: Final = "unauthorized"
LATE: Final = "late"


class Request(Struct, frozen=True, gc=False):
    """One request. `headers` in the order they are sent; `timeout_s` covers everything from connect to last byte.
    `egress` None: its endpoint is reached like all others. `start_within_s`: it is not sent where it has to wait for a
    connection, or an access token, for longer: the next one finds what this one has waited for."""

    method: Literal["GET", "POST", "OPTIONS"]
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    timeout_s: float = 15.0
    egress: Egress | None = None
    start_within_s: float = inf


class Response(Struct, frozen=True):
    """A status line came. `headers` have lower-case names (of repeated ones the last).

    `truncated`: the body was cut: by the byte cap, by a broken connection, or because it could not be read in time.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False


class NoResponse(Struct, frozen=True, gc=False):
    """No status line came. `sent`: whether a byte of the request was written; then the receiver may have acted on it.

    `kind` says what happened: `blocked` (address guard), `dns`, `refused`, `tls`, `connect_timeout`, `timeout`,
    `disconnected`, `protocol` (not HTTP), `invalid_url`, `invalid_header`, `failed` (a bug of ours), `late` (not sent
    within `Request.start_within_s`).
    Of endpoints with OAuth 2: `no_token` (the token endpoint gave none), `unauthorized` (a 401, which was the token's
    fault: the same request is worth another try at once, and none of this counts).
    What may be our own doing (`relay.domain.resource_exhaustion`): `no_resources` (descriptors, memory),
    `no_local_address`, `no_proxy`, `unreachable` (no route), `dns_silent` (no name server answers).
    """

    kind: str
    detail: str
    sent: bool


Exchange = Response | NoResponse
