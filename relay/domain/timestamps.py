"""Parses and formats timestamps: Unix seconds, or `2026-11-23T12:00:00Z`. Parsed timestamps are Unix seconds."""

from datetime import UTC, datetime
from typing import Final

from relay.domain.durations import parse_duration

_ALLOWED: Final = "give Unix seconds, or RFC 3339 with a zone: 2026-11-23T12:00:00Z"
_END: Final = 253_402_300_800.0
"""End of the year 9999, after which RFC 3339 has no timestamps."""


def rfc3339(seconds: float) -> str | None:
    """Unix seconds as text, in milliseconds; None for an invalid time (a producer may write any timestamp)."""
    if seconds <= 0:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_moment(value: object) -> float:
    """Unix seconds. Raises ValueError that names the allowed forms."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime):  # YAML has timestamps
        value = None if value.tzinfo is None else value.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _END:
        raise ValueError(f"not a timestamp; {_ALLOWED}")
    return float(value)


def parse_past(text: str, now: float) -> float:
    """Unix seconds of an RFC 3339 timestamp, or of the time a given duration before `now`. Raises ValueError."""
    if "-" in text:
        return parse_moment(text)
    return max(0.0, now - parse_duration(text))


def _parsed(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None
