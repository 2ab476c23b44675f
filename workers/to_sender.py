"""ToSender: brings answers and failure notices back to the sender.

1. Read the record and the source's settings. A record that needed no callback when it was written is skipped.
2. Nothing to call (no callback, a Kafka consumer, an answer that the source does not want): done.
3. Progress is dropped if the delivery has ended, if it is older than a minute, no longer wanted, or given up. A result
   waits until the progress of its delivery is no longer in flight.
4. Send it to the source's callback, signed, with a stable id: at least once. A callback that is offline gets a ping. If
   the request cannot be made in the sender's own form: dead letter (`invalid`). If its URL is empty: done.
5. 2xx: done. Otherwise retry, until the callback's own limits end it with a dead letter; progress is not sent again.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final, assert_never
from weakref import WeakValueDictionary

from msgspec import structs

from relay.clock import Clock
from relay.domain.attempt import AttemptKind
from relay.domain.directory import Directory
from relay.domain.errors import ExpressionError, InvalidRecord
from relay.domain.exchange import Exchange
from relay.domain.hop import Hop, decode_hop
from relay.domain.identity import digest12
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
from relay.domain.outcome import Outcome as PostOutcome
from relay.domain.receiver import Endpoint, RetryPolicy, Source
from relay.domain.requests import callback_request
from relay.domain.result_delivery import Handover, handover, to_code
from relay.domain.shown_exchange import failure_detail
from relay.domain.template import NoUrl
from relay.domain.text import counted
from relay.domain.topics import TopicSpec
from relay.engine.decision import Call, Dead, Decision, Done, Later, Step
from relay.engine.work import EndpointRules, LookupResult, Outcome, row_of
from relay.log.port import NewRecord, Record
from relay.state.attempts import CallKind, Change, Limits
from relay.state.port import Lane, State
from relay.state.replies import answered
from relay.state.rows import Mark, Result, Row, RowKey, Stage, callback_row, delivery_row
from workers.delivery import HopWork, decide_retry, pace_of, resend_or_give_up, unusable_wait
from workers.dependencies import Dependencies
from workers.records import Letters, has_arrived, is_progress
from workers.requests import ping
from workers.tables import LookedUpFirst, RowTable

LONGEST_S: Final = 0.9 * (TopicSpec("", 1).retention_s or inf)
"""Longest age of a result on its topic. A result that could not be read for so long, because the parking limit was
reached, is dead-lettered as soon as it is read; later the log would have deleted it."""


LONGEST_PROGRESS_S: Final = 60.0
"""Older progress is dropped."""
DOUBT_S: Final = 10.0
"""Seconds for which progress may still arrive after its request ended without a response."""
_DROPPED: Final = Result("delivered")
"""Not sent: progress that is too late, or a result without a URL. A call has a status."""


class Callback(HopWork):
    """An answer, a failure notice, or progress on its way to the sender."""

    __slots__ = ("__weakref__", "delivery_key", "failed", "how", "outdated", "progress", "source")

    def __init__(self, record: Record, hop: Hop, source: Source, queue: bytes | None) -> None:
        self.failed, self.progress = hop.outcome == "failed", hop.progress
        row = callback_row(hop.delivery, hop.generation, failed=self.failed, progress=self.progress)
        super().__init__(record, hop, row, queue)
        self.delivery_key: RowKey = delivery_row(hop.delivery)
        self.outdated = False
        """It is progress of a delivery that has ended."""
        self.follow(source)

    def follow(self, source: Source) -> None:
        """Follow the source's current settings."""
        self.source = source
        self.how = self._handover(source)
        callback = source.callback if self.how is Handover.DELIVERED or self.progress else None
        self.rules = None if callback is None else _rules_of(callback, settles=self.progress is not None)

    def _handover(self, source: Source) -> Handover:
        if self.progress is None:
            return handover(source, failed=self.failed, empty=not self.record.value)
        return Handover.DELIVERED if self.progress in source.progress else Handover.UNWANTED


def _order_key(hop: Hop) -> bytes:
    """Keeps progress and result of a delivery in order."""
    return digest12("q", "s", *hop.delivery, str(hop.generation))


