"""A lane: one partition of a topic that this process owns. One ordered intake, one commit watermark.

offer -> intake (what do the rows know?) -> order and caps -> attempts (begin, step, outcome) -> outbox -> watermark
                   |                                              |
                   +------> parking, due records <----------------+
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Generic

from relay.engine.admission import Admission
from relay.engine.appetite import Appetite
from relay.engine.attempts import Attempts
from relay.engine.context import LaneContext
from relay.engine.due import DueRecords
from relay.engine.gather import Gather
from relay.engine.order import Order
from relay.engine.outbox import Outbox
from relay.engine.parked_copy import ParkedCopy
from relay.engine.parking import Parking
from relay.engine.quarantine import Quarantine
from relay.engine.relief import CLOSED_S, Relief
from relay.engine.rows import row_of
from relay.engine.standing import Standing
from relay.engine.standstill import Hands
from relay.engine.tasks import end
from relay.engine.twins import Twins
from relay.engine.watermark import Watermark
from relay.engine.work import Dead, Done, Later, Seen, W, Worker
from relay.log.port import Record

BATCH = 250
"""Works handled by one call to the state."""
LINGER_S = 30.0
"""How long requests may go on after the lane was given up, so that their outcomes are known."""


class Lane(Generic[W]):
    """Runs a worker's step for every record of a partition, safely. `run` ends some time after `stop` or a fence."""

    def __init__(self, context: LaneContext, worker: Worker[W]) -> None:
        self._context = context
        self._worker = worker
        self._watermark = Watermark()
        self._order: Order[W] = Order()
        self._standing = Standing(shared=context.shared)
        self._twins: Twins[W] = Twins()
        self._quarantine = Quarantine(context)
        self._admission = Admission(context, worker, self._quarantine)
        self._inbox: Gather[Record] = Gather(self._intake, limit=BATCH)
        self._outbox: Outbox[W] = Outbox(context, worker, self._finished)
        self._attempts: Attempts[W] = Attempts(context, worker, self, self._spawn, self._quarantine)
        self._parking: Parking[W] = Parking(
            context,
            worker,
            finished=self._parked,
            refused=self._keep,
            buried=self.publish,
            closed=self._standing.still,
            fence=self.fence,
        )
        self._relief = Relief(context, self._order, self._parking, self._standing.still)
        self._due = DueRecords(context, worker.stage, closed=self._in_the_way, fence=self.fence)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._steps: set[asyncio.Task[None]] = set()
        self._grace_until = self._linger_until = inf
        self._appetite = Appetite(shared=context.shared, waits=worker.parks)
        self.progress = asyncio.Event()
        """Set when records were offered or have ended; the lanes of a runner share one."""
        self.left = asyncio.Event()
        """Set when nothing of this lane counts for the watermark any more; requests may still be under way."""
        context.roster.enter(context.partition, self._order, self.left)
        self.fenced_at: float | None = None
        """Monotonic time when a newer owner was met."""

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
    def hands(self) -> Hands:
        """Where the head is; in nobody's hands, it would stay for ever."""
        waits = bool(self._inbox) or not self._idle() or self._order.next_due() is not None
        return Hands(self._watermark.head, busy=waits or self._stopping.is_set())

    @property
    def fenced(self) -> bool:
        return self.fenced_at is not None

    @property
    def full(self) -> bool:
        """At the bound: intake has to stop until something ends."""
        bounds = self._context.bounds
        return len(self._watermark) >= bounds.window or self._watermark.span >= bounds.span

    @property
    def sated(self) -> bool:
        """There is enough at hand: intake may wait, with its records still in the log."""
        waiting = self._order.waiting + len(self._inbox) + len(self._outbox)
        return self._appetite.sated(waiting, self._context.clock.monotonic())

    def offer(self, records: Sequence[Record]) -> None:
        """Take the next records of the partition, in order."""
        for record in records:
            self._watermark.add(record.offset)
            self._inbox.put(record)
        self._appetite.offered(self._context.clock.monotonic())
        self.progress.set()

    async def run(self) -> None:
        """Work until `stop`, and then until what is in flight has ended."""
        self._context.resumes.listen(self._resumed)
        own = (*self._outbox.loops, *self._parking.loops, self._pump, self._timers)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                intake = tasks.create_task(self._inbox.run())
                running = [tasks.create_task(loop()) for loop in own]
                attempts = [tasks.create_task(loop()) for loop in self._attempts.loops]
                await self._stopping.wait()
                await end([intake])
                self._attempts.stop()
                await self._drained(self._idle, lambda: self._grace_until)
                if not self.fenced:
                    await self._parking.hand_back(self._twins)
                    await self._quarantine.leave(self.next_offset)
                await end(running)
                self.left.set()
                await self._drained(lambda: not self._attempts, lambda: self._linger_until)
                self._attempts.abandon()
                await end((*attempts, *self._steps))
        finally:
            self._context.resumes.leave(self._resumed)
            self._attempts.abandon()
            self.left.set()

    def stop(self, grace_s: float, *, linger_s: float = 0.0) -> None:
        """Start nothing new; `left` is set when what is in flight has ended, or after `grace_s`. What is not finished
        then is read again by the next owner; requests may take `linger_s` more, so that it finds their outcomes."""
        now = self._context.clock.monotonic()
        self._grace_until = min(self._grace_until, now + grace_s)
        self._linger_until = min(self._linger_until, now + grace_s + linger_s)
        self._stopping.set()
        self._woken()

    def relieve(self) -> None:
        """At the bound: park what waits, so that the rest can go on. A lane whose only receiver is closed waits."""
        if self._worker.parks:
            self._relief.relieve()

    # intake

    async def _intake(self, records: list[Record]) -> None:
        works: list[W] = []
        for record, admitted in zip(records, await self._admission.admit(records), strict=True):
            if admitted is None:
                self._done(record)
            elif isinstance(admitted, Dead):
                self._spawn(self._bury_unread(record, admitted))
            else:
                works.append(admitted)
        self._sort(await self._admission.look_up(works))

    def _sort(self, seen: Sequence[tuple[W, Seen]]) -> None:
        now = self._context.clock.monotonic()
        finished = 0
        for work, what in seen:
            if what is Seen.FINISHED:
                finished += 1
                self._outbox.retire(work)
            elif work.parked_at is not None and self._twins.has(work):
                self._due.put_down(row_of(work).digest)  # it comes again if the one that is here does not end it
            elif not self._twins.join(work):
                self._place(work, what, now)
        if finished:
            self._context.observer.duplicate(self._worker.stage, finished)
        self._woken()

    def _place(self, work: W, what: Seen, now: float) -> None:
        parking = self._parking
        if what is Seen.RESUME and work.result is not None:
            self._outbox.publish(work, self._worker.resume(work, work.result))
        elif work.parked_at is None and (what is Seen.BEHIND or parking.blocks(work.queue)):
            parking.queue_up(work, seen_behind=what is Seen.BEHIND)
        elif work.parked_at is None and self._to_be_parked(work.due - now):
            parking.park(work)
        else:
            self._order.add(work, now)

    async def _bury_unread(self, record: Record, dead: Dead) -> None:
        """A record that cannot be read has no work; its dead letter goes out by itself."""
        await self._outbox.bury(self._worker.bury(record, None, dead), dead)
        self._done(record)

    # the pump: start what may start

    async def _pump(self) -> None:
        clock = self._context.clock
        while True:
            due = self._order.next_due()
            await clock.wait(self._wake, None if due is None else max(0.0, due - clock.monotonic()))
            self._wake.clear()
            if self._stopping.is_set():
                return
            while works := self._order.take(clock.monotonic(), BATCH) or self._order.take_over(self._is_over, BATCH):
                for work in works:
                    self._attempts.start(work)

    def _is_over(self, work: W) -> bool:
        """It ends whether or not its endpoint is open: nothing is sent any more."""
        return isinstance(self._worker.overdue(work), Dead | Done)

    # parked records come back

    async def _timers(self) -> None:
        clock, due = self._context.clock, self._due
        while self._worker.parks:
            await clock.wait(due.expecting, max(0.0, due.next_look() - clock.monotonic()))
            due.expecting.clear()
            if self._stopping.is_set():
                return
            if clock.monotonic() >= due.next_look():
                if due.full:
                    self._put_down_stuck()
                taken = await due.take_up()
                if taken:
                    await self._intake_parked(taken)

    def _put_down_stuck(self) -> None:
        """Parked records that can only wait here are left to their leases: others are due, too."""
        if self._context.shared:
            for work in self._order.stuck(self._context.clock.monotonic()):
                if work.parked_at is not None:
                    for each in self._order.withdraw(work):
                        self._put_down(each)

    def _put_down(self, work: W) -> None:
        if work.parked_at is None:
            self._parking.park(work)
        else:
            self._ended(work)

    async def _intake_parked(self, taken: Sequence[ParkedCopy]) -> None:
        works: list[W] = []
        records = [copy.record for copy in taken]
        for copy, admitted in zip(taken, await self._admission.admit(records, parked=True), strict=True):
            if isinstance(admitted, Dead):  # it was read once; since then its receiver was removed, say
                self._spawn(self._bury_parked(copy, admitted))
            elif admitted is not None:
                admitted.parked_at = copy.at
                admitted.attempts = max(admitted.attempts, copy.attempts)
                works.append(admitted)
        self._sort(await self._admission.look_up(works))

    async def _bury_parked(self, copy: ParkedCopy, dead: Dead) -> None:
        promoted = await self._outbox.bury_parked(copy, self._worker.bury(copy.record, None, dead), dead)
        self._due.put_down(copy.row.digest)
        self._unparked(copy.row.owner, copy.queue, promoted)
        self._woken()

    # where attempts lead (Ends). After the lane was left all this is the next owner's business.

    def again(self, work: W, due: float) -> None:
        if not self.left.is_set():
            self._order.hold(work, due, self._context.clock.monotonic())
        self._woken()

    def later(self, work: W, later: Later) -> None:
        if not self.left.is_set():
            now = self._context.clock.monotonic()
            work.due = now + later.due_in_s
            if self._worker.parks and (work.parked_at is not None or self._to_be_parked(later.due_in_s)):
                for each in (work, *self._order.withdraw_followers(work)):
                    self._parking.park(each)
            else:
                self._order.hold(work, work.due, now)
        self._woken()

    def publish(self, work: W, decision: Done | Dead) -> None:
        """How it ends is stored, or harmless to find out again: the next of its order key need not wait for the log."""
        if not self.left.is_set():
            if work.taken:
                self._order.finish(work, self._context.clock.monotonic())
            self._outbox.publish(work, decision)
        self._woken()

    def known(self, work: W) -> None:
        if not self.left.is_set():
            self._context.observer.duplicate(self._worker.stage, 1)
            self._outbox.retire(work)
        self._woken()

    def close(self, gate: str, seconds: float, *, down: bool) -> None:
        self._standing.closed(down=down)
        self._order.close(gate, self._context.clock.monotonic() + seconds)

    def _resumed(self, gate: str) -> None:
        """Whether it may be sent to, the next begin says: the state knows of the resume by now."""
        self._order.reopen(gate, self._context.clock.monotonic())
        self._due.expect(gate, 0.0)
        self._woken()

    def heard(self, work: W, *, healthy: bool) -> None:
        self._standing.heard(healthy=healthy, enough=work.rules.limits.breaker.failures if work.rules else None)

    def fence(self) -> None:
        """A newer owner has the lane: nothing of ours may count any more, but outcomes of what is under way."""
        if not self.fenced:
            now = self._context.clock.monotonic()
            self.fenced_at = now
            self._context.observer.fenced(self._context.partition)
            self.stop(0.0, linger_s=LINGER_S)

    # where it waits

    def _in_the_way(self, gate: str) -> bool:
        """Whether works of this endpoint would only wait in memory, where others of the lane want to come through."""
        return self._context.shared and self._order.is_closed(gate, self._context.clock.monotonic() + CLOSED_S)

    def _to_be_parked(self, wait_s: float) -> bool:
        return self._worker.parks and wait_s > self._context.bounds.hold_s and not self._standing.still()

    def _keep(self, work: W) -> None:
        """There is no room to park: it waits in memory, and the window fills."""
        self._order.add(work, self._context.clock.monotonic())
        self._woken()

    # ends

    def _finished(self, work: W, promoted: bool) -> None:
        if work.taken:
            self._order.finish(work, self._context.clock.monotonic())
        if work.owes_tombstone:
            self._unparked(row_of(work).owner, work.queue, promoted)
        self._ended(work)

    def _parked(self, work: W) -> None:
        self._due.expect(row_of(work).owner, work.due)
        self._ended(work)

    def _ended(self, work: W) -> None:
        """It is in memory no more: finished, parked, or put down."""
        if work.parked_at is None:
            self._done(work.record)
        else:
            self._due.put_down(row_of(work).digest)
        for twin in self._twins.leave(work):
            self._done(twin.record)
        self._woken()

    def _done(self, record: Record) -> None:
        self._watermark.done(record.offset)
        self._appetite.ended(self._context.clock.monotonic())
        if len(self._watermark) < self._context.bounds.window:
            self._relief.full_since = None
        self.progress.set()
        self._woken()

    def _unparked(self, owner: str, queue: bytes | None, promoted: bool) -> None:
        """A reference is gone; `promoted`: the next of its order key is due now."""
        if promoted:
            self._due.expect(owner, 0.0)
        elif queue is not None:
            self._parking.emptied(queue)

    # tasks

    def _woken(self) -> None:
        self._wake.set()
        self._changed.set()

    def _spawn(self, step: Coroutine[None, None, None]) -> None:
        if self._tasks is None:
            raise AssertionError("a lane that does not run")
        task = self._tasks.create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)

    def _idle(self) -> bool:
        return not (self._steps or self._attempts or self._outbox or self._parking)

    async def _drained(self, done: Callable[[], bool], end: Callable[[], float]) -> None:
        """Until `done`, or the moment that `end` tells, which may come nearer meanwhile."""
        clock = self._context.clock
        while not done() and clock.monotonic() < end():
            self._changed.clear()
            await clock.wait(self._changed, 0.05)
