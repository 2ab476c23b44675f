"""Health of a receiver or a callback, from its measured attempts, its oldest message and its circuit breaker. Pure.

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
LATE_S: Final = 60.0
"""A message that has waited for longer makes a healthy or idle endpoint degraded."""
ENOUGH: Final = 3
"""Attempts of which at least one succeeds unless the receiver is down."""

_WORST: Final[tuple[Health, ...]] = ("down", "failing", "degraded", "unknown", "idle", "healthy")
NOT_WELL: Final[frozenset[Health]] = frozenset({"down", "failing", "degraded"})
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
    operator resumes it. `oldest_s`: how long its oldest message or result has waited; None if none has, or that is not
    known."""

    recent: Counted | None
    breaker: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    is_offline: bool = False
    oldest_s: float | None = None


def health_of(measured: Measured) -> Health:
    """Healthy only if almost all recent attempts succeeded, no failure came since, and no message waits for long."""
    recent, is_late = measured.recent, measured.oldest_s is not None and measured.oldest_s > LATE_S
    if measured.is_offline:
        return "down"
    if measured.breaker != "closed":
        return "failing"
    if recent is None:
        return "degraded" if is_late else "unknown"
    if recent.success_rate is None:
        return "degraded" if measured.failures or is_late else "idle"
    if recent.success_rate == 0.0:
        return "down" if recent.attempts >= ENOUGH else "failing"
    if recent.success_rate < HALF:
        return "failing"
    if recent.success_rate < WELL or measured.failures or is_late:
        return "degraded"
    return "healthy"


def severity(health: Health, success_rate: float | None, oldest_s: float | None) -> tuple[int, float, float]:
    """A sort key: the worst first; among the same, those that succeed least, then those whose messages wait longest."""
    return _WORST.index(health), 1.0 if success_rate is None else success_rate, -(oldest_s or 0.0)


def recent_of(hours: Mapping[int, Counted]) -> Counted:
    """The newest hours (by their numbers) that have at least `RECENT` attempts together; all if they have fewer."""
    found = Counted((0,) * NUMBERS)
    for hour in sorted(hours, reverse=True):
        if found.attempts >= RECENT:
            break
        found = sum_of((found, hours[hour]))
    return found
