"""ToSender: brings answers and failure notices back to the sender.

1. read the record and the source's settings;
2. nothing to call (no callback, a Kafka consumer, an answer that the source does not want): done;
3. POST it to the source's callback, signed, with a stable id: at least once;
4. 2xx: done. Not now, or no luck: again later, until the callback's own limits end it with a dead letter.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import assert_never

from relay.domain.directory import Directory
from relay.domain.handover import Handover, to_code
from relay.domain.hop import Hop, decode_hop
from relay.domain.outcome import (
    Accepted,
    Ambiguous,
    Answered,
    Delivered,
    Gone,
    NotNow,
    NotProcessed,
    Rejected,
    classify,
    healthy,
)
from relay.domain.receiver import Endpoint, Source
from relay.domain.requests import callback_request
from relay.domain.schedule import GiveUp, RetryAgain, next_attempt
from relay.engine.clock import Clock
from relay.engine.rows import RowTable, row_of
from relay.engine.work import Dead, Decision, Done, GateRules, Later, Outcome, Resend, Seen, Work
from relay.log.port import NewRecord, Record
from relay.state.port import (
    Kind,
    Lane,
    Limits,
    Mark,
    Result,
    Row,
    RowKey,
    Stage,
    State,
    callback_row,
    delivery_row,
)
from workers.letters import Letters
from workers.to_receiver import RATE_SLACK, Outside


class Callback(Work):
    """An answer or a failure notice on its way to the sender."""

    __slots__ = ("delivery_key", "failed", "hop", "how", "source")

    def __init__(self, record: Record, hop: Hop, source: Source) -> None:
        self.failed = hop.outcome == "failed"
        row = callback_row(hop.delivery, hop.generation, failed=self.failed)
        super().__init__(record, row, hop.generation, None, row.owner)
        self.hop = hop
        self.source = source
        self.delivery_key: RowKey = delivery_row(hop.delivery)
        self.how = _how(source, hop, record)
        if self.how is Handover.DELIVERED and source.callback is not None:
            self.rules = _rules_of(source.callback)


class CallbackTable:
    """Two rows: the callback's own while it is under way, and the delivery's, which remembers that it is done."""

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._own: RowTable[Callback] = RowTable(state, clock, Kind.POST, frozenset({Stage.DONE}))

    async def intake(self, lane: Lane, works: Sequence[Callback]) -> list[Seen]:
        deliveries = await self._state.peek([work.delivery_key for work in works])
        own = await self._own.intake(lane, works)
        return [
            Seen.FINISHED if _is_done(work, row) else seen
            for work, row, seen in zip(works, deliveries, own, strict=True)
        ]

    async def mark(self, works: Sequence[tuple[Callback, Outcome]]) -> None:
        marks: list[Mark] = []
        over: list[RowKey] = []
        for work, outcome in works:
            if work.failed:
                marks.append(Mark(row_of(work), work.generation, Stage.DONE))
            else:
                marks.append(_delivery_done(work, outcome))
                over.append(row_of(work))
        await self._state.mark(marks)
        if over:
            await self._state.forget(over)


def _is_done(work: Callback, delivery: Row) -> bool:
    """A notice's end is in its own row: the delivery has failed before the notice is even written."""
    return not work.failed and delivery.stage is Stage.DONE and delivery.generation >= work.generation


def _delivery_done(work: Callback, outcome: Outcome) -> Mark:
    how = Handover.FAILED if isinstance(outcome.decision, Dead) else work.how
    at = (work.record.partition, work.record.offset)
    return Mark(work.delivery_key, work.generation, Stage.DONE, at, to_code(how, work.attempts))


