"""Inbound webhooks: verification of their signatures, and their message id and event type, by kind of sender. Pure.

Sources: the manuals of GitHub ("Validating webhook deliveries"), GitLab ("Webhooks"), Stripe ("Verify webhook
signatures manually") and Slack ("Verifying requests from Slack"); Standard Webhooks 1.0; CloudEvents, "HTTP 1.1 Web
Hooks for Event Delivery", 3.1. Schemes without a signed time do not detect replayed requests. Deduplication by message
id does, unless the id is in an unsigned header that the attacker changes. The payload is forwarded as received.
"""

import binascii
import hmac
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl

import msgspec

from relay.domain.errors import InvalidRecord
from relay.domain.identity import check_id
from relay.domain.json_pointer import NOT_JSON
from relay.domain.message import short_text
from relay.domain.receiver import Inbound, InboundKind
from relay.domain.signing import foreign_bytes, verify_standard
from relay.domain.text import whole_number

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


def _gitlab(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    """Its secret token, which is no signature."""
    given = headers.get("x-gitlab-token")
    if given is None:
        return "missing"
    return None if _matches([given], policy.secrets) else "wrong"


def _stripe(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    given = headers.get("stripe-signature")
    if given is None:
        return "missing"
    pairs = [item.strip().partition("=") for item in given.split(",")]
    stamp = next((value for name, _, value in pairs if name == "t"), "")
    signatures = [value for name, _, value in pairs if name == "v1"]  # v0 is for test events and proves nothing
    content = b"%b.%b" % (foreign_bytes(stamp), body)
    if not _matches(signatures, (_hex(key, content) for key in _keys(policy))):
        return "wrong"
    return _age(stamp, policy, now)


def _slack(policy: Inbound, headers: Headers, body: bytes, now: float) -> Refusal | None:
    given, stamp = headers.get("x-slack-signature"), headers.get("x-slack-request-timestamp")
    if given is None or stamp is None:
        return "missing"
    content = b"v0:%b:%b" % (foreign_bytes(stamp), body)
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
    expected = (binascii.b2a_base64(mac, newline=False).decode().rstrip("=") for mac in macs)
    return None if _matches([text.rstrip("=")], expected) else "wrong"


_CHECKS: Final[Mapping[InboundKind, _Check]] = {
    "github": _github,
    "gitlab": _gitlab,
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


def _matches(given: list[str], expected: Iterable[str]) -> bool:
    theirs = [foreign_bytes(text) for text in given[:_MOST_SIGNATURES]]
    ours = [text.encode() for text in expected]
    return any(hmac.compare_digest(own, their) for own in ours for their in theirs)


def _age(stamp: str, policy: Inbound, now: float) -> Refusal | None:
    """Checks a signed time; a sender with the secret may still have written an invalid one."""
    if (at := whole_number(stamp)) is None:
        return "wrong"
    return None if abs(now - at) <= policy.tolerance_s else "old"


# --- message ids and event types ----------------------------------------------------------------------------------

FORM: Final = "application/x-www-form-urlencoded"
_MOST_FIELDS: Final = 10


@dataclass(frozen=True, slots=True)
class InboundEvent:
    """`message_id` is None if the sender gave none. `is_probe`: a connection test, not an event."""

    message_id: str | None
    event_type: str | None
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class Challenge:
    """Not an event: the sender expects `text` in the response, as proof that the URL is ours."""

    text: str


class _GitHub(msgspec.Struct):
    action: object = None


class _Typed(msgspec.Struct):
    type: object = None


class _Stripe(msgspec.Struct):
    id: str
    type: str


class _SlackEvent(msgspec.Struct):
    type: str


class _Slack(msgspec.Struct):
    type: str
    challenge: str | None = None
    event_id: str | None = None
    event: _SlackEvent | None = None


_decode_github = msgspec.json.Decoder(_GitHub).decode
_decode_typed = msgspec.json.Decoder(_Typed).decode
_decode_stripe = msgspec.json.Decoder(_Stripe).decode
_decode_slack = msgspec.json.Decoder(_Slack).decode


def read_event(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent | Challenge:
    """The event in a webhook of any kind but `cloudevents`. Raises InvalidRecord (reason `invalid`)."""
    return _READERS[policy.kind](policy, headers, body)


def _github_event(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    event = _required(headers, "x-github-event")
    message_id = check_id(_required(headers, "x-github-delivery"), "the message id in header x-github-delivery")
    is_form = (headers.get("content-type") or "").partition(";")[0].strip().lower() == FORM
    action = _action(_form_payload(body) if is_form else body)
    return InboundEvent(
        message_id, short_text(f"{event}.{action}" if action else event, "type"), is_probe=event == "ping"
    )


def _action(payload: bytes) -> str | None:
    try:
        action = _decode_github(payload).action
    except NOT_JSON:
        return None
    return action if isinstance(action, str) else None


def _form_payload(body: bytes) -> bytes:
    """The JSON in a form field, which is GitHub's default."""
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=_MOST_FIELDS)).get("payload", "").encode()
    except ValueError:
        return b""


def _gitlab_event(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    """`X-Gitlab-Event-UUID` is no id: events that cause each other share it. Old versions send no `Idempotency-Key`."""
    key = _text(headers, "idempotency-key")
    message_id = None if key is None else check_id(key, "the message id in header idempotency-key")
    return InboundEvent(message_id, short_text(_required(headers, "x-gitlab-event"), "type"))


def _stripe_event(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    try:
        event = _decode_stripe(body)
    except NOT_JSON as error:
        raise _unreadable("Stripe event", error) from error
    return InboundEvent(check_id(event.id, "id of the event"), short_text(event.type, "type"))


def _slack_event(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent | Challenge:
    try:
        said = _decode_slack(body)
    except NOT_JSON as error:
        raise _unreadable("request of Slack's Events API", error) from error
    if said.type == "url_verification":
        return Challenge(said.challenge or "")
    event_id = None if said.event_id is None else check_id(said.event_id, "event_id")
    return InboundEvent(event_id, short_text(said.event.type if said.event is not None else said.type, "type"))


def _standard_event(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    webhook_id = (standard_headers(headers) or {}).get("webhook-id", "")
    if "." in webhook_id:  # `id.timestamp.body` is signed: with a dot in the id, the signature would fit other splits
        raise InvalidRecord("invalid", "the message id in header webhook-id has a dot, which Standard Webhooks forbids")
    message_id = check_id(webhook_id, "the message id in header webhook-id")
    return InboundEvent(message_id, _type_of_body(body) if policy.type_header is None else _type(policy, headers))


def _type_of_body(body: bytes) -> str | None:
    try:
        event_type = _decode_typed(body).type
    except NOT_JSON:
        return None
    return short_text(event_type, "type") if isinstance(event_type, str) else None


def _generic_event(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    message_id = None
    if policy.id_header is not None:
        given = _required(headers, policy.id_header)
        message_id = check_id(given, f"the message id in header {policy.id_header}")
    return InboundEvent(message_id, _type(policy, headers))


def _type(policy: Inbound, headers: Headers) -> str | None:
    name = policy.type_header
    return None if name is None else short_text(_text(headers, name), f"header {name}")


_READERS: Final[Mapping[InboundKind, Callable[[Inbound, Headers, bytes], InboundEvent | Challenge]]] = {
    "github": _github_event,
    "gitlab": _gitlab_event,
    "stripe": _stripe_event,
    "slack": _slack_event,
    "standard": _standard_event,
    "generic": _generic_event,
}


def _required(headers: Headers, name: str) -> str:
    text = _text(headers, name)
    if not text:
        raise InvalidRecord("invalid", f"header {name} is missing")
    return text


def _text(headers: Headers, name: str) -> str | None:
    text = headers.get(name.lower())
    try:
        if text is not None:
            text.encode()
    except UnicodeEncodeError:
        raise InvalidRecord("invalid", f"header {name} is not valid UTF-8") from None
    return text


def _unreadable(what: str, error: Exception) -> InvalidRecord:
    said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidRecord("invalid", f"the body is not a valid {what}: {said}")
