"""Health of a receiver or a callback, from its measured attempts and its circuit breaker. Pure.

It is beside the condition, which says what a receiver is sent now: one that is sent everything may fail each time.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from relay.domain.state import Tone
from relay.domain.statistics import NUMBERS, Counted, sum_of

Health = Literal["healthy", "degraded", "failing", "down", "idle", "unknown"]
HEALTHS: Final[tuple[Health, ...]] = get_args(Health)
RECENT: Final = 20
"""Attempts that are looked at, at least: as many of the newest hours as have them."""
WELL: Final = 0.95
"""A smaller share of successes is degraded, one below `HALF` failing."""
HALF: Final = 0.5
ENOUGH: Final = 3
"""Attempts of which at least one succeeds unless the receiver is down."""

TONES: Final[Mapping[Health, Tone]] = {
    "healthy": "good",
    "degraded": "warn",
    "failing": "bad",
    "down": "bad",
    "idle": "plain",
    "unknown": "plain",
}


class Measured(NamedTuple):
    """Measurements of an endpoint. `recent`: its newest attempts; None if they cannot be read. `failures`: in a row,
    as the breaker counts them. `is_offline`: the breaker is open for so long that only pings are sent, or until an
    operator resumes it."""

    recent: Counted | None
    breaker: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    is_offline: bool = False


def health_of(measured: Measured) -> Health:
    """Healthy only if almost all recent attempts succeeded, and no failure came since."""
    recent = measured.recent
    if measured.is_offline:
        return "down"
    if measured.breaker != "closed":
        return "failing"
    if recent is None:
        return "unknown"
    if recent.success_rate is None:
        return "degraded" if measured.failures else "idle"
    if recent.success_rate == 0.0:
        return "down" if recent.attempts >= ENOUGH else "failing"
    if recent.success_rate < HALF:
        return "failing"
    if recent.success_rate < WELL or measured.failures:
        return "degraded"
    return "healthy"


def recent_of(hours: Mapping[int, Counted]) -> Counted:
    """The newest hours (by their numbers) that have at least `RECENT` attempts together; all if they have fewer."""
    found = Counted((0,) * NUMBERS)
    for hour in sorted(hours, reverse=True):
        if found.attempts >= RECENT:
            break
        found = sum_of((found, hours[hour]))
    return found
