"""Counts the POSTs to receivers in memory, for the statistics that the state keeps: a few additions for each."""

from collections.abc import Callable
from typing import Final

from relay.domain.exchange import Exchange, Response
from relay.domain.outcome import Outcome
from relay.domain.receiver import Endpoint
from relay.domain.statistics import NUMBERS, Counted, count_in
from relay.state.statistics import MOST_BODY, LastAttempt, Tally, kept_response

MOST: Final = 10_000
"""Receivers between two takes; POSTs to others meanwhile are not counted."""
_LOOKED_AT: Final = 2 * MOST_BODY
"""So that a secret that begins in the kept part is masked whole."""


class _Counting:
    """Counts of one receiver. The last attempt is kept in parts: no object is created per attempt."""

    __slots__ = ("at", "failure", "numbers", "responded_at", "response", "seconds", "status")

    status: int | None
    failure: str | None

    def __init__(self) -> None:
        self.numbers = [0] * NUMBERS
        self.at = self.seconds = self.responded_at = 0.0
        self.response: Response | None = None

    def tally(self, receiver: str, endpoint: Endpoint | None) -> Tally:
        last = LastAttempt(self.at, self.status, self.failure, self.seconds)
        response = None
        if self.response is not None and endpoint is not None:
            response = kept_response(self.responded_at, self.response, endpoint)
        return Tally(f"r:{receiver}", Counted(tuple(self.numbers)), last, response)


class Tallies:
    """One per process. `time`: Unix seconds. `endpoint_of`: of a receiver, for the secrets that its responses may
    repeat; no response is kept without it."""

    def __init__(
        self, time: Callable[[], float], endpoint_of: Callable[[str], Endpoint | None] = lambda _receiver: None
    ) -> None:
        self._time = time
        self._endpoint_of = endpoint_of
        self._counting: dict[str, _Counting] = {}

    def count(self, receiver: str, exchange: Exchange, outcome: Outcome, seconds: float) -> None:
        found = self._counting.get(receiver)
        if found is None:
            if len(self._counting) >= MOST:
                return
            found = self._counting[receiver] = _Counting()
        count_in(found.numbers, exchange, outcome, seconds)
        found.at, found.seconds = self._time(), seconds
        if isinstance(exchange, Response):
            found.status, found.failure = exchange.status, None
            found.responded_at = found.at
            found.response = exchange if len(exchange.body) <= _LOOKED_AT else _shortened(exchange)
        else:
            found.status, found.failure = None, exchange.kind

    def take(self) -> list[Tally]:
        """All counts since the last call."""
        taken, self._counting = self._counting, {}
        return [counting.tally(receiver, self._endpoint_of(receiver)) for receiver, counting in taken.items()]


def _shortened(response: Response) -> Response:
    """With a truncated body, so that thousands of receivers cost little memory."""
    return Response(response.status, response.headers, response.body[:_LOOKED_AT], truncated=True)
