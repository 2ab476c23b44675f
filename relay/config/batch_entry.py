"""Entry of receivers.yaml for a receiver that gets several messages in one POST."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import ByteSize, Field, StrictInt, ValidationInfo, WithJsonSchema

from relay.config.entry_types import Duration, Entry
from relay.domain.receiver import BatchFormat, RateLimitUnit

MOST_EVENTS: Final = 1_000
_LEAST_BYTES: Final = 1_024
_MOST_BYTES: Final = 64 * 1024**2
_LONGEST_S: Final = 60.0


_SCHEMA: Final[dict[str, object]] = {
    "anyOf": [
        {"type": "integer", "minimum": _LEAST_BYTES},
        {"type": "string", "pattern": "^[0-9]{1,12} ?(B|KiB|MiB|kB|MB)?$"},
    ],
    "description": "Bytes as a number, or with a unit: 64KiB, 1MiB.",
}
_Size = Annotated[ByteSize, Field(ge=_LEAST_BYTES, le=_MOST_BYTES), WithJsonSchema(_SCHEMA)]

_CONTRADICTIONS: Final[Mapping[str, str]] = {
    "request": "whose form has one message",
    "outcomes": "whose conditions are about one message",
    "encrypt": "which encrypts the body of one message",
    "status_steps": "whose expressions are about one response",
    "forward_headers": "which are headers of one message",
}


class BatchEntry(Entry):
    """Sends several messages in one POST."""

    max_events: Annotated[StrictInt, Field(ge=1, le=MOST_EVENTS)] = 100
    """Maximum number of messages in a POST."""
    max_bytes: _Size = ByteSize(1024**2)
    """Maximum size of its body; a larger message is sent alone."""
    linger: Annotated[Duration, Field(le=_LONGEST_S)] = 0.2
    """How long a batch that is not full waits for more messages."""
    format: BatchFormat = "cloudevents"
    """`cloudevents`: a CloudEvents JSON batch. `list`: a JSON list with the fields `sequence`, `type`, `id`, `source`,
    `time` and `payload`."""


def check_batch(batch: BatchEntry | None, info: ValidationInfo) -> BatchEntry | None:
    """Raises ValueError if a field of the receiver makes no sense with batches."""
    if batch is None:
        return None
    known = info.data
    for name, why in _CONTRADICTIONS.items():
        if known.get(name):
            raise ValueError(f"contradicts {name}, {why}; leave one of the two out")
    if (payload := known.get("payload", "full")) != "full":
        raise ValueError(f"contradicts payload: {payload!r} is the form of one message; leave one of the two out")
    if "{response." in (known.get("status_endpoint") or ""):
        raise ValueError(
            "contradicts status_endpoint, which needs the response to one message; leave one of the two out"
        )
    return batch


def check_rate_limit_unit(unit: RateLimitUnit, info: ValidationInfo) -> RateLimitUnit:
    """Raises ValueError if there is nothing that it is a unit of."""
    if unit == "events" and info.data.get("rate_limit", 1) is None:
        raise ValueError("is the unit of rate_limit, and there is none: give a rate_limit, or leave this out")
    if unit == "events" and info.data.get("batch", unit) is None:
        raise ValueError("makes a difference only with batch, and there is none: give a batch, or leave this out")
    return unit
