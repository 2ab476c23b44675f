"""Trial of a delivery: the requests that a payload would lead to, and the meaning of responses, by the functions of the
steps. Nothing is sent or stored."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec import structs

from relay.domain.batch import BadVerdicts, batch_id, read_verdicts
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.errors import ExpressionError
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.expression import Expression, Variables, work_budget
from relay.domain.filters import FilterInput
from relay.domain.hop import decode_hop, encode_hop
from relay.domain.identity import Progress
from relay.domain.jwe import encrypt
from relay.domain.message import Message
from relay.domain.outcome import Accepted, Ambiguous, Answered, Delivered, Gone, Outcome, Rejected, usual_rule
from relay.domain.receiver import Receiver, Source
from relay.domain.request_form import errors_in
from relay.domain.requests import batch_request, callback_request, post_request, status_request
from relay.domain.result_delivery import Handover, handover
from relay.domain.shown_exchange import failure_detail
from relay.domain.status import StillRunning
from relay.domain.status_chain import ChainReading, NoAnswer, StepFinished, next_position
from relay.domain.template import NoUrl
from relay.domain.topics import Topics
from relay.domain.urls import shown
from relay.domain.variables import (
    callback_variables,
    delivery_variables,
    kept_of,
    message_variables,
    response_variables,
)
from relay.log.port import Coordinate, NewRecord, Record
from relay.state.rows import Result
from workers.batches import event_of
from workers.delivery import Delivery
from workers.failed_messages import Failure, notice_record
from workers.outcomes import accepted, outcome_of, unaskable_later
from workers.payload_encryption import Encrypted
from workers.records import answer_record, first_hop, progress_records
from workers.requests import read_answer

_TOPICS: Final = Topics("")
_NO_CALLBACK: Final = {
    Handover.UNWANTED: "the source wants no such results: no callback",
    Handover.KEPT: "the source has no callback: it queries the API",
}
_WITH_PLACE: Final = re.compile(r"([a-z_]+(?:\.[\w-]+|\[\d+\])+): ")
_NOT_NAMED: Final = "no status URL is known: the relay waits for the receiver's answer at the answer URL"


@dataclass(frozen=True, slots=True)
class TrialFault:
    """A field whose value cannot be made, and why."""

    place: str
    detail: str


@dataclass(slots=True)
class Trial:
    """`outcome`, `rule`: of the response to the POST, and the rule that decided. `readings`: of the responses to status
    GETs. `next`: the status GET that follows. `callback`: of the result. A part that is unknown, or not made, is None;
    `faults` and `notes` say why."""

    request: Request | None = None
    outcome: Outcome | None = None
    rule: str | None = None
    readings: list[ChainReading] = field(default_factory=list)
    next: Request | None = None
    callback: Request | None = None
    faults: list[TrialFault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _NoKeyError(Exception):
    """The receiver's keys are not known here, and nothing may be sent without."""


