"""Tables that several workers share: rows of deliveries in the state, and tables whose works are always looked up
first.

Messages with a key take the place of older ones which were not sent. The state notes the newest message of each key,
whose record its lane has. Then the end of those before it is stored in their rows, if no attempt of them has begun;
their lane writes their dead letters, as for cancelled ones. Nothing is decided without the rows: another owner of the
lane may have sent an older one in the meantime.
"""

from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any, Final, Generic

from relay.clock import Clock
from relay.domain.directory import Moves
from relay.domain.identity import digest12
from relay.domain.reasons import REPLACED, replaced_detail
from relay.engine.decision import Dead, Done
from relay.engine.work import LookupResult, Outcome, W, Work, ended_its_wait, fill_in, is_behind, mark_of, row_of
from relay.log.port import NewRecord
from relay.state.attempts import CallKind, Change, Settlement
from relay.state.port import IntakeRequest, Lane, State
from relay.state.replies import answered, of
from relay.state.rows import Result, Row, RowKey, Stage, Superseding
from workers.delivery import Delivery


class RowTable(Generic[W]):
    """Rows of deliveries. `kind`: the worker's. `finished_at`: stages at which its part is provably over."""

    def __init__(self, state: State, clock: Clock, kind: CallKind, finished_at: frozenset[Stage]) -> None:
        self._state = state
        self._clock = clock
        self._kind = kind
        self._finished_at = finished_at

    async def intake(self, lane: Lane, works: Sequence[W]) -> list[LookupResult]:
        asks = [IntakeRequest(row_of(work), work.generation, work.queue) for work in works]
        rows = await answered(self._state.intake(of(lane, asks)))
        now = self._clock.monotonic()
        return [self.seen(work, row, now) for work, row in zip(works, rows, strict=True)]

    def may_begin_unseen(self, work: W) -> bool:
        return self._kind is CallKind.POST

    def seen(self, work: W, row: Row, now: float) -> LookupResult:
        is_new = row.stage is Stage.NONE and not (row.park_intent or row.kept) and row.behind is None
        if is_new and work.parked_at is None:
            return LookupResult.READY  # the usual case: nothing to fill in
        fill_in(work, row, now, self._kind)
        if row.generation > work.generation and row.stage not in self._finished_at:
            work.owes_tombstone = False  # the parked copy may be of the later generation
            return LookupResult.FINISHED
        if row.stage in self._finished_at or ended_its_wait(row, self._kind):
            return LookupResult.FINISHED
        if row.kept and work.parked_at is None:
            work.owes_tombstone = False  # the parked copy is the obligation now
            return LookupResult.FINISHED
        if work.result is not None:
            return LookupResult.RESUME
        if is_behind(work, row):
            return LookupResult.BEHIND
        return LookupResult.READY

    def letters_instead(self, work: W, records: Sequence[NewRecord], dead: Dead) -> Sequence[NewRecord]:
        return ()

    async def settle(self, works: Sequence[W]) -> None:
        raise AssertionError("their outcomes are stored before")

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

    async def intake(self, lane: Lane, works: Sequence[Delivery]) -> list[LookupResult]:
        if any(map(_is_ahead, works)):
            await self._moves.catch_up()
        found = await super().intake(lane, works)
        if any(map(has_key, works)):
            await supersede(self._state, zip(works, found, strict=True), self._clock)
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

    def seen(self, work: Work, row: Row, now: float) -> LookupResult:
        raise AssertionError("it was looked up before")

    def letters_instead(self, work: Any, records: Sequence[NewRecord], dead: Dead) -> Sequence[NewRecord]:
        return ()

    async def settle(self, works: Sequence[Any]) -> None:
        return


# --- superseding ----------------------------------------------------------------------------------------------------


_LATE_S: Final = 3600.0
"""Seconds that a message is remembered beyond the time at which it may be sent, because clocks differ and lanes lag."""


def has_key(work: Delivery) -> bool:
    return work.timing is not None and bool(work.timing.key)


async def supersede(state: State, works: Iterable[tuple[Delivery, LookupResult]], clock: Clock) -> None:
    """For works of a lane that were just looked up, in their order.

    One that a newer one replaces gets its end, and one that waits for newer ones its due time: its deadline, if its
    window closes after that. Can be repeated.
    """
    keyed = [work for work, seen in works if _registers(work, seen)]
    if not keyed:
        return
    found = await state.supersede(list(map(_superseding, keyed)))
    ends: dict[RowKey, Settlement] = {}
    for work, result in zip(keyed, found, strict=True):
        row = row_of(work)
        if result.by is not None:
            ends[row] = _end(row, result.by, _unsent_ms(work))
        for digest in result.replaced:
            older = RowKey(row.owner, digest)
            ends[older] = _end(older, work.hop.delivery.message_id, result.at_ms)
    rows = dict(zip(ends, await answered(state.settle(list(ends.values()))), strict=True)) if ends else {}
    for work, result in zip(keyed, found, strict=True):
        end = _replaced_by(rows.get(row_of(work)))
        if end is not None:
            work.end = end
        elif result.wait_s:
            work.due = max(work.due, clock.monotonic() + min(result.wait_s, max(0.0, work.deadline_in_s(clock.time()))))


def _unsent_ms(work: Delivery) -> int:
    """When it was accepted, or due. Its age counts from the latest end of its window, which may close before."""
    return work.hop.accepted_ms - int((work.timing.window if work.timing else 0.0) * 1000)


def key_of(work: Delivery) -> bytes:
    """Digest of its key, which messages of other sources do not share."""
    if work.timing is None:
        raise AssertionError("it has no key")
    kind = "window" if work.timing.window else "key"
    return digest12("newest", work.endpoint_id, work.hop.delivery.source_id, kind, work.timing.key)


def _registers(work: Delivery, seen: LookupResult) -> bool:
    """A parked one was registered before, and one that was tried stays as it is."""
    is_new = (
        seen in (LookupResult.READY, LookupResult.BEHIND)
        and work.parked_at is None
        and not work.attempts
        and work.end is None
    )
    return is_new and has_key(work) and work.hop.origin is not None


def _superseding(work: Delivery) -> Superseding:
    hop, timing = work.hop, work.timing
    if hop.origin is None or timing is None:
        raise AssertionError("it has no key")
    recorded_ms, age_s = work.record.timestamp_ms, work.receiver.post.retry.max_age
    keep_s = max(0.0, timing.deliver_at - recorded_ms / 1000) + timing.window + age_s + _LATE_S
    place = hop.origin.partition, hop.origin.offset, recorded_ms
    return Superseding(key_of(work), row_of(work), *place, hop.delivery.message_id, keep_s, timing.window)


def _end(row: RowKey, message_id: str, unsent_ms: int) -> Settlement:
    result = Result("dead", reason=REPLACED, detail=replaced_detail(message_id))
    return Settlement(row, 0, b"", Change.RESULT, result=result, unsent_ms=unsent_ms)


def _replaced_by(row: Row | None) -> Dead | None:
    """The end that is stored, if it is this one."""
    result = None if row is None or row.generation else row.result
    return Dead(REPLACED, result.detail or "") if result is not None and result.reason == REPLACED else None
