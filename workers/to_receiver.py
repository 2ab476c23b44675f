"""ToReceiver: POSTs each delivery to its receiver, and takes its answer.

1. read the record; its receiver must exist;
2. too old: dead letter (`expired`);
3. an earlier attempt in doubt: ask the receiver whether it has the message; known, or unknown and POST again;
   a receiver that cannot be asked gets it again, or not, as it is configured;
4. POST (the engine has written the intent right before);
5. the response says what follows: an answer for `to_sender`, a wait for one on `pending_from_receiver_*`, another
   attempt later, or a dead letter. The engine stores the outcome before anything is appended.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import assert_never

from relay.delivery.port import Transport
from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId, digest12, webhook_id
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
from relay.domain.receiver import Receiver
from relay.domain.requests import post_request, status_request
from relay.domain.schedule import GiveUp, RetryAgain, next_attempt, poll_delay
from relay.domain.status import (
    AnswerReady,
    AskLater,
    NeverSeen,
    StatusGone,
    StatusTemplateError,
    Working,
    location_url,
    read_status,
    status_url,
)
from relay.domain.topics import Topics, lane_of
from relay.engine.clock import Clock
from relay.engine.rows import RowTable
from relay.engine.work import Dead, Decision, Done, GateRules, Later, Resend, Work
from relay.log.port import NewRecord, Record
from relay.state.port import Change, Kind, Limits, Result, Stage, State, delivery_row
from workers.letters import Letters
from workers.results import answer_record

RATE_SLACK = 1.03
"""Starts are paced this much slower than the limit, so that jitter on the way does not let the receiver see more."""

FINISHED_AT = frozenset({Stage.AWAITING, Stage.PUBLISHED, Stage.DONE, Stage.FAILED})


class Delivery(Work):
    """One message on its way to one receiver."""

    __slots__ = ("asked", "hop", "receiver")

    def __init__(self, record: Record, hop: Hop, receiver: Receiver) -> None:
        row = delivery_row(hop.delivery)
        super().__init__(record, row, hop.generation, _queue(receiver, hop.delivery), row.owner)
        self.hop = hop
        self.receiver = receiver
        self.rules = rules_of(receiver)
        self.attempts = hop.attempt
        self.asked = 0
        """Status GETs made about the attempt in doubt."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What a delivering step needs of the world.

    `jitter`: uniform sample of [0, 1). `answer_url`: where a receiver may POST its answer later (None: nowhere).
    """

    transport: Transport
    clock: Clock
    jitter: Callable[[], float]
    user_agent: str
    answer_url: Callable[[Receiver, Hop], str | None] = lambda _receiver, _hop: None


class ToReceiver:
    """The step; see the module's first lines."""

    stage = "to_receiver"
    kind = Kind.POST
    parks = True

    def __init__(self, topics: Topics, directory: Directory, state: State, letters: Letters, outside: Outside) -> None:
        self._topics = topics
        self._directory = directory
        self._letters = letters
        self._outside = outside
        self.table: RowTable[Delivery] = RowTable(state, outside.clock, self.kind, FINISHED_AT)

    def admit(self, record: Record) -> Delivery:
        if record.value is None:
            raise InvalidRecord("invalid", "the record has no value")
        hop = decode_hop(record.headers)
        receiver = self._directory.receiver(hop.delivery.receiver)
        if receiver is None:
            raise InvalidRecord("unknown_receiver", f"there is no receiver named {hop.delivery.receiver!r} any more")
        return Delivery(record, hop, receiver)

    def overdue(self, work: Delivery) -> Dead | None:
        if self._age_s(work) < work.receiver.post.retry.max_age:
            return None
        return Dead("expired", f"not delivered within max_age after {work.attempts} attempts")

    async def step(self, work: Delivery) -> Decision:
        if work.in_doubt:
            return await self._resolve(work)
        request = post_request(
            work.receiver,
            work.hop,
            work.record.value or b"",
            attempt=work.attempts,
            sequence=_sequence(work),
            now=self._outside.clock.time(),
            answer_url=self._outside.answer_url(work.receiver, work.hop),
            user_agent=self._outside.user_agent,
        )
        exchange = await self._outside.transport.exchange(request)
        now = self._outside.clock.time()
        return self._decide(work, classify(exchange, codes=work.receiver.post.codes, now=now))

    def resume(self, work: Delivery, result: Result) -> Done | Dead:
        if result.outcome == "dead":
            return Dead(result.reason or "poison", result.detail or "", result.status)
        if result.outcome == "accepted":
            return Done((self._pending_record(work, result),), Stage.AWAITING, result=result)
        return Done((answer_record(self._topics, work.hop, result, work.attempts),), Stage.PUBLISHED, result=result)

    def bury(self, record: Record, work: Delivery | None, dead: Dead) -> NewRecord:
        if work is None:
            return self._letters.bury(record, dead)
        sequence = (("relay-sequence", b"%d" % (_sequence(work) or record.offset)),)
        return self._letters.bury(record, dead, work.hop, attempts=work.attempts, extra=sequence)

    # what the response means

    def _decide(
        self,
        work: Delivery,
        outcome: Answered | Delivered | Accepted | NotNow | Ambiguous | NotProcessed | Gone | Rejected,
    ) -> Decision:
        health = healthy(outcome)
        match outcome:
            case Answered(status, content_type, body, truncated):
                result = Result("answered", status, content_type, body, truncated)
                return Done(stage=Stage.PUBLISHED, result=result, healthy=health)
            case Delivered(status):
                return Done(stage=Stage.PUBLISHED, result=Result("delivered", status), healthy=health)
            case Accepted():
                return Done(stage=Stage.AWAITING, result=_accepted(work, outcome), healthy=health)
            case Gone(status):
                return Dead("gone", "the receiver says that it is gone", status, health, pause_s=inf)
            case Rejected(status, detail):
                return Dead("rejected", detail, status, health)
            case Ambiguous():
                return self._ambiguous(work, outcome, health)
            case NotNow(retry_after_s, status, counted):
                later = self._retry(work, retry_after_s, status, "not now", health, counted=counted)
                return replace(later, pause_s=later.due_in_s) if isinstance(later, Later) else later
            case NotProcessed(retry_after_s, last_status, kind):
                return self._retry(work, retry_after_s, last_status, kind, health)
            case _:
                assert_never(outcome)

    def _retry(
        self,
        work: Delivery,
        retry_after_s: float | None,
        status: int | None,
        why: str,
        health: bool | None,
        *,
        counted: bool = True,
    ) -> Later | Dead:
        policy = work.receiver.post.retry
        attempts = work.attempts if counted else min(work.attempts - 1, policy.max_attempts - 1)
        match next_attempt(
            attempts=attempts,
            age_s=self._age_s(work),
            policy=policy,
            retry_after_s=retry_after_s,
            jitter=self._outside.jitter,
        ):
            case RetryAgain(delay_s):
                return Later(delay_s, why, counted=counted, last_status=status, healthy=health)
            case GiveUp(reason):
                return Dead(reason, f"given up after {work.attempts} attempts; the last: {why}", status, health)

    def _ambiguous(self, work: Delivery, outcome: Ambiguous, health: bool | None) -> Decision:
        if not can_be_asked(work.receiver):
            if work.receiver.on_ambiguous == "dead_letter":
                return Dead("ambiguous", f"nobody knows what became of it: {outcome.kind}", outcome.status, health)
            return self._retry(work, outcome.retry_after_s, outcome.status, outcome.kind, health)
        wait_s = outcome.retry_after_s or 0.0
        return Later(wait_s, outcome.kind, Change.DOUBT, last_status=outcome.status, healthy=health)

    # doubt

    async def _resolve(self, work: Delivery) -> Decision:
        """Somebody began an attempt and nobody knows what came of it; it cannot arrive any more."""
        receiver, outside = work.receiver, self._outside
        if not can_be_asked(receiver):
            if receiver.on_ambiguous == "dead_letter":
                return Dead("ambiguous", "an attempt was begun, and nobody knows what came of it")
            return self._again(work)
        url = status_url(
            receiver.status_endpoint or "",
            work.hop.delivery,
            webhook_id=webhook_id(work.hop.delivery.source_id, work.hop.delivery.message_id),
            response_body=b"",
        )
        request = status_request(url, receiver, user_agent=outside.user_agent, timeout_s=receiver.post.timeout)
        exchange = await outside.transport.exchange(request)
        work.asked += 1
        reading = read_status(exchange, status_map=receiver.status_map, now=outside.clock.time())
        match reading:
            case AnswerReady(status, content_type, body, truncated):
                result = Result("answered", status, content_type, body, truncated)
                return Done(stage=Stage.PUBLISHED, result=result, healthy=True)
            case Working(ask_after_s):
                result = Result("accepted", 202, status_url=url, ask_after_s=ask_after_s)
                return Done(stage=Stage.AWAITING, result=result, healthy=True)
            case NeverSeen():
                return self._again(work)
            case StatusGone():
                return Dead("gone", "the receiver's status endpoint says that it is gone", 410, pause_s=inf)
            case AskLater(retry_after_s, whole, kind):
                wait_s = retry_after_s if retry_after_s is not None else poll_delay(work.asked, receiver.poll)
                pause_s = wait_s if whole else 0.0
                return Later(wait_s, f"in doubt, and asking failed: {kind}", Change.DOUBT, pause_s=pause_s)
            case _:
                assert_never(reading)

    def _again(self, work: Delivery) -> Resend | Dead:
        if work.attempts >= work.receiver.post.retry.max_attempts:
            return Dead("exhausted", f"given up after {work.attempts} attempts; the last one got no answer")
        return Resend()

    def _age_s(self, work: Delivery) -> float:
        return self._outside.clock.time() - (work.hop.accepted_ms or work.record.timestamp_ms) / 1000

    def _pending_record(self, work: Delivery, result: Result) -> NewRecord:
        hop = replace(
            work.hop,
            attempt=work.attempts,
            sequence=_sequence(work),
            status_url=result.status_url,
            ask_after_s=result.ask_after_s,
        )
        topic = self._topics.pending(lane_of(work.receiver))
        return NewRecord(topic, work.record.key, work.record.value, encode_hop(hop))


