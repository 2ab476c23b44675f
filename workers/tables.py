"""Tables that several workers share: rows of deliveries in the state, and tables whose works are always looked up
first."""

from collections.abc import Sequence
from itertools import starmap
from typing import Generic

from relay.clock import Clock
from relay.domain.directory import Moves
from relay.engine.decision import Dead, Done
from relay.engine.work import Outcome, Seen, W, Work, ended_its_wait, fill_in, is_behind, mark_of, row_of
from relay.state.attempts import CallKind
from relay.state.port import IntakeAsk, Lane, State
from relay.state.replies import answered, of
from relay.state.rows import Result, Row, Stage
from workers.delivery import Delivery
from workers.superseding import has_key, supersede


class RowTable(Generic[W]):
    """Rows of deliveries. `kind`: the worker's. `finished_at`: stages at which its part is provably over."""

    def __init__(self, state: State, clock: Clock, kind: CallKind, finished_at: frozenset[Stage]) -> None:
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
        return self._kind is CallKind.POST

    def seen(self, work: W, row: Row, now: float) -> Seen:
        is_new = row.stage is Stage.NONE and not (row.park_intent or row.kept) and row.behind is None
        if is_new and work.parked_at is None:
            return Seen.READY  # the usual case: nothing to fill in
        fill_in(work, row, now, self._kind)
        if row.generation > work.generation and row.stage not in self._finished_at:
            work.owes_tombstone = False  # the copy may be the living generation's
            return Seen.FINISHED
        if row.stage in self._finished_at or ended_its_wait(row, self._kind):
            return Seen.FINISHED
        if row.kept and work.parked_at is None:
            work.owes_tombstone = False  # the parked copy is the obligation now
            return Seen.FINISHED
        if work.result is not None:
            return Seen.RESUME
        if is_behind(work, row) and work.parked_at is None:
            return Seen.BEHIND
        return Seen.READY

    async def mark(self, works: Sequence[tuple[W, Outcome]]) -> None:
        await answered(self._state.mark(list(starmap(mark_of, works))))


class DeliveryTable(RowTable[Delivery]):
    """Rows of deliveries. If a record arrived by a move that is unknown here, the move is looked up first."""

    def __init__(self, state: State, clock: Clock, kind: CallKind, finished_at: frozenset[Stage], moves: Moves) -> None:
        super().__init__(state, clock, kind, finished_at)
        self._moves = moves

    def may_begin_unseen(self, work: Delivery) -> bool:
        if work.timing is not None and work.timing.key:
            return False
        return self._kind is CallKind.POST and not (work.hop.move and _is_ahead(work))

    async def intake(self, lane: Lane, works: Sequence[Delivery]) -> list[Seen]:
        if any(map(_is_ahead, works)):
            await self._moves.catch_up()
        found = await super().intake(lane, works)
        if any(map(has_key, works)):
            await supersede(self._state, zip(works, found, strict=True), self._clock.monotonic())
        return found


def _is_ahead(work: Delivery) -> bool:
    """Whether it arrived by a move that is unknown here."""
    return bool(work.hop.move > work.receiver.move and work.receiver.post.url)


class WithoutRows:
    """Base of a step whose works have no rows: they are not parked, and no result is stored for them."""

    kind = CallKind.POST
    parks = False
    capped = False

    def overdue(self, work: Work) -> None:
        return None

    def resume(self, work: Work, result: Result) -> Done | Dead:
        raise AssertionError("no result is stored for it")


class LookedUpFirst:
    """Base of a table whose works are always looked up before they are begun."""

    def may_begin_unseen(self, work: Work) -> bool:
        return False

    def seen(self, work: Work, row: Row, now: float) -> Seen:
        raise AssertionError("it was looked up before")
