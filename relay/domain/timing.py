"""Timing of a message: when it is due, until when, and which others it replaces. Pure.

A time that a sender gives is Unix seconds, or less than SINCE_ACCEPTANCE: seconds after the message was accepted.
`resolved` makes all of them Unix seconds.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct, structs

from relay.domain.errors import InvalidRecord
from relay.domain.identity import check_id
from relay.domain.json_pointer import NOT_JSON
from relay.domain.times import parse_duration, parse_moment

FIELDS: Final = ("deliver_at", "delay", "deadline", "supersede", "coalesce")
"""Names of a message's fields, in an envelope and in a query."""
HEADERS: Final = {f"relay-{name.replace('_', '-')}": name for name in FIELDS}
"""Headers of a record and of a request -> field."""
MOST_DELAY_S: Final = 30 * 86_400.0
SINCE_ACCEPTANCE: Final = 1e9
_MOMENTS: Final = "give Unix seconds, RFC 3339 with a zone (2026-11-23T12:00:00Z), or a duration from now, such as 10m"
_SLACK_S: Final = 60.0
"""By which the clocks of a sender and of the log may differ."""


class Timing(Struct, frozen=True, gc=False, omit_defaults=True):
    """`deliver_at`: not sent before; 0: at once. `deadline`: not sent after; 0: none but the receiver's `max_age`.
    `key`: it replaces older messages with this key that were not sent; empty: none. `window`: seconds for which a
    message waits for newer ones of its key; 0: it does not wait."""

    deliver_at: float = 0.0
    deadline: float = 0.0
    key: str = ""
    window: float = 0.0


class Coalesce(Struct, forbid_unknown_fields=True):
    """The field `coalesce` of a message."""

    key: str
    window: str | float


_decode = msgspec.json.Decoder(Timing).decode
encode_timing = msgspec.json.Encoder().encode


def read_timing(given: Mapping[str, object]) -> Timing | None:
    """The timing in the fields of a message; None if it has none. Raises InvalidRecord that names the field."""
    said = {name: value for name in FIELDS if (value := given.get(name)) is not None}
    if not said:
        return None
    for one, other in (("delay", "deliver_at"), ("supersede", "coalesce")):
        if one in said and other in said:
            raise InvalidRecord("invalid", f"{one} and {other} exclude each other")
    due = _short("delay", said["delay"]) if "delay" in said else _moment("deliver_at", said.get("deliver_at", 0.0))
    key, window = _key("supersede", said.get("supersede")), 0.0
    if "coalesce" in said:
        key, window = _coalesced(said["coalesce"])
    # a given 0 is in the past, while 0.0 in a Timing is no deadline
    deadline = _moment("deadline", said["deadline"]) or SINCE_ACCEPTANCE if "deadline" in said else 0.0
    return Timing(due, deadline, key, window)


def fields_of(envelope: object) -> dict[str, object]:
    """The fields of an envelope; None: it does not have that one."""
    return {name: getattr(envelope, name) for name in FIELDS}


def _moment(name: str, value: object) -> float:
    """A moment; or a duration, which counts from acceptance."""
    try:
        if isinstance(value, str) and "-" in value:
            return max(parse_moment(value), SINCE_ACCEPTANCE)  # an earlier one would count as a duration
        return parse_duration(value) if isinstance(value, str) else parse_moment(value)
    except ValueError:
        shown = f"{value!r} is" if isinstance(value, str) else "it is"
        raise InvalidRecord("invalid", f"{name}: {shown} neither a time nor a duration; {_MOMENTS}") from None


def _short(name: str, value: object) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise InvalidRecord("invalid", f"{name}: {error}") from None
    if seconds > MOST_DELAY_S:
        raise InvalidRecord("invalid", f"{name} is longer than 30 days")
    return seconds


def _key(name: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRecord("invalid", f"{name} is not a text")
    return check_id(value, name)


def _coalesced(value: object) -> tuple[str, float]:
    try:
        given = msgspec.json.decode(value) if isinstance(value, str) else value
        found = msgspec.convert(given, Coalesce)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise InvalidRecord("invalid", 'coalesce is not an object such as {"key": "a", "window": "10s"}') from None
    return _key("coalesce: key", found.key), _short("coalesce: window", found.window)


def timing_in(named: Mapping[str, bytes], said: Mapping[str, object] | None = None) -> Timing | None:
    """As `read_timing`, for the headers of a record. `said`: fields of its envelope, which take precedence."""
    try:
        given = {field: named[name].decode() for name, field in HEADERS.items() if name in named}
        return read_timing({**given, **{name: value for name, value in (said or {}).items() if value is not None}})
    except UnicodeDecodeError:
        raise InvalidRecord("invalid", f"one of the headers {', '.join(HEADERS)} is not valid UTF-8") from None


def timing_headers(timing: Timing) -> tuple[tuple[str, bytes], ...]:
    """The headers that `timing_in` reads back."""
    said = [("relay-deliver-at", timing.deliver_at), ("relay-deadline", timing.deadline)]
    headers = tuple((name, repr(value).encode()) for name, value in said if value)
    if timing.window:
        return (*headers, ("relay-coalesce", msgspec.json.encode(Coalesce(timing.key, timing.window))))
    return (*headers, ("relay-supersede", timing.key.encode())) if timing.key else headers


def resolved(timing: Timing, accepted: float) -> Timing:
    """All times in Unix seconds. `accepted`: when the log took the message."""
    return structs.replace(
        timing, deliver_at=_absolute(timing.deliver_at, accepted), deadline=_absolute(timing.deadline, accepted)
    )


def _absolute(value: float, accepted: float) -> float:
    return value + accepted if 0 < value < SINCE_ACCEPTANCE else value


def timing_fault(timing: Timing, accepted: float) -> str | None:
    """Why a message cannot have this timing; None if it can. `accepted`: Unix seconds."""
    real = resolved(timing, accepted)
    if real.deliver_at > accepted + MOST_DELAY_S + _SLACK_S:
        return "deliver_at is more than 30 days ahead"
    if real.deadline and real.deadline <= real.deliver_at:
        return "deadline is not after deliver_at or delay"
    return None


def decode_timing(value: bytes) -> Timing:
    """The reverse of `encode_timing`. Raises ValueError."""
    try:
        return _decode(value)
    except NOT_JSON:
        raise ValueError("is not a timing") from None
