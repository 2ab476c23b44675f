"""FromReceiverAsync: collects answers that arrive after the response.

1. Read the record. A removed receiver keeps its last settings for this; without them: dead letter
   (`unknown_receiver`).
2. The deadline has passed: a receiver without a status endpoint whose answer is optional counts as delivered. Any
   other gets a dead letter (`receiver_forgot` if it last said that it never saw the message, else `answer_timeout`).
   If the deadline passed before this process had the record, the receiver is polled once before that.
3. Poll the status URL, if there is one. Otherwise wait for the receiver's callback, which ends the row from outside.
4. An answer is published to `to_sender`. While the receiver is still working: poll again, less and less often, never
   beyond the deadline, but once right before it. After a step of a chain: poll the URL of the next one.
"""

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, assert_never

from msgspec import structs

from relay.domain.directory import Directory
from relay.domain.errors import ExpressionError
from relay.domain.exchange import Response
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.outcome import Answered
from relay.domain.receiver import Receiver
from relay.domain.requests import is_of_receiver
from relay.domain.status import AskLater, NeverSeen, StatusGone, StillRunning
from relay.domain.status_chain import (
    ChainPosition,
    ChainReading,
    NoAnswer,
    StepFinished,
    current_step,
    decode_chain,
    first_position,
    next_position,
    step_of,
)
from relay.domain.text import counted
from relay.domain.topics import Topics
from relay.engine.decision import Dead, Decision, Done, Later, Step
from relay.engine.work import FINISHED_AT, EndpointRules
from relay.log.port import NewRecord, Record
from relay.state.attempts import CallKind, Change, Limits
from relay.state.port import State
from relay.state.rows import Result, Stage, delivery_row
from workers.delivery import (
    HopWork,
    can_be_asked,
    current_receiver,
    in_flight_per_lane,
    not_sendable,
    own_status_url,
    receiver_or_stand_in,
    removed,
    unusable_wait,
)
from workers.dependencies import Dependencies
from workers.payload_encryption import PayloadEncryption
from workers.records import Letters, done_with_answer, progress_records
from workers.requests import ask, ask_again_s
from workers.tables import RowTable

FORGOT = "receiver_forgot"
LAST_POLL_S: Final = 2.0
"""Seconds between the last poll and the deadline. That poll must have begun by then; its response may come later."""
LATE_S: Final = 60.0
"""Seconds for which the last poll may be made up for, if no process could make it before the deadline."""


class Awaited(HopWork):
    """A delivery whose answer arrives later."""

    __slots__ = ("late_until", "receiver", "reported")

    def __init__(self, record: Record, hop: Hop, receiver: Receiver) -> None:
        super().__init__(record, hop, delivery_row(hop.delivery))
        self.follow(receiver)
        self.attempts = hop.attempt
        self.reported = False
        """A report that the receiver is working on it was made for its sender."""
        self.late_until = 0.0
        """Monotonic time until which it may be polled once more, although its deadline has passed."""

    def follow(self, receiver: Receiver) -> None:
        """Follow the receiver's current settings."""
        self.receiver = receiver
        limits = Limits(0.0, receiver.post.settle_s, receiver.post.breaker, receiver.post.settle_s)
        share = in_flight_per_lane(receiver.post.max_in_flight, receiver.partitions)
        self.rules = EndpointRules(limits, share, is_origin=receiver.is_origin, owner=receiver.owner)

    @property
    def status_url(self) -> str | None:
        """The URL to poll. The record's URL is used only on the receiver's own origins: it may be forged, or the
        receiver may have moved since. Otherwise the receiver's template is used, if the ids suffice for it."""
        url, receiver = self.hop.status_url, self.receiver
        if url is None or self.hop.not_asked is not None:
            return None
        if is_of_receiver(url, receiver):
            return url
        if receiver.status_steps:
            return self._first_url()
        return own_status_url(receiver, self.hop.delivery)

    def _first_url(self) -> str | None:
        """The receiver has other origins now: its chain begins again, if that needs no response to the POST."""
        if not can_be_asked(self.receiver):
            return None
        try:
            position = first_position(self.receiver, self.hop, self.record.value or b"")
        except ExpressionError:
            return None
        self.move_to(position)
        return position.url

    def move_to(self, position: ChainPosition | str) -> None:
        """Keeps the position in the chain in the record, like `record_reading`. `position`: or else why the next step
        cannot be asked; a replay asks the current one again."""
        if isinstance(position, str):
            self.hop = structs.replace(self.hop, not_asked=position, reason=None)
        else:
            self.hop = structs.replace(self.hop, status_url=position.url, chain=position.text, reason=None)
        self.record = self.record.changed(headers=encode_hop(self.hop))

    @property
    def not_asked(self) -> str:
        """Why there is no URL to poll."""
        if self.hop.status_url is not None and self.hop.not_asked is None:
            return "the status URL in its record is not the receiver's"
        return self.hop.not_asked or "its response named no status URL"

    @property
    def only_called(self) -> bool:
        """Whether its receiver had no status endpoint when it accepted the message."""
        return self.hop.status_url is None and self.hop.not_asked is None

    @property
    def forgotten(self) -> bool:
        """Whether the receiver last said that it never saw this message."""
        return self.hop.reason == FORGOT

    def record_reading(self, reading: ChainReading) -> None:
        """Keeps the reading in the record itself, for the deadline: by then only a parked copy of it may be left."""
        reason = FORGOT if isinstance(reading, NeverSeen) else None
        if reason != self.hop.reason:
            self.hop = structs.replace(self.hop, reason=reason)
            self.record = self.record.changed(headers=encode_hop(self.hop))

    def rest_s(self, now: float) -> float:
        """Seconds until the deadline, which counts from the record; 0 once it has passed. `now`: Unix seconds."""
        return max(0.0, self.receiver.answer_deadline - self.age_s(now))


