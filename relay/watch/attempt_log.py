"""Writes the outcome of each request to `delivery_attempts`, for operators and the history, never at a message's
expense. It also writes the reports of progress that may be lost.

Steps only queue a request; masking, encoding and appending happen later, in batches, in a task of its own. Requests are
dropped and counted if the log cannot take them in time: beyond `MOST` that wait, while the log is unavailable, and at
the end of the process.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from relay.clock import Clock
from relay.domain.attempt import FINE, encode_attempt, is_sampled, key_of
from relay.domain.errors import PartlyAppended, RelayError
from relay.domain.exchange import Exchange, Request
from relay.domain.topics import Topics
from relay.engine.decision import Decision
from relay.log.port import Log, NewRecord
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from workers.journal import EndedRequest, Journal, RequestPurpose, attempt_of, ended_request, outcome_of

EVERY_S: Final = 0.25
"""Interval at which requests are written together."""
AT_ONCE: Final = 400
"""Records that are encoded together, which takes some milliseconds of the event loop."""
TOGETHER: Final = 1_000
"""Maximum records in one append, which has a batch for each partition. At 4,000 a second, appends of `AT_ONCE` take
1.2 us of CPU more for a record, and 1.5 us of the broker's."""
MOST: Final = 10_000
"""Most waiting requests: three seconds at 3,000 a second, of some kB each."""
AWAY_S: Final = 5.0
"""Pause after a failed append."""
LAST_S: Final = 2.0
"""Time for the last append when the process ends."""

_log = get_logger("relay.attempts")


class AttemptLog:
    """A `workers.journal.Journal`, one per process; the caller runs `run`. `share`: share of messages whose requests
    are recorded, in [0, 1]; failures are recorded for all messages, unless it is 0."""

    def __init__(self, log: Log, topics: Topics, clock: Clock, metrics: Metrics, *, share: float) -> None:
        self._log = log
        self._topic = topics.delivery_attempts
        self._clock = clock
        self._metrics = metrics
        self._share = share
        self._waiting: deque[EndedRequest | NewRecord] = deque()
        self._in_flight = 0
        self._most = TOGETHER
        self._news = asyncio.Event()
        self._ending = asyncio.Event()
        self._idle = asyncio.Event()
        self._dropping = False

    @property
    def journal(self) -> Journal | None:
        """The journal to use; None if nothing is recorded."""
        return self if self._share else None

    def record(
        self, about: RequestPurpose, request: Request, exchange: Exchange, decision: Decision, seconds: float
    ) -> None:
        if self._share < 1.0 and not self._is_wanted(about, exchange, decision):
            return
        if len(self._waiting) >= MOST:
            self._drop(1, "full", f"{MOST} wait already")
            return
        started_at = self._clock.time() - seconds
        self._waiting.append(ended_request(about, request, exchange, decision, started_at=started_at, seconds=seconds))
        self._news.set()

    def report(self, record: NewRecord) -> None:
        """Write a record, unless the queue is full, or the log is unavailable."""
        if len(self._waiting) >= MOST:
            self._drop(1, "full", f"{MOST} wait already")
            return
        self._waiting.append(record)
        self._news.set()

    def _is_wanted(self, about: RequestPurpose, exchange: Exchange, decision: Decision) -> bool:
        if about.delivery is None or outcome_of(about.kind, exchange, decision) not in FINE:
            return True
        return is_sampled(about.delivery.source_id, about.delivery.message_id, self._share)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._news.wait()
            await self._clock.wait(self._ending, EVERY_S)
            self._news.clear()
            while self._waiting:
                await self._append(await self._records())
            self._idle.set()

    async def end(self) -> None:
        """Write the rest, within `LAST_S`."""
        if not (self._waiting or self._in_flight):
            return
        self._idle.clear()
        self._ending.set()
        self._news.set()
        await self._clock.wait(self._idle, LAST_S)
        self._drop(self._in_flight + len(self._waiting), "end", "the process ends")
        self._waiting.clear()

    async def _records(self) -> list[NewRecord]:
        """The oldest waiting requests, as records. Other tasks run in between."""
        records: list[NewRecord] = []
        while self._waiting and (room := self._most - len(records)) > 0:
            taken = (self._waiting.popleft() for _ in range(min(AT_ONCE, room, len(self._waiting))))
            records += [record for made in taken if (record := self._record(made)) is not None]
            self._in_flight = len(records)
            await asyncio.sleep(0)
        return records

    def _record(self, made: EndedRequest | NewRecord) -> NewRecord | None:
        if isinstance(made, NewRecord):
            return made
        try:
            attempt = attempt_of(made)
            return NewRecord(self._topic, key_of(attempt), encode_attempt(attempt))
        except Exception as error:  # noqa: BLE001  # a bug of ours must not affect a delivery
            self._drop(1, "bug", repr(error))
            return None

    async def _append(self, records: Sequence[NewRecord]) -> None:
        try:
            await self._log.append(records)
        except RelayError as error:
            stored = error.places if isinstance(error, PartlyAppended) else {}
            missing = [record for index, record in enumerate(records) if index not in stored]
            self._metrics.attempts_told_total.inc(len(stored))
            if len(records) > AT_ONCE:  # appended again in smaller parts: a failure costs one of them
                self._waiting.extendleft(reversed(missing))
            else:
                self._drop(len(missing), "log", str(error))
            self._in_flight, self._most = 0, AT_ONCE
            await self._clock.wait(self._ending, AWAY_S)
        else:
            self._metrics.attempts_told_total.inc(len(records))
            self._in_flight, self._most = 0, TOGETHER
            self._dropping = False

    def _drop(self, count: int, why: str, problem: str) -> None:
        if not count:
            return
        self._metrics.attempts_untold_total.labels(why).inc(count)
        if not self._dropping:
            self._dropping = True
            _log.warning("attempts_untold", why=why, problem=problem)
