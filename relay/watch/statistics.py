"""Counts messages and POSTs to receivers: as metrics, and as statistics, which are written into the state every few
seconds, many receivers in one call."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.domain.exchange import Exchange, Response
from relay.domain.identity import DeliveryId
from relay.domain.outcome import Outcome
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.sliced import sliced
from relay.domain.statistics import NUMBERS, Counted, count_in
from relay.state.port import State
from relay.state.read_model import MOST_BODY, LastAttempt, Tally, kept_response
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from relay.telemetry.throttle import Throttle
from workers.dependencies import Meter, Via

MOST: Final = 10_000
"""Receivers between two takes; POSTs to others meanwhile are not counted."""
_LOOKED_AT: Final = 2 * MOST_BODY
"""Bytes that are searched for secrets, so that one that begins in the kept part is masked whole."""
EVERY_S: Final = 5.0
AT_ONCE: Final = 50
"""Tallies in one call: about a millisecond of the server."""
_LAST_S: Final = 2.0
"""Longest wait for the state to take the rest when the process ends."""
_NO_RECEIVER: Final = "-"
"""Label for unknown receivers: names that senders invent must not become series."""

RECEIVER: Final = "r:"
"""Prefix of the owner of a receiver's endpoint."""

_log = get_logger("relay.engine")


class _Counting:
    """Counts of one endpoint. The last attempt is kept in parts: no object is created per attempt."""

    __slots__ = ("at", "failure", "life", "numbers", "responded_at", "response", "seconds", "status")

    status: int | None
    failure: str | None

    def __init__(self, life: str) -> None:
        self.life = life
        self.numbers = [0] * NUMBERS
        self.at = self.seconds = self.responded_at = 0.0
        self.response: Response | None = None

    @property
    def counted(self) -> Counted:
        return Counted(tuple(self.numbers))

    def tally(self, owner: str, endpoint: Endpoint | None) -> Tally:
        last = LastAttempt(self.at, self.status, self.failure, self.seconds)
        response = None
        if self.response is not None and endpoint is not None:
            response = kept_response(self.responded_at, self.response, endpoint)
        return Tally(owner, self.counted, last, response)


OwnersCounts = tuple[str, _Counting]
"""(owner, counts)"""


class Tallies:
    """Counts the POSTs to receivers and callbacks in memory: a few additions for each. One per process.

    `endpoint_of`: of a receiver, for the secrets that its responses may repeat; no response is kept without it.
    `life_of`: the id of the present life of a receiver's name, which a new owner begins; None if there is no such
    receiver."""

    def __init__(
        self,
        endpoint_of: Callable[[str], Endpoint | None] = lambda _receiver: None,
        life_of: Callable[[str], str | None] = lambda _receiver: None,
    ) -> None:
        self._endpoint_of = endpoint_of
        self._life_of = life_of
        self._counting: dict[str, _Counting] = {}

    def count(
        self, owner: str, exchange: Exchange, outcome: Outcome, seconds: float, now: float, life: str = ""
    ) -> None:
        """`owner`: of the endpoint, `r:` with a receiver's name or `s:` with a source id. `now`: Unix seconds. `life`:
        the one of the name when the attempt began; it may have ended since."""
        found = self._counting.get(owner)
        if found is None or found.life != life:
            if len(self._counting) >= MOST or (found is not None and not self._is_present(life, owner)):
                return
            found = self._counting[owner] = _Counting(life)
        count_in(found.numbers, exchange, outcome, seconds)
        found.at, found.seconds = now, seconds
        if isinstance(exchange, Response):
            found.status, found.failure = exchange.status, None
            found.responded_at = found.at
            found.response = exchange if len(exchange.body) <= _LOOKED_AT else _shortened(exchange)
        else:
            found.status, found.failure = None, exchange.kind

    def take(self) -> list[OwnersCounts]:
        """All counts since the last call."""
        taken, self._counting = self._counting, {}
        return list(taken.items())

    def of(self, taken: Sequence[OwnersCounts]) -> list[Tally]:
        """Their tallies, but those of receivers whose names have a new life: its owner must not see the responses of
        another endpoint. Some 20 us each. Raises Unavailable if the lives are not known."""
        current = [(owner, counting) for owner, counting in taken if counting.life == self._life(owner)]
        return [counting.tally(owner, self._endpoint(owner)) for owner, counting in current]

    def _is_present(self, life: str, owner: str) -> bool:
        try:
            return life == self._life(owner)
        except Unavailable:  # not known, and no reason to fail the attempt
            return False

    def _life(self, owner: str) -> str:
        return (self._life_of(owner[2:]) or "") if owner.startswith(RECEIVER) else ""

    def _endpoint(self, owner: str) -> Endpoint | None:
        """The settings of a receiver's endpoint; None for callbacks, whose last responses are not kept."""
        return self._endpoint_of(owner[2:]) if owner.startswith(RECEIVER) else None


