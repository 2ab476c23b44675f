"""What a worker is to the engine: it reads records into work, and its step says what becomes of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from relay.domain.identity import DeliveryId
from relay.domain.reasons import REASON_CODES
from relay.engine.phases import Phase
from relay.log.port import Coordinate, NewRecord, Record
from relay.state.attempts import CallKind, Change, Limits
from relay.state.port import Lane
from relay.state.rows import Mark, Result, Row, RowKey, Stage

R = TypeVar("R")


class Done(Struct, frozen=True):
    """The step succeeded.

    `result` is stored before `records` are appended; when they are acknowledged the row is marked with `stage`.
    Without `result` nothing is stored first: right only where repeating the step is harmless.
    """

    records: tuple[NewRecord, ...] = ()
    stage: Stage = Stage.DONE
    code: int = 0
    result: Result | None = None
    healthy: bool | None = None
    up: bool = False
    """It answered a GET: see `Settlement`."""


class Later(Struct, frozen=True):
    """Not now; again in `due_in_s`. `change`: RETRY (not processed), DOUBT (nobody knows), RELEASED (never sent).
    `detail`: what happened, in words. `up`: it answered a GET."""

    due_in_s: float
    reason: str
    change: Change = Change.RETRY
    counted: bool = True
    last_status: int | None = None
    healthy: bool | None = None
    up: bool = False
    pause_s: float = 0.0
    detail: str | None = None


class Dead(Struct, frozen=True):
    """Given up: a dead letter, and nothing else. `reason` is one of `relay.domain.reasons.REASONS`."""

    reason: str
    detail: str = ""
    last_status: int | None = None
    healthy: bool | None = None
    pause_s: float = 0.0


class Resend(Struct, frozen=True):
    """The doubt is resolved, or the receiver does not mind: begin another attempt although one is in doubt."""


Decision = Done | Later | Dead | Resend


class Call(Struct, Generic[R], frozen=True):
    """The step asks somebody outside. `start(replied)` calls `replied` with the reply, once, later; `decide` says what
    it means. No task waits for it: thousands of these are under way."""

    start: Callable[[Callable[[R], None]], None]
    decide: Callable[[R], Decision]


Step = Decision | Call[Any]


@dataclass(frozen=True, slots=True)
class GateRules:
    """What the engine keeps to when it sends work to an endpoint from one lane.

    `max_in_flight`: of this lane. `has_share`: that is its share of the endpoint's, so that all lanes together keep to
    that although none knows of the others. `late_s`: how much later than its slot of the rate a POST may start.
    """

    limits: Limits
    max_in_flight: int
    has_share: bool = True
    late_s: float = inf
    ask_first: bool = False
    at_most_once: bool = False
    """Nobody can be asked about it, and what is in doubt may not be sent again."""
    patience_s: float = inf
    """A head that has failed for so long steps aside: others of its order key need not wait for it."""


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
"""What a record in memory waits for: the words of `waiting_for`, and those that nobody is told for one delivery.
`backlog`: room for its answer or its retry. `max_in_flight`: another request to its endpoint has to end.
`own_shortage`: something of our own is short. `configuration`: this process cannot use its endpoint's settings.
`seat`: as many requests as may are under way in the process. `turn`: nothing."""


class Work:
    """One record on its way through a lane. Workers subclass it with what they read from the record."""

    __slots__ = (
        "attempts",
        "crashes",
        "doubt",
        "down_for_s",
        "down_since",
        "due",
        "end",
        "failing_since",
        "forms",
        "gate",
        "generation",
        "held",
        "held_for",
        "in_doubt",
        "last_form",
        "newer_than_loss",
        "out",
        "out_of_order",
        "owes_tombstone",
        "parked_at",
        "phase",
        "pinging",
        "places",
        "polls",
        "queue",
        "record",
        "requested",
        "resolved",
        "result",
        "row",
        "rules",
        "sent",
        "start_by",
        "suspect",
        "taken",
        "ticket",
        "token",
        "unseen",
        "weight",
    )

    def __init__(self, record: Record, row: RowKey | None, generation: int, queue: bytes | None, gate: str) -> None:
        self.record = record
        self.row = row
        self.generation = generation
        self.queue = queue
        """Digest of the order key; None where nothing has to stay in order."""
        self.gate = gate
        """Name of the endpoint, whose caps are kept; also the owner of the row where there is one."""
        self.rules: GateRules | None = None
        """None: no call is made for this work: no begin, no settle."""
        self.attempts = 0
        self.polls = 0
        self.token = b""
        self.requested = False
        """A request was made since it was last taken up."""
        self.start_by = 0.0
        """Of what is begun: monotonic time after which its request may not start any more."""
        self.due = 0.0
        """Monotonic time before which it is not taken up."""
        self.held_for: WaitFor = "retry"
        """Until then, why."""
        self.failing_since: float | None = None
        """Monotonic time of its first failure as far as this process knows; None: it has not failed."""
        self.out_of_order = False
        """It has stepped aside: its order key goes on without it."""
        self.in_doubt = False
        self.doubt = 0
        """Names the attempt that is in doubt (`relay.state.attempts.Ambiguous`)."""
        self.newer_than_loss = False
        """It is in doubt only because the same may have been recorded, and sent, before a loss of the state."""
        self.resolved: int | None = None
        """The doubt that was resolved: another attempt may be made while that one is the last."""
        self.pinging = False
        """Its endpoint is offline: the step is run to send a throw-away ping in its place."""
        self.down_for_s = 0.0
        self.down_since = 0.0
        """So long, then."""
        self.crashes = 0
        self.suspect = False
        """A process has ended while it was in hand, so what runs with it runs alone."""
        self.result: Result | None = None
        self.parked_at: Coordinate | None = None
        """Where its parked copy is, when it was taken from the due index instead of the lane's topic."""
        self.owes_tombstone = False
        self.ticket = -1
        """Of its present wait in the lane's order."""
        self.sent = False
        """An attempt of it was made once, as far as known: it is never given up for lack of room."""
        self.unseen = False
        """Nobody has looked up its row: the first begin does that, too."""
        self.taken = False
        """It was taken from the lane's order, and is in flight."""
        self.phase = Phase.READ
        self.end: Done | Dead | None = None
        """How it ends, once that is known: where it has broken its lane too often, from the beginning."""
        self.out: tuple[NewRecord, ...] = ()
        """The records that say so: its hop records, or its dead letter."""
        self.held = 0
        """Bytes of what it has come to, beside its record: its answer, then `out`."""
        self.weight = 0
        """Of `out` (`relay.engine.slices`)."""
        self.places: Mapping[int, Coordinate] | None = None
        """Where those of `out` are that were acknowledged before one of them turned out to be too large."""
        self.forms: Iterator[tuple[NewRecord, ...]] | None = None
        """Smaller ones, for a log that does not take these."""
        self.last_form = False
        """There are no smaller ones."""

    def __repr__(self) -> str:
        return f"<{self.gate} at {self.record.topic}/{self.record.partition}/{self.record.offset}>"

    @property
    def delivery(self) -> DeliveryId | None:
        """Which delivery it is about, for people; None: no single one."""
        return None

    @property
    def awaited(self) -> bool:
        """A request waits for its end, and wants a hint."""
        return False


