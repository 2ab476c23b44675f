"""Hop metadata: the headers of every record behind `from_sender`, read and written."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final, Literal

from relay.domain.coordinate import Coordinate, Headers, coordinate_text, parse_coordinate
from relay.domain.errors import InvalidRecord
from relay.domain.identity import MAX_ID_BYTES, DeliveryId, check_id, is_receiver_name

Outcome = Literal["answered", "delivered", "failed"]

NO_RECEIVER: Final = "-"
"""Stands for the receiver in a failure notice of a message that never got one; no receiver can have this name."""

_OUTCOMES: Final[dict[bytes, Outcome]] = {b"answered": "answered", b"delivered": "delivered", b"failed": "failed"}
_MAX_DIGITS: Final = 18  # fits 64 bits; int() is slow, and then refuses, on very long input


@dataclass(frozen=True, slots=True)
class Hop:
    """What a hop record says about its delivery; its value is the payload, or on `to_sender` the answer.

    `content_type`: of the value. `attempt`: POSTs so far. `sequence`: grows along the order key. `origin`: where the
    message first was on `from_sender`, `accepted_ms` when (Unix ms; 0: not known). `reason`: why it failed.
    `status_url`: where to ask for the answer, `ask_after_s`: how long to wait first (seconds). `wait`: who waits.
    """

    delivery: DeliveryId
    event_type: str | None = None
    time: str | None = None
    content_type: str | None = None
    attempt: int = 0
    generation: int = 0
    sequence: int | None = None
    origin: Coordinate | None = None
    accepted_ms: int = 0
    outcome: Outcome | None = None
    answer_status: int | None = None
    answer_truncated: bool = False
    reason: str | None = None
    status_url: str | None = None
    ask_after_s: float | None = None
    wait: str | None = None
    traceparent: str | None = None


def encode_hop(hop: Hop) -> Headers:
    """The headers that say `hop`; what is None, False or unknown is left out."""
    receiver, source_id, message_id = hop.delivery
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", message_id.encode()),
        ("ce_source", source_id.encode()),
        ("relay-receiver", receiver.encode()),
        ("relay-attempt", b"%d" % hop.attempt),
        ("relay-generation", b"%d" % hop.generation),
    ]
    for name, text in (
        ("ce_type", hop.event_type),
        ("ce_time", hop.time),
        ("content-type", hop.content_type),
        ("relay-outcome", hop.outcome),
        ("relay-reason", hop.reason),
        ("relay-status-url", hop.status_url),
        ("relay-wait", hop.wait),
        ("traceparent", hop.traceparent),
    ):
        if text is not None:
            # some of these come from a receiver's response, which may hold what UTF-8 cannot say
            headers.append((name, text.encode(errors="replace")))
    if hop.sequence is not None:
        headers.append(("relay-sequence", b"%d" % hop.sequence))
    if hop.origin is not None:
        headers.append(("relay-origin", coordinate_text(hop.origin).encode()))
    if hop.accepted_ms:
        headers.append(("relay-accepted-at", b"%d" % hop.accepted_ms))
    if hop.answer_status is not None:
        headers.append(("relay-answer-status", b"%d" % hop.answer_status))
    if hop.answer_truncated:
        headers.append(("relay-answer-truncated", b"true"))
    if hop.ask_after_s is not None:
        headers.append(("relay-ask-after", repr(hop.ask_after_s).encode()))
    return tuple(headers)


def decode_hop(headers: Headers) -> Hop:
    """The reverse of `encode_hop`. Other headers are ignored; of a repeated one the last counts.

    Raises InvalidRecord (reason `invalid`) that names the header that is missing or wrong.
    """
    named = dict(headers)
    if named.get("ce_specversion", b"1.0") != b"1.0":
        raise InvalidRecord("invalid", "header ce_specversion must be 1.0")
    return Hop(
        delivery=DeliveryId(_receiver(named), _id(named, "ce_source"), _id(named, "ce_id")),
        event_type=_text(named, "ce_type"),
        time=_text(named, "ce_time"),
        content_type=_text(named, "content-type"),
        attempt=_number(named, "relay-attempt") or 0,
        generation=_number(named, "relay-generation") or 0,
        sequence=_number(named, "relay-sequence"),
        origin=_origin(named),
        accepted_ms=_number(named, "relay-accepted-at") or 0,
        outcome=_outcome(named),
        answer_status=_number(named, "relay-answer-status"),
        answer_truncated=named.get("relay-answer-truncated") == b"true",
        reason=_text(named, "relay-reason"),
        status_url=_text(named, "relay-status-url"),
        ask_after_s=_seconds(named, "relay-ask-after"),
        wait=_text(named, "relay-wait"),
        traceparent=_text(named, "traceparent"),
    )


def _wrong(name: str, problem: str) -> InvalidRecord:
    return InvalidRecord("invalid", f"header {name} {problem}")


def _text(named: Mapping[str, bytes], name: str) -> str | None:
    value = named.get(name)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _wrong(name, "is not valid UTF-8") from None


def _id(named: Mapping[str, bytes], name: str) -> str:
    text = _text(named, name) or ""
    if text and text.isprintable() and len(named[name]) <= MAX_ID_BYTES:
        return text  # the usual case, without the regular expression
    return check_id(text, f"header {name}")


def _receiver(named: Mapping[str, bytes]) -> str:
    name = _text(named, "relay-receiver")
    if name is None or not (name == NO_RECEIVER or is_receiver_name(name)):
        raise _wrong("relay-receiver", "is missing" if name is None else "is not a receiver name")
    return name


def _number(named: Mapping[str, bytes], name: str) -> int | None:
    value = named.get(name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise _wrong(name, "is not a whole number")
    return int(value)


def _seconds(named: Mapping[str, bytes], name: str) -> float | None:
    value = named.get(name)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        raise _wrong(name, "is not a number of seconds") from None
    if not isfinite(seconds) or seconds < 0:
        raise _wrong(name, "is not a number of seconds")
    return seconds


def _origin(named: Mapping[str, bytes]) -> Coordinate | None:
    text = _text(named, "relay-origin")
    if text is None:
        return None
    try:
        return parse_coordinate(text)
    except ValueError as error:
        raise _wrong("relay-origin", f"is wrong: {error}") from None


def _outcome(named: Mapping[str, bytes]) -> Outcome | None:
    value = named.get("relay-outcome")
    if value is None:
        return None
    try:
        return _OUTCOMES[value]
    except KeyError:
        raise _wrong("relay-outcome", "is none of answered, delivered, failed") from None
