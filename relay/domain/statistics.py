"""What is counted of the POSTs to a receiver: what came of them, and how long its responses took."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf, isinf
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
"""Upper ends of the buckets of response times, in seconds; there is one more, for what takes longer."""
NUMBERS: Final = len(OUTCOMES) + len(BOUNDS_S) + 1
"""How many there are of an hour: attempts by outcome, then responses by bucket."""
HOURS: Final = 24
"""Hours of the clock that are kept, the present one among them."""

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
    """Add one attempt to `numbers`. It has a response time only if a status line came."""
    numbers[_PLACE[type(outcome)]] += 1
    if type(exchange) is Response:
        numbers[len(OUTCOMES) + bisect_left(BOUNDS_S, seconds)] += 1


@dataclass(frozen=True, slots=True)
class Counted:
    """`numbers`: NUMBERS of them."""

    numbers: tuple[int, ...]

    @property
    def outcomes(self) -> Sequence[int]:
        """As OUTCOMES."""
        return self.numbers[: len(OUTCOMES)]

    @property
    def attempts(self) -> int:
        return sum(self.outcomes)

    @property
    def success_rate(self) -> float | None:
        """Share of the attempts that were accepted or delivered; None: there were none."""
        return self.successes / self.attempts if self.attempts else None

    @property
    def successes(self) -> int:
        """Attempts that were accepted or delivered."""
        return sum(self.numbers[place] for place in _GOOD)

    def quantile_s(self, share: float) -> float | None:
        """So many seconds at most took this share (0 to 1) of the responses, as far as the buckets tell: the upper end
        of one; inf beyond the last. None: there were no responses."""
        sums = list(accumulate(self.numbers[len(OUTCOMES) :]))
        if not sums[-1]:
            return None
        place = bisect_left(sums, max(1, ceil(share * sums[-1])))
        return (*BOUNDS_S, inf)[place]

    def quantile_ms(self, share: float) -> float | None:
        """As `quantile_s`, in milliseconds; None also beyond the last bucket: there is no number for that in JSON."""
        seconds = self.quantile_s(share)
        return None if seconds is None or isinf(seconds) else seconds * 1000


def sum_of(parts: Iterable[Counted]) -> Counted:
    return Counted(tuple(map(sum, zip((0,) * NUMBERS, *(part.numbers for part in parts), strict=True))))
