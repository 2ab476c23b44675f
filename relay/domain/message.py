"""Messages: parses and writes both wire forms on `from_sender`, the JSON envelope and CloudEvents headers."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from relay.domain.coordinate import Headers
from relay.domain.errors import InvalidRecord
from relay.domain.headers import FORWARDED, Pairs, as_record_headers, in_record, read_headers
from relay.domain.identity import OWN_SOURCE, MessageId, check_id, is_receiver_name, read_message_id, read_source_id
from relay.domain.one_off import ENDPOINT_HEADER, OneOff, decode_one_off, encode_one_off
from relay.domain.text import half_pair
from relay.domain.times import is_rfc3339
from relay.domain.timing import HEADERS as TIMING_HEADERS
from relay.domain.timing import Timing, fields_of, timing_fault, timing_headers, timing_in
from relay.domain.trace import read_traceparent, read_tracestate

MAX_RECEIVERS: Final = 1_000
"""Receivers that one message may name."""

MAX_TEXT_BYTES: Final = 1_024
"""Bytes of a type, time, content type or trace header: they become HTTP headers, which receivers limit too."""

COPY_OF: Final = "x-relay-copy-of"
"""Forwarded header of a message that is an edited copy: the id of its original, percent-encoded."""

_STRUCTURED: Final = b"application/cloudevents"
_FRAMED: Final = "it begins with a zero byte, like the frame of a schema registry; send the JSON without it"
_RAW: Final = "relay-raw-"
"""Prefix of a header whose name or value cannot be decoded (see the log port)."""
_WAIT_DIGITS: Final = 9
_SHOWN: Final = 5
"""Misspelt headers that an error lists."""


class Message(Struct, frozen=True, gc=False):
    """One webhook event. `receivers`: unique names in the sender's order; None for all subscribers.

    `payload`: exactly as the sender gave it. `time`: as given by the sender (RFC 3339). `wait_s`: seconds for which the
    HTTP client waits for the answer; 0 if it does not wait. `headers`: forwarded to receivers that want them
    (`headers.py`). `timing`: when it is due, and until when; None: now, and for as long as its receiver has it.
    """

    source_id: str
    message_id: str
    receivers: tuple[str, ...] | None
    event_type: str | None = None
    time: str | None = None
    content_type: str | None = None
    payload: bytes = b""
    traceparent: str | None = None
    wait_s: int = 0
    headers: Pairs = ()
    tracestate: str | None = None
    timing: Timing | None = None
    one_off: OneOff | None = None
    """The message's own endpoint; then `receivers` has the receiver for its origin."""

    @property
    def id(self) -> MessageId:
        return MessageId(self.source_id, self.message_id)


class Envelope(Struct):
    source_id: str
    message_id: str
    payload: msgspec.Raw  # a slice of the input, so that no payload is decoded and re-encoded
    receiver: str | list[str] | None = None
    event_type: str | None = None
    headers: dict[str, str] | None = None
    deliver_at: str | float | None = None
    delay: str | float | None = None
    deadline: str | float | None = None
    supersede: str | None = None
    coalesce: dict[str, str | float] | None = None


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_encode_json = msgspec.json.Encoder().encode
_any_json = msgspec.json.Decoder(msgspec.Raw)


def parse_message(value: bytes | None, headers: Headers) -> Message:
    """The message in a record of `from_sender`: header form if it has any `ce_*` header, else a JSON envelope.

    The last of repeated headers counts. Raises InvalidRecord (reason `invalid`), which names the mistake and the place.
    """
    if value is None:
        raise InvalidRecord("invalid", "the record has no value (null); a message needs a payload")
    named = dict(headers)
    if named.get("content-type", b"")[: len(_STRUCTURED)].lower() == _STRUCTURED:
        raise InvalidRecord(
            "invalid",
            "CloudEvents structured mode is not supported: send the attributes as ce_* headers (binary mode)",
        )
    try:
        if "ce_id" in named or any(name.startswith("ce_") for name in named):
            return _from_headers(value, named)
        return _from_envelope(value, named)
    except InvalidRecord as error:
        if hint := _spelling_hint(named):
            raise InvalidRecord(error.reason, f"{error.detail}; {hint}") from error
        raise


def message_of(value: bytes | None, headers: Headers) -> Message | None:
    """The message in a record of `from_sender`; None if `parse_message` rejects it."""
    try:
        return parse_message(value, headers)
    except InvalidRecord:
        return None


def copy_of(message: Message) -> str | None:
    """The id of the original, from the same source; None if this is not a copy."""
    given = dict(message.headers).get(COPY_OF)
    return None if given is None else unquote(given)


def copied(
    original: Message,
    message_id: str,
    *,
    payload: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    event_type: str | None = None,
    content_type: str | None = None,
    receivers: Iterable[str] | None = None,
) -> Message:
    """A copy of a message, as a new one with a reference to the original. None: as in the original. Raises
    InvalidRecord for headers that cannot be forwarded."""
    own = {name: value for name, value in (original.headers if headers is None else headers.items()) if name != COPY_OF}
    return Message(
        original.source_id,
        message_id,
        original.receivers if receivers is None else _receivers("receivers", receivers),
        event_type=original.event_type if event_type is None else event_type,
        content_type=original.content_type if content_type is None else content_type,
        payload=original.payload if payload is None else payload,
        headers=read_headers({**own, COPY_OF: quote(original.message_id, safe="")}),
    )


