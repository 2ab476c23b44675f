"""FailedMessages: reports failures, lists them and notifies senders.

1. Read the dead letter, whatever it contains.
2. Report it to Sentry, which groups by receiver and reason; reports are rate-limited.
3. Append a failure notice for the sender (problem details, as JSON), unless its own callback is what failed or the
   sender is unknown.
4. Once that is acknowledged, index the dead letter for listing, and pass it on to the summaries of failures.

A delivery that was ended on purpose (discarded, cancelled) is neither reported nor listed, as no action is left. One
that another relay reported before it was moved here is only listed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from relay.domain.dead_letter import MOVED, DeadLetter, identity_of, original_headers, parse_dead_letter
from relay.domain.hop import KEEP_HEADER, LIFE_HEADER, NO_RECEIVER, Hop, hop_of, json_object, result_headers
from relay.domain.identity import DeliveryId
from relay.domain.incident_kinds import kind_of_letter, page_of_letter, party_of_letter
from relay.domain.reasons import ON_PURPOSE, is_of_callback, reason_class
from relay.domain.result_delivery import MEDIA_TYPE, notice_body
from relay.domain.text import whole_number
from relay.domain.topics import Topics
from relay.domain.trace import read_traceparent, read_tracestate
from relay.engine.decision import Dead, Done
from relay.engine.work import LookupResult, Outcome, Work
from relay.log.port import NewRecord, Record
from relay.state.port import FailedEntry, Lane, State
from workers.records import Letters
from workers.tables import LookedUpFirst, WithoutRows


class Reporter(Protocol):
    """Reports failures; never raises, never blocks, and may drop."""

    def report_failure(
        self,
        receiver: str,
        reason: str,
        reason_class: str,
        stage: str,
        attempts: int,
        last_status: int | None,
        incident: str | None = None,
    ) -> None:
        """`incident`: page of the incident that the failure belongs to."""
        ...


Summarize = Callable[[FailedEntry, int], None]
"""Takes a failure and the number of its attempts, to report many at once; never raises, never blocks, and may drop."""


class Failure(Work):
    """A dead letter."""

    __slots__ = ("letter", "message_id", "receiver", "source_id")

    def __init__(self, record: Record, letter: DeadLetter) -> None:
        super().__init__(record, None, 0, None, "failed_messages")
        self.letter = letter
        self.receiver, self.source_id, self.message_id = identity_of(record.value, record.headers)

    @property
    def is_known(self) -> bool:
        """Whether the failure was reported before it was moved here."""
        return MOVED in self.record.headers


class FailedIndex(LookedUpFirst):
    """Index of dead letters. No lookup is needed, as indexing twice has the effect of indexing once."""

    def __init__(self, state: State, summarize: Summarize) -> None:
        self._state = state
        self._summarize = summarize

    async def intake(self, lane: Lane, works: Sequence[Failure]) -> list[LookupResult]:
        return [LookupResult.READY] * len(works)

    async def mark(self, works: Sequence[tuple[Failure, Outcome]]) -> None:
        listed = [(entry_of(work), work.letter.attempts) for work, _ in works if is_listed(work)]
        if listed:
            await self._state.index_failed([entry for entry, _ in listed])
        known = {work.record.coordinate for work, _ in works if work.is_known}
        for entry, attempts in listed:
            if entry.at not in known:
                self._summarize(entry, attempts)


def entry_of(work: Failure) -> FailedEntry:
    """The dead letter's entry in the index for listing."""
    return FailedEntry(
        receiver=work.receiver or NO_RECEIVER,
        at=work.record.coordinate,
        failed_at=work.letter.first_failed_ms / 1000,
        reason=work.letter.reason,
        source_id=work.source_id or "",
        message_id=work.message_id or "",
        number=number_of(work.record, work.letter),
        came_late=came_late(work.record, work.letter),
        life=life_of(work.record),
    )


def incident_of(work: Failure) -> str:
    """The page of the incident that the failure belongs to."""
    letter = work.letter
    late = came_late(work.record, letter)
    party = party_of_letter(work.receiver or NO_RECEIVER, work.source_id or "", letter.reason, came_late=late)
    return page_of_letter(party, kind_of_letter(party, letter.reason, letter.last_status, letter.detail))


