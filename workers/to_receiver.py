"""ToReceiver: POSTs each delivery to its receiver, and reads the response.

1. Read the record. A removed receiver: dead letter (`unknown_receiver`). An erased payload: dead letter (`discarded`).
2. Wait if this process cannot use the receiver's settings, or if the message is not due. Too old: dead letter
   (`expired`). Ids that are not allowed in the status endpoint's path, or a message of which no request in the
   receiver's own form can be made: dead letter (`invalid`). Wait if the receiver is switched off or not yet verified,
   or if its former lane has not finished.
3. An earlier attempt is in doubt, or a replay follows an earlier life: ask the receiver whether it has the message
   (`ambiguity.py`).
4. POST (the engine has written the intent right before); an endpoint that is offline gets a ping instead. A receiver of
   batches gets several deliveries in one POST (`batches.py`).
5. The response decides what follows, by its header `webhook-delivery`, the receiver's `outcomes`, its `codes`, or the
   usual table: an answer for `to_sender`, a wait on `pending_from_receiver_*`, another attempt later, or a dead letter.
   The engine stores the outcome before anything is appended.
"""

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import assert_never

from msgspec import structs

from relay.domain.directory import Directory, Moves
from relay.domain.errors import ExpressionError, InvalidRecord
from relay.domain.exchange import Exchange, Request
from relay.domain.hop import decode_hop, encode_hop
from relay.domain.numbering import Numbering, encode_numbering, numbering_key
from relay.domain.outcome import (
    UNCLEAR,
    Accepted,
    Ambiguous,
    Answered,
    Delivered,
    Gone,
    NotNow,
    NotProcessed,
    Outcome,
    Rejected,
    Ruling,
    healthy,
)
from relay.domain.requests import post_request
from relay.domain.route import waits
from relay.domain.schedule import backoff
from relay.domain.topics import SHARED, Topics, lane_of
from relay.engine.decision import Call, Dead, Decision, Done, Later, Step
from relay.engine.work import FINISHED_AT
from relay.log.port import NewRecord, Record
from relay.state.attempts import CallKind, Change
from relay.state.port import State
from relay.state.rows import Result, Stage
from workers.ambiguity import Doubt
from workers.batches import Batches
from workers.delivery import (
    NO_PAYLOAD_URL,
    PAST_DEADLINE,
    Delivery,
    can_be_asked,
    current_receiver,
    decide_retry,
    not_sendable,
    receiver_or_stand_in,
    ruled,
    unusable_wait,
    waits_alone,
)
from workers.dependencies import Dependencies, Via
from workers.outcomes import accepted, failure, outcome_of, unaskable_later, unfillable
from workers.payload_encryption import Encrypted, PayloadEncryption
from workers.records import Letters, done_with_answer, lane_record, progress_records
from workers.requests import ping
from workers.tables import DeliveryTable

MOVE_CHECK_S = 5.0
LONGEST_MOVE_CHECK_S = 300.0


