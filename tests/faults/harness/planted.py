"""Planted bugs: each makes the relay of this process really wrong in one way, so that experiments can show their worth.

They replace methods of the engine, the workers' tables or a state's rule, and so are there with every log and state,
in memory and on real servers. A process under test enters one before it starts; nothing else of it changes.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from unittest.mock import patch

from msgspec import structs

import relay.lanes
import relay.state.redis.calls
import tests.fakes.state_records
from relay.domain.errors import PartitionLost
from relay.domain.topics import Topics
from relay.engine.admission import Admission
from relay.engine.attempts import TOKEN_BYTES, Attempts
from relay.engine.context import LaneContext
from relay.engine.lane import Lane
from relay.engine.observer import Recovered
from relay.engine.outbox import Outbox
from relay.engine.parked_copy import parked_key, wrap
from relay.engine.parking import Parking
from relay.engine.recovery import Recovery
from relay.engine.rows import RowTable, row_of
from relay.engine.watermark import Watermark
from relay.engine.work import Dead, Decision, Done, Outcome, Seen
from relay.log.partitioner import partition_of
from relay.log.port import Coordinate, NewRecord
from relay.state.attempts import BeginAsk, Go, Kind, Settlement, Verdict
from relay.state.port import Lane as LaneId
from relay.state.port import Parked
from relay.state.redis.script import Script, script
from relay.state.replies import answered, of
from relay.state.rows import Mark, Row, Stage
from tests.fakes.state_rows import Rows, StoredRow
from tests.fakes.state_rows import mark as mark_rightly
from workers.from_sender import Incoming, MessageTable
from workers.to_sender import Callback, CallbackTable

AnyWork = Any
"""A patched method serves the works of all five workers."""
Batch = list[tuple[AnyWork, Done | Dead]]
NOWHERE = Coordinate("", 0, 0)
T = TypeVar("T")


class _Part(Protocol):
    """Of a lane."""

    @property
    def _context(self) -> LaneContext: ...


@contextmanager
def mark_before_produce() -> Iterator[None]:
    """Rows are marked before their hop records are acknowledged."""

    async def publish(self: Outbox[AnyWork], batch: Batch) -> None:
        placeless = [(work, Outcome(decision, _places(decision))) for work, decision in batch]
        await _until_done(self, "mark rows", lambda: self._worker.table.mark(placeless))
        for work, _ in await self._append(batch):
            self.retire(work)

    with patch.object(Outbox, "_publish", publish):
        yield


@contextmanager
def delete_at_done() -> Iterator[None]:
    """Finished rows are forgotten, of messages as of deliveries: there is no memory of what is over."""

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
    """What was read counts as finished: it is committed before its hop records are acknowledged, or even appended."""
    with patch.object(Watermark, "next_offset", property(lambda self: self._seen_next)):
        yield


@contextmanager
def skip_on_delivered() -> Iterator[None]:
    """A stored outcome counts as the end, although its hop record is not acknowledged."""

    def seen(self: RowTable[AnyWork], work: AnyWork, row: Row, now: float) -> Seen:
        what = rightly(self, work, row, now)
        return Seen.FINISHED if what is Seen.RESUME else what

    rightly = RowTable._seen
    with patch.object(RowTable, "_seen", seen):
        yield


@contextmanager
def no_settle() -> Iterator[None]:
    """What an attempt in doubt has come to is asked at once, while it may still arrive."""

    def ask(self: Attempts[AnyWork], work: AnyWork) -> BeginAsk:
        asked = rightly(self, work)
        return structs.replace(asked, limits=replace(asked.limits, settle_s=0.0))

    rightly = Attempts._ask
    with patch.object(Attempts, "_ask", ask):
        yield


@contextmanager
def no_fence() -> Iterator[None]:
    """Every owner has the same, highest epoch: none is ever refused."""

    def lane(topic: str, partition: int, epoch: int) -> LaneId:
        return LaneId(topic, partition, 2**31 - 1)

    with patch.object(relay.lanes, "LaneId", lane):
        yield


@contextmanager
def non_monotone_stage() -> Iterator[None]:
    """A mark that comes late puts a row back. A rule of the state itself: broken in the one in memory, and in the
    script that this process has Redis run."""

    def mark(rows: Rows, one: Mark, now: float) -> None:
        row = rows.load(one.row.digest, now)
        if row is not None and row.generation == one.generation and row.stage > one.stage:
            rows.finished.pop(one.row.digest, None)
            rows.active[one.row.digest] = StoredRow(row.generation, attempts=row.attempts, expires=row.expires)
        mark_rightly(rows, one, now)

    def lowering(name: str) -> Script:
        right = script(name)
        if name != "mark":
            return right
        source = right.source.replace(b"return row.s < stage", b"return true")
        if source == right.source:
            raise AssertionError("the script has changed: this bug is not planted any more")
        return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())

    with (
        patch.object(tests.fakes.state_records, "mark", mark),
        patch.object(relay.state.redis.calls, "script", lowering),
    ):
        yield


@contextmanager
def dlq_not_acked() -> Iterator[None]:
    """Nobody waits for a dead letter's acknowledgement, or repeats one that failed."""
    under_way: set[asyncio.Task[None]] = set()

    def send(self: Outbox[AnyWork], letter: NewRecord) -> None:
        async def once() -> None:
            with suppress(Exception):
                await self._context.log.append([letter])

        task = asyncio.create_task(once())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    async def append(self: Outbox[AnyWork], batch: Batch) -> list[tuple[AnyWork, Outcome]]:
        dead = [(work, decision) for work, decision in batch if isinstance(decision, Dead)]
        for work, decision in dead:
            send(self, self._worker.bury(work.record, work, decision))
        rest: Batch = [(work, decision) for work, decision in batch if isinstance(decision, Done)]
        done = await rightly(self, rest) if rest else []
        return done + [(work, Outcome(decision, ())) for work, decision in dead]

    async def bury(self: Outbox[AnyWork], letter: NewRecord, dead: Dead) -> Coordinate:
        send(self, letter)
        self._context.observer.dead(self._worker.stage, "-", letter, dead)
        return NOWHERE

    rightly = Outbox._append
    with patch.object(Outbox, "_append", append), patch.object(Outbox, "bury", bury):
        yield