class ToSender:
    """The step; see the module's first lines."""

    stage = "to_sender"
    kind = Kind.POST
    parks = True

    def __init__(self, directory: Directory, state: State, letters: Letters, outside: Outside) -> None:
        self._directory = directory
        self._letters = letters
        self._outside = outside
        self.table = CallbackTable(state, outside.clock)

    def admit(self, record: Record) -> Callback:
        hop = decode_hop(record.headers)
        return Callback(record, hop, self._directory.source(hop.delivery.source_id))

    def overdue(self, work: Callback) -> Dead | None:
        callback = work.source.callback
        if work.rules is None or callback is None or self._age_s(work) < callback.retry.max_age:
            return None
        return Dead("callback_exhausted", f"the callback took nothing within max_age, in {work.attempts} attempts")

    def step(self, work: Callback) -> Decision | Awaitable[Decision]:
        callback = work.source.callback
        if work.rules is None or callback is None:
            return Done()
        if work.in_doubt:
            return Resend()  # the id is the same, so the sender can tell a repeat
        return self._call(work, callback)

    async def _call(self, work: Callback, callback: Endpoint) -> Decision:
        outside = self._outside
        request = callback_request(
            callback,
            work.hop,
            work.record.value or b"",
            now=outside.clock.time(),
            user_agent=outside.user_agent,
            attempt=work.attempts,
        )
        exchange = await outside.transport.exchange(request)
        outcome = classify(exchange, codes=callback.codes, now=outside.clock.time())
        health = healthy(outcome)
        match outcome:
            case Answered(status) | Delivered(status) | Accepted(status):
                return Done(result=Result("delivered", status), healthy=health)
            case Gone(status) | Rejected(status):
                return Dead("callback_rejected", f"the sender's callback answered {status}", status, health)
            case NotNow(retry_after_s, status, counted):
                later = self._retry(work, callback, retry_after_s, status, "not now", health, counted=counted)
                return replace(later, pause_s=later.due_in_s) if isinstance(later, Later) else later
            case Ambiguous(retry_after_s, last_status, kind) | NotProcessed(retry_after_s, last_status, kind):
                return self._retry(work, callback, retry_after_s, last_status, kind, health)
            case _:
                assert_never(outcome)

    def resume(self, work: Callback, result: Result) -> Done | Dead:
        if result.outcome == "dead":
            return Dead(result.reason or "poison", result.detail or "", result.status)
        return Done(result=result)

    def bury(self, record: Record, work: Callback | None, dead: Dead) -> NewRecord:
        if work is None:
            return self._letters.bury(record, dead)
        return self._letters.bury(record, dead, work.hop, attempts=work.attempts)

    def _retry(
        self,
        work: Callback,
        callback: Endpoint,
        retry_after_s: float | None,
        status: int | None,
        why: str,
        health: bool | None,
        *,
        counted: bool = True,
    ) -> Later | Dead:
        attempts = work.attempts if counted else min(work.attempts, callback.retry.max_attempts) - 1
        match next_attempt(
            attempts=attempts,
            age_s=self._age_s(work),
            policy=callback.retry,
            retry_after_s=retry_after_s,
            jitter=self._outside.jitter,
        ):
            case RetryAgain(delay_s):
                return Later(delay_s, why, counted=counted, last_status=status, healthy=health)
            case GiveUp():
                detail = f"given up after {work.attempts} attempts; the last: {why}"
                return Dead("callback_exhausted", detail, status, health)

    def _age_s(self, work: Callback) -> float:
        return self._outside.clock.time() - work.record.timestamp_ms / 1000


def _how(source: Source, hop: Hop, record: Record) -> Handover:
    if hop.outcome == "failed":
        wanted = source.failures
    else:
        wanted = source.answers == "all" or (source.answers == "non_empty" and bool(record.value))
    if not wanted:
        return Handover.UNWANTED
    if source.callback is None and not source.kafka:
        return Handover.KEPT
    return Handover.DELIVERED


def _rules_of(callback: Endpoint) -> GateRules:
    interval_s = callback.window_size * RATE_SLACK / callback.rate_limit if callback.rate_limit else 0.0
    # No settling: a repeat of the same id is allowed, so there is nothing to wait for.
    limits = Limits(interval_s, 0.0, callback.breaker, callback.settle_s)
    return GateRules(limits, callback.max_in_flight)