def is_listed(work: Failure) -> bool:
    """Whether it may need an operator's attention."""
    return work.letter.reason not in ON_PURPOSE


@dataclass(eq=False, repr=False)
class FailedMessages(WithoutRows):
    """The step; see the module's docstring."""

    stage = "failed_messages"

    topics: Topics
    state: State
    letters: Letters
    reporter: Reporter
    summarize: Summarize = lambda _entry, _attempts: None

    def __post_init__(self) -> None:
        self.table = FailedIndex(self.state, self.summarize)

    def admit(self, record: Record) -> Failure:
        return Failure(record, parse_dead_letter(record.headers))

    def step(self, work: Failure) -> Done:
        letter = work.letter
        if work.is_known:
            return Done()
        if is_listed(work):
            self.reporter.report_failure(
                work.receiver or NO_RECEIVER,
                letter.reason,
                reason_class(letter.reason),
                letter.stage,
                letter.attempts,
                letter.last_status,
                incident_of(work),
            )
        # a notice would use the sender's own callback: if that is what failed, the notice would fail there, too
        is_of_sender = is_of_callback(letter.reason) or letter.stage == self.topics.to_sender
        if is_of_sender or not work.source_id or not work.message_id:
            return Done()
        return Done((notice_record(self.topics, work, work.source_id, work.message_id),))

    def dead_letter(self, record: Record, work: Failure | None, dead: Dead) -> NewRecord:
        return self.letters.dead_letter(record, dead)


def notice_record(topics: Topics, work: Failure, source_id: str, message_id: str) -> NewRecord:
    """The failure notice for the sender of a dead letter."""
    receiver = work.receiver or NO_RECEIVER
    if "id_conflict" in (work.letter.reason, work.letter.former_reason):
        receiver = NO_RECEIVER  # it never became a delivery; the delivery of this name is the first message's
    letter, generation = work.letter, generation_of(work.record)
    original = dict(original_headers(work.record.headers))
    hop = Hop(
        DeliveryId(receiver, source_id, message_id),
        content_type=MEDIA_TYPE,
        attempt=letter.attempts,
        generation=generation,
        origin=letter.origin,
        outcome="failed",
        answer_status=letter.last_status,
        reason=letter.reason,
        traceparent=read_traceparent(original.get("traceparent", b"")),
        tracestate=read_tracestate(original.get("tracestate", b"")),
        life=life_of(work.record),
    )
    body = notice_body(
        hop.delivery,
        generation,
        reason=letter.reason,
        detail=letter.detail,
        attempts=letter.attempts,
        last_status=letter.last_status,
    )
    headers = result_headers(_with_kept(hop, original))
    return NewRecord(topics.to_sender, source_id.encode(), body, headers)


def _with_kept(hop: Hop, original: Mapping[str, bytes]) -> Hop:
    """With what the callback's expressions need, if the message's source keeps anything, and the letter was not cut
    there."""
    try:
        keep = json_object(original[KEEP_HEADER])
    except (KeyError, ValueError):
        return hop
    event_type, time = (original.get(name, b"").decode(errors="replace") or None for name in ("ce_type", "ce_time"))
    return structs.replace(hop, keep=keep, event_type=event_type, time=time)


def life_of(record: Record) -> str:
    """The life of the receiver's name in a dead letter; empty if the letter has none."""
    return dict(record.headers).get(LIFE_HEADER, b"").decode(errors="replace")


def number_of(record: Record, letter: DeadLetter) -> int | None:
    """The number, or place, of a delivery to its receiver that was given up; None if it was another step."""
    return whole_number(dict(record.headers).get("relay-sequence", b"")) if "to_receiver_" in letter.stage else None


def came_late(record: Record, letter: DeadLetter) -> bool:
    """Whether the message's own deadline had passed when it was accepted, so its receiver is not at fault."""
    hop = hop_of(record.headers) if letter.reason == "expired" else None
    if hop is None or hop.timing is None or hop.generation:
        return False
    return 0 < hop.timing.deadline <= hop.accepted_ms / 1000


def generation_of(record: Record) -> int:
    """The generation of the delivery that a dead letter belongs to; 0 if the letter does not say."""
    return whole_number(dict(record.headers).get("relay-generation", b"")) or 0
