"""Holds: an endpoint is sent nothing until an operator resumes it. An operator's decision, or a 410, must not be lost,
so a hold is a record on `receiver_config`, and the state has a copy of it."""

import json
from dataclasses import dataclass
from typing import Final, Literal, get_args

from relay.domain.errors import InvalidRecord

HoldReason = Literal["paused", "gone", "disabled"]
"""`paused`: by an operator. `gone`: it returned 410. `disabled`: it was down for too long."""

MAX_DETAIL: Final = 200
"""Characters."""


@dataclass(frozen=True, slots=True)
class Hold:
    """`since`: Unix seconds, whole milliseconds. `detail`: for people; at most `MAX_DETAIL` characters."""

    reason: HoldReason
    since: float
    detail: str = ""


def hold(reason: HoldReason, now: float, detail: str) -> Hold:
    """A hold that begins at `now` (Unix seconds)."""
    return Hold(reason, round(now, 3), detail[:MAX_DETAIL])


def encode_hold(held: Hold) -> bytes:
    return json.dumps({"hold": held.reason, "since": held.since, "detail": held.detail}, sort_keys=True).encode()


def decode_hold(value: bytes) -> Hold:
    """The reverse of `encode_hold`; unknown fields, of a newer version, are ignored. Raises InvalidRecord."""
    try:
        known = json.loads(value)
        reason, since, detail = known["hold"], float(known["since"]), str(known.get("detail", ""))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidRecord("invalid", "a hold that is not JSON of hold and since") from error
    if reason not in get_args(HoldReason):
        reason = "paused"  # a newer version's reason: nothing may be sent in any case
    return hold(reason, since, detail)