class DeliveryTrial:
    """A delivery of `message` to `receiver`, attempted once. `now`: Unix seconds."""

    def __init__(self, receiver: Receiver, source: Source, message: Message, *, now: float, user_agent: str) -> None:
        self.trial = Trial()
        self.receiver = receiver
        self.source = source
        self._now = now
        self._user_agent = user_agent
        self.message = message
        keep = self._kept()
        origin, accepted_ms = Coordinate(_TOPICS.from_sender, 0, 0), int(now * 1000)
        hop = first_hop(FilterInput(message), receiver, origin, accepted_ms, move=receiver.move, keep=keep)
        record = Record(_TOPICS.to_receiver(receiver.name), 0, 0, None, message.payload, encode_hop(hop), accepted_ms)
        self._work = Delivery(record, hop, receiver)
        self._work.attempts = 1
        self.trial.request = self._request()

    def respond(self, exchange: Exchange, statuses: Sequence[Response] = ()) -> None:
        """Computes what follows from this response to the POST, and from `statuses`, the responses to status GETs."""
        if self.receiver.batch is not None and isinstance(exchange, Response):
            try:
                verdicts = read_verdicts(exchange, [self._work.hop])
            except BadVerdicts as fault:
                self.trial.notes.append(f"its batch is ambiguous: {fault}")
                return
            exchange = verdicts[0] if verdicts and verdicts[0] is not None else exchange
        outcome, ruling = outcome_of(self._work, exchange, self._now)
        self.trial.outcome = outcome
        if isinstance(exchange, Response):
            self.trial.rule = ruling.rule if ruling else usual_rule(exchange.status, self.receiver.post.codes)
            self._check_rules(exchange)
        match outcome:
            case Answered(status, content_type, body, truncated):
                self._return(Result("answered", status, content_type, body, truncated))
            case Delivered(status):
                self._return(Result("delivered", status))
            case Accepted():
                self._ask(accepted(self._work, outcome, exchange), statuses)
            case Rejected(status) | Gone(status):
                reason = "gone" if isinstance(outcome, Gone) else "rejected"
                self._give_up(reason, failure_detail(exchange, self.receiver.post), status)
            case Ambiguous(error=error) if error:
                self.trial.notes.append("the receiver has the message, but its response cannot be judged")
            case _:
                self.trial.notes.append("the relay tries again later")

    # before the POST

    def _kept(self) -> str | None:
        try:
            return kept_of(self.source, self.message)
        except ExpressionError as error:
            self._add(_errors_of((self.source.keep or {}).values(), message_variables(self.message)), error)
            return None

    def _request(self) -> Request | None:
        work, receiver = self._work, self.receiver
        if (fault := unaskable_later(work, receiver)) is not None:
            self.trial.faults.append(_fault(fault))
        if receiver.batch is not None:
            events = [event_of(work, work.hop, None)]
            return batch_request(receiver, batch_id(b""), events, now=self._now, user_agent=self._user_agent)
        try:
            return post_request(
                receiver,
                work.hop,
                self.message.payload,
                attempt=work.attempts,
                sequence=work.sequence,
                now=self._now,
                answer_url=None,
                encrypt=self._encrypted(),
                user_agent=self._user_agent,
            )
        except _NoKeyError:
            fault = "the keys are fetched when a message is delivered, so its request cannot be shown here"
            self.trial.faults.append(TrialFault("encrypt.jwks_url", fault))
            return None
        except ExpressionError as error:
            form = receiver.post.request
            self._add(() if form is None else errors_in(form, self._variables()), error)
            return None

    def _encrypted(self) -> Encrypted | None:
        """Raises _NoKeyError."""
        encryption = self.receiver.encrypt
        if encryption is not None and not encryption.keys:
            raise _NoKeyError
        return None if encryption is None else partial(encrypt, encryption.keys[0])

    def _variables(self) -> Variables:
        return delivery_variables(self._work.hop, self.message.payload, attempt=1)

    # after it

    def _check_rules(self, response: Response) -> None:
        """Rules that cannot be evaluated, up to the one that decided."""
        variables = {**self._variables(), **response_variables(response)}
        for rule in self.receiver.outcomes:
            self._add(_errors_of([rule.when], variables))
            if str(rule) == self.trial.rule:
                return

    def _ask(self, result: Result, statuses: Sequence[Response]) -> None:
        """Follow the chain of status GETs."""
        work, trial = self._work, self.trial
        work.hop = structs.replace(work.hop, attempt=1, status_url=result.status_url, chain=result.chain)
        if result.status_url is None:
            self._report("accepted")
            if result.detail is None:
                trial.notes.append(_NOT_NAMED)
            else:
                trial.faults.append(_fault(result.detail))
            return
        progress: Progress = "accepted"
        for polls, response in enumerate(statuses, 1):
            reading = read_answer(response, self.receiver, work.hop, self.message.payload, now=self._now)
            trial.readings.append(reading)
            progress = "running" if isinstance(reading, StillRunning) else progress
            if not self._continues(reading, polls):
                return
        self._report(progress)
        self._next()

    def _continues(self, reading: ChainReading, polls: int) -> bool:
        """Whether a status GET follows."""
        work, trial = self._work, self.trial
        match reading:
            case StepFinished(response):
                try:
                    at = next_position(self.receiver, work.hop, self.message.payload, response, polls=polls)
                except ExpressionError as error:
                    trial.faults.append(_fault(str(error)))
                    return False
                work.hop = structs.replace(work.hop, status_url=at.url, chain=at.text)
            case Answered(status, content_type, body, truncated):
                self._return(Result("answered", status, content_type, body, truncated))
                return False
            case NoAnswer(detail):
                trial.faults.append(_fault(detail))
                return False
        return True

    def _next(self) -> None:
        url, receiver = self._work.hop.status_url or "", self.receiver
        try:
            self.trial.next = status_request(
                url, receiver, user_agent=self._user_agent, timeout_s=receiver.post.timeout, hop=self._work.hop
            )
        except ValueError as error:
            self.trial.faults.append(TrialFault("status_url", f"{shown(url)}: {error}"))

    # the way back

    def _report(self, progress: Progress) -> None:
        """The callback that reports progress, if the source wants it; a result replaces it."""
        for record in progress_records(_TOPICS, self.source, self._work.hop, progress, 1):
            self._call(Handover.DELIVERED, record)

    def _return(self, result: Result) -> None:
        how = handover(self.source, failed=False, empty=not result.body)
        self._call(how, answer_record(_TOPICS, self._work.hop, result, 1))

    def _give_up(self, reason: str, detail: str, status: int) -> None:
        """The failure notice of a delivery that is not tried again."""
        hop = self._work.hop
        letter = DeadLetter(reason, detail, _TOPICS.to_receiver(hop.delivery.receiver), hop.origin, 1, 0, status)
        headers = dead_letter_headers(self._work.record.headers, letter)
        failed = Failure(self._work.record.changed(headers=headers), letter)
        notice = notice_record(_TOPICS, failed, hop.delivery.source_id, hop.delivery.message_id)
        self._call(handover(self.source, failed=True, empty=False), notice)

    def _call(self, how: Handover, record: NewRecord) -> None:
        source, callback = self.source, self.source.callback
        if how is not Handover.DELIVERED or callback is None:
            self.trial.notes.append(_NO_CALLBACK.get(how, "the result is read from the topic to_sender: no callback"))
            return
        if source.unusable is not None:
            self.trial.notes.append(f"the settings of the callback cannot be used here: {source.unusable}")
            return
        hop, value = decode_hop(record.headers), record.value or b""
        try:
            self.trial.callback = callback_request(
                callback, hop, value, now=self._now, user_agent=self._user_agent, attempt=1
            )
        except NoUrl:
            self.trial.notes.append("the URL of the callback is empty for this message: no callback")
        except ExpressionError as error:
            form = callback.request
            self._add(
                () if form is None else errors_in(form, callback_variables(hop, value)), error, within="callback."
            )

    def _add(self, errors: Iterable[Exception], first: Exception | None = None, *, within: str = "") -> None:
        """The fault of each error. `first`: the one that ended the step, which counts if there are no others.
        `within`: the place that contains theirs."""
        with work_budget:
            found = list(errors) or ([] if first is None else [first])
        self.trial.faults += [_fault(f"{within}{each}") for each in found]


def _fault(said: str) -> TrialFault:
    """Errors of expressions and URLs begin with their place."""
    match = _WITH_PLACE.match(said)
    return TrialFault("", said) if match is None else TrialFault(match[1], said[match.end() :])


def _errors_of(expressions: Iterable[Expression], variables: Variables) -> Iterator[ExpressionError]:
    for each in expressions:
        try:
            each.evaluate(variables)
        except ExpressionError as error:
            yield error
