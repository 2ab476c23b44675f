"""Parses and formats durations: `15`, `500ms`, `15s`, `10m`, `1h`, `2d`. Parsed durations are seconds."""

import math
import re
from typing import Final

WRITTEN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?(ms|s|m|h|d)?")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_ALLOWED: Final = "give a number of seconds, or a number with a unit: 500ms, 15s, 10m, 1h, 2d"


def parse_duration(value: object) -> float:
    """Seconds, finite and not negative. Raises ValueError that names the allowed forms."""
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"not a duration; {_ALLOWED}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{value} is not a duration; {_ALLOWED}; never negative")
    return float(value)


def _parse_text(text: str) -> float:
    found = WRITTEN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; {_ALLOWED}")
    seconds = float(found[1]) * _UNIT_S[found[2] or "s"]
    if seconds == math.inf:
        raise ValueError(f"{text!r} is longer than any duration; {_ALLOWED}")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest form that `parse_duration` reads back: 3600.0 -> `1h`, 90.0 -> `90s`, 0.5 -> `500ms`."""
    if seconds == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        count = round(seconds / _UNIT_S[unit])
        if count and count * _UNIT_S[unit] == seconds:
            return f"{count}{unit}"
    return f"{seconds:f}s"
