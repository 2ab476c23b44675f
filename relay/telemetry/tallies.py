"""Counts the POSTs to receivers in memory, for the statistics that the state keeps: a few additions for each."""

from collections.abc import Callable
from typing import Final

from relay.domain.exchange import Exchange, Response
from relay.domain.outcome import Outcome
from relay.domain.statistics import NUMBERS, Counted, count_in
from relay.state.statistics import LastAttempt, Tally

MOST: Final = 10_000
"""Receivers between two takes; what is sent to others meanwhile is not counted."""


class _Counting:
    """Of one receiver. The last attempt is kept in parts: nothing is made for each."""

    __slots__ = ("at", "exchange", "numbers", "seconds")

    exchange: Exchange

    def __init__(self) -> None:
        self.numbers = [0] * NUMBERS
        self.at = self.seconds = 0.0

    def tally(self, receiver: str) -> Tally:
        exchange = self.exchange
        status, failure = (exchange.status, None) if isinstance(exchange, Response) else (None, exchange.kind)
        return Tally(f"r:{receiver}", Counted(tuple(self.numbers)), LastAttempt(self.at, status, failure, self.seconds))


class Tallies:
    """One per process. `time`: Unix seconds."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._counting: dict[str, _Counting] = {}

    def count(self, receiver: str, exchange: Exchange, outcome: Outcome, seconds: float) -> None:
        found = self._counting.get(receiver)
        if found is None:
            if len(self._counting) >= MOST:
                return
            found = self._counting[receiver] = _Counting()
        count_in(found.numbers, exchange, outcome, seconds)
        found.at, found.seconds, found.exchange = self._time(), seconds, exchange

    def take(self) -> list[Tally]:
        """All that was counted since the last call."""
        taken, self._counting = self._counting, {}
        return [counting.tally(receiver) for receiver, counting in taken.items()]