@contextmanager
def index_before_park() -> Iterator[None]:
    """The due reference is there before the parked copy is on the log. (A reference need not know the copy's offset:
    the newest record of its key is what counts.)"""

    async def store(self: Parking[AnyWork], works: list[AnyWork]) -> list[bool]:
        context, stage, poll = self._context, self._worker.stage, self._worker.kind is Kind.POLL
        state, lane, topic = context.state, context.lane, context.parked_topic
        rows = of(lane, map(row_of, works))
        await _until_done(self, "mark the intent to park", lambda: answered(state.intend_to_park(rows)))
        now, wall = context.clock.monotonic(), context.clock.time()
        due = [max(0.0, work.due - now) for work in works]
        parked = [
            Parked(
                row_of(work), work.generation, _place(topic, stage, work), wait, work.queue, work.record.offset, poll
            )
            for work, wait in zip(works, due, strict=True)
        ]
        put = await _until_done(self, "park references", lambda: answered(state.park(of(lane, parked))))
        copies = [
            wrap(topic, stage, work, row_of(work), due_ms=int((wall + wait) * 1000), poll=poll)
            for work, wait in zip(works, due, strict=True)
        ]
        await _until_done(self, "append parked copies", lambda: context.log.append(copies))
        context.observer.parked(lane.topic, sum(put))
        return put

    with patch.object(Parking, "_store", store):
        yield


@contextmanager
def tombstone_before_hop() -> Iterator[None]:
    """A parked copy and its reference are removed before the hop records of its delivery are acknowledged."""

    async def publish(self: Outbox[AnyWork], batch: Batch) -> None:
        owing = [work for work, _ in batch if work.owes_tombstone]
        keys = [parked_key(self._worker.stage, row_of(work)) for work in owing]
        freed = await self._remove(keys, [(row_of(work), work.queue) for work in owing]) if owing else []
        promoted = dict(zip(map(id, owing), freed, strict=True))
        outcomes = await self._append(batch)
        await _until_done(self, "mark rows", lambda: self._worker.table.mark(outcomes))
        for work, _ in outcomes:
            self._finished(work, promoted.get(id(work), False))

    with patch.object(Outbox, "_publish", publish):
        yield


