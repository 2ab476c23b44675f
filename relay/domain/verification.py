"""Verification results of receivers' URLs, and their records on `receiver_config`.

A proof is valid for one kind of handshake and one URL. So a change of either needs no revocation: the proof no longer
matches, in every process, as soon as it knows of the change.
"""

import hashlib
from dataclasses import dataclass, replace
from math import inf
from typing import Final
from urllib.parse import urlsplit

from relay.domain.receiver import Receiver, Verification
from relay.domain.requests import ORIGIN_HEADER

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 600.0
GIVEN_UP_S: Final = 3 * 86_400.0
"""After this long with failures only, the relay no longer retries on its own."""
MAX_DETAIL: Final = 600
"""Characters."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """Result of the newest handshake. `of`: digest of the kind and URL (`handshake_of`). Times are Unix seconds;
    `verified_at` is None if it failed. `failures`: in a row, since `failing_since`. `detail`: for display, without
    secrets. `allowed_rate`: requests per minute that the URL has agreed to; None if unlimited. `origin`: the name that
    the relay gave in the handshake, which each POST then carries; None if this kind has none."""

    of: str
    tried_at: float
    verified_at: float | None = None
    failures: int = 0
    failing_since: float | None = None
    detail: str = ""
    allowed_rate: int | None = None
    origin: str | None = None


def handshake_of(kind: Verification, url: str) -> str:
    """Digest of the kind of handshake and the URL's scheme, host, port and path, for which a proof is valid."""
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    place = (kind, parts.scheme, (parts.hostname or "").rstrip("."), str(port), parts.path or "/")
    return hashlib.sha256("\0".join(("verification", *place)).encode()).hexdigest()[:32]


def failed(of: str, detail: str, now: float, before: HandshakeResult | None) -> HandshakeResult:
    """The result of a failed handshake. `before`: the previous result."""
    same = before is not None and before.of == of and before.verified_at is None
    since = before.failing_since if before is not None and same else None
    failures = before.failures + 1 if before is not None and same else 1
    return HandshakeResult(of, now, None, failures, now if since is None else since, detail[:MAX_DETAIL])


def next_try(result: HandshakeResult) -> float:
    """When to retry a failed handshake (Unix seconds); inf if only an operator may start it."""
    if result.failing_since is not None and result.tried_at - result.failing_since >= GIVEN_UP_S:
        return inf
    doublings = min(max(result.failures - 1, 0), 30)
    return result.tried_at + min(FIRST_WAIT_S * 2.0**doublings, LONGEST_WAIT_S)


def is_proof(result: HandshakeResult | None, receiver: Receiver) -> bool:
    """Whether the result is a proof for the receiver's current URL and kind of handshake."""
    return (
        result is not None
        and result.verified_at is not None
        and result.of == handshake_of(receiver.verification, receiver.post.url)
    )


def with_proof(receiver: Receiver, result: HandshakeResult | None) -> Receiver:
    """The receiver with the result applied: unverified, or with the rate and origin that its URL has agreed to."""
    if receiver.verification == "none":
        return receiver
    if result is None or not is_proof(result, receiver):
        return replace(receiver, verified=False)
    post = receiver.post
    if result.allowed_rate is not None and result.allowed_rate < per_minute(receiver):
        post = replace(post, rate_limit=result.allowed_rate, window_size=_MINUTE_S)
    if result.origin is not None:
        post = replace(post, headers=(*post.headers, (ORIGIN_HEADER, result.origin)))
    return replace(receiver, post=post, verified=True)


def per_minute(receiver: Receiver) -> float:
    """POSTs per minute that its settings allow; inf if unlimited."""
    post = receiver.post
    return inf if post.rate_limit is None else post.rate_limit * _MINUTE_S / post.window_size
