"""The port to workers: they read records into works, and their step decides on each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from math import inf
from typing import Final, Literal, Protocol, TypeVar

from msgspec import Struct

from relay.domain.identity import DeliveryId
from relay.domain.numbering import NumberGap, Numbering
from relay.domain.reasons import NO_ANSWER, REASON_CODES
from relay.domain.receiver import BatchPolicy
from relay.engine.decision import Dead, Done, Later, Step
from relay.engine.phases import Phase
from relay.log.port import Coordinate, NewRecord, Record
from relay.state.attempts import CallKind, Limits, NumberRequest
from relay.state.port import Lane
from relay.state.rows import Mark, Result, Row, RowKey, Stage


@dataclass(frozen=True, slots=True)
class EndpointRules:
    """Limits on works that one lane sends to an endpoint.

    `max_in_flight`: of this lane. `has_share`: this is its share of the endpoint's limit, so that all lanes together
    keep to that limit without knowing each other. `late_s`: how much later than its slot of the rate a POST may start.
    """

    limits: Limits
    max_in_flight: int
    has_share: bool = True
    late_s: float = inf
    ask_first: bool = False
    at_most_once: bool = False
    """The endpoint has no status endpoint, and an attempt in doubt must not be sent again."""
    patience_s: float = inf
    """After failing for so long, a head steps aside: others of its order key need not wait for it."""
    batch: BatchPolicy | None = None
    """Works share their requests; None: each has its own."""
    paces_each: bool = False
    """The works of a shared request take a slot of the rate each."""
    is_origin: bool = False
    """Each work has a URL of its own there: one that is gone says nothing of the others."""
    owner: str | None = None
    """The endpoints of an owner together have a share of a shared lane."""


WaitFor = Literal[
    "retry",
    "rate",
    "paused",
    "offline",
    "breaker",
    "order",
    "in_doubt",
    "answer",
    "settling",
    "backlog",
    "max_in_flight",
    "own_shortage",
    "configuration",
    "seat",
    "turn",
]
"""Reasons why a record waits in memory: values of `waiting_for`, and some that are not shown for one delivery.
`backlog`: room for its answer or its retry. `max_in_flight`: the end of another request to its endpoint.
`own_shortage`: a resource of this process. `configuration`: this process cannot use its endpoint's settings.
`seat`: the end of another request of the process. `turn`: nothing."""


@dataclass(slots=True, eq=False)
class SharedRequest:
    """Works that share a request (`relay/engine/batch.py`). `in_flight`: how many of them are; together they count as
    one. `first`: the first that may begin, or that cannot. `seated`: whether they have a seat in the process; None
    before one needs it. `seating`: those that wait for it. `stopped`: order keys of which nothing more goes along;
    `parked`: of which one was parked, so that later ones must not be sent again before it."""

    in_flight: int
    first: "Work | None" = None
    seated: bool | None = None
    seating: "list[Work]" = field(default_factory=list)
    stopped: set[bytes] = field(default_factory=set)
    parked: set[bytes] = field(default_factory=set)


@dataclass(slots=True, eq=False, repr=False)
class Work:
    """One record on its way through a lane. Workers subclass it with the fields of the record."""

    record: Record
    row: RowKey | None
    generation: int
    queue: bytes | None
    """Digest of the order key; None if it needs no order."""
    endpoint_id: str
    """Id of the endpoint, whose limits apply: `r:<receiver>`, or `s:<source_id>` for a callback. It is the owner of the
    row, if there is one."""
    _: KW_ONLY
    rules: EndpointRules | None = None
    """None: this work has no attempts, so no begin and no settle."""
    attempts: int = 0
    polls: int = 0
    token: bytes = b""
    requested: bool = False
    """A request was made since it was last started."""
    started_at: float = 0.0
    """Monotonic time at which its step last started: no request of that step began earlier."""
    start_by: float = 0.0
    """Monotonic time after which the request of a begun attempt must not start."""
    due: float = 0.0
    """Monotonic time before which it does not start."""
    held_for: WaitFor = "retry"
    """Why it waits until then."""
    last_status: int | None = None
    """HTTP status of its last attempt; None without a response, or if the row does not have it."""
    failing_since: float | None = None
    """Monotonic time of its first failure that this process knows; None if it has not failed."""
    may_arrive_until: float = 0.0
    """Monotonic time until which a request of it that had no response may arrive."""
    steps_aside: bool = False
    """Its patience is over: it steps aside once no such request may arrive. That would come after the next of its
    order key, and look like it."""
    out_of_order: bool = False
    """It has stepped aside: its order key goes on without it."""
    in_doubt: bool = False
    doubt: int = 0
    """Identifies the attempt that is in doubt (`relay.state.attempts.AmbiguousAttempt`)."""
    newer_than_loss: bool = False
    """It is in doubt only because a copy may have been recorded, and sent, before a loss of the state."""
    resolved: int | None = None
    """The doubt that was resolved: another attempt may begin while this doubt is the last one."""
    pinging: bool = False
    """Its endpoint is offline: the step runs to send a throw-away ping in its place."""
    down_for_s: float = 0.0
    down_since: float = 0.0
    """Duration of that outage, and its start (Unix seconds)."""
    crashes: int = 0
    suspect: bool = False
    """A process has ended while it was in memory, so code that handles it runs alone."""
    result: Result | None = None
    parked_at: Coordinate | None = None
    """Place of its parked copy, if it was taken from the due index instead of the lane's topic."""
    owes_tombstone: bool = False
    ticket: int = -1
    """Identifies its current wait in the lane's order."""
    sent: bool = False
    """An attempt is known to have been made: it is never given up for lack of room."""
    unread: bool = False
    """No worker could read its record: only its dead letter remains to be written. `row`: of a parked one."""
    unseen: bool = False
    """Its row was not looked up: the first begin does that, too."""
    leaves: bool = False
    """It has left the lane's order to be parked, and is looked up before that."""
    taken: bool = False
    """It was taken from the lane's order, and is in flight."""
    size: int = 0
    """Bytes of its record when it was taken: a step may change the headers."""
    batch: SharedRequest | None = None
    """While it is taken: that with which it shares its request."""
    batch_limit: int = 0
    """Most works in its next batch; 0 for no limit of its own."""
    shares: bool = True
    """Whether it may share a request."""
    phase: Phase = Phase.READ
    end: Done | Dead | None = None
    """Its end, once that is known; known from the beginning if it has broken its lane too often."""
    out: tuple[NewRecord, ...] = ()
    """The records to append: its hop records, or its dead letter."""
    held: int = 0
    """Bytes that it holds beside its record: of its answer, then of `out`."""
    weight: int = 0
    """Weight of `out` (`relay.engine.slices`)."""
    places: Mapping[int, Coordinate] | None = None
    """Places of the records of `out` that were acknowledged before another one turned out to be too large."""
    forms: Iterator[tuple[NewRecord, ...]] | None = None
    """Smaller forms of `out`, for a log that rejects it."""
    last_form: bool = False
    """There are no smaller forms."""
    awaited: bool = False
    """A request waits for its end, and wants a hint."""
    number: int | None = None
    """Its number among those of its endpoint; None before it has one."""
    number_given: bool = False
    """The state has given it the number; its record has none, at most its parked copy."""
    first_number: int = 0
    """That number if the state has numbered nothing of its endpoint; 0 if it gets none."""
    gaps: tuple[NumberGap, ...] = ()
    """Those that its request names."""
    numbering: Numbering | None = None
    """Its endpoint's, as of its end."""

    def __repr__(self) -> str:
        return f"<{self.endpoint_id} at {self.record.topic}/{self.record.partition}/{self.record.offset}>"

    @property
    def delivery(self) -> DeliveryId | None:
        """Its delivery, for display; None if it is not about a single one."""
        return None

    @property
    def number_request(self) -> NumberRequest:
        return NumberRequest(self.number or 0, 0 if self.number_given else self.first_number)

    def take_number(self, number: int) -> None:
        """From the state."""
        self.number_given = self.number_given or self.number is None
        self.number = number

    @property
    def post_bytes(self) -> int:
        """Bytes that it adds to a shared request."""
        return len(self.record.value or b"")


