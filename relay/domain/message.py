"""A message as the sender gives it: its two wire forms on `from_sender`, read and written."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from relay.domain.coordinate import Headers
from relay.domain.errors import InvalidRecord
from relay.domain.identity import MessageId, check_id, is_receiver_name

MAX_RECEIVERS: Final = 1_000
"""Receivers that one message may go to."""

MAX_TEXT_BYTES: Final = 1_024
"""Bytes of a type, time, content type or trace header: they become HTTP headers, which receivers limit too."""

_STRUCTURED: Final = b"application/cloudevents"


@dataclass(frozen=True, slots=True)
class Message:
    """One webhook event. `receivers` None: whoever subscribes; else unique names in the sender's order.

    `payload` is exactly what the sender gave. `time`: the sender's own word (RFC 3339). `wait`: who waits for the
    answer, as the HTTP API wrote it.
    """

    source_id: str
    message_id: str
    receivers: tuple[str, ...] | None
    event_type: str | None
    time: str | None
    content_type: str | None
    payload: bytes = field(repr=False)
    traceparent: str | None = None
    wait: str | None = None

    @property
    def id(self) -> MessageId:
        return MessageId(self.source_id, self.message_id)


class _Envelope(msgspec.Struct):
    source_id: str
    message_id: str
    payload: msgspec.Raw  # a slice of the input: nothing decodes and re-encodes a payload
    receiver: str | list[str] | None = None
    event_type: str | None = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_encode_json = msgspec.json.Encoder().encode


def parse_message(value: bytes | None, headers: Headers) -> Message:
    """The message in a record of `from_sender`: header form if any `ce_*` header is there, else a JSON envelope.

    Of a repeated header the last counts. Raises InvalidRecord (reason `invalid`) with what is wrong and where.
    """
    if value is None:
        raise InvalidRecord("invalid", "the record has no value (null); a message needs a payload")
    named = dict(headers)
    if named.get("content-type", b"")[: len(_STRUCTURED)].lower() == _STRUCTURED:
        raise InvalidRecord(
            "invalid",
            "CloudEvents structured mode is not supported: send the attributes as ce_* headers (binary mode)",
        )
    for name in named:
        if name.startswith("ce_"):
            return _from_headers(value, named)
    return _from_envelope(value, named)


def message_digest(message: Message) -> bytes:
    """6 bytes of SHA-256 over payload, receivers and type: tells a repeated message from a reused id.

    The order of the receivers does not count, nor does the wire form.
    """
    receivers = None if message.receivers is None else sorted(message.receivers)
    head = _encode_json((message.event_type, receivers))
    # a JSON array says itself where it ends, so head and payload cannot run into each other
    return hashlib.sha256(head + message.payload).digest()[:6]


def message_headers(message: Message) -> Headers:
    """The header form; the record's value is `message.payload`, its key the source_id."""
    optional = (
        ("ce_type", message.event_type),
        ("ce_time", message.time),
        ("content-type", message.content_type),
        ("ce_receiver", None if message.receivers is None else ",".join(message.receivers)),
        ("traceparent", message.traceparent),
        ("relay-wait", message.wait),
    )
    return (
        ("ce_specversion", b"1.0"),
        ("ce_id", message.message_id.encode()),
        ("ce_source", message.source_id.encode()),
        *((name, text.encode()) for name, text in optional if text is not None),
    )


def sender_headers(headers: Headers) -> Headers:
    """Those headers of a `from_sender` record that count there: hop metadata is nobody's word yet, so it is left out.

    A dead letter of that stage carries these, or a sender could name any receiver in `relay-receiver`.
    """
    return tuple(pair for pair in headers if not pair[0].startswith("relay-") or pair[0] == "relay-wait")


def _from_headers(value: bytes, named: Mapping[str, bytes]) -> Message:
    if named.get("ce_specversion", b"1.0") != b"1.0":
        raise InvalidRecord("invalid", "ce_specversion must be 1.0")
    receivers = _text(named, "ce_receiver")
    return Message(
        source_id=_id(named, "ce_source"),
        message_id=_id(named, "ce_id"),
        receivers=None if receivers is None else _receivers("ce_receiver", receivers.split(",")),
        event_type=_short(_text(named, "ce_type"), "ce_type"),
        time=_short(_text(named, "ce_time"), "ce_time"),
        content_type=_short(_text(named, "content-type"), "content-type"),
        payload=value,
        traceparent=_short(_text(named, "traceparent"), "traceparent"),
        wait=_short(_text(named, "relay-wait"), "relay-wait"),
    )


def _from_envelope(value: bytes, named: Mapping[str, bytes]) -> Message:
    try:
        envelope = _decode_envelope(value)
    except RecursionError as error:
        raise InvalidRecord("invalid", "the JSON envelope is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise InvalidRecord("invalid", "the JSON envelope is not valid UTF-8") from error
    except msgspec.ValidationError as error:
        raise InvalidRecord("invalid", f"JSON envelope: {error}") from error
    except msgspec.DecodeError as error:
        raise InvalidRecord("invalid", f"the record has no ce_* headers and is no JSON envelope: {error}") from error
    names = envelope.receiver
    if isinstance(names, str):
        names = [names]
    return Message(
        source_id=check_id(envelope.source_id, "source_id"),
        message_id=check_id(envelope.message_id, "message_id"),
        receivers=None if names is None else _receivers("receiver", names),
        event_type=_short(envelope.event_type, "event_type"),
        time=None,
        content_type="application/json",
        payload=bytes(envelope.payload),
        traceparent=_short(_text(named, "traceparent"), "traceparent"),
        wait=_short(_text(named, "relay-wait"), "relay-wait"),
    )


def _text(named: Mapping[str, bytes], name: str) -> str | None:
    value = named.get(name)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRecord("invalid", f"header {name} is not valid UTF-8") from None


def _id(named: Mapping[str, bytes], name: str) -> str:
    return check_id(_text(named, name) or "", f"header {name}")


def _short(text: str | None, name: str) -> str | None:
    """`text` if it may become an HTTP header; an empty one says nothing, so it counts as absent."""
    if not text:
        return None
    if len(text) > MAX_TEXT_BYTES or (not text.isascii() and len(text.encode()) > MAX_TEXT_BYTES):
        raise InvalidRecord("invalid", f"{name} is longer than {MAX_TEXT_BYTES} bytes")
    return text


def _receivers(name: str, given: Iterable[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(receiver.strip(" \t") for receiver in given))
    for receiver in names:
        if not is_receiver_name(receiver):
            raise InvalidRecord(
                "invalid", f"{name}: {receiver[:80]!r} is not a receiver name ([a-z0-9][a-z0-9-]*, <= 63)"
            )
    if not names:
        raise InvalidRecord("invalid", f"{name} is empty; leave it out to reach whoever subscribes")
    if len(names) > MAX_RECEIVERS:
        raise InvalidRecord("invalid", f"{name} has {len(names)} names; {MAX_RECEIVERS} are allowed")
    return names
