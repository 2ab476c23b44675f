"""Values of one HTTP exchange: the request, and its response or the reason for having none."""

import json
from collections.abc import Mapping
from math import inf
from typing import Any, Final, Literal

from msgspec import Struct

from relay.domain.egress import Egress

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
"""Statuses whose Location a browser would follow."""

UNAUTHORIZED: Final = "unauthorized"
LATE: Final = "late"
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose requests have a body, also if it is empty."""


class Request(Struct, frozen=True, gc=False):
    """`headers` in the order they are sent; `timeout_s` covers everything from connect to last byte. `egress` is None
    if the endpoint has no settings of its own. `start_within_s`: the request is not sent if it waits longer than this
    for a connection or an access token; the connection or token is then ready for the next request."""

    method: Literal["GET", "POST", "PUT", "PATCH", "OPTIONS"]
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    timeout_s: float = 15.0
    egress: Egress | None = None
    start_within_s: float = inf


class Response(Struct, frozen=True):
    """A status line was received. `headers` have lower-case names; the last of repeated ones counts.

    `truncated`: the body was cut: by the byte cap, by a broken connection, or because it could not be read in time.
    `broken`: it was cut before the byte cap, so another request may get the whole body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False
    broken: bool = False

    def json_object(self) -> dict[str, Any]:
        """The JSON object in the body; empty if it has none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class NoResponse(Struct, frozen=True, gc=False):
    """No status line was received. `sent`: a byte of the request was written, so the receiver may have acted on it.

    `kind`: `blocked` (address guard), `dns`, `refused`, `tls`, `connect_timeout`, `timeout`,
    `disconnected`, `protocol` (not HTTP), `invalid_url`, `invalid_header`, `failed` (a bug of ours), `late` (not sent
    within `Request.start_within_s`).
    For endpoints with OAuth 2: `no_token` (the token endpoint returned none), `token_unavailable` (likewise, but it may
    later: it is failing or overloaded), `unauthorized` (a 401 because of the token: the request is worth repeating at
    once with a new one, and does not count as an attempt).
    Possible faults on our side (`relay.domain.resource_exhaustion`): `no_resources` (descriptors, memory),
    `no_local_address`, `no_proxy`, `unreachable` (no route), `dns_silent` (no name server answers).
    """

    kind: str
    detail: str
    sent: bool


Exchange = Response | NoResponse
