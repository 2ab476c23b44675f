"""Statistics of the POSTs to a receiver: counts by outcome, and a histogram of response times."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Final, get_args

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