class Unread(Work):
    """A record that nothing can be made of: only its dead letter remains to be written. `row`: of a parked one."""

    __slots__ = ()


def is_awaited(work: Work, end: Done | Dead) -> bool:
    """Whether a request waits for just this end: an answer, or its failure; that the answer comes later is none."""
    return work.awaited and (isinstance(end, Dead) or end.stage is not Stage.AWAITING)


W = TypeVar("W", bound=Work)
W_contra = TypeVar("W_contra", bound=Work, contravariant=True)


class Seen(Enum):
    """What the rows say of a record that was just read."""

    FINISHED = "finished"
    RESUME = "resume"  # an outcome is stored (work.result) and its hop records have to be appended again
    READY = "ready"  # at work.due
    BEHIND = "behind"  # parked records of its order key come first


class Outcome(Struct, frozen=True):
    """The end of one work: its decision, and where its records are now."""

    decision: Done | Dead
    at: tuple[Coordinate, ...]


_PUBLISHED: Final = frozenset({Stage.PUBLISHED, Stage.DONE, Stage.FAILED})
FINISHED_AT: Final[Mapping[CallKind, frozenset[Stage]]] = {
    CallKind.POST: _PUBLISHED | {Stage.AWAITING},
    CallKind.POLL: _PUBLISHED,
}
"""Stages of a row at which the part of a worker of this kind is provably over."""