class CallbackTable(LookedUpFirst):
    """Two rows: the callback's own while it is in progress, and the delivery's, which remembers that it is done.

    A notice's end is in its own row: the delivery has failed before the notice is even written. The row of a callback
    that was given up stays, too: it names the dead letter. Progress has its end in its own row, so that a repeated
    record is not sent again.
    """

    def __init__(self, state: State, clock: Clock) -> None:
        self._state = state
        self._own: RowTable[Callback] = RowTable(state, clock, CallKind.POST, frozenset({Stage.DONE}))

    async def intake(self, lane: Lane, works: Sequence[Callback]) -> list[LookupResult]:
        """Looks up rows. Without a callback nothing can be repeated by mistake, so no row is read."""
        called = [work for work in works if work.rules is not None or work.parked_at is not None]
        seen = dict(zip(map(id, called), await self._known(lane, called), strict=True)) if called else {}
        return [seen.get(id(work), LookupResult.READY) for work in works]

    async def _known(self, lane: Lane, works: Sequence[Callback]) -> list[LookupResult]:
        deliveries = await answered(self._state.peek([work.delivery_key for work in works]))
        own = await self._own.intake(lane, works)
        for work, row in zip(works, deliveries, strict=True):
            work.outdated = work.progress is not None and not _is_pending(work, row)
        return [
            LookupResult.FINISHED if _is_done(work, row) else seen
            for work, row, seen in zip(works, deliveries, own, strict=True)
        ]

    async def mark(self, works: Sequence[tuple[Callback, Outcome]]) -> None:
        given_up = [_given_up(work, outcome) for work, outcome in works if isinstance(outcome.decision, Dead)]
        await answered(self._state.mark(given_up + [_end(work, outcome) for work, outcome in works]))
        over = [
            row_of(work)
            for work, outcome in works
            if not (work.rules is None or work.failed or work.progress or isinstance(outcome.decision, Dead))
        ]
        if over:
            await answered(self._state.forget(over))


def _is_done(work: Callback, delivery: Row) -> bool:
    if work.progress is not None:
        return work.outdated and not work.sent  # a request that may be in flight keeps the result waiting
    # a later life says nothing of this one's result, which may still wait for its callback
    return not work.failed and delivery.stage is Stage.DONE and delivery.generation == work.generation


def _is_pending(work: Callback, delivery: Row) -> bool:
    """Whether the row proves that the delivery has no result yet."""
    return delivery.generation == work.generation and delivery.stage in (Stage.ACCEPTED, Stage.AWAITING)


def _end(work: Callback, outcome: Outcome) -> Mark:
    how = Handover.FAILED if isinstance(outcome.decision, Dead) else work.how
    code = to_code(how, work.attempts)
    if work.failed or work.progress:
        return Mark(row_of(work), work.generation, Stage.DONE, code=code)
    at = (work.record.partition, work.record.offset)
    return Mark(work.delivery_key, work.generation, Stage.DONE, at, code)


def _given_up(work: Callback, outcome: Outcome) -> Mark:
    at = (outcome.at[0].partition, outcome.at[0].offset) if outcome.at else None
    return Mark(row_of(work), work.generation, Stage.DONE, at, to_code(Handover.FAILED, work.attempts))