def is_awaited(work: Work, end: Done | Dead) -> bool:
    """Whether a request waits for this end: an answer or a failure, but not an answer that is still pending."""
    return work.awaited and (isinstance(end, Dead) or end.stage is not Stage.AWAITING)


W = TypeVar("W", bound=Work)
W_contra = TypeVar("W_contra", bound=Work, contravariant=True)


class LookupResult(Enum):
    """State of a record that was just read, by its rows."""

    FINISHED = "finished"
    RESUME = "resume"  # an outcome is stored (work.result) and its hop records have to be appended again
    READY = "ready"  # at work.due
    BEHIND = "behind"  # parked records of its order key come first


class Outcome(Struct, frozen=True):
    """The end of one work: its decision, and the places of its records."""

    decision: Done | Dead
    at: tuple[Coordinate, ...]


_PUBLISHED: Final = frozenset({Stage.PUBLISHED, Stage.DONE, Stage.FAILED})
FINISHED_AT: Final[Mapping[CallKind, frozenset[Stage]]] = {
    CallKind.POST: _PUBLISHED | {Stage.AWAITING},
    CallKind.POLL: _PUBLISHED,
}
"""Stages of a row at which the part of a worker of this kind is provably over."""


def ended_its_wait(row: Row, kind: CallKind) -> bool:
    """Whether the result ended a wait for an answer, so that it is for the worker that waited to publish, from a record
    of its own: that of the POST is as finished as at AWAITING."""
    if kind is not CallKind.POST or row.stage is not Stage.RESULT or row.result is None:
        return False
    return row.polls > 0 or row.result.reason in NO_ANSWER