@dataclass(eq=False, repr=False)
class ToReceiver:
    """The step; see the module's docstring."""

    stage = "to_receiver"
    kind = CallKind.POST
    parks = True
    capped = True

    topics: Topics
    directory: Directory
    state: State
    letters: Letters
    dependencies: Dependencies
    moves: Moves

    def __post_init__(self) -> None:
        self._doubt = Doubt(self.dependencies)
        self._batches = Batches(self.dependencies, self)
        self._encryption = PayloadEncryption(self.dependencies)
        self.table = DeliveryTable(self.state, self.dependencies.clock, self.kind, FINISHED_AT[self.kind], self.moves)

    def admit(self, record: Record) -> Delivery:
        if record.value is None:
            raise InvalidRecord("invalid", "the record has no value")
        hop = decode_hop(record.headers)
        receiver = receiver_or_stand_in(self.directory, hop)
        if hop.one_off is not None:
            receiver = self.dependencies.addressed(receiver, hop.delivery, hop.one_off)
        return Delivery(record, hop, receiver)

    def overdue(self, work: Delivery) -> Dead | Later | None:
        receiver = work.receiver
        if (
            self.dependencies.erasures.known
            and (end := self.dependencies.erased(work.record, work.delivery)) is not None
        ):
            return end
        if self.directory.receiver(receiver.name) is not receiver:  # it was removed, or has other settings now
            found = current_receiver(self.directory, work.hop)
            if isinstance(found, Dead):
                return found
            receiver, one_off = found, work.hop.one_off
            if one_off is not None:
                receiver = self.dependencies.addressed(receiver, work.delivery, one_off)
            work.follow(receiver)
        if receiver.unusable is not None and (wait := unusable_wait(receiver)) is not None:
            return wait if work.hop.one_off is None else waits_alone(wait)
        if (expired_or_early := work.expired_or_early(self.dependencies.clock.time())) is not None:
            return expired_or_early
        if receiver.encrypt is not None and (wait := self._encryption.wait(work)) is not None:
            return wait
        if receiver.payload == "thin" and self.dependencies.payload_url(work.hop) is None:
            return NO_PAYLOAD_URL
        fault = unaskable_later(work, receiver) if receiver.status_endpoint or receiver.status_steps else None
        if fault is None and receiver.post.request is not None and not work.attempts:
            fault = unfillable(work, receiver.post.request)
        if fault is not None:
            return Dead("invalid", fault)
        return self._other_lane_first(work) if waits(receiver, work.hop.move) else None

    def _other_lane_first(self, work: Delivery) -> Later:
        """The check interval grows: each check of a parked record costs a copy, and the other lane may take days."""
        waited_s = self.dependencies.clock.time() - work.record.timestamp_ms / 1000
        wait_s = min(max(MOVE_CHECK_S, waited_s / 10), LONGEST_MOVE_CHECK_S)
        return Later(wait_s, "the receiver's other lane has to finish first", Change.RELEASED)

    def step(self, work: Delivery) -> Step:
        if (off := not_sendable(work.receiver)) is not None:
            return off
        if work.pinging:
            return ping(self.dependencies, work.endpoint_id, work.receiver.post, work.token, work.receiver.life.id)
        if work.in_doubt:
            return self._doubt.resolve(work)
        if work.hop.ask_first and not work.asked and can_be_asked(work.receiver):
            return self._doubt.before(work)
        if work.timing is not None and work.deadline_in_s(self.dependencies.clock.time()) <= 0:
            return PAST_DEADLINE  # it waited for its slot of the rate
        if work.receiver.encrypt is not None:
            return self._encryption.post(work, partial(self._post, work))
        return self._post(work) if work.receiver.batch is None else self._batches.post(work)

    def resume(self, work: Delivery, result: Result) -> Done | Dead:
        end = self._resumed(work, result)
        numbering = work.numbering
        return end if numbering is None else structs.replace(end, beside=(self._numbers(work, numbering),))

    def _resumed(self, work: Delivery, result: Result) -> Done | Dead:
        if result.outcome == "dead":
            return Dead(result.reason or "poison", result.detail or "", result.status)
        if result.outcome == "accepted":
            return Done(self._accepted_records(work, result), Stage.AWAITING, result=result)
        source = self.directory.source(work.hop.delivery.source_id)
        hop = work.hop if work.number is None else structs.replace(work.hop, sequence=work.sequence)
        return done_with_answer(self.topics, source, hop, result, work.attempts)

    def _numbers(self, work: Delivery, numbering: Numbering) -> NewRecord:
        """The receiver's numbers, which the state may lose: also that its deliveries up to this one have their end."""
        key = numbering_key(work.receiver.name, numbering)
        return NewRecord(self.topics.parked_messages, key, encode_numbering(numbering))

    def dead_letter(self, record: Record, work: Delivery | None, dead: Dead) -> NewRecord:
        if work is None:
            return self.letters.dead_letter(record, dead)
        record = self._encryption.sealed(record, work.receiver, work.hop, self.directory)
        sequence = work.sequence  # a replay sends it again, so that the receiver can see that the sequence falls back
        extra = () if sequence is None else (("relay-sequence", b"%d" % sequence),)
        return self.letters.dead_letter(record, dead, work.hop, attempts=work.attempts, extra=extra)

    # POST

    def _post(self, work: Delivery, encrypted: Encrypted | None = None) -> Call[Exchange] | Dead:
        dependencies, receiver = self.dependencies, work.receiver
        hop, answer_url = (
            dependencies.traced(work.hop, "post", work.attempts),
            dependencies.answer_url(receiver, work.hop),
        )
        about = work.purpose("post", receiver.post, work.attempts, work.attempts - 1)
        try:
            request = post_request(
                receiver,
                hop,
                work.record.value or b"",
                attempt=work.attempts,
                sequence=work.sequence,
                out_of_order=work.out_of_order,
                gaps=work.gaps,
                now=dependencies.clock.wall(),
                answer_url=answer_url,
                payload_url=dependencies.payload_url(work.hop) if receiver.payload == "thin" else None,
                encrypt=encrypted,
                user_agent=dependencies.user_agent,
            )
        except ExpressionError as error:
            return Dead("invalid", str(error))
        begun = dependencies.clock.monotonic()
        rest_s = inf if work.timing is None else work.deadline_in_s(dependencies.clock.time())
        request = dependencies.within_slot(work, request, rest_s)
        return dependencies.call(about, request, partial(self._on_reply, work, request, begun))

    def _on_reply(self, work: Delivery, request: Request, begun: float, exchange: Exchange) -> Decision:
        dependencies, receiver = self.dependencies, work.receiver
        now = dependencies.clock.time()
        outcome, ruling = outcome_of(work, exchange, now)
        dependencies.meter.posted(receiver, exchange, outcome, dependencies.clock.monotonic() - begun, now)
        self.count(work, outcome, now)
        decision = self.decide(work, outcome, request, exchange, ruling)
        return decision if ruling is None else ruled(decision, ruling)

    def count(self, work: Delivery, outcome: Outcome, now: float) -> None:
        if isinstance(outcome, Answered | Delivered | Accepted):
            answered: Via | None = "response" if isinstance(outcome, Answered) else None
            self.dependencies.meter.delivered(work.receiver.name, work.age_s(now), answered)

    # what the response means

    def decide(
        self, work: Delivery, outcome: Outcome, request: Request, exchange: Exchange, ruling: Ruling | None
    ) -> Done | Later | Dead:
        health = healthy(outcome)
        match outcome:
            case Answered():
                return Done(stage=Stage.PUBLISHED, result=self.dependencies.result_of(outcome), healthy=health)
            case Delivered(status):
                return Done(stage=Stage.PUBLISHED, result=Result("delivered", status), healthy=health)
            case Accepted():
                result = accepted(work, outcome, exchange)
                if result.detail is not None:
                    self.dependencies.meter.unpolled(work.hop.delivery, result.detail)
                return Done(stage=Stage.AWAITING, result=result, healthy=health)
        return self._failed(work, outcome, failure(work, outcome, request, exchange, ruling))

    def _failed(
        self, work: Delivery, outcome: Gone | Rejected | Ambiguous | NotNow | NotProcessed, detail: str
    ) -> Later | Dead:
        health = healthy(outcome)
        work.last_failure = detail
        match outcome:
            case Gone(status):
                return Dead("gone", f"the receiver says that it is gone: {detail}", status, health, pause_s=inf)
            case Rejected(status):
                return Dead("rejected", detail, status, health)
            case Ambiguous():
                return self.ambiguous(work, outcome, detail)
            case NotNow() | NotProcessed():
                return self._retry(work, outcome, detail)
        assert_never(outcome)

    def ambiguous(self, work: Delivery, outcome: Ambiguous, detail: str) -> Later | Dead:
        """Handles an attempt after which it is unknown whether the receiver has the message."""
        if can_be_asked(work.receiver):
            return self._ask_later(work, outcome, detail)
        if outcome.kind == UNCLEAR:  # the receiver has it: another POST would be a guess
            return Dead("invalid", detail, outcome.status, healthy(outcome))
        if work.receiver.on_ambiguous == "dead_letter":
            said = f"the outcome is unknown: {detail}"
            return Dead("ambiguous", said, outcome.status, healthy(outcome), may_arrive=outcome.status is None)
        return self._retry(work, outcome, detail)

    def _ask_later(self, work: Delivery, outcome: Ambiguous, detail: str) -> Later:
        """Backoff before the status request, not after it: a 404 is then followed by the next POST at once."""
        dependencies = self.dependencies
        usual_s = backoff(work.attempts, work.receiver.post.retry, dependencies.jitter)
        wait_s = min(max(usual_s, outcome.retry_after_s or 0.0), work.rest_s(dependencies.clock.time()))
        return Later(
            wait_s,
            outcome.kind,
            Change.DOUBT,
            last_status=outcome.status,
            healthy=healthy(outcome),
            detail=detail,
        )

    def _retry(self, work: Delivery, outcome: NotNow | Ambiguous | NotProcessed, detail: str) -> Later | Dead:
        return decide_retry(
            outcome,
            detail,
            attempts=work.attempts,
            age_s=work.retry.max_age - work.rest_s(self.dependencies.clock.time()),
            policy=work.retry,
            jitter=self.dependencies.jitter,
        )

    def _accepted_records(self, work: Delivery, result: Result) -> tuple[NewRecord, ...]:
        source = self.directory.source(work.hop.delivery.source_id)
        progress = progress_records(self.topics, source, work.hop, "accepted", work.attempts)
        return (self._pending_record(work, result), *progress)

    def _pending_record(self, work: Delivery, result: Result) -> NewRecord:
        hop = structs.replace(
            work.hop,
            attempt=work.attempts,
            sequence=work.sequence,
            status_url=result.status_url,
            ask_after_s=result.ask_after_s,
            not_asked=result.detail,
            chain=result.chain,
            move=0,
            ask_first=False,
            timing=None,
        )
        name = work.receiver.name  # it may have been removed during the request: the wait for its answer goes on
        receiver = self.directory.receiver(name) or self.directory.removed(name)
        lane = SHARED if receiver is None else lane_of(receiver)
        topic, headers = self.topics.pending(lane), encode_hop(hop)
        return lane_record(topic, lane, receiver or work.receiver, hop.delivery.source_id, work.record.value, headers)