def fault_of_times(message: Message, accepted: float) -> str | None:
    """Why a message cannot have the times that it was given; None if it can. `accepted`: Unix seconds."""
    if message.time is not None and not is_rfc3339(message.time):
        return f"the time of the event is {message.time[:80]!r}, which is not RFC 3339, such as 2026-11-23T12:00:00Z"
    return None if message.timing is None else timing_fault(message.timing, accepted)


def is_json(content_type: str) -> bool:
    """Whether bodies of this type are JSON: its subtype is `json`, or has the suffix `+json`."""
    subtype = content_type.partition(";")[0].strip().lower().rpartition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


def json_fault(message: Message) -> str | None:
    """Why a payload with a JSON content type is not valid JSON; None if it is valid, or has another content type.

    The payload is forwarded in any case. One that is nested too deeply to be checked counts as valid.
    """
    if message.content_type is None or not is_json(message.content_type):
        return None
    try:
        _any_json.decode(message.payload)
        message.payload.decode()
    except msgspec.DecodeError as error:
        return f"the content type is {message.content_type}, but the payload is not JSON: {error}"
    except UnicodeDecodeError:
        return f"the content type is {message.content_type}, but the payload is not UTF-8"
    except RecursionError:
        return None
    return None


def message_digest(message: Message) -> bytes:
    """6 bytes of SHA-256 over payload, receivers and type: distinguishes a repeated message from a reused id.

    The order of the receivers, the wire form and forwarded headers do not count. For the relay's own events only the id
    counts: two processes that notice the same event may describe it slightly differently.
    """
    if message.source_id == OWN_SOURCE:
        return hashlib.sha256(message.message_id.encode()).digest()[:6]
    receivers = message.receivers
    if receivers is not None and len(receivers) > 1:
        receivers = tuple(sorted(receivers))
    head = _encode_json((message.event_type, receivers))
    if message.one_off is not None:
        head += _encode_json(message.one_off.url)
    # a JSON array is self-delimiting, so the boundary between head and payload is unambiguous
    return hashlib.sha256(head + message.payload).digest()[:6]


def message_headers(message: Message) -> Headers:
    """The headers of the header form; the record's value is `message.payload`, its key the source_id."""
    optional = (
        ("ce_type", message.event_type),
        ("ce_time", message.time),
        ("content-type", message.content_type),
        ("ce_receiver", None if message.receivers is None else ",".join(message.receivers)),
        ("traceparent", message.traceparent),
        ("tracestate", message.tracestate),
    )
    return (
        ("ce_specversion", b"1.0"),
        ("ce_id", message.message_id.encode()),
        ("ce_source", message.source_id.encode()),
        *((name, text.encode()) for name, text in optional if text is not None),
        *((("relay-wait", b"%d" % message.wait_s),) if message.wait_s else ()),
        *(() if message.timing is None else timing_headers(message.timing)),
        *(() if message.one_off is None else ((ENDPOINT_HEADER, encode_one_off(message.one_off)),)),
        *as_record_headers(message.headers),
    )


def sender_headers(headers: Headers) -> Headers:
    """The headers of a `from_sender` record without hop metadata, which only the relay sets.

    A dead letter of that stage carries only these; otherwise a sender could set any receiver in `relay-receiver`.
    """
    return tuple(
        (name, value)
        for name, value in headers
        if not name.startswith("relay-") or name.startswith((_RAW, FORWARDED)) or name in TIMING_HEADERS
    )


def _from_headers(value: bytes, named: Mapping[str, bytes]) -> Message:
    if named.get("ce_specversion", b"1.0") != b"1.0":
        raise InvalidRecord("invalid", "ce_specversion must be 1.0")
    fields: dict[str, Any] = {"source_id": "", "message_id": "", "receivers": None}
    others = False
    for name, given in named.items():
        reader = _READERS.get(name)
        if reader is None:
            others = others or name != "ce_specversion"  # forwarded headers may be among them; most messages have none
            continue
        try:
            fields[reader[0]] = reader[1](given)
        except UnicodeDecodeError:
            raise InvalidRecord("invalid", f"header {name} is not valid UTF-8") from None
    if others:
        fields["headers"] = _own_headers(named)
        fields["timing"] = timing_in(named)
    if "one_off" in fields and len(fields["receivers"] or ()) != 1:
        raise InvalidRecord("invalid", f"header {ENDPOINT_HEADER} goes with the one receiver of its origin")
    source_id, message_id = fields["source_id"], fields["message_id"]
    if not source_id or not message_id:
        check_id("", "header ce_id" if source_id else "header ce_source")
    return Message(payload=value, **fields)


