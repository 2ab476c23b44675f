"""A hold: an endpoint is sent nothing until somebody resumes it. What a person decided, or a 410 said, is no hint that
may be lost: it is a record of its own on `receiver_config`, and the state has a copy of it."""

import json
from dataclasses import dataclass
from typing import Final, Literal, get_args

from relay.domain.errors import InvalidRecord

HoldReason = Literal["paused", "gone", "disabled"]
"""By hand; because it said 410; because it was down for too long."""

HOLD_PREFIX: Final = "hold:"
"""Keys of receivers have no colon, and those of sources begin with another word."""
MAX_DETAIL: Final = 200
"""Characters."""


@dataclass(frozen=True, slots=True)
class Hold:
    """`since`: Unix seconds, whole milliseconds. `detail`: for people; at most `MAX_DETAIL` characters."""

    reason: HoldReason
    since: float
    detail: str = ""


def hold(reason: HoldReason, now: float, detail: str) -> Hold:
    """Begun at `now` (Unix seconds)."""
    return Hold(reason, round(now, 3), detail[:MAX_DETAIL])


def hold_key(owner: str) -> bytes:
    """`owner`: `r:<receiver>`, or `s:<source_id>` for the callback of a source."""
    return (HOLD_PREFIX + owner).encode()


def held_owner(key: bytes) -> str | None:
    """The owner that a record of `receiver_config` with this key is about; None where it is no hold."""
    text = key.decode(errors="replace")
    return text.removeprefix(HOLD_PREFIX) if text.startswith(HOLD_PREFIX) else None


def encode_hold(held: Hold) -> bytes:
    return json.dumps({"hold": held.reason, "since": held.since, "detail": held.detail}, sort_keys=True).encode()


def decode_hold(value: bytes) -> Hold:
    """Raises InvalidRecord unless `value` is what `encode_hold` makes; fields that a newer version adds are ignored."""
    try:
        known = json.loads(value)
        reason, since, detail = known["hold"], float(known["since"]), str(known.get("detail", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRecord("invalid", "a hold that is not JSON of hold and since") from error
    if reason not in get_args(HoldReason):
        reason = "paused"  # a newer version's: whatever it means, nothing may be sent
    return hold(reason, since, detail)
