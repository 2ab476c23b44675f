"""Signature verification of inbound webhooks, one function per scheme. Pure.

Sources: the manuals of GitHub ("Validating webhook deliveries"), Stripe ("Verify webhook signatures manually") and
Slack ("Verifying requests from Slack"); Standard Webhooks 1.0; CloudEvents, "HTTP 1.1 Web Hooks for Event Delivery",
3.1. Schemes without a signed time do not detect replayed requests. Deduplication by message id does, unless the id is
in an unsigned header that the attacker changes.
"""

import binascii
import hmac
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from relay.domain.receiver import Inbound, InboundKind
from relay.domain.signing import verify_standard

Headers = Mapping[str, str]
"""Headers of a request, looked up by lower-case names; the mapping has such names or ignores case."""
Refusal = Literal["missing", "wrong", "old"]
"""Why a webhook is rejected. `old`: its signature is valid, but the signed time is too far from now."""

TIMED: Final[frozenset[InboundKind]] = frozenset({"stripe", "slack", "standard"})
"""Kinds that sign the time."""
_MOST_SIGNATURES: Final = 16
"""Signatures checked per request: senders give one per secret while they rotate."""
_Check = Callable[[Inbound, Headers, bytes, float], Refusal | None]


def verify(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    """Why the webhook is rejected; None if it was signed with one of `policy.secrets`. `body`: as received. `now`: Unix
    seconds.

    Compares signatures in constant time. Never raises, whatever the request contains.
    """
    return _CHECKS[policy.kind](policy, headers, body, now)


def _github(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    given = headers.get("x-hub-signature-256")
    if given is None:
        return "missing"
    return None if _matches([given], (f"sha256={_hex(key, body)}" for key in _keys(policy))) else "wrong"


def _stripe(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    given = headers.get("stripe-signature")
    if given is None:
        return "missing"
    pairs = [item.strip().partition("=") for item in given.split(",")]
    stamp = next((value for name, _, value in pairs if name == "t"), "")
    signatures = [value for name, _, value in pairs if name == "v1"]  # v0 is for test events and proves nothing
    content = b"%b.%b" % (_bytes(stamp), body)
    if not _matches(signatures, (_hex(key, content) for key in _keys(policy))):
        return "wrong"
    return _age(stamp, policy, now)


def _slack(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    given, stamp = headers.get("x-slack-signature"), headers.get("x-slack-request-timestamp")
    if given is None or stamp is None:
        return "missing"
    content = b"v0:%b:%b" % (_bytes(stamp), body)
    if not _matches([given], (f"v0={_hex(key, content)}" for key in _keys(policy))):
        return "wrong"
    return _age(stamp, policy, now)


def _standard(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    named = standard_headers(headers)
    if named is None:
        return "missing"
    if verify_standard(policy.secrets, named, body, now, policy.tolerance_s):
        return None
    return "old" if verify_standard(policy.secrets, named, body, now, math.inf) else "wrong"


def standard_headers(headers: Headers) -> Headers | None:
    """The three headers of Standard Webhooks, also if a sender uses Svix's older names. None if one is missing."""
    for prefix in ("webhook-", "svix-"):
        found = [headers.get(prefix + part) for part in ("id", "timestamp", "signature")]
        webhook_id, stamp, signature = found
        if webhook_id is not None and stamp is not None and signature is not None:
            return {"webhook-id": webhook_id, "webhook-timestamp": stamp, "webhook-signature": signature}
    return None


def _cloudevents(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    """CloudEvents defines no signature: checks a bearer token, or a header that a gateway added, as with `generic`."""
    if policy.header is not None:
        return _generic(policy, headers, body, now)
    given = headers.get("authorization")
    if given is None:
        return "missing"
    scheme, _, token = given.partition(" ")
    known = _matches([token.strip()], policy.secrets)
    return None if known and scheme.lower() == "bearer" else "wrong"


def _generic(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    given = headers.get((policy.header or "").lower())
    if given is None:
        return "missing"
    if not given.startswith(policy.prefix):
        return "wrong"
    macs = (hmac.digest(key, body, policy.digest) for key in _keys(policy))
    text = given.removeprefix(policy.prefix).strip()
    if policy.encoding == "hex":
        return None if _matches([text.lower()], (mac.hex() for mac in macs)) else "wrong"
    return None if _matches([text.rstrip("=")], (_base64(mac) for mac in macs)) else "wrong"


_CHECKS: Final[Mapping[InboundKind, _Check]] = {
    "github": _github,
    "stripe": _stripe,
    "slack": _slack,
    "standard": _standard,
    "cloudevents": _cloudevents,
    "generic": _generic,
}


def _keys(policy: Inbound) -> Iterable[bytes]:
    """The secrets verbatim, also with `whsec_`, as GitHub, Stripe and Slack use them."""
    return (secret.encode() for secret in policy.secrets)


def _hex(key: bytes, content: bytes) -> str:
    return hmac.digest(key, content, "sha256").hex()


def _base64(mac: bytes) -> str:
    return binascii.b2a_base64(mac, newline=False).decode().rstrip("=")


def _matches(given: list[str], expected: Iterable[str]) -> bool:
    theirs = [_bytes(text) for text in given[:_MOST_SIGNATURES]]
    ours = [text.encode() for text in expected]
    return any(hmac.compare_digest(own, their) for own in ours for their in theirs)


def _age(stamp: str, policy: Inbound, now: float) -> Refusal | None:
    """Checks a signed time; a sender with the secret may still have written an invalid one."""
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 18):
        return "wrong"
    return None if abs(now - int(stamp)) <= policy.tolerance_s else "old"


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # undecodable bytes must fail the check, not raise
