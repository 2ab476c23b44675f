"""Executes commands: makes their calls to the ports. A call is repeated while its server is unavailable, never skipped.

Each call is safe to repeat as a whole. The order of its steps is safe for a crash between any two of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from relay.clock import Clock
from relay.domain.errors import LogUnavailable, PartitionLost, PartlyAppended, RecordTooLarge, Unavailable
from relay.domain.hold import Hold
from relay.domain.topics import TopicSpec
from relay.engine import attempt, parking
from relay.engine.commands import Alone, CallQueue
from relay.engine.completion import TOO_LITTLE
from relay.engine.decision import Call, Dead
from relay.engine.holding import Holding
from relay.engine.lane import Lane
from relay.engine.parked_copy import ParkedCopy, life_key, lost_copy, parked_key, second_copy, wrap
from relay.engine.parked_index import DueQuery, DueReply, ParkResult, Stored
from relay.engine.parked_quota import ParkingQuota, within
from relay.engine.parked_reader import ParkedReader, check_cluster
from relay.engine.quarantine import ReservationResult
from relay.engine.settlement import ToSettle
from relay.engine.slices import SLICE_BYTES, Slices, note_places, places_of
from relay.engine.supervision import Retrier
from relay.engine.work import FINISHED_AT, LookupResult, Outcome, Work, ended_its_wait, is_behind, mark_of, row_of
from relay.log.port import AT_ONCE, Coordinate, Log, NewRecord, size_of
from relay.state.attempts import CallKind, Verdict
from relay.state.port import IntakeRequest, State
from relay.state.replies import Refusal, answered, of
from relay.state.rows import Due, DueRequest, ParkedLife, Row, tag_of
from relay.state.rows import Parked as Reference

T = TypeVar("T")
A = TypeVar("A")

AnyLane = Lane[Any]
_since: Final = attrgetter("since")


class Effects:
    """One for all lanes of a process. `parked`: `parked_messages`."""

    def __init__(
        self, log: Log, state: State, clock: Clock, retrier: Retrier, holding: Holding, parked: TopicSpec
    ) -> None:
        self._log = log
        self._state = state
        self._clock = clock
        self._retrier = retrier
        self._holding = holding
        self._parked = parked
        self._one_suspect = asyncio.Lock()
        self._room = ParkingQuota(state, clock, retrier)
        self._parked_reader = ParkedReader(log, retrier, parked)
        self.execute: Final[Mapping[CallQueue, Callable[[AnyLane, Sequence[Any]], Awaitable[Any]]]] = {
            CallQueue.LOOK_UP: self._look_up,
            CallQueue.BEGIN: self._begin,
            CallQueue.SETTLE: self._settle,
            CallQueue.SETTLE_PING: self._settle,
            CallQueue.APPEND: self._append,
            CallQueue.MARK: self._mark,
            CallQueue.RETIRE: self._retire,
            CallQueue.PARK: self._park,
            CallQueue.LOOK_BEHIND: self._look_behind,
            CallQueue.TAKE_DUE: self._take_due,
            CallQueue.RESERVE: self._reserve,
        }
        """Each makes the calls of one command, and returns their result. Raises PartitionLost if a newer owner has the
        lane, and RecordTooLarge."""

    @property
    def state(self) -> State:
        return self._state

    async def _answer(self, what: str, call: Callable[[A], Awaitable[Sequence[T | Refusal]]], asks: A) -> list[T]:
        """The reply to each of `asks`. While the state is unavailable, the call is repeated."""
        try:
            return await answered(call(asks))
        except Unavailable as error:
            return await self._retrier.again(what, error, lambda: answered(call(asks)))

    # rows and attempts

    async def _look_up(self, lane: AnyLane, works: Sequence[Work]) -> Sequence[LookupResult]:
        table, owned = lane.worker.table, lane.setup.lane
        return await self._retrier.until_done(CallQueue.LOOK_UP.value, partial(table.intake, owned, works))

    async def _begin(self, lane: AnyLane, works: Sequence[Work]) -> Sequence[Verdict]:
        share = await self._room.share_to_retry(lane.setup.bounds) if self._room.crowded else None
        asks = attempt.begin_requests(lane, works, self._clock.monotonic())
        if share is not None:
            asks = [within(ask, share) for ask in asks]
        return await self._answer(CallQueue.BEGIN.value, self._state.begin, of(lane.setup.lane, asks))

    async def _settle(self, lane: AnyLane, settled: Sequence[ToSettle]) -> Sequence[tuple[ToSettle, Row | None]]:
        """An endpoint is held before the outcome is stored: a work that is redelivered causes the hold again, but one
        that has ended does not."""
        held: dict[str, Hold] = {}
        settlements = []
        for each in settled:
            settlements.append(each.settlement)
            if each.hold is not None:
                owner = each.work.endpoint_id
                held[owner] = max(each.hold, held.get(owner, each.hold), key=_since)
        for owner, hold in held.items():
            if not await self._retrier.until_done("hold an endpoint", partial(self._holding.hold, owner, hold)):
                settled = [each._replace(hold=None) if each.work.endpoint_id == owner else each for each in settled]
        rows = await self._answer(CallQueue.SETTLE.value, self._state.settle, settlements)
        return list(zip(settled, rows, strict=True))

    # the way out

    async def _append(self, lane: AnyLane, works: Sequence[Work]) -> Sequence[Coordinate]:
        if not lane.worker.parks:
            await self._retrier.until_done(CallQueue.SETTLE.value, partial(lane.worker.table.settle, works))
        records: list[NewRecord] = []
        weight, partly = 0, False
        for work in works:
            records += work.out
            weight += work.weight
            partly = partly or bool(work.places)
        rest = Slices(records, places_of(works) if partly else None, weight=weight)
        last = len(works) == 1 and works[0].last_form
        call = partial(self._appended, rest, is_last_form=last)
        try:
            return await self._retrier.until_done(CallQueue.APPEND.value, call)
        except RecordTooLarge:
            note_places(works, rest.places)
            raise

    async def _append_all(self, what: str, records: Sequence[NewRecord]) -> Sequence[Coordinate]:
        return await self._retrier.until_done(what, partial(self._appended, Slices(records)))

    async def _appended(self, rest: Slices, *, is_last_form: bool = False) -> Sequence[Coordinate]:
        """Append slice after slice. It is repeated with records that are not acknowledged."""
        try:
            while some := rest.next():
                at = await self._log.append(some)
                if len(at) == len(rest.records):  # nearly always
                    return at
                rest.acknowledged(at)
            return rest.all_places()
        except PartlyAppended as error:
            rest.partly(error.places)
            raise
        except RecordTooLarge as error:
            if is_last_form:  # no message is the cause, and an operator can fix it
                raise LogUnavailable(f"{error}: {TOO_LITTLE}") from error
            raise RecordTooLarge(str(error), rest.indexes(error.rejected)) from error

    async def _mark(self, lane: AnyLane, outcomes: Sequence[tuple[Work, Outcome]]) -> None:
        own: list[tuple[Work, Outcome]] = []
        unread: list[tuple[Work, Outcome]] = []
        for each in outcomes:
            (unread if each[0].unread else own).append(each)
        if own:
            await self._retrier.until_done(CallQueue.MARK.value, partial(lane.worker.table.mark, own))
        if unread:
            await self._answer(CallQueue.MARK.value, self._state.mark, [mark_of(*each) for each in unread])

    async def _retire(self, lane: AnyLane, works: Sequence[Work]) -> Sequence[bool]:
        await self._append_all("append tombstones", self._tombstones(lane, works))
        lives = [ParkedLife(row_of(work), work.generation, work.queue) for work in works]
        return await self._answer("remove parked references", self._state.unpark, of(lane.setup.lane, lives))

    def _tombstones(self, lane: AnyLane, works: Sequence[Work]) -> list[NewRecord]:
        stage = lane.worker.stage
        keys = [parked_key(stage, row_of(work)) for work in works]
        keys += [life_key(stage, row_of(work), work.generation) for work in works if work.generation]
        return [NewRecord(self._parked.name, key, None) for key in keys]

    # parking

    async def _park(self, lane: AnyLane, works: Sequence[Work]) -> list[ParkResult]:
        """Intent in the state, copy on the log, reference in the state: in this order, so that a crash between any two
        leaves the record either uncommitted or referenced, and each parked copy has an intent or a reference."""
        refusals = await self._room.refusals(lane, works)
        allowed = [work for work, refusal in zip(works, refusals, strict=True) if refusal is None]
        stored = iter(await self._store_what_fits(lane, allowed) if allowed else [])
        return [next(stored) if refusal is None else refusal for refusal in refusals]

    async def _store_what_fits(self, lane: AnyLane, works: Sequence[Work]) -> list[ParkResult]:
        """A copy is a little larger than its record, and may be too large for its topic."""
        try:
            return await self._store(lane, works)
        except RecordTooLarge as error:
            if len(works) > 1:
                return [one for each in works for one in await self._store_what_fits(lane, [each])]
            return [Dead("too_large", f"it has to wait, and cannot be parked: {error}")]

    async def _store(self, lane: AnyLane, works: Sequence[Work]) -> list[ParkResult]:
        owned, stage = lane.setup.lane, lane.worker.stage
        poll = lane.worker.kind is CallKind.POLL
        rows = of(owned, map(row_of, works))
        await self._answer("mark the intent to park", self._state.intend_to_park, rows)
        now, wall = self._clock.monotonic(), self._clock.time()
        copies = [
            wrap(
                self._parked.name,
                stage,
                work,
                row_of(work),
                due_ms=int((wall + max(0.0, work.due - now)) * 1000),
                poll=poll,
            )
            for work in works
        ]
        copies += [
            second_copy(copy, stage, row_of(work), work.generation)
            for copy, work in zip(copies, works, strict=True)
            if work.generation
        ]
        at = await self._append_all("append parked copies", copies)
        now = self._clock.monotonic()  # the log may have been away for long
        references = [
            _reference(work, where, max(0.0, work.due - now), poll=poll)
            for work, where in zip(works, at[: len(works)], strict=True)
        ]
        try:
            put = await self._answer("park references", self._state.park, of(owned, references))
        except PartitionLost:
            await self._withdraw(lane, works)
            raise
        if lane.left or not all(put):  # an end without an attempt fences no former owner
            await self._withdraw(lane, works)
        lane.setup.observer.parked(owned.topic, sum(put))
        return [Stored.PARKED if one else Stored.NOT_NEEDED for one in put]

    async def _withdraw(self, lane: AnyLane, works: Sequence[Work]) -> None:
        """Remove copies of a former owner if the new one has finished the works: they may be behind its tombstones. And
        its intents, if no newer epoch is known, as then the new one has ended the works without a look at these."""
        rows = await self._answer(CallQueue.LOOK_UP.value, self._state.peek, list(map(row_of, works)))
        kind = lane.worker.kind
        over = [work for work, row in zip(works, rows, strict=True) if _is_over(work.generation, row, kind)]
        await self._retire(lane, over)

    async def _look_behind(self, lane: AnyLane, works: Sequence[Work]) -> list[bool]:
        """For each work, whether no record of its order key is parked before it."""
        asks = [IntakeRequest(row_of(work), work.generation, work.queue) for work in works]
        rows = await self._answer(CallQueue.LOOK_BEHIND.value, self._state.intake, of(lane.setup.lane, asks))
        return [not (row.kept or is_behind(work, row)) for work, row in zip(works, rows, strict=True)]

    async def hand_back(self, lane: AnyLane) -> None:
        """Make works from the due index that have not ended due for the next owner at once, instead of when their
        leases end. If it fails, the leases still end."""
        poll = lane.worker.kind is CallKind.POLL
        references = [_reference(work, work.parked_at, 0.0, poll=poll) for work in lane.taken_up()]
        if references:
            with suppress(Unavailable, PartitionLost):
                await answered(self._state.park(of(lane.setup.lane, references)))

    # due records

    async def _take_due(self, lane: AnyLane, asked: Sequence[DueQuery]) -> DueReply:
        (asked_for,) = asked
        owned, tags = lane.setup.lane, asked_for.tags
        taken = list(asked_for.left)
        if asked_for.limit:
            asks = of(owned, [DueRequest(tag, asked_for.limit, asked_for.token) for tag in tags])
            lease_s = lane.setup.bounds.lease_s
            parts = await self._answer(CallQueue.TAKE_DUE.value, partial(self._state.take_due, lease_s=lease_s), asks)
            taken = [due for part in parts for due in part]
        first = await self._answer("look up due records", self._state.next_due, of(owned, tags))
        upcoming = {tag: in_s for tag, in_s in zip(tags, first, strict=True) if in_s is not None}
        wanted = parking.wanted(lane, taken, self._clock.monotonic())
        copies, promoted, left = await self._read(lane, wanted) if wanted else ((), (), ())
        return DueReply(upcoming, copies, promoted, left)

    async def _read(self, lane: AnyLane, taken: Sequence[Due]) -> tuple[list[ParkedCopy], list[str], list[Due]]:
        """Their copies; owners for which something became due, as a left-over reference was removed; and those without
        room for their copies."""
        found: list[ParkedCopy] = []
        missing: list[Due] = []
        gone: list[Due] = []
        without_room: set[bytes] = set()
        start, count, room = 0, AT_ONCE, lane.due_index.room
        while some := taken[start : start + count]:
            start += len(some)
            read = await self._parked_reader.read(lane.worker.stage, some, missing)
            for copy in read:
                if room > 0 or not found:
                    found.append(copy)
                    room -= size_of(copy.record)
                else:
                    without_room.add(copy.row.digest)
            if room <= 0:
                break
            size = sum([size_of(copy.record) for copy in read])
            count = max(1, len(read) * min(room, SLICE_BYTES) // max(1, size))
        left = [*(due for due in taken[:start] if due.row.digest in without_room), *taken[start:]]
        removed = await self._parked_reader.search(lane.worker.stage, missing, found, gone) if missing else []
        taken_over = {copy.row.digest for copy in found if copy.record.coordinate[:2] != lane.partition}
        found = [copy for copy in found if copy.row.digest not in taken_over]
        if gone:
            gone = await self._finished(lane, gone, found)
        removed += [due for due in taken if due.row.digest in taken_over]
        return found, await self._forget(lane, [*removed, *gone]), left

    async def _finished(self, lane: AnyLane, gone: Sequence[Due], found: list[ParkedCopy]) -> list[Due]:
        """Those that were finished before their copies were removed. The log has lost the others; but while rows are
        missing after a loss of the state, that is unknown, and they are left to their leases."""
        finished: list[Due] = []
        lost: list[ParkedCopy] = []
        tags = sorted({tag_of(due.row.owner) for due in gone})
        gaps = await self._retrier.until_done("ask for missing rows", lambda: self._state.gaps(tags))
        asks = [IntakeRequest(due.row, due.generation, None) for due in gone]
        rows = await self._answer(CallQueue.LOOK_UP.value, self._state.intake, of(lane.setup.lane, asks))
        kind = lane.worker.kind
        for due, row in zip(gone, rows, strict=True):
            if _is_over(due.generation, row, kind):
                finished.append(due)
            elif tag_of(due.row.owner) not in gaps:
                lost.append(lost_copy(due, parked_key(lane.worker.stage, due.row), row))
        if lost:
            await self._retrier.until_done("find parked messages", partial(check_cluster, self._log, self._state))
            found += lost
        return finished

    async def _forget(self, lane: AnyLane, gone: Sequence[Due]) -> list[str]:
        """Their tombstones are on the log, so they are over, but a process died before it removed their references.
        These would block their order keys forever. Or another lane has parked them since: they are its own now, and
        these would wait for each other, as a delivery may be replayed twice while its receiver moves."""
        if not gone:
            return []
        left = of(lane.setup.lane, [ParkedLife(due.row, due.generation) for due in gone])
        promoted = await self._answer("remove left-over references", self._state.unpark, left)
        return [due.row.owner for due, next_is_due in zip(gone, promoted, strict=True) if next_is_due]

    # after an abnormal end

    async def _reserve(self, lane: AnyLane, before: Sequence[int]) -> ReservationResult:
        owned, at = lane.setup.lane, lane.partition
        remains = await self._retrier.until_done(CallQueue.RESERVE.value, lambda: self._state.reserve(owned, before[0]))
        if remains is None:
            return ReservationResult(None, 0)
        ends = await self._retrier.until_done("ask for the log's end", lambda: self._log.ends([at]))
        return ReservationResult(remains, ends[at])

    async def run_alone(self, lane: AnyLane, alone: Alone, ask: Callable[[Work, Call[Any]], None]) -> Any:
        """The result of its part; None if that is a request, which `ask` makes."""
        if alone.times is None or lane.left:
            return _run(alone, ask, self._clock.monotonic())
        async with self._one_suspect:
            if lane.left:  # meanwhile
                return _run(alone, ask, self._clock.monotonic())
            await self._suspect(lane, alone.record.offset, alone.times)
            found = _run(alone, ask, self._clock.monotonic())
            await self._suspect(lane, alone.record.offset, 0)
        return found

    async def _suspect(self, lane: AnyLane, offset: int, times: int) -> None:
        await self._retrier.until_done("mark a suspect", lambda: self._state.suspect(lane.setup.lane, offset, times))

    async def leave(self, lane: AnyLane) -> None:
        """The lane ends properly: its next owner has no suspects. If this fails, that owner is wary without need."""
        with suppress(Unavailable):
            for offset, times in lane.marks_left():  # stopped in between, which says nothing about the record
                await self._state.suspect(lane.setup.lane, offset, times)
            if not lane.quarantine.leaves_behind(lane.next_offset, self._clock.monotonic()):
                await self._state.leave(lane.setup.lane)


def _reference(work: Work, at: Coordinate, due_in_s: float, *, poll: bool) -> Reference:
    return Reference(row_of(work), work.generation, at, due_in_s, work.queue, work.record.offset, poll)


def _is_over(generation: int, row: Row, kind: CallKind) -> bool:
    """The row may still be that of an earlier life, whose end says nothing of this one."""
    if row.generation != generation:
        return row.generation > generation
    return row.stage in FINISHED_AT[kind] or ended_its_wait(row, kind)


def _run(alone: Alone, ask: Callable[[Work, Call[Any]], None], now: float) -> Any:
    found = alone.part(now)
    if alone.work is None or not isinstance(found, Call):
        return found
    ask(alone.work, found)
    return None
