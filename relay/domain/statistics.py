"""Statistics of the POSTs to a receiver: counts by outcome, a histogram of response times, and the health of the
receiver or callback that follows from them. Pure.

Health is beside the condition, which says what a receiver is sent now: one that is sent everything may fail each time.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Final, Literal, NamedTuple, get_args

from relay.domain.exchange import Exchange, Response
from relay.domain.outcome import (
    Accepted,
    Ambiguous,
    Answered,
    CodeClass,
    Delivered,
    Gone,
    NotNow,
    NotProcessed,
    Outcome,
    Rejected,
)
from relay.domain.state import Tone

OUTCOMES: Final[tuple[CodeClass, ...]] = get_args(CodeClass)
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0)
"""Upper bounds of the response time buckets, in seconds; one more bucket is for longer times."""
_BOUNDS_MS: Final = (*(bound * 1000 for bound in BOUNDS_S), None)
NUMBERS: Final = len(OUTCOMES) + len(BOUNDS_S) + 1
"""Numbers stored per hour: attempts by outcome, then responses by bucket."""
HOURS: Final = 24
"""Clock hours that are kept, including the current one."""

_CLASSES: Final[dict[type[Outcome], CodeClass]] = {
    Accepted: "accepted",
    Answered: "delivered",
    Delivered: "delivered",
    NotNow: "not_now",
    Ambiguous: "ambiguous",
    NotProcessed: "not_processed",
    Rejected: "rejected",
    Gone: "gone",
}
_PLACE: Final = {kind: OUTCOMES.index(name) for kind, name in _CLASSES.items()}
_GOOD: Final = (OUTCOMES.index("accepted"), OUTCOMES.index("delivered"))


def count_in(numbers: list[int], exchange: Exchange, outcome: Outcome, seconds: float) -> None:
    """Add one attempt to `numbers`. It has a response time only if a status line was received."""
    numbers[_PLACE[type(outcome)]] += 1
    if type(exchange) is Response:
        numbers[len(OUTCOMES) + bisect_left(BOUNDS_S, seconds)] += 1


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts; `numbers` has NUMBERS items."""

    numbers: tuple[int, ...]

    @property
    def outcomes(self) -> Sequence[int]:
        """Attempts by outcome, in the order of OUTCOMES."""
        return self.numbers[: len(OUTCOMES)]

    @property
    def attempts(self) -> int:
        return sum(self.outcomes)

    @property
    def success_rate(self) -> float | None:
        """Share of the attempts that were accepted or delivered; None without attempts."""
        attempts = self.attempts
        return self.successes / attempts if attempts else None

    @property
    def successes(self) -> int:
        """Attempts that were accepted or delivered."""
        return sum(self.numbers[place] for place in _GOOD)

    def quantiles_ms(self, *shares: float) -> Sequence[float | None]:
        """Quantiles of response times: for each share (0 to 1) the upper bound, in milliseconds, of the bucket that
        reaches this share of the responses; None for the last bucket, and without responses."""
        sums = list(accumulate(self.numbers[len(OUTCOMES) :]))
        if not sums[-1]:
            return [None] * len(shares)
        return [_BOUNDS_MS[bisect_left(sums, max(1, ceil(share * sums[-1])))] for share in shares]


def sum_of(parts: Iterable[Counted]) -> Counted:
    return Counted(tuple(map(sum, zip((0,) * NUMBERS, *(part.numbers for part in parts), strict=True))))


# --- health -------------------------------------------------------------------------------------------------------

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