def can_be_asked(receiver: Receiver) -> bool:
    """Whether the receiver can say if it has a message although its response to the POST was lost."""
    return receiver.status_endpoint is not None and "{response." not in receiver.status_endpoint


def rules_of(receiver: Receiver) -> GateRules:
    """What the engine keeps to on the way to a receiver."""
    post = receiver.post
    interval_s = post.window_size * RATE_SLACK / post.rate_limit if post.rate_limit else 0.0
    limits = Limits(interval_s, post.settle_s, post.breaker, post.settle_s)
    asked = can_be_asked(receiver)
    return GateRules(limits, max(1, post.max_in_flight // receiver.partitions), ask_first=asked, may_ask=asked)


def _queue(receiver: Receiver, delivery: DeliveryId) -> bytes | None:
    match receiver.ordering:
        case "source":
            return digest12("q", receiver.name, delivery.source_id)
        case "receiver":
            return digest12("q", receiver.name)
        case "none":
            return None


def _sequence(work: Delivery) -> int | None:
    """Grows along the order key: the offset in the lane's topic, or what it was in the delivery's first life."""
    if work.queue is None:
        return None
    return work.hop.sequence if work.hop.sequence is not None else work.record.offset


def _accepted(work: Delivery, outcome: Accepted) -> Result:
    """The answer comes later: where to ask for it, and when."""
    receiver, delivery = work.receiver, work.hop.delivery
    url = location_url(receiver.post.url, outcome.location) if outcome.location else None
    if url is None and receiver.status_endpoint is not None:
        identity = webhook_id(delivery.source_id, delivery.message_id)
        try:
            url = status_url(receiver.status_endpoint, delivery, webhook_id=identity, response_body=outcome.body)
        except StatusTemplateError:
            url = None  # it can still use the answer URL; else the deadline ends it
    return Result("accepted", outcome.status, status_url=url, ask_after_s=outcome.ask_after_s)
