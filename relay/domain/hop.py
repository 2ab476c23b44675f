"""Hop metadata: encodes and decodes the headers of every record after `from_sender`."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct

from relay.domain.coordinate import Coordinate, Headers, coordinate_text, parse_coordinate
from relay.domain.errors import InvalidRecord
from relay.domain.headers import FORWARDED, Pairs, as_record_headers, in_record
from relay.domain.identity import DeliveryId, Progress, callback_id, is_receiver_name, read_message_id, read_source_id
from relay.domain.json_pointer import NOT_JSON
from relay.domain.one_off import ENDPOINT_HEADER, OneOff, decode_one_off, encode_one_off
from relay.domain.text import MOST_DIGITS
from relay.domain.timing import Timing, decode_timing, encode_timing
from relay.domain.trace import read_traceparent, read_tracestate

Outcome = Literal["answered", "delivered", "failed", "accepted", "running"]
"""Of a delivery. The last two are progress: its end follows."""

NO_RECEIVER: Final = "-"
"""The receiver in a failure notice of a message that had none; no receiver can have this name."""

FORM: Final = 1
"""Version of the hop headers. FORM_HEADER carries it; a record without that header has form 1."""
FORM_HEADER: Final = "relay-form"
LIFE_HEADER: Final = "relay-receiver-life"
KEEP_HEADER: Final = "relay-keep"
TIMING_HEADER: Final = "relay-timing"
SEALED: Final = ("relay-sealed", b"true")
"""Header of a record whose payload is encrypted for its receiver."""

_PROGRESS: Final[dict[Outcome | None, Progress]] = {"accepted": "accepted", "running": "running"}
_OUTCOMES: Final[dict[bytes, Outcome]] = {each.encode(): each for each in get_args(Outcome)}


class Hop(Struct, frozen=True, gc=False):
    """Metadata of a delivery in a hop record, whose value is the payload, or on `to_sender` the answer.

    `content_type`: of the value. `attempt`: POSTs so far. `sequence`: grows along the order key. `origin`: the
    message's record on `from_sender`; `accepted_ms`: its time (Unix ms, 0 if not known). `reason`: why it failed.
    `status_url`: where to poll for the answer; `ask_after_s`: seconds to wait first; `not_asked`: why polling is not
    possible. `move`: the move of its receiver by which it was routed (see `relay/domain/route.py`). `ask_first`: of a
    replay, if an attempt of an earlier generation may have arrived: see `ToReceiver`. `wait_s`: seconds for which a
    client's request waits for the answer; 0 if none waits. `headers`: the message's forwarded headers, if its receiver
    wants any. `order`: digest of the order key. `life`: the life of its receiver's name in which it was routed (see
    `Life`). `keep`: JSON of what its source keeps of the message for the callback. `chain`: JSON of a chain of status
    steps (`relay/domain/status_chain.py`).
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
    not_asked: str | None = None
    traceparent: str | None = None
    move: int = 0
    ask_first: bool = False
    wait_s: int = 0
    headers: Pairs = ()
    tracestate: str | None = None
    order: str | None = None
    life: str = ""
    keep: str | None = None
    chain: str | None = None
    sealed: bool = False
    """The payload is encrypted for the receiver, and sent as it is."""
    timing: Timing | None = None
    """Of the message, with all times in Unix seconds."""
    one_off: OneOff | None = None
    """The message's own endpoint."""

    @property
    def progress(self) -> Progress | None:
        """The progress that a record on `to_sender` reports; None if it has the delivery's end."""
        return _PROGRESS.get(self.outcome)


