"""Timing of a message: when it is due, until when, and which others it replaces. Pure.

A time that a sender gives is Unix seconds, or less than SINCE_ACCEPTANCE: seconds after the message was accepted.
`resolved` makes all of them Unix seconds.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct, structs

from relay.domain.durations import parse_duration
from relay.domain.errors import InvalidRecord
from relay.domain.timestamps import parse_moment

FIELDS: Final = ("deliver_at", "delay", "deadline")
"""Names of a message's fields, in an envelope and in a query."""
HEADERS: Final = {f"relay-{name.replace('_', '-')}": name for name in FIELDS}
"""Headers of a record and of a request -> field."""
MOST_DELAY_S: Final = 30 * 86_400.0
SINCE_ACCEPTANCE: Final = 1e9
_SLACK_S: Final = 60.0
"""By which the clocks of a sender and of the log may differ."""


class Timing(Struct, frozen=True, gc=False, omit_defaults=True):
    """`deliver_at`: not sent before; 0: at once. `deadline`: not sent after; 0: none but the receiver's `max_age`."""

    deliver_at: float = 0.0
    deadline: float = 0.0


_decode = msgspec.json.Decoder(Timing).decode
encode_timing = msgspec.json.Encoder().encode


def read_timing(given: Mapping[str, object]) -> Timing | None:
    """The timing in the fields of a message; None if it has none. Raises InvalidRecord that names the field."""
    said = {name: value for name in FIELDS if (value := given.get(name)) is not None}
    if not said:
        return None
    if "delay" in said and "deliver_at" in said:
        raise InvalidRecord("invalid", "delay and deliver_at exclude each other")
    if "delay" in said:
        due = _read("delay", said["delay"])
        if due > MOST_DELAY_S:
            raise InvalidRecord("invalid", "delay is longer than 30 days")
    else:
        due = _read("deliver_at", said.get("deliver_at", 0.0))
    return Timing(due, _read("deadline", said.get("deadline", 0.0)))


def fields_of(envelope: object) -> dict[str, object]:
    """The fields of an envelope; None: it does not have that one."""
    return {name: getattr(envelope, name) for name in FIELDS}


def _read(name: str, value: object) -> float:
    """A moment; or a duration, which counts from acceptance."""
    try:
        if isinstance(value, str) and (name == "delay" or "-" not in value):
            return parse_duration(value)
        return parse_moment(value)
    except ValueError as error:
        raise InvalidRecord("invalid", f"{name}: {error}") from None


def timing_in(named: Mapping[str, bytes], said: Mapping[str, object] | None = None) -> Timing | None:
    """As `read_timing`, for the headers of a record. `said`: fields of its envelope, which take precedence."""
    try:
        given = {field: named[name].decode() for name, field in HEADERS.items() if name in named}
        return read_timing({**given, **{name: value for name, value in (said or {}).items() if value is not None}})
    except UnicodeDecodeError:
        raise InvalidRecord("invalid", f"one of the headers {', '.join(HEADERS)} is not valid UTF-8") from None


def timing_headers(timing: Timing) -> tuple[tuple[str, bytes], ...]:
    """The headers that `timing_in` reads back."""
    said = (("relay-deliver-at", timing.deliver_at), ("relay-deadline", timing.deadline))
    return tuple((name, repr(value).encode()) for name, value in said if value)


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
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("is not a timing") from None
