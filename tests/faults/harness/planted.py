"""Planted bugs: each breaks the relay of this process in one way, to prove that the experiments detect it. They replace
methods of the engine, of the workers' tables, or a rule of the state, so they work with every log and state. A process
under test enters one before it starts.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from msgspec import structs

import relay.engine.effects
import relay.engine.parked_copy
import relay.run.lanes
import relay.state.redis.calls
import tests.fakes.state_records
from relay.domain.errors import PartitionLost
from relay.domain.topics import Topics
from relay.engine import attempt
from relay.engine.core import HANDLERS
from relay.engine.decision import Dead, Done
from relay.engine.effects import Effects
from relay.engine.lane import Lane, Watermark
from relay.engine.observer import Recovered
from relay.engine.parked_copy import parked_key, wrap
from relay.engine.parked_index import ParkResult, Stored
from relay.engine.parking import TOKEN_BYTES
from relay.engine.phases import Event, Phase, advance
from relay.engine.settlement import ToSettle
from relay.engine.work import LookupResult, Outcome, row_of
from relay.log.partitioner import partition_of
from relay.log.port import Coordinate, NewRecord
from relay.recovery.recovery_pass import Recovery
from relay.state.attempts import BeginRequest, CallKind, Go, Verdict
from relay.state.port import Lane as LaneId
from relay.state.replies import Refusal, answered, of
from relay.state.rows import Mark, ParkedLife, Row, RowKey, Stage
from relay.state.rows import Parked as Reference
from tests.fakes.state_records import Records
from tests.fakes.state_rows import Free, Rows, StoredRow
from tests.fakes.state_rows import mark as mark_row
from tests.faults.harness.planted_bounds import PLANTED_IN_BOUNDS, changed_script
from tests.faults.harness.planted_logs import PLANTED_IN_LOGS
from tests.faults.harness.planted_routes import PLANTED_IN_ROUTES
from tests.faults.harness.planted_times import PLANTED_IN_TIMES
from workers.from_sender import Incoming, MessageTable
from workers.tables import DeliveryTable, RowTable
from workers.to_sender import Callback, CallbackTable

AnyWork = Any
"""A patched method serves the works of all five workers."""
AnyLane = Lane[Any]
NOWHERE = Coordinate("", 0, 0)


@contextmanager
def mark_before_produce() -> Iterator[None]:
    """Rows are marked before their hop records are acknowledged."""

    async def append(self: Effects, lane: AnyLane, works: Sequence[AnyWork]) -> Sequence[Coordinate]:
        placeless = [(work, Outcome(work.end, (NOWHERE,) * len(work.out))) for work in works if work.row is not None]
        await mark_rightly(self, lane, placeless)
        return await append_rightly(self, lane, works)

    async def mark(self: Effects, lane: AnyLane, outcomes: Sequence[tuple[AnyWork, Outcome]]) -> None:
        await mark_rightly(self, lane, [(work, outcome) for work, outcome in outcomes if work.row is None])

    append_rightly, mark_rightly = Effects._append, Effects._mark
    with patch.object(Effects, "_append", append), patch.object(Effects, "_mark", mark):
        yield


@contextmanager
def delete_at_done() -> Iterator[None]:
    """Finished rows of messages and deliveries are not kept."""

    async def mark_rows(self: RowTable[AnyWork], works: Sequence[tuple[AnyWork, Outcome]]) -> None:
        over = [row_of(work) for work, outcome in works if _is_over(outcome.decision)]
        living = [(work, outcome) for work, outcome in works if not _is_over(outcome.decision)]
        if living:
            await rightly(self, living)
        if over:
            await answered(self._state.forget(over))

    async def mark_callbacks(self: CallbackTable, works: Sequence[tuple[Callback, Outcome]]) -> None:
        await answered(self._state.forget([work.delivery_key for work, _ in works if not work.failed]))
        await answered(self._state.forget([row_of(work) for work, _ in works]))

    async def mark_messages(self: MessageTable, works: Sequence[tuple[Incoming, Outcome]]) -> None:
        return

    rightly = RowTable.mark
    with (
        patch.object(RowTable, "mark", mark_rows),
        patch.object(CallbackTable, "mark", mark_callbacks),
        patch.object(MessageTable, "mark", mark_messages),
    ):
        yield


@contextmanager
def commit_before_produce() -> Iterator[None]:
    """Records count as finished once they were read: they are committed before their hop records are acknowledged, or
    even appended."""
    with patch.object(Watermark, "next_offset", property(lambda self: self.seen_next)):
        yield


@contextmanager
def skip_on_delivered() -> Iterator[None]:
    """A stored outcome counts as the end, although its hop record is not acknowledged."""

    def seen(self: RowTable[AnyWork], work: AnyWork, row: Row, now: float) -> LookupResult:
        what = rightly(self, work, row, now)
        return LookupResult.FINISHED if what is LookupResult.RESUME else what

    rightly = RowTable.seen
    with patch.object(RowTable, "seen", seen):
        yield


@contextmanager
def no_settle() -> Iterator[None]:
    """The status endpoint is asked at once about an attempt in doubt, while the POST may still arrive."""

    def asks(lane: AnyLane, works: Sequence[AnyWork], now: float) -> list[BeginRequest]:
        asked = rightly(lane, works, now)
        return [structs.replace(one, limits=replace(one.limits, settle_s=0.0)) for one in asked]

    rightly = attempt.begin_requests
    with patch.object(attempt, "begin_requests", asks):
        yield


@contextmanager
def no_fence() -> Iterator[None]:
    """Every owner has the same, highest epoch, so none is ever fenced."""

    def lane(topic: str, partition: int, epoch: int) -> LaneId:
        return LaneId(topic, partition, 2**31 - 1)

    with patch.object(relay.run.lanes, "LaneId", lane):
        yield


@contextmanager
def no_life_in_removals() -> Iterator[None]:
    """A parked reference is removed for any generation, and by any owner. Changes the state in memory, and the script
    that this process has Redis run."""

    async def unpark(self: Records, lives: Sequence[tuple[LaneId, ParkedLife]]) -> list[bool | Refusal]:
        return [self._refused_owner(life.row.owner) or self._unpark(lane, any_of(life)) for lane, life in lives]

    def any_of(life: ParkedLife) -> ParkedLife:
        return life._replace(generation=2**31)

    with (
        patch.object(Records, "unpark", unpark),
        changed_script(
            "unpark", (b"if not holds(lane, epoch) then", b"if false then"), (b"old[5] > generation", b"false")
        ),
    ):
        yield


@contextmanager
def no_life_in_tombstones() -> Iterator[None]:
    """All generations of a delivery are parked under the same key."""

    def key(stage: str, row: RowKey, generation: int) -> bytes:
        return parked_key(stage, row)

    with patch.object(relay.engine.effects, "life_key", key), patch.object(relay.engine.parked_copy, "life_key", key):
        yield


@contextmanager
def non_monotone_stage() -> Iterator[None]:
    """A late mark lowers the stage of a row. Changes the state in memory, and the script that this process has Redis
    run."""

    def mark(rows: Rows, one: Mark, now: float, free: Free) -> None:
        row = rows.load(one.row.digest, now)
        if row is not None and row.generation == one.generation and row.stage > one.stage:
            rows.finished.pop(one.row.digest, None)
            rows.active[one.row.digest] = StoredRow(row.generation, attempts=row.attempts, expires=row.expires)
        mark_row(rows, one, now, free)

    with (
        patch.object(tests.fakes.state_records, "mark", mark),
        changed_script("mark", (b"return row.s < stage", b"return true")),
    ):
        yield


@contextmanager
def dlq_not_acked() -> Iterator[None]:
    """Dead letters are neither awaited nor repeated."""
    under_way: set[asyncio.Task[None]] = set()

    def send(self: Effects, letter: NewRecord) -> None:
        async def once() -> None:
            await asyncio.sleep(0.01)  # as if it were in a producer's buffer
            with suppress(Exception):
                await self._log.append([letter])

        task = asyncio.create_task(once())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    async def append(self: Effects, lane: AnyLane, works: Sequence[AnyWork]) -> Sequence[Coordinate]:
        done = [work for work in works if not isinstance(work.end, Dead)]
        at = iter(await rightly(self, lane, done))
        for work in works:
            if isinstance(work.end, Dead):
                send(self, work.out[0])
        return [NOWHERE if isinstance(work.end, Dead) else next(at) for work in works for _ in work.out]

    rightly = Effects._append
    with patch.object(Effects, "_append", append):
        yield


@contextmanager
def index_before_park() -> Iterator[None]:
    """The due reference is written before the parked copy is on the log. (The reference does not need the copy's
    offset: the newest record of its key counts.)"""

    async def store(self: Effects, lane: AnyLane, works: Sequence[AnyWork]) -> list[ParkResult]:
        state, owned, stage, topic = self._state, lane.setup.lane, lane.worker.stage, self._parked.name
        until_done, poll = self._retrier.until_done, lane.worker.kind is CallKind.POLL
        rows = of(owned, map(row_of, works))
        await until_done("mark the intent to park", lambda: answered(state.intend_to_park(rows)))
        now, wall = self._clock.monotonic(), self._clock.time()
        due = [max(0.0, work.due - now) for work in works]
        references = [
            Reference(
                row_of(work), work.generation, _place(topic, stage, work), wait, work.queue, work.record.offset, poll
            )
            for work, wait in zip(works, due, strict=True)
        ]
        put = await until_done("park references", lambda: answered(state.park(of(owned, references))))
        copies = [
            wrap(topic, stage, work, row_of(work), due_ms=int((wall + wait) * 1000), poll=poll)
            for work, wait in zip(works, due, strict=True)
        ]
        await until_done("append parked copies", lambda: self._log.append(copies))
        lane.setup.observer.parked(owned.topic, sum(put))
        return [Stored.PARKED if one else Stored.NOT_NEEDED for one in put]

    with patch.object(Effects, "_store", store):
        yield


@contextmanager
def tombstone_before_hop() -> Iterator[None]:
    """A parked copy and its reference are removed before the hop records of its delivery are acknowledged."""

    promoted: dict[int, bool] = {}

    async def append(self: Effects, lane: AnyLane, works: Sequence[AnyWork]) -> Sequence[Coordinate]:
        owing = [work for work in works if work.owes_tombstone]
        freed = await retire_rightly(self, lane, owing) if owing else []
        promoted.update(zip(map(id, owing), freed, strict=True))
        return await append_rightly(self, lane, works)

    async def retire(self: Effects, lane: AnyLane, works: Sequence[AnyWork]) -> Sequence[bool]:
        return [promoted.pop(id(work), False) for work in works]

    append_rightly, retire_rightly = Effects._append, Effects._retire
    with patch.object(Effects, "_append", append), patch.object(Effects, "_retire", retire):
        yield


@contextmanager
def ready_before_recovery() -> Iterator[None]:
    """After a loss of state a tag is made ready before its parked copies are put back."""

    async def recover(self: Recovery, tags: frozenset[int], *, everything: bool) -> Recovered:
        *_, was_ready = await self._read_parked()
        if not (tags and was_ready):
            return await rightly(self, tags, everything=everything)
        await self._renew_edition()
        await self.state.ready(sorted(tags), in_doubt_s=self.in_doubt_s)
        await self.state.lost()  # the state counts the pass as finished, and the rest as a check
        return await rightly(self, frozenset(), everything=True)

    rightly = Recovery._pass
    with patch.object(Recovery, "_pass", recover):
        yield


@contextmanager
def begin_at_intake() -> Iterator[None]:
    """The intent is written when a record is read, instead of right before its POST."""
    begun: set[bytes] = set()

    async def look_up(self: Effects, lane: AnyLane, works: Sequence[AnyWork]) -> Sequence[LookupResult]:
        seen = await look_up_rightly(self, lane, works)
        if lane.worker.kind is CallKind.POST:
            fresh = [work for work, what in zip(works, seen, strict=True) if what is LookupResult.READY]
            await begin(self, lane, [work for work in fresh if work.rules is not None])
        return seen

    async def begin(self: Effects, lane: AnyLane, works: Sequence[AnyWork]) -> None:
        for work in works:
            work.token = secrets.token_bytes(TOKEN_BYTES)
        asks = [
            BeginRequest(row_of(work), work.generation, work.token, work.rules.limits, attempts=work.attempts)
            for work in works
        ]
        state, owned = self._state, lane.setup.lane
        verdicts: Sequence[Verdict] = []
        with suppress(PartitionLost):
            if asks:
                verdicts = await self._retrier.until_done(
                    "begin attempts", lambda: answered(state.begin(of(owned, asks)))
                )
        for work, verdict in zip(works, verdicts, strict=False):
            if isinstance(verdict, Go):
                begun.add(work.token)
                work.attempts = verdict.attempt

    def start(lane: AnyLane, work: AnyWork, result: None, now: float) -> None:
        if work.token in begun:
            begun.discard(work.token)
            work.start_by = now + lane.bounds.start_within_s
            advance(work, Event.TAKEN, Phase.RUNNING)
            attempt.run(lane, work)
        else:
            attempt.taken(lane, work, result, now)

    def may_begin_unseen(self: DeliveryTable, work: AnyWork) -> bool:
        return False

    look_up_rightly = Effects._look_up
    with (
        patch.object(Effects, "_look_up", look_up),
        patch.dict(HANDLERS[Phase.WAITING], {Event.TAKEN: start}),
        patch.object(DeliveryTable, "may_begin_unseen", may_begin_unseen),
    ):
        yield


@contextmanager
def fenced_outcome_dropped() -> Iterator[None]:
    """The outcome of a request is not stored if its lane has another owner by then."""

    async def settle(self: Effects, lane: AnyLane, settled: Sequence[ToSettle]) -> object:
        if lane.fenced_at is not None or lane.left:
            await asyncio.Event().wait()
        return await rightly(self, lane, settled)

    rightly = Effects._settle
    with patch.object(Effects, "_settle", settle):
        yield


def _is_over(decision: Done | Dead) -> bool:
    return isinstance(decision, Dead) or decision.stage >= Stage.DONE


def _place(topic: str, stage: str, work: AnyWork) -> Coordinate:
    """The partition of the parked copy."""
    return Coordinate(topic, partition_of(parked_key(stage, row_of(work)), Topics().parked().partitions), 0)


PLANTED: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    **PLANTED_IN_LOGS,
    **PLANTED_IN_BOUNDS,
    **PLANTED_IN_ROUTES,
    **PLANTED_IN_TIMES,
    **{
        bug.__name__: bug
        for bug in (
            mark_before_produce,
            delete_at_done,
            commit_before_produce,
            skip_on_delivered,
            no_settle,
            no_fence,
            no_life_in_removals,
            no_life_in_tombstones,
            non_monotone_stage,
            dlq_not_acked,
            index_before_park,
            tombstone_before_hop,
            ready_before_recovery,
            begin_at_intake,
            fenced_outcome_dropped,
        )
    },
}
"""By name. Each is a context manager, within which the bug is active."""