def encode_hop(hop: Hop) -> Headers:
    """The headers for `hop`, without fields that are None, False or unknown."""
    receiver, source_id, message_id = hop.delivery
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", message_id.encode()),
        ("ce_source", source_id.encode()),
        ("relay-receiver", receiver.encode()),
        ("relay-attempt", b"%d" % hop.attempt),
        ("relay-generation", b"%d" % hop.generation),
    ]
    # Not a loop, because this runs for every record. Values from a receiver's response may not be encodable as UTF-8.
    if hop.event_type is not None:
        headers.append(("ce_type", hop.event_type.encode(errors="replace")))
    if hop.time is not None:
        headers.append(("ce_time", hop.time.encode(errors="replace")))
    if hop.content_type is not None:
        headers.append(("content-type", hop.content_type.encode(errors="replace")))
    if hop.outcome is not None:
        headers.append(("relay-outcome", hop.outcome.encode()))
    if hop.reason is not None:
        headers.append(("relay-reason", hop.reason.encode(errors="replace")))
    if hop.status_url is not None:
        headers.append(("relay-status-url", hop.status_url.encode(errors="replace")))
    if hop.not_asked is not None:
        headers.append(("relay-not-asked", hop.not_asked.encode(errors="replace")))
    if hop.traceparent is not None:
        headers.append(("traceparent", hop.traceparent.encode(errors="replace")))
    if hop.tracestate is not None:
        headers.append(("tracestate", hop.tracestate.encode(errors="replace")))
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
    if hop.wait_s:
        headers.append(("relay-wait", b"%d" % hop.wait_s))
    if hop.move:
        headers.append(("relay-move", b"%d" % hop.move))
    if hop.ask_first:
        headers.append(("relay-ask-first", b"true"))
    if hop.order is not None:
        headers.append(("relay-order-key", hop.order.encode(errors="replace")))
    if hop.life:
        headers.append((LIFE_HEADER, hop.life.encode(errors="replace")))
    if hop.keep is not None:
        headers.append((KEEP_HEADER, hop.keep.encode()))
    if hop.chain is not None:
        headers.append(("relay-status-chain", hop.chain.encode()))
    if hop.sealed:
        headers.append(SEALED)
    if hop.timing is not None:
        headers.append((TIMING_HEADER, encode_timing(hop.timing)))
    if hop.one_off is not None:
        headers.append((ENDPOINT_HEADER, encode_one_off(hop.one_off)))
    if hop.headers:
        headers += as_record_headers(hop.headers)
    return tuple(headers)


def result_headers(hop: Hop) -> Headers:
    """The headers of a record on `to_sender`: those for `hop`, and those of a callback, so that a sender's own consumer
    recognizes duplicates by the same `webhook-id`."""
    _, source_id, message_id = hop.delivery
    failed, progress = hop.outcome == "failed", _PROGRESS.get(hop.outcome)
    headers = encode_hop(hop)
    identity = callback_id(hop.delivery, hop.generation, failed=failed, progress=progress)
    return (
        *headers,
        ("webhook-id", identity.encode()),
        ("relay-source", source_id.encode()),
        ("relay-message-id", message_id.encode()),
    )


def decode_hop(headers: Headers) -> Hop:
    """The reverse of `encode_hop`. Other headers are ignored; of a repeated one the last counts.

    Raises InvalidRecord (reason `invalid`) that names the header that is missing or wrong.
    """
    fields: dict[str, Any] = {}
    named, has_own = dict(headers), False
    if (form := named.get(FORM_HEADER)) is not None and form != b"%d" % FORM:
        raise _wrong(FORM_HEADER, f"is unknown to this release, which knows {FORM}: a newer release wrote this record")
    for name, value in named.items():
        reader = _READERS.get(name)
        if reader is not None:
            try:
                fields[reader[0]] = reader[1](value)
            except UnicodeDecodeError:
                raise _wrong(name, "is not valid UTF-8") from None
            except ValueError as error:
                raise _wrong(name, str(error)) from None
        elif name.startswith(FORWARDED):
            has_own = True
    if has_own:
        fields["headers"] = _own_headers(named)
    if fields.pop("version", "1.0") != "1.0":
        raise InvalidRecord("invalid", "header ce_specversion must be 1.0")
    try:
        delivery = DeliveryId(fields.pop("receiver"), fields.pop("source_id"), fields.pop("message_id"))
    except KeyError as error:
        raise _missing(error.args[0]) from None
    return Hop(delivery, **fields)


