"""Verification of receivers' URLs by a handshake: its request, the verdict on the response, and the stored result.

`challenge`: the URL echoes an unpredictable value. `hmac`: it also proves that it has the receiver's secret.
`cloudevents`: it consents by response headers, as in "HTTP 1.1 Web Hooks for Event Delivery" of CloudEvents 1.0,
without the callback variant.

A proof is valid for one kind of handshake and one URL. So a change of either needs no revocation: the proof no longer
matches, in every process, as soon as it knows of the change.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isinf
from typing import Final, NamedTuple, assert_never
from urllib.parse import urlsplit

from relay.domain.exchange import Exchange, Request, Response
from relay.domain.receiver import Receiver, Verification
from relay.domain.requests import ORIGIN_HEADER, challenge_request, consent_request, nonce_request
from relay.domain.shown_exchange import failure_detail
from relay.domain.signing import keyed_sha256, secrets_of
from relay.domain.urls import DEFAULT_PORTS

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 600.0
GIVEN_UP_S: Final = 3 * 86_400.0
"""After this long with failures only, the relay no longer retries on its own."""
MAX_DETAIL: Final = 600
"""Characters."""
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
    port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
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


# --- handshakes ---------------------------------------------------------------------------------------------------

TIMEOUT_S: Final = 10.0
MOST_BYTES: Final = 4_096
"""Of a response's body."""
_ANSWER: Final = "relay-verification-answer"
"""Prefix of the signed text of an answer. No signed message begins with it: its id comes first, and no id has a line
break."""
_NONCE: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")
_RATE: Final = re.compile(r"[1-9][0-9]{0,8}")


class Verdict(NamedTuple):
    """`fault`: why the response is no proof; None if it is one. `allowed_rate`: see `HandshakeResult`."""

    fault: str | None
    allowed_rate: int | None = None


PROVEN: Final = Verdict(None)


class Handshake(NamedTuple):
    request: Request
    judge: Callable[[Exchange], Verdict]


def handshake(receiver: Receiver, nonce: str, *, now: float, user_agent: str, origin: str) -> Handshake:
    """The handshake for a receiver. `nonce`: unpredictable, of URL-safe characters, never used before. `now`: Unix
    seconds. `origin`: a DNS name for the relay. Raises ValueError if the receiver's secret cannot sign."""
    post, kind = receiver.post, receiver.verification
    judge: Callable[[Response], Verdict]
    match kind:
        case "challenge":
            asked = challenge_request(post, nonce, user_agent=user_agent, timeout_s=TIMEOUT_S)
            judge = partial(_echo, challenge=nonce)
        case "hmac":
            asked = nonce_request(post, nonce, now=now, user_agent=user_agent, timeout_s=TIMEOUT_S)
            judge = partial(_signed, secrets=secrets_of(post.signing, int(now)), nonce=nonce)
        case "cloudevents":
            wished = per_minute(receiver)
            rate = None if isinf(wished) else max(1, int(wished))
            asked = consent_request(post, origin, rate, user_agent=user_agent, timeout_s=TIMEOUT_S)
            judge = partial(_consent, origin=origin)
        case "none":
            raise ValueError("the receiver has no verification")
        case _:
            assert_never(kind)
    return Handshake(asked, partial(_judged, receiver, asked.method, judge))


def answer_signature(secret: str, nonce: str, own_nonce: str) -> bytes:
    """The receiver's signature of both nonces: the relay's and its own."""
    return keyed_sha256(secret, f"{_ANSWER}\n{nonce}\n{own_nonce}".encode())


def _judged(receiver: Receiver, method: str, judge: Callable[[Response], Verdict], exchange: Exchange) -> Verdict:
    if not isinstance(exchange, Response) or not 200 <= exchange.status < 300:
        return Verdict(failure_detail(exchange, receiver.post, method=method))
    return judge(exchange)


def _unreadable(response: Response) -> str | None:
    """Why the body cannot be read as a proof; None if it can."""
    if response.status != 200:
        return f"it answered {response.status}; 200 is needed"
    if response.truncated or len(response.body) > MOST_BYTES:
        return f"its answer has more than {MOST_BYTES} bytes, or was cut"
    return None


def _echo(response: Response, challenge: str) -> Verdict:
    if (fault := _unreadable(response)) is not None:
        return Verdict(fault)
    media_type = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
    if media_type == "text/plain":
        given: object = response.body.strip().decode(errors="replace")
    elif media_type == "application/json":
        given = response.json_object().get("challenge")
    else:
        return Verdict(f"its answer is {media_type[:80]!r}; text/plain or application/json is needed")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(errors="replace"), challenge.encode()):
        return Verdict("its answer is not the challenge that was in the query")
    return PROVEN


def _signed(response: Response, secrets: Sequence[str], nonce: str) -> Verdict:
    if (fault := _unreadable(response)) is not None:
        return Verdict(fault)
    found = response.json_object()
    own, signature = found.get("nonce"), found.get("signature")
    if not isinstance(own, str) or not isinstance(signature, str):
        return Verdict('its answer is not JSON of "nonce" and "signature"')
    if not _NONCE.fullmatch(own) or own == nonce:
        return Verdict("its nonce is ours, or not 16 to 128 of A-Z, a-z, 0-9, - and _")
    given = _bytes(signature)
    expected = [answer_signature(secret, nonce, own) for secret in secrets]
    if not any(hmac.compare_digest(each, given) for each in expected):
        return Verdict("its signature is not that of the two nonces, with the receiver's secret")
    return PROVEN


def _consent(response: Response, origin: str) -> Verdict:
    allowed = response.headers.get("webhook-allowed-origin", "").strip()
    if allowed != "*" and allowed.lower() != origin.lower():
        said = f"it allows {allowed[:80]!r}" if allowed else "its answer has no WebHook-Allowed-Origin"
        return Verdict(f"{said}; {origin!r} or '*' is needed")
    rate = response.headers.get("webhook-allowed-rate", "*").strip()
    if rate == "*":
        return PROVEN
    if not _RATE.fullmatch(rate):
        return Verdict(f"its WebHook-Allowed-Rate is {rate[:40]!r}; a number above 0, or '*', is needed")
    return Verdict(None, int(rate))


def _bytes(signature: str) -> bytes:
    """Decodes hex or base64; empty if it is neither."""
    try:
        if len(signature) == 64:
            return bytes.fromhex(signature)
        return base64.b64decode(signature.encode(), validate=True)
    except (ValueError, binascii.Error):
        return b""