class ToSender:
    """The step; see the module's docstring."""

    stage = "to_sender"
    kind = CallKind.POST
    parks = True
    capped = False

    def __init__(self, directory: Directory, state: State, letters: Letters, dependencies: Dependencies) -> None:
        self._directory = directory
        self._letters = letters
        self._dependencies = dependencies
        self._reports = WeakValueDictionary[bytes, Callback]()
        """Unfinished progress, by order key. Its result does not overtake it, even if progress is switched off."""
        self.table = CallbackTable(state, dependencies.clock)

    def admit(self, record: Record) -> Callback | None:
        if has_arrived(record) and not is_progress(record):
            return None
        hop = decode_hop(record.headers)
        if hop.outcome is None:
            raise InvalidRecord("invalid", "header relay-outcome is missing")
        source = self._directory.source(hop.delivery.source_id)
        ordered = hop.progress or source.progress
        queue = _order_key(hop) if ordered or self._reports else None
        work = Callback(record, hop, source, queue if ordered or queue in self._reports else None)
        if hop.progress and queue is not None:
            self._reports[queue] = work
        return work

    def overdue(self, work: Callback) -> Dead | Done | Later | None:
        source = self._directory.source(work.hop.delivery.source_id)
        if source is not work.source:
            work.follow(source)
        callback = source.callback
        if work.rules is None or callback is None:
            return None
        if work.progress is not None and not work.sent and self._is_late(work):
            return Done()
        if (wait := unusable_wait(source)) is not None:
            return wait
        if work.progress is not None or work.age_s(self._dependencies.clock.time()) < limits_of(callback).max_age:
            return None
        detail = f"the callback accepted nothing within max_age, in {counted(work.attempts, 'attempt')}"
        return Dead("callback_exhausted", work.with_last_failure(detail))

    def step(self, work: Callback) -> Step:
        callback = work.source.callback
        if work.rules is None or callback is None:
            return Done()
        if work.pinging:
            return ping(self._dependencies, work.endpoint_id, callback, work.token)
        if work.progress is not None and (work.in_doubt or self._is_late(work)):
            return Done(result=_DROPPED)
        if work.in_doubt:  # the id is the same, so the sender can recognise a repeat
            return resend_or_give_up(work, callback.retry, "callback_exhausted")
        return self._call(work, callback)

    def resume(self, work: Callback, result: Result) -> Done | Dead:
        if result.outcome == "dead" and work.progress is None:
            return Dead(result.reason or "poison", result.detail or "", result.status)
        if result.status is None:
            work.how = Handover.UNWANTED
        return Done(result=result)

    def dead_letter(self, record: Record, work: Callback | None, dead: Dead) -> NewRecord:
        if work is None:
            return self._letters.dead_letter(record, dead)
        return self._letters.dead_letter(record, dead, work.hop, attempts=work.attempts)

    def _is_late(self, work: Callback) -> bool:
        return (
            work.how is Handover.UNWANTED
            or work.outdated
            or work.age_s(self._dependencies.clock.time()) > LONGEST_PROGRESS_S
        )

    def _call(self, work: Callback, callback: Endpoint) -> Call[Exchange] | Dead | Done:
        dependencies = self._dependencies
        try:
            request = callback_request(
                callback,
                dependencies.traced(work.hop, _kind_of(work), work.attempts),
                work.record.value or b"",
                now=dependencies.clock.wall(),
                user_agent=dependencies.user_agent,
                attempt=work.attempts,
            )
        except NoUrl:
            work.how = Handover.UNWANTED
            return Done(result=_DROPPED)
        except ExpressionError as error:
            return Dead("invalid", f"callback: {error}") if work.progress is None else Done(result=_DROPPED)
        about = work.purpose(_kind_of(work), callback, work.attempts, work.hop.attempt)
        begun = dependencies.clock.monotonic()
        return dependencies.call(
            about, dependencies.within_slot(work, request), partial(self._on_reply, work, callback, begun)
        )

    def _on_reply(self, work: Callback, callback: Endpoint, begun: float, exchange: Exchange) -> Decision:
        clock = self._dependencies.clock
        now, seconds = clock.time(), clock.monotonic() - begun
        outcome = classify(exchange, codes=callback.codes, now=now)
        self._dependencies.meter.called_back(work.hop.delivery.source_id, exchange, outcome, seconds, now)
        if work.progress is not None:
            return _after_progress(outcome, failure_detail(exchange, callback))
        return self._decide(work, callback, outcome, exchange)

    def _decide(self, work: Callback, callback: Endpoint, outcome: PostOutcome, exchange: Exchange) -> Decision:
        match outcome:
            case Answered(status) | Delivered(status) | Accepted(status):
                self._count(work)
                return Done(result=Result("delivered", status), healthy=healthy(outcome))
            case Gone(status) | Rejected(status):
                return Dead("callback_rejected", failure_detail(exchange, callback), status, healthy(outcome))
            case NotNow() | Ambiguous() | NotProcessed():
                return self._retry(work, callback, outcome, failure_detail(exchange, callback))
        assert_never(outcome)

    def _retry(
        self, work: Callback, callback: Endpoint, outcome: NotNow | Ambiguous | NotProcessed, detail: str
    ) -> Later | Dead:
        work.last_failure = detail
        decision = decide_retry(
            outcome,
            detail,
            attempts=work.attempts,
            age_s=work.age_s(self._dependencies.clock.time()),
            policy=limits_of(callback),
            jitter=self._dependencies.jitter,
        )
        return structs.replace(decision, reason="callback_exhausted") if isinstance(decision, Dead) else decision

    def _count(self, work: Callback) -> None:
        hop = work.hop
        if not work.failed and hop.accepted_ms:
            age_s = self._dependencies.clock.time() - hop.accepted_ms / 1000
            self._dependencies.meter.returned(hop.delivery.receiver, age_s)


def limits_of(callback: Endpoint) -> RetryPolicy:
    """The limits of a callback: its own, and an end before its record reaches the topic's retention, unread or not."""
    retry = callback.retry
    return retry if retry.max_age <= LONGEST_S else replace(retry, max_age=LONGEST_S)


def _kind_of(work: Callback) -> AttemptKind:
    return "callback" if work.progress is None else "progress"


def _after_progress(outcome: PostOutcome, detail: str) -> Done | Later:
    """Handles progress, which is not sent again. If it may still arrive, the result waits until it no longer can."""
    if isinstance(outcome, Ambiguous) and outcome.status is None:
        return Later(DOUBT_S, outcome.kind, Change.DOUBT, healthy=healthy(outcome), detail=detail)
    return Done(result=Result("delivered", outcome.status), healthy=healthy(outcome))


def _rules_of(callback: Endpoint, *, settles: bool) -> EndpointRules:
    # A result does not settle: a repeat of the same id is allowed, so there is nothing to wait for. Progress does, as
    # the result must not overtake it.
    interval_s, late_s = pace_of(callback.rate_limit, callback.window_size)
    settle_s = callback.settle_s if settles else 0.0
    limits = Limits(interval_s, settle_s, callback.breaker, callback.settle_s, callback.max_in_flight)
    return EndpointRules(limits, callback.max_in_flight, late_s=late_s)