def is_behind(work: Work, row: Row) -> bool:
    """Whether an earlier record of its order key is parked. A later one may be, if a former owner was to send this one
    first."""
    return row.behind is not None and row.behind < work.record.offset


def row_of(work: W) -> RowKey:
    """The row of a work that has one."""
    if work.row is None:
        raise AssertionError("work without a row in a table of rows")
    return work.row


def rules_of(work: Work) -> EndpointRules:
    """The rules of a work that makes a call."""
    if work.rules is None:
        raise AssertionError("a call without rules")
    return work.rules


def fill_in(work: W, row: Row, now: float, kind: CallKind) -> None:
    """Copy the facts of its row to `work`; a row of an earlier generation only shows whether a tombstone is owed.

    A stored 202 is the result of a POST; for a poll it is no result yet.
    """
    work.owes_tombstone = row.park_intent or work.parked_at is not None
    work.result = None
    if row.generation != work.generation:
        return
    work.attempts = max(work.attempts, row.attempts)
    work.sent = work.sent or row.stage is not Stage.NONE
    work.polls = row.polls
    work.last_status = row.last_status
    if row.number is not None:
        work.take_number(row.number)
        work.numbering = row.numbering
    if row.due_in_s > 0 and (work.parked_at is None or row.stage is Stage.RESULT):
        work.due = now + row.due_in_s
    if row.stage is Stage.RESULT or (row.stage is Stage.ACCEPTED and kind is CallKind.POST):
        work.result = row.result


def mark_of(work: Work, outcome: Outcome) -> Mark:
    """The mark of the row of `work`, whose hop records are acknowledged."""
    row, decision = row_of(work), outcome.decision
    awaited = work.awaited and is_awaited(work, decision)
    at = (outcome.at[0].partition, outcome.at[0].offset) if outcome.at else None
    if isinstance(decision, Dead):
        return Mark(row, work.generation, Stage.FAILED, at, REASON_CODES.get(decision.reason, 0), awaited)
    return Mark(
        row,
        work.generation,
        decision.stage,
        at if decision.stage is not Stage.AWAITING else None,
        decision.code,
        awaited,
    )


class Table(Protocol[W_contra]):
    """The rows behind a kind of work."""

    async def intake(self, lane: Lane, works: Sequence[W_contra]) -> list[LookupResult]:
        """One call for a batch: the state of each work; fills in attempts, due and result."""
        ...

    def may_begin_unseen(self, work: W_contra) -> bool:
        """Whether its begin finds out all that `intake` would."""
        ...

    def seen(self, work: W_contra, row: Row, now: float) -> LookupResult:
        """The state of a work whose row a begin has found, as from `intake`."""
        ...

    def letters_instead(self, work: W_contra, records: Sequence[NewRecord], dead: Dead) -> Sequence[NewRecord]:
        """The dead letters of the deliveries that were to begin with these records of `out`, of which no more is
        appended; none if they are no such records."""
        ...

    async def settle(self, works: Sequence[W_contra]) -> None:
        """Called before the records of works without rows are appended: stores the ends of deliveries that are among
        them, and takes those out of `out` that have ended otherwise."""
        ...

    async def mark(self, works: Sequence[tuple[W_contra, Outcome]]) -> None:
        """Mark the rows of works whose hop records are acknowledged."""
        ...


class Worker(Protocol[W]):
    """One step. `stage` names it in parked records, logs and metrics.

    `parks`: its works have rows and may be parked; otherwise its steps are harmless to repeat, and never wait for long.
    `capped`: their number is limited per owner, and a first attempt only begins if there is room. A delivery with an
    attempt has to be completed, so for its later steps only the cap over all owners counts.
    """

    stage: str
    kind: CallKind
    parks: bool
    capped: bool

    @property
    def table(self) -> Table[W]: ...

    def admit(self, record: Record) -> W | None:
        """Read a record. None if nothing remains to be done. Raises InvalidRecord: it becomes a dead letter."""
        ...

    def overdue(self, work: W) -> Dead | Done | Later | None:
        """Called right before every begin. Dead or Done: its time is over, and it ends so. Later: its time is not
        there yet; with a `pause_s` this holds in this process for all works of its endpoint."""
        ...

    def step(self, work: W) -> Step:
        """Decide, or make a request. Runs after a Go, or with `in_doubt` set and no attempt begun.

        With `pinging` set: check whether its endpoint is back. The decision is then Later, RELEASED, `healthy` or not,
        and concerns the endpoint only.
        """
        ...

    def resume(self, work: W, result: Result) -> Done | Dead:
        """The decision that `result` was stored for, with its hop records; a pure function of the two."""
        ...

    def dead_letter(self, record: Record, work: W | None, dead: Dead) -> NewRecord:
        """The dead letter for a record; `work` is None if the record could not be read."""
        ...
