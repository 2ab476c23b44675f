"""A lane: one partition of a topic that this process owns. One ordered intake, one commit watermark.

offer -> intake (what do the rows know?) -> order and caps -> attempts (begin, step, outcome) -> outbox -> watermark
                   |                                              |
                   +-----------------> parking <------------------+
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Generic

from relay.domain.errors import InvalidRecord
from relay.engine.attempts import Attempts
from relay.engine.context import LaneContext
from relay.engine.gather import Gather
from relay.engine.order import Order
from relay.engine.outbox import Outbox
from relay.engine.parking import Parking
from relay.engine.watermark import Watermark
from relay.engine.work import Dead, Done, Later, Seen, W, Worker
from relay.log.port import Coordinate, Record

BATCH = 500
"""Works handled by one call to the state."""


class Lane(Generic[W]):
    """Runs a worker's step for every record of a partition, safely. `run` ends after `stop`, or when fenced."""

    def __init__(self, context: LaneContext, worker: Worker[W]) -> None:
        self._context = context
        self._worker = worker
        self._watermark = Watermark()
        self._order: Order[W] = Order()
        self._inbox: Gather[Record] = Gather(self._intake, limit=BATCH)
        self._outbox: Outbox[W] = Outbox(context, worker, self._finished)
        self._attempts: Attempts[W] = Attempts(context, worker, self, self._spawn)
        self._parking: Parking[W] = Parking(
            context,
            worker,
            finished=self._parked,
            refused=self._keep,
            buried=self.publish,
            fence=self.fence,
        )
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._steps: set[asyncio.Task[None]] = set()
        self._grace_s = 0.0
        self.fenced = False

    # what the runner sees

    @property
    def context(self) -> LaneContext:
        return self._context

    @property
    def next_offset(self) -> int | None:
        """What to commit."""
        return self._watermark.next_offset

    @property
    def unfinished(self) -> int:
        return len(self._watermark)

    @property
    def full(self) -> bool:
        """At the bound: intake has to stop until something ends."""
        bounds = self._context.bounds
        return len(self._watermark) >= bounds.window or self._watermark.span >= bounds.span

    def offer(self, records: Sequence[Record]) -> None:
        """Take the next records of the partition, in order."""
        for record in records:
            self._watermark.add(record.offset)
            self._inbox.put(record)

    async def run(self) -> None:
        """Work until `stop`, and then until what is in flight has ended."""
        loops = (
            self._inbox.run,
            *self._outbox.loops,
            *self._attempts.loops,
            *self._parking.loops,
            self._pump,
            self._timers,
        )
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            running = [tasks.create_task(loop()) for loop in loops]
            await self._stopping.wait()
            if not self.fenced:
                await self._drained(self._grace_s)
            for task in (*running, *self._steps):
                task.cancel()

    def stop(self, grace_s: float) -> None:
        """Start nothing new; let `run` end when what is in flight has, or after `grace_s`. What is not finished then is
        read again by the next owner."""
        self._grace_s = grace_s
        self._stopping.set()
        self._wake.set()

    def relieve(self) -> None:
        """At the bound: park what waits, so that the rest can go on. A lane whose only receiver is closed waits."""
        if self._worker.parks:
            now = self._context.clock.monotonic()
            waiting = [work for work in self._order.held() if work.parked_at is None and work.due > now + 1.0]
            if self._context.shared:
                waiting += [work for work in self._order.stuck(now) if work.parked_at is None]
            else:
                waiting = [work for work in waiting if not self._order.is_closed(work.gate, now)]
            for work in waiting:
                self._park_all(self._order.withdraw(work))

    # intake

    async def _intake(self, records: list[Record]) -> None:
        works, dead = self._admit(records)
        context = self._context
        seen = (
            await context.patience.until_done("look up rows", lambda: self._worker.table.intake(context.lane, works))
            if works
            else []
        )
        for record, reason in dead:
            self._bury_unread(record, reason)
        self._sort(works, seen)

    def _admit(self, records: Sequence[Record]) -> tuple[list[W], list[tuple[Record, Dead]]]:
        works: list[W] = []
        dead: list[tuple[Record, Dead]] = []
        for record in records:
            try:
                works.append(self._worker.admit(record))
            except InvalidRecord as error:
                dead.append((record, Dead(error.reason, error.detail)))
        return works, dead

    def _sort(self, works: Sequence[W], seen: Sequence[Seen]) -> None:
        now = self._context.clock.monotonic()
        finished = 0
        for work, what in zip(works, seen, strict=True):
            if what is Seen.FINISHED:
                finished += 1
                self._outbox.retire(work)
            elif what is Seen.RESUME and work.result is not None:
                self._outbox.publish(work, self._worker.resume(work, work.result))
            elif what is Seen.BEHIND or (work.parked_at is None and self._parking.blocks(work.queue)):
                self._parking.park(work)
            else:
                self._order.add(work, now)
        if finished:
            self._context.observer.duplicate(self._worker.stage, finished)
        self._wake.set()

    def _bury_unread(self, record: Record, dead: Dead) -> None:
        """A record that cannot be read has no work; its dead letter goes out by itself."""
        context, letter = self._context, self._worker.bury(record, None, dead)

        async def bury() -> None:
            await context.patience.until_done("append a dead letter", lambda: context.log.append([letter]))
            context.observer.dead(self._worker.stage, "-", dead.reason)
            self._watermark.done(record.offset)
            self._changed.set()

        self._spawn(bury())

    # the pump: start what may start

    async def _pump(self) -> None:
        while True:
            clock, due = self._context.clock, self._order.next_due()
            await clock.wait(self._wake, None if due is None else max(0.0, due - clock.monotonic()))
            self._wake.clear()
            if self._stopping.is_set():
                return
            now = self._context.clock.monotonic()
            for work in self._order.take(now, BATCH):
                self._attempts.start(work)

    async def _timers(self) -> None:
        """Take up parked records when they are due."""
        clock, parking = self._context.clock, self._parking
        while self._worker.parks and not self._stopping.is_set():
            await clock.wait(parking.expecting, max(0.0, parking.next_due() - clock.monotonic()))
            parking.expecting.clear()
            if clock.monotonic() >= parking.next_due():
                taken = await self._context.patience.until_done("take up parked records", parking.take_up)
                if taken:
                    await self._intake_parked(taken)

    async def _intake_parked(self, taken: Sequence[tuple[Coordinate, Record]]) -> None:
        works: list[W] = []
        for at, record in taken:
            work = self._worker.admit(record)  # it was admitted when it was parked, so it can be read
            work.parked_at = at
            works.append(work)
        context = self._context
        seen = await context.patience.until_done("look up rows", lambda: self._worker.table.intake(context.lane, works))
        self._sort(works, seen)

    # where attempts lead (Ends)

    def again(self, work: W, due: float) -> None:
        self._order.hold(work, due, self._context.clock.monotonic())
        self._woken()

    def later(self, work: W, later: Later) -> None:
        now = self._context.clock.monotonic()
        due = now + later.due_in_s
        work.due = due
        closed = not self._context.shared and self._order.is_closed(work.gate, now)
        long = later.due_in_s > self._context.bounds.hold_s and not closed
        if self._worker.parks and (work.parked_at is not None or long):
            self._park_all([work, *self._order.withdraw_followers(work)])
        else:
            self._order.hold(work, due, now)
        self._woken()

    def publish(self, work: W, decision: Done | Dead) -> None:
        self._outbox.publish(work, decision)

    def known(self, work: W) -> None:
        self._context.observer.duplicate(self._worker.stage, 1)
        self._outbox.retire(work)

    def close(self, gate: str, seconds: float, why: str) -> None:
        self._order.close(gate, self._context.clock.monotonic() + seconds, why)

    def fence(self) -> None:
        """A newer owner has the lane: stop at once; nothing of ours may count any more."""
        if not self.fenced:
            self.fenced = True
            self._context.observer.fenced(self._context.partition)
            self._stopping.set()

    # ends

    def _finished(self, work: W, promoted: bool) -> None:
        if work.taken:
            self._order.finish(work, self._context.clock.monotonic())
        if work.parked_at is None:
            self._watermark.done(work.record.offset)
        if work.owes_tombstone:
            self._parking.released(work, promoted)
        self._woken()

    def _parked(self, work: W) -> None:
        if work.parked_at is None:
            self._watermark.done(work.record.offset)
        self._woken()

    def _keep(self, work: W) -> None:
        """There is no room to park: it waits in memory, and the window fills."""
        self._order.add(work, self._context.clock.monotonic())
        self._woken()

    def _park_all(self, works: Sequence[W]) -> None:
        for work in works:
            self._parking.park(work)

    def _woken(self) -> None:
        self._wake.set()
        self._changed.set()

    def _spawn(self, step: Coroutine[None, None, None]) -> None:
        if self._tasks is None:
            raise AssertionError("a lane that does not run")
        task = self._tasks.create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)

    async def _drained(self, grace_s: float) -> None:
        """Until nothing is in flight, or `grace_s` is over."""
        clock = self._context.clock
        end = clock.monotonic() + grace_s
        while (self._steps or self._attempts or self._outbox or self._parking) and clock.monotonic() < end:
            self._changed.clear()
            await clock.wait(self._changed, min(0.05, grace_s))
