"""Holds: an endpoint is sent nothing until an operator resumes it. An operator's decision, or a 410, must not be lost,
so a hold is a record on `receiver_config`, and the state has a copy of it."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from msgspec import Struct

from relay.domain.control_key import decode_value, encode_value

HoldReason = Literal["paused", "gone", "disabled"]
"""`paused`: by an operator. `gone`: it returned 410. `disabled`: it was down for too long."""

MAX_DETAIL: Final = 200
"""Characters."""


@dataclass(frozen=True, slots=True)
class Hold:
    """`since`: when an operator decided it, or the request began that found it: a resume after that ends it, even if it
    is written later. Unix seconds, whole milliseconds. `detail`: for people; at most `MAX_DETAIL` characters."""

    reason: HoldReason
    since: float
    detail: str = ""


def hold(reason: HoldReason, now: float, detail: str) -> Hold:
    """A hold that begins at `now` (Unix seconds)."""
    return Hold(reason, round(now, 3), detail[:MAX_DETAIL])


class _StoredHold(Struct):
    hold: str
    since: float
    detail: str = ""


def encode_hold(held: Hold) -> bytes:
    return encode_value(_StoredHold(held.reason, held.since, held.detail))


def decode_hold(value: bytes) -> Hold:
    """The reverse of `encode_hold`; unknown fields, of a newer version, are ignored. Raises InvalidRecord."""
    known = decode_value(_StoredHold, value)
    # a newer version's reason: nothing may be sent in any case
    reason: HoldReason = known.hold if known.hold in get_args(HoldReason) else "paused"  # type: ignore[assignment]
    return hold(reason, known.since, known.detail)