def _shortened(response: Response) -> Response:
    """The response with a truncated body, so that thousands of receivers cost little memory."""
    return Response(response.status, response.headers, response.body[:_LOOKED_AT], truncated=True)


@dataclass(eq=False)
class StatisticsWriter:
    """Adds this process's counts to the statistics in the state. `writer`: unique per process. `took`: called with the
    number of POSTs to each receiver, as they are taken.

    A failed call is repeated unchanged before newer counts are written, so that nothing counts twice.
    """

    tallies: Tallies
    state: State
    clock: Clock
    _: KW_ONLY
    writer: str
    took: Callable[[Mapping[str, int]], None] = lambda _sent: None
    _number: int = 1
    _unwritten: list[Sequence[OwnersCounts]] = field(default_factory=list)
    _call: list[Tally] = field(default_factory=list)

    async def run(self) -> None:
        """Runs until cancelled. While the state is unavailable, counts stay in memory."""
        while True:
            await self.clock.sleep(EVERY_S)
            with suppress(Unavailable):
                await self.write()

    async def write(self) -> None:
        """Writes all counts so far. Raises Unavailable; the rest is written first the next time."""
        if not self._unwritten:
            taken = self.tallies.take()
            self._unwritten = list(sliced(taken, AT_ONCE))
            self.took({owner[2:]: one.counted.attempts for owner, one in taken if owner.startswith(RECEIVER)})
        while self._unwritten:
            self._call = self._call or self.tallies.of(self._unwritten[0])
            if self._call:
                await self.state.tally(self.writer, self._number, self._call)
                self._number += 1
            self._call = []
            del self._unwritten[0]

    async def end(self) -> None:
        """Writes the rest, if that is possible at once."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self.write()  # what was left over
                await self.write()


class MetricsMeter(Meter):
    """Turns the workers' calls about messages into metrics and statistics."""

    def __init__(self, metrics: Metrics, tallies: Tallies) -> None:
        self._metrics = metrics
        self._tallies = tallies
        self._unpolled = Throttle(every_s=60.0, overall=10, keys=1_000)

    def received(self, *, foreign_key: bool) -> None:
        self._metrics.messages_received_total.inc()
        if foreign_key:
            self._metrics.foreign_keys_total.inc()

    def filtered(self) -> None:
        self._metrics.messages_filtered_total.inc()

    def unrouted(self, delivery: DeliveryId, reason: str, why: str) -> None:
        self._metrics.failed_total.labels(_NO_RECEIVER, reason).inc()
        facts = {"reason": reason, "status": None, "detail": why}
        _log.warning("dead_letter", stage="from_sender", endpoint=_NO_RECEIVER, **delivery._asdict(), **facts)

    def posted(self, receiver: Receiver, exchange: Exchange, outcome: Outcome, seconds: float, now: float) -> None:
        self._tallies.count(f"{RECEIVER}{receiver.name}", exchange, outcome, seconds, now, receiver.life.id)
        self._metrics.delivery_duration_seconds.labels(receiver.name).observe(seconds)

    def called_back(self, source_id: str, exchange: Exchange, outcome: Outcome, seconds: float, now: float) -> None:
        self._tallies.count(f"s:{source_id}", exchange, outcome, seconds, now)

    def delivered(self, receiver: str, age_s: float, answered: Via | None = None) -> None:
        self._metrics.end_to_end_seconds.labels(receiver, "to_receiver").observe(max(0.0, age_s))  # clocks may differ
        if answered is not None:
            self.answered(receiver, answered, age_s)

    def answered(self, receiver: str, via: Via, age_s: float | None) -> None:
        self._metrics.answers_total.labels(receiver, via).inc()
        if age_s is not None:
            self._metrics.end_to_end_seconds.labels(receiver, "answer").observe(max(0.0, age_s))

    def unpolled(self, delivery: DeliveryId, why: str) -> None:
        if (more := self._unpolled.admit(delivery.receiver, time.monotonic())) is not None:
            _log.warning("answer_not_polled", **delivery._asdict(), detail=why, suppressed=more)

    def payload_read(self, receiver: str) -> None:
        self._metrics.payload_reads_total.labels(receiver).inc()

    def returned(self, receiver: str, age_s: float) -> None:
        self._metrics.end_to_end_seconds.labels(receiver, "to_sender").observe(max(0.0, age_s))

    def refused(self, kind: str, why: str) -> None:
        self._metrics.inbound_refused_total.labels(kind, why).inc()

    def not_by_schema(self, event_schemas: str) -> None:
        self._metrics.event_schema_faults_total.labels(event_schemas).inc()

    def over_quota(self, of: str, messages: int) -> None:
        self._metrics.over_quota_total.labels(of).inc(messages)

    def queued(self, what: str, seconds: float) -> None:
        self._metrics.api_queue_seconds.labels(what).observe(seconds)

    def responded(self, route: str, status: int) -> None:
        self._metrics.api_responses_total.labels(route, str(status)).inc()

    def over_share(self, what: str) -> None:
        self._metrics.api_over_share_total.labels(what).inc()
