"""Moments as people write them: Unix seconds, or `2026-11-23T12:00:00Z`; inside they are Unix seconds."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema

from relay.config.durations import parse_duration

_ALLOWED: Final = "give Unix seconds, or RFC 3339 with a zone: 2026-11-23T12:00:00Z"
_END: Final = 253_402_300_800.0
"""Of the year 9999, beyond which there is no text for a moment."""


def parse_moment(value: object) -> float:
    """Unix seconds. Raises ValueError that says what is allowed."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime):  # YAML knows moments
        value = None if value.tzinfo is None else value.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _END:
        raise ValueError(f"not a moment; {_ALLOWED}")
    return float(value)


def parse_past(text: str, now: float) -> float:
    """Unix seconds of a moment in RFC 3339 with its zone, or of so long before `now` as a duration says. Raises
    ValueError."""
    if "-" in text:
        return parse_moment(text)
    return max(0.0, now - parse_duration(text))


def _parsed(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


Moment = Annotated[
    float,
    BeforeValidator(parse_moment),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "format": "date-time"}],
            "description": "Unix seconds, or RFC 3339: 2026-11-23T12:00:00Z.",
        }
    ),
]