def _from_envelope(value: bytes, named: Mapping[str, bytes]) -> Message:
    try:
        envelope = _decode_envelope(value)
    except RecursionError as error:
        raise InvalidRecord("invalid", "the JSON envelope is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise InvalidRecord("invalid", "the JSON envelope is not valid UTF-8") from error
    except msgspec.ValidationError as error:
        raise InvalidRecord("invalid", f"JSON envelope: {_mistake(str(error))}") from error
    except msgspec.DecodeError as error:
        cut = "it ends too early" if value else "it is empty"
        said = half_pair(value) or (cut if "truncated" in str(error) else error)
        why = _FRAMED if value.startswith(b"\0") else said
        raise InvalidRecord("invalid", f"the record has no ce_* headers and is not a JSON envelope: {why}") from error
    names = envelope.receiver
    if isinstance(names, str):
        names = [names]
    return Message(
        source_id=check_id(envelope.source_id, "source_id"),
        message_id=check_id(envelope.message_id, "message_id"),
        receivers=None
        if names is None
        else _receivers("receiver", [name for each in names for name in each.split(",")]),
        event_type=short_text(envelope.event_type, "event_type"),
        time=None,
        content_type="application/json",
        payload=bytes(envelope.payload),
        traceparent=read_traceparent(named.get("traceparent", b"")),
        tracestate=read_tracestate(named.get("tracestate", b"")),
        headers=_own_headers(named, envelope.headers) if named or envelope.headers else (),
        timing=timing_in(named, fields_of(envelope)),
    )


_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_WRONG_TYPE: Final = re.compile(r"Expected `([^`]+)`, got `(\w+)`(?: - at `\$\.?([^`]*)`)?")
_JSON_TYPES: Final = {
    "str": "a string",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}


def _mistake(said: str) -> str:
    """The decoder's error in plain words."""
    if (missing := _MISSING.match(said)) is not None:
        return f"it has no {missing[1]}"
    if (wrong := _WRONG_TYPE.match(said)) is None:
        return said
    wanted = dict.fromkeys(_JSON_TYPES.get(each, each) for each in wrong[1].split(" | "))
    return f"{wrong[3] or 'it'} has to be {' or '.join(wanted)}, not {_JSON_TYPES.get(wrong[2], wrong[2])}"


def _own_headers(named: Mapping[str, bytes], said: Mapping[str, str] | None = None) -> Pairs:
    """Forwarded headers of a message: those of its record, overridden by those in its envelope (`said`)."""
    try:
        return read_headers(in_record(named) | dict(said or {}))
    except UnicodeDecodeError:
        raise InvalidRecord("invalid", f"a header {FORWARDED}... is not valid UTF-8") from None


def _spelling_hint(named: Mapping[str, bytes]) -> str | None:
    """Names the correct spelling of attributes that are spelt as in HTTP; None if there are none."""
    right = {name: name.lower().replace("-", "_") for name in sorted(named)}
    wrong = [name for name, spelt in right.items() if spelt.startswith("ce_") and name != spelt][:_SHOWN]
    if not wrong:
        return None
    return f"it has {', '.join(wrong)}, as HTTP spells them: on Kafka it is {', '.join(right[name] for name in wrong)}"


def short_text(text: str | None, name: str) -> str | None:
    """`text`, if it may become an HTTP header. An empty text counts as absent."""
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
        raise InvalidRecord("invalid", f"{name} is empty; leave it out to reach all subscribers")
    if len(names) > MAX_RECEIVERS:
        raise InvalidRecord("invalid", f"{name} has {len(names)} names; {MAX_RECEIVERS} are allowed")
    return names


@lru_cache(maxsize=1_024)
def _read_receivers(value: bytes) -> tuple[str, ...]:
    return _receivers("ce_receiver", value.decode().split(","))


def _read_wait(value: bytes) -> int:
    """Seconds; 0 for an invalid value, which is no error because the header is only a hint."""
    return int(value) if value.isdigit() and len(value) <= _WAIT_DIGITS else 0


def _read_one_off(value: bytes) -> OneOff:
    try:
        return decode_one_off(value)
    except ValueError as error:
        raise InvalidRecord("invalid", f"header {ENDPOINT_HEADER} {error}") from None


def _reader_of_short(name: str) -> Callable[[bytes], str | None]:
    return lambda value: short_text(value.decode(), name)


def _reader_of_few(name: str) -> Callable[[bytes], str | None]:
    """`_reader_of_short` with a cache, for headers with few distinct values."""
    return lru_cache(maxsize=1_024)(_reader_of_short(name))


_READERS: Final[dict[str, tuple[str, Callable[[bytes], object]]]] = {
    "ce_id": ("message_id", read_message_id),
    "ce_source": ("source_id", read_source_id),
    "ce_receiver": ("receivers", _read_receivers),
    "ce_type": ("event_type", _reader_of_few("ce_type")),
    "ce_time": ("time", _reader_of_short("ce_time")),
    "content-type": ("content_type", _reader_of_few("content-type")),
    "traceparent": ("traceparent", read_traceparent),
    "tracestate": ("tracestate", read_tracestate),
    "relay-wait": ("wait_s", _read_wait),
    ENDPOINT_HEADER: ("one_off", _read_one_off),
}
"""Field and reader of each header."""