def hop_of(headers: Headers) -> Hop | None:
    """The hop in `headers`; None if `decode_hop` rejects them."""
    try:
        return decode_hop(headers)
    except InvalidRecord:
        return None


def _own_headers(named: Mapping[str, bytes]) -> Pairs:
    try:
        return tuple(in_record(named).items())
    except UnicodeDecodeError:
        raise _wrong(f"{FORWARDED}...", "is not valid UTF-8") from None


def _wrong(name: str, problem: str) -> InvalidRecord:
    return InvalidRecord("invalid", f"header {name} {problem}")


def _missing(field: str) -> InvalidRecord:
    name = next(name for name, (its_field, _) in _READERS.items() if its_field == field)
    return _wrong(name, "is missing" if field == "receiver" else "is missing or empty")


# Readers of header values. They raise ValueError with the reason.


@lru_cache(maxsize=16_384)
def _receiver(value: bytes) -> str:
    name = value.decode()
    if not (name == NO_RECEIVER or is_receiver_name(name)):
        raise ValueError("is not a receiver name")
    return name


def _number(value: bytes) -> int:
    if not value.isdigit() or len(value) > MOST_DIGITS:  # `whole_number` would be one more call for each record
        raise ValueError("is not a whole number")
    return int(value)


_count: Final = lru_cache(maxsize=1_024)(_number)
"""For small numbers, which repeat."""


def _seconds(value: bytes) -> float:
    try:
        seconds = float(value)
    except ValueError:
        raise ValueError("is not a number of seconds") from None
    if not isfinite(seconds) or seconds < 0:
        raise ValueError("is not a number of seconds")
    return seconds


def _origin(value: bytes) -> Coordinate:
    text = value.decode()
    try:
        return parse_coordinate(text)
    except ValueError as error:
        raise ValueError(f"is wrong: {error}") from None


def _outcome(value: bytes) -> Outcome:
    outcome = _OUTCOMES.get(value)
    if outcome is None:
        raise ValueError("is none of answered, delivered, failed, accepted, running")
    return outcome


def json_object(value: bytes) -> str:
    """The text of a header with a JSON object. Raises ValueError."""
    try:
        msgspec.json.decode(value, type=dict)
    except NOT_JSON:
        raise ValueError("is not a JSON object") from None
    return value.decode()


def _is_true(value: bytes) -> bool:
    return value == b"true"


_READERS: Final[dict[str, tuple[str, Callable[[bytes], object]]]] = {
    "ce_specversion": ("version", bytes.decode),
    "ce_id": ("message_id", read_message_id),
    "ce_source": ("source_id", read_source_id),
    "relay-receiver": ("receiver", _receiver),
    "ce_type": ("event_type", bytes.decode),
    "ce_time": ("time", bytes.decode),
    "content-type": ("content_type", bytes.decode),
    "relay-attempt": ("attempt", _count),
    "relay-generation": ("generation", _count),
    "relay-sequence": ("sequence", _number),
    "relay-origin": ("origin", _origin),
    "relay-accepted-at": ("accepted_ms", _number),
    "relay-outcome": ("outcome", _outcome),
    "relay-answer-status": ("answer_status", _count),
    "relay-answer-truncated": ("answer_truncated", _is_true),
    "relay-reason": ("reason", bytes.decode),
    "relay-status-url": ("status_url", bytes.decode),
    "relay-ask-after": ("ask_after_s", _seconds),
    "relay-not-asked": ("not_asked", bytes.decode),
    "traceparent": ("traceparent", read_traceparent),
    "tracestate": ("tracestate", read_tracestate),
    "relay-move": ("move", _number),
    "relay-ask-first": ("ask_first", _is_true),
    "relay-wait": ("wait_s", _number),
    "relay-order-key": ("order", bytes.decode),
    LIFE_HEADER: ("life", bytes.decode),
    KEEP_HEADER: ("keep", json_object),
    "relay-status-chain": ("chain", json_object),
    SEALED[0]: ("sealed", _is_true),
    TIMING_HEADER: ("timing", decode_timing),
    ENDPOINT_HEADER: ("one_off", decode_one_off),
}
"""Field and reader of each header."""