@dataclass(eq=False, repr=False)
class FromReceiverAsync:
    """The step; see the module's docstring."""

    stage = "pending"
    kind = CallKind.POLL
    parks = True
    capped = False

    topics: Topics
    directory: Directory
    state: State
    letters: Letters
    dependencies: Dependencies

    def __post_init__(self) -> None:
        self._encryption = PayloadEncryption(self.dependencies)
        self.table: RowTable[Awaited] = RowTable(self.state, self.dependencies.clock, self.kind, FINISHED_AT[self.kind])

    def admit(self, record: Record) -> Awaited:
        hop = decode_hop(record.headers)
        receiver = removed(self.directory, hop) or receiver_or_stand_in(self.directory, hop)
        work = Awaited(record, hop, receiver)
        clock = self.dependencies.clock
        work.due = clock.monotonic() + self._first_wait_s(work)
        if work.rest_s(clock.time()) <= 0:
            work.late_until = clock.monotonic() + LATE_S
        return work

    def overdue(self, work: Awaited) -> Dead | Done | Later | None:
        if (
            self.dependencies.erasures.known
            and (end := self.dependencies.erased(work.record, work.delivery)) is not None
        ):
            return end
        receiver = removed(self.directory, work.hop) or current_receiver(self.directory, work.hop)
        if isinstance(receiver, Dead):
            return receiver
        if receiver is not work.receiver:
            work.follow(receiver)
        if (wait := unusable_wait(receiver)) is not None:
            return wait
        clock = self.dependencies.clock
        if work.rest_s(clock.time()) > 0 or (clock.monotonic() < work.late_until and work.status_url is not None):
            return None
        return self._at_deadline(work)

    def step(self, work: Awaited) -> Step:
        if (off := not_sendable(work.receiver)) is not None:
            return off
        url = work.status_url
        if url is None:
            return self._later(work, inf, "waiting for the receiver's callback")
        work.late_until = 0.0
        about = work.purpose("status", work.receiver.post, work.polls, work.attempts)
        payload = work.record.value or b""
        return ask(self.dependencies, about, work.hop, work.receiver, url, payload, partial(self._decide, work))

    def resume(self, work: Awaited, result: Result) -> Done | Dead:
        if result.outcome == "dead":
            return Dead(result.reason or "poison", result.detail or "", result.status)
        hop = structs.replace(work.hop, reason=None)
        source = self.directory.source(hop.delivery.source_id)
        return done_with_answer(self.topics, source, hop, result, work.attempts)

    def dead_letter(self, record: Record, work: Awaited | None, dead: Dead) -> NewRecord:
        if work is None:
            return self.letters.dead_letter(record, dead)
        given = record.changed(headers=encode_hop(structs.replace(work.hop, reason=None)))
        given = self._encryption.sealed(given, work.receiver, work.hop, self.directory)
        return self.letters.dead_letter(given, dead, work.hop, attempts=work.attempts)

    def _at_deadline(self, work: Awaited) -> Dead | Done:
        receiver = work.receiver
        asked = receiver.status_endpoint is not None or receiver.status_steps
        if receiver.answer == "optional" and (not asked or work.only_called):
            return Done(stage=Stage.PUBLISHED, result=Result("delivered", work.last_status or 202))
        if work.forgotten:
            return Dead(FORGOT, "the receiver accepted the message, and then said that it never saw it", 404)
        nowhere = "" if work.status_url else f"; {work.not_asked}"
        times = f"; asked {counted(work.polls, 'time')}" if work.polls and not work.only_called else ""
        detail = f"no answer within {receiver.answer_deadline:g} s{nowhere}{times}"
        return Dead("answer_timeout", work.with_last_failure(detail))

    def _decide(self, work: Awaited, reading: ChainReading) -> Decision:
        work.record_reading(reading)
        match reading:
            case Answered():
                self._count(work)
                return Done(stage=Stage.PUBLISHED, result=self.dependencies.result_of(reading), up=True)
            case StepFinished(response):
                return self._next_step(work, response)
            case NoAnswer(detail):
                return Dead("invalid", f"the answer cannot be made: {detail}")
            case StillRunning(ask_after_s):
                self._report(work)
                return self._later(work, self._again_s(work, ask_after_s), "still working", up=True)
            case NeverSeen():
                return self._later(work, self._again_s(work, None), "the receiver says that it never saw it", up=True)
            case StatusGone():
                return Dead("gone", "the receiver's status endpoint says that it is gone", 410, pause_s=inf)
            case AskLater(retry_after_s, whole, kind, detail):
                wait_s = self._again_s(work, retry_after_s)
                work.last_failure = detail
                return structs.replace(self._later(work, wait_s, kind), pause_s=wait_s if whole else 0.0, detail=detail)
        assert_never(reading)

    def _report(self, work: Awaited) -> None:
        """Reports to its sender, if it wants that, that the receiver is working on it: once, and it may be lost."""
        if not work.reported:
            work.reported = True
            source = self.directory.source(work.hop.delivery.source_id)
            for record in progress_records(self.topics, source, work.hop, "running", work.attempts):
                self.dependencies.report(record)

    def _next_step(self, work: Awaited, response: Response) -> Later:
        """The chain goes on from a parked copy, so that no crash takes it back to a step that may no longer exist."""
        try:
            work.move_to(next_position(work.receiver, work.hop, work.record.value or b"", response, polls=work.polls))
        except ExpressionError as error:
            work.move_to(str(error))
            return structs.replace(self._later(work, inf, "no next step", up=True), park=True, detail=str(error))
        step = step_of(work.receiver, decode_chain(work.hop.chain).step)
        return structs.replace(self._later(work, 0.0, step, up=True), change=Change.STEP, park=True)

    def _count(self, work: Awaited) -> None:
        accepted_ms = work.hop.accepted_ms or work.record.timestamp_ms
        age_s = self.dependencies.clock.time() - accepted_ms / 1000
        self.dependencies.meter.answered(work.receiver.name, "poll", age_s)

    def _again_s(self, work: Awaited, wish_s: float | None) -> float:
        receiver, asked = work.receiver, work.polls
        if not receiver.status_steps:
            return ask_again_s(wish_s, asked, receiver.poll)
        chain = decode_chain(work.hop.chain)
        policy = current_step(receiver, chain).poll or receiver.poll
        return ask_again_s(wish_s, max(1, asked - chain.polls), policy)

    def _later(self, work: Awaited, seconds: float, why: str, *, up: bool = False) -> Later:
        return Later(_wait_s(seconds, work.rest_s(self.dependencies.clock.time())), why, up=up)

    def _first_wait_s(self, work: Awaited) -> float:
        """Seconds left of the delay that the receiver asked for, or else of the policy's first step."""
        if work.receiver.unusable is not None:
            return 0.0  # the deadline is unknown, as the settings cannot be read
        if not work.receiver.post.url:
            return 0.0  # the receiver was removed: there is nothing to wait for
        deadline_s = work.receiver.answer_deadline
        wish_s = work.hop.ask_after_s if work.hop.ask_after_s is not None else work.receiver.poll.base
        wait_s = _wait_s(inf if work.status_url is None else wish_s, deadline_s)
        return max(0.0, wait_s - work.age_s(self.dependencies.clock.time()))


def _wait_s(seconds: float, rest_s: float) -> float:
    """Seconds until the next poll (inf: there is none), or until the deadline, which has to be noticed. `rest_s`: until
    then. A poll that would come too late comes right before it, once: the answer may be there by then."""
    if seconds <= rest_s:
        return seconds
    return rest_s - LAST_POLL_S if seconds < inf and rest_s > 2 * LAST_POLL_S else rest_s
