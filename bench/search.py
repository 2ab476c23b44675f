"""The search for the highest rate that is sustained: steps up or down from a first guess, then halves the gap."""

from dataclasses import dataclass
from typing import Final

UP: Final = 1.2
DOWN: Final = 0.8


@dataclass(slots=True)
class Search:
    """Ask `rate` to be tried and `tell` how it went, until `over`. `good`: the highest rate that was sustained, below
    `bad`, the lowest that was not. `tries` are left. `precision`: ends when the two are within this share."""

    rate: float
    tries: int = 6
    precision: float = 0.05
    good: float | None = None
    bad: float | None = None

    @property
    def over(self) -> bool:
        close = self.good is not None and self.bad is not None and self.bad / self.good - 1 <= self.precision
        return close or self.tries <= 0

    def tell(self, sustained: bool) -> None:
        """How `rate` went; what to try next is in `rate` then."""
        self.tries -= 1
        if sustained:
            self.good = max(self.rate, self.good or 0.0)
        else:
            self.bad = min(self.rate, self.bad or self.rate)
        self.rate = self._next()

    def _next(self) -> float:
        if self.good is None:
            return self.rate * DOWN
        return self.good * UP if self.bad is None else (self.good + self.bad) / 2
