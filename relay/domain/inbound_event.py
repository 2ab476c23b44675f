"""Reads the message id and event type of an inbound webhook, from where each kind of sender puts them. Pure.

The payload is forwarded as received. Callers verify the signature first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from relay.domain.errors import InvalidRecord
from relay.domain.identity import check_id
from relay.domain.inbound import Headers, standard_headers
from relay.domain.message import short_text
from relay.domain.receiver import Inbound, InboundKind

_FORM: Final = "application/x-www-form-urlencoded"
_MOST_FIELDS: Final = 10
_NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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


def _github(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    event = _required(headers, "x-github-event")
    message_id = check_id(_required(headers, "x-github-delivery"), "the message id in header x-github-delivery")
    is_form = (headers.get("content-type") or "").partition(";")[0].strip().lower() == _FORM
    action = _action(_form_payload(body) if is_form else body)
    return InboundEvent(
        message_id, short_text(f"{event}.{action}" if action else event, "type"), is_probe=event == "ping"
    )


def _action(payload: bytes) -> str | None:
    try:
        action = _decode_github(payload).action
    except _NOT_JSON:
        return None
    return action if isinstance(action, str) else None


def _form_payload(body: bytes) -> bytes:
    """The JSON in a form field, which is GitHub's default."""
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=_MOST_FIELDS)).get("payload", "").encode()
    except ValueError:
        return b""


def _stripe(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    try:
        event = _decode_stripe(body)
    except _NOT_JSON as error:
        raise _unreadable("Stripe event", error) from error
    return InboundEvent(check_id(event.id, "id of the event"), short_text(event.type, "type"))


def _slack(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent | Challenge:
    try:
        said = _decode_slack(body)
    except _NOT_JSON as error:
        raise _unreadable("request of Slack's Events API", error) from error
    if said.type == "url_verification":
        return Challenge(said.challenge or "")
    event_id = None if said.event_id is None else check_id(said.event_id, "event_id")
    return InboundEvent(event_id, short_text(said.event.type if said.event is not None else said.type, "type"))


def _standard(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    webhook_id = (standard_headers(headers) or {}).get("webhook-id", "")
    if "." in webhook_id:  # `id.timestamp.body` is signed: with a dot in the id, the signature would fit other splits
        raise InvalidRecord("invalid", "the message id in header webhook-id has a dot, which Standard Webhooks forbids")
    try:
        event_type = _decode_typed(body).type
    except _NOT_JSON:
        event_type = None
    return InboundEvent(
        check_id(webhook_id, "the message id in header webhook-id"),
        short_text(event_type, "type") if isinstance(event_type, str) else None,
    )


def _generic(policy: Inbound, headers: Headers, body: bytes) -> InboundEvent:
    message_id, event_type = None, None
    if policy.id_header is not None:
        given = _required(headers, policy.id_header)
        message_id = check_id(given, f"the message id in header {policy.id_header}")
    if policy.type_header is not None:
        event_type = short_text(_text(headers, policy.type_header), f"header {policy.type_header}")
    return InboundEvent(message_id, event_type)


_READERS: Final[Mapping[InboundKind, Callable[[Inbound, Headers, bytes], InboundEvent | Challenge]]] = {
    "github": _github,
    "stripe": _stripe,
    "slack": _slack,
    "standard": _standard,
    "generic": _generic,
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