@contextmanager
def ready_before_recovery() -> Iterator[None]:
    """After a loss of state a tag is made ready before its parked copies are put back."""

    async def recover(self: Recovery, tags: frozenset[int], *, everything: bool) -> Recovered:
        _, was_alive = await self._read_parked()
        if not (tags and was_alive):
            return await rightly(self, tags, everything=everything)
        await self._state.ready(sorted(tags), in_doubt_s=self._in_doubt_s)
        await self._state.lost()  # the pass is over, as far as the state knows: what follows counts as a check
        return await rightly(self, frozenset(), everything=True)

    rightly = Recovery._pass
    with patch.object(Recovery, "_pass", recover):
        yield


@contextmanager
def begin_at_intake() -> Iterator[None]:
    """The intent is written when a record is read, instead of right before its POST."""
    begun: set[bytes] = set()

    async def look_up(self: Admission[AnyWork], works: Sequence[AnyWork]) -> list[tuple[AnyWork, Seen]]:
        seen = await look_up_rightly(self, works)
        if self._worker.kind is Kind.POST:
            await begin(self, [work for work, what in seen if what is Seen.READY and work.rules is not None])
        return seen

    async def begin(self: Admission[AnyWork], works: Sequence[AnyWork]) -> None:
        for work in works:
            work.token = secrets.token_bytes(TOKEN_BYTES)
        asks = [
            BeginAsk(row_of(work), work.generation, work.token, work.rules.limits, attempts=work.attempts)
            for work in works
        ]
        state, lane = self._context.state, self._context.lane
        verdicts: list[Verdict] = []
        with suppress(PartitionLost):
            verdicts = (
                await _until_done(self, "begin attempts", lambda: answered(state.begin(of(lane, asks)))) if asks else []
            )
        for work, verdict in zip(works, verdicts, strict=False):
            if isinstance(verdict, Go):
                begun.add(work.token)
                work.attempts = verdict.attempt

    def start(self: Attempts[AnyWork], work: AnyWork) -> None:
        if work.token in begun:
            begun.discard(work.token)
            work.begun_at = self._context.clock.monotonic()
            self._run(work)
        else:
            start_rightly(self, work)

    look_up_rightly, start_rightly = Admission.look_up, Attempts.start
    with patch.object(Admission, "look_up", look_up), patch.object(Attempts, "start", start):
        yield


@contextmanager
def fenced_outcome_dropped() -> Iterator[None]:
    """What comes of a request is not stored when its lane has another owner by then."""

    async def settle(self: Attempts[AnyWork], batch: list[tuple[AnyWork, Settlement, Decision]]) -> None:
        lane = self._seats.ends
        if not (isinstance(lane, Lane) and (lane.fenced or lane.left.is_set())):
            await rightly(self, batch)

    rightly = Attempts._settle
    with patch.object(Attempts, "_settle", settle):
        yield


def _places(decision: Done | Dead) -> tuple[Coordinate, ...]:
    """As many as the decision has records, which are nowhere yet."""
    return (NOWHERE,) * (len(decision.records) if isinstance(decision, Done) else 1)


def _is_over(decision: Done | Dead) -> bool:
    return isinstance(decision, Dead) or decision.stage >= Stage.DONE


def _place(topic: str, stage: str, work: AnyWork) -> Coordinate:
    """In the partition where the parked copy will be."""
    return Coordinate(topic, partition_of(parked_key(stage, row_of(work)), Topics().parked().partitions), 0)


async def _until_done(part: _Part, what: str, call: Callable[[], Awaitable[T]]) -> T:
    return await part._context.patience.until_done(what, call)


PLANTED: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (
        mark_before_produce,
        delete_at_done,
        commit_before_produce,
        skip_on_delivered,
        no_settle,
        no_fence,
        non_monotone_stage,
        dlq_not_acked,
        index_before_park,
        tombstone_before_hop,
        ready_before_recovery,
        begin_at_intake,
        fenced_outcome_dropped,
    )
}
"""By name. Each is a context manager: the bug is there from entering it to leaving it."""
