"""Durations and timestamps as text: `15s`, `2d`, `2026-11-23T12:00:00Z`. Read, they are seconds, or Unix seconds."""

import re
from datetime import UTC, datetime
from sys import float_info
from typing import Final

WRITTEN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?(ms|s|m|h|d)?")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LONGEST_S: Final = 100 * 365 * 86_400.0
"""Longest duration, 100 years: microseconds from now are then exact in the numbers of Lua."""
_DURATIONS: Final = "give a number of seconds, or a number with a unit: 500ms, 15s, 10m, 1h, 2d"


def parse_duration(value: object, *, longest_s: float = LONGEST_S) -> float:
    """Seconds, not negative and at most `longest_s`. Raises ValueError that names the allowed forms."""
    seconds = _parse_text(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError(f"not a duration; {_DURATIONS}")
    if not seconds >= 0:
        raise ValueError(f"{seconds} is not a duration; {_DURATIONS}; never negative")
    if seconds > longest_s:
        raise ValueError(f"longer than 100 years, the longest duration; {_DURATIONS}")
    return float(seconds)


def _parse_text(text: str) -> float:
    found = WRITTEN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; {_DURATIONS}")
    return float(found[1]) * _UNIT_S[found[2] or "s"]


def format_duration(seconds: float) -> str:
    """The shortest form that `parse_duration` reads back: 3600.0 -> `1h`, 90.0 -> `90s`, 0.5 -> `500ms`."""
    if seconds == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        count = round(seconds / _UNIT_S[unit])
        if count and count * _UNIT_S[unit] == seconds:
            return f"{count}{unit}"
    return f"{seconds:f}s"


# --- timestamps ---------------------------------------------------------------------------------------------------

_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:)(?:[0-5][0-9]|60)(?:\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.IGNORECASE,
)
_TIMESTAMPS: Final = "give Unix seconds, or RFC 3339 with a zone: 2026-11-23T12:00:00Z"
END: Final = 253_402_300_800.0
"""End of the year 9999, after which RFC 3339 has no timestamps."""


def rfc3339(seconds: float | None) -> str | None:
    """Unix seconds as text, in milliseconds; None for None or an invalid time: a producer may write any timestamp."""
    if seconds is None or seconds <= 0:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_text(seconds: float | None) -> str | None:
    """Unix seconds as text, in seconds; None for None. For logs and commands, which write the zone as +00:00."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def parse_moment(value: object) -> float:
    """Unix seconds. Raises ValueError that names the allowed forms."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime):  # YAML has timestamps
        value = None if value.tzinfo is None else value.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < END:
        raise ValueError(f"not a timestamp; {_TIMESTAMPS}")
    return float(value)


def parse_past(text: str, now: float) -> float:
    """Unix seconds of an RFC 3339 timestamp, or of the time a given duration before `now`. Raises ValueError."""
    if "-" in text:
        return parse_moment(text)
    return max(0.0, now - parse_duration(text, longest_s=float_info.max))


def _parsed(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip().upper())  # RFC 3339 allows `t` and `z`, of which Python reads one
    except ValueError:
        return None


def is_rfc3339(text: str) -> bool:
    """Whether it is a time with date and zone, as CloudEvents need it. It may be a leap second."""
    found = _RFC3339.fullmatch(text)
    return found is not None and _parsed(f"{found[1]}00{found[2]}") is not None
