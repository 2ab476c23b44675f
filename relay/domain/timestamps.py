"""Formats timestamps as text."""

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str | None:
    """Unix seconds as text, in milliseconds; None for an invalid time (a producer may write any timestamp)."""
    if seconds <= 0:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