def row_of(work: W) -> RowKey:
    """The row of a work that has one."""
    if work.row is None:
        raise AssertionError("work without a row in a table of rows")
    return work.row


def fill_in(work: W, row: Row, now: float, kind: CallKind) -> None:
    """Let `work` know what its row knows; a row of an earlier generation says only whether a tombstone is owed.

    A stored 202 is the result of a POST; to a poll it says nothing yet.
    """
    work.owes_tombstone = row.park_intent or work.parked_at is not None
    work.result = None
    if row.generation != work.generation:
        return
    work.attempts = max(work.attempts, row.attempts)
    work.sent = work.sent or row.stage is not Stage.NONE
    work.polls = row.polls
    if row.due_in_s > 0 and work.parked_at is None:
        work.due = now + row.due_in_s
    if row.stage is Stage.RESULT or (row.stage is Stage.ACCEPTED and kind is CallKind.POST):
        work.result = row.result


def mark_of(row: RowKey, work: W, outcome: Outcome) -> Mark:
    """What becomes of a row when its hop records are acknowledged."""
    decision, awaited = outcome.decision, is_awaited(work, outcome.decision)
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

    async def intake(self, lane: Lane, works: Sequence[W_contra]) -> list[Seen]:
        """One call for a batch: what is known of each; fills in attempts, due and result."""
        ...

    def may_begin_unseen(self, work: W_contra) -> bool:
        """Whether its begin finds out all that `intake` would."""
        ...

    def seen(self, work: W_contra, row: Row, now: float) -> Seen:
        """What the row that a begin has found says of it, as `intake` does."""
        ...

    async def mark(self, works: Sequence[tuple[W_contra, Outcome]]) -> None:
        """The hop records of these are acknowledged."""
        ...


class Worker(Protocol[W]):
    """One step. `stage` names it in parked records, logs and metrics.

    `parks`: its works have rows and may be parked; else its steps are harmless to repeat, and never wait for long.
    `capped`: their number is limited per owner: nothing is begun for which there is no room. What comes after a first
    attempt has to be brought to its end, so there only the cap over all owners counts.
    """

    stage: str
    kind: CallKind
    parks: bool
    capped: bool

    @property
    def table(self) -> Table[W]: ...

    def admit(self, record: Record) -> W | None:
        """Read a record. Raises InvalidRecord: a dead letter. None: all about it is done, and known to be."""
        ...

    def overdue(self, work: W) -> Dead | Done | Later | None:
        """Asked right before every begin: whether its time is over, and how it ends then; Later: not come yet, and
        with a `pause_s` neither has that of any other work of its endpoint, as far as this process goes."""
        ...

    def step(self, work: W) -> Step:
        """Say what becomes of it. Runs after a Go, or with `in_doubt` set and no attempt begun.

        With `pinging` set: ask its endpoint whether it is back. What comes of that is Later, RELEASED, `healthy` or
        not; it says nothing about the work.
        """
        ...

    def resume(self, work: W, result: Result) -> Done | Dead:
        """The decision that `result` was stored for, with its hop records; a pure function of the two."""
        ...

    def bury(self, record: Record, work: W | None, dead: Dead) -> NewRecord:
        """The dead letter for a record; `work` is None where the record could not be read."""
        ...
