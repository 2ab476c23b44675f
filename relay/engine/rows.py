"""The table of work that has a row in the state: deliveries, and with them polls."""

from collections.abc import Sequence
from typing import Generic

from relay.clock import Clock
from relay.domain.reasons import REASON_CODES
from relay.engine.work import Dead, Outcome, Seen, W, is_awaited
from relay.state.attempts import Kind
from relay.state.port import IntakeAsk, Lane, State
from relay.state.replies import answered, of
from relay.state.rows import Mark, Row, RowKey, Stage


class RowTable(Generic[W]):
    """Rows of deliveries. `kind`: the worker's. `finished_at`: stages at which its part is provably over."""

    def __init__(self, state: State, clock: Clock, kind: Kind, finished_at: frozenset[Stage]) -> None:
        self._state = state
        self._clock = clock
        self._kind = kind
        self._finished_at = finished_at

    async def intake(self, lane: Lane, works: Sequence[W]) -> list[Seen]:
        asks = [IntakeAsk(row_of(work), work.generation, work.queue) for work in works]
        rows = await answered(self._state.intake(of(lane, asks)))
        now = self._clock.monotonic()
        return [self.seen(work, row, now) for work, row in zip(works, rows, strict=True)]

    def may_begin_unseen(self, work: W) -> bool:
        return self._kind is Kind.POST

    def seen(self, work: W, row: Row, now: float) -> Seen:
        if row.stage is Stage.NONE and not (row.park_intent or row.kept or row.behind) and work.parked_at is None:
            return Seen.READY  # as most are: there is nothing to fill in
        fill_in(work, row, now, self._kind)
        if row.generation > work.generation and row.stage not in self._finished_at:
            work.owes_tombstone = False  # the copy may be that of the living generation
            return Seen.FINISHED
        if row.stage in self._finished_at:
            return Seen.FINISHED
        if row.kept and work.parked_at is None:
            work.owes_tombstone = False  # the parked copy is the obligation now
            return Seen.FINISHED
        if work.result is not None:
            return Seen.RESUME
        if row.behind and work.parked_at is None:
            return Seen.BEHIND
        return Seen.READY

    async def mark(self, works: Sequence[tuple[W, Outcome]]) -> None:
        await answered(self._state.mark([mark_of(row_of(work), work, outcome) for work, outcome in works]))


def row_of(work: W) -> RowKey:
    """The row of a work that has one."""
    if work.row is None:
        raise AssertionError("work without a row in a table of rows")
    return work.row


def fill_in(work: W, row: Row, now: float, kind: Kind) -> None:
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
    if row.stage is Stage.RESULT or (row.stage is Stage.ACCEPTED and kind is Kind.POST):
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
