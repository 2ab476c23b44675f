"""Long waits: off the lane's window, onto `parked_messages`, and back when due.

Intent in the state, copy on the log, reference in the state, then finished: in this order, so that a crash between any
two leaves the record either uncommitted or referenced, and a parked copy is always known to somebody.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic

from relay.domain.errors import PartitionLost, RecordTooLarge, Unavailable
from relay.engine.context import LaneContext
from relay.engine.gather import Gather
from relay.engine.parked_copy import wrap
from relay.engine.rows import row_of
from relay.engine.work import Dead, W, Worker
from relay.state.attempts import Kind
from relay.state.port import IntakeAsk, Parked
from relay.state.replies import answered, of

NO_ROOM = "the receiver has as many parked messages as it may"
ROOM_S = 1.0
"""How soon those are tried again that found no room."""
STORED_S = 1.0
"""How long whoever stored an outcome may take to publish it; if that takes longer, a second copy does no harm."""
LOOK_S = 10.0
"""How often those that wait behind parked ones look, while the endpoint is closed, whether these are over."""


class Parking(Generic[W]):
    """Parks works with their order keys.

    `finished(work)`: parked for sure. `refused(work)`: it has to wait elsewhere, for there is no room, and nothing of
    its order key is parked; or for `work.due`, as it is over already. `buried(work, dead)`: no room, and the lane must
    not stop for it. `closed()`: the lane's only endpoint takes nothing now, so its backlog stays in the topic: what
    would only queue up behind parked ones waits here.
    """

    def __init__(
        self,
        context: LaneContext,
        worker: Worker[W],
        *,
        finished: Callable[[W], None],
        refused: Callable[[W], None],
        buried: Callable[[W, Dead], None],
        closed: Callable[[], bool],
        fence: Callable[[], None],
    ) -> None:
        self._context = context
        self._worker = worker
        self._finished = finished
        self._refused = refused
        self._buried = buried
        self._closed = closed
        self._fence = fence
        self._parking: Gather[W] = Gather(self._park)
        self.loops = (self._parking.run, self._try_again)
        self._under_way: Counter[bytes] = Counter()  # order keys with works on their way to be parked
        self._parked: set[bytes] = set()  # order keys that have parked records, as far as known here
        self._behind: deque[W] = deque()  # works that wait here to queue up behind parked ones, in order
        self._behind_keys: Counter[bytes] = Counter()
        self._crowded = asyncio.Event()
        self._refused_at = -ROOM_S
        self._looked_at = -LOOK_S
        self._counted_at = -ROOM_S
        self._free = 0  # references that may be parked over all receivers

    def __len__(self) -> int:
        return len(self._parking)

    @property
    def has_room(self) -> bool:
        """False for a moment after works were refused."""
        return self._context.clock.monotonic() - self._refused_at >= ROOM_S

    def blocks(self, queue: bytes | None) -> bool:
        """Whether records of this order key have to queue behind parked ones."""
        return queue is not None and (
            queue in self._parked or self._under_way[queue] > 0 or self._behind_keys[queue] > 0
        )

    def park(self, work: W) -> None:
        """Park a work that is neither in flight nor in the lane's order. Works of one key: in order."""
        if work.queue is not None and work.parked_at is None and self._behind_keys[work.queue]:
            self._wait_behind(work, work.queue)
            return
        if work.queue is not None:
            self._under_way[work.queue] += 1
        self._parking.put(work)

    def queue_up(self, work: W, *, seen_behind: bool) -> None:
        """Park a work behind others of its order key. `seen_behind`: the state said that some are parked."""
        if work.queue is not None and seen_behind:
            self._parked.add(work.queue)
        if work.queue is not None and self._closed():
            self._wait_behind(work, work.queue)
        else:
            self.park(work)

    def emptied(self, queue: bytes) -> None:
        """Nothing of this order key is parked any more."""
        if not self._under_way[queue]:
            self._parked.discard(queue)

    async def _park(self, batch: list[W]) -> None:
        try:
            allowed = await self._within_caps(batch)
            stored = await self._store_what_fits(allowed) if allowed else []
        except PartitionLost:
            self._fence()
            return
        for work in batch:
            if work.queue is not None:
                _count_down(self._under_way, work.queue)
        for work, parked in stored:
            if parked:
                self._finished(work)
            else:  # whoever stored its outcome is about to publish it: only if not, that is to be done here
                work.due = self._context.clock.monotonic() + STORED_S
                self._refused(work)

    async def _store_what_fits(self, works: list[W]) -> list[tuple[W, bool]]:
        """Without those that are not to be parked at all: a copy is a little larger than its record, and may be too
        large for its topic."""
        try:
            return list(zip(works, await self._store(works), strict=True))
        except RecordTooLarge as error:
            if len(works) > 1:
                return [one for each in works for one in await self._store_what_fits([each])]
            works[0].owes_tombstone = True  # the intent is marked
            self._buried(works[0], Dead("too_large", f"it has to wait, and cannot be parked: {error}"))
            return []

    async def _store(self, works: list[W]) -> list[bool]:
        """Whether each is parked; those are not whose outcome somebody has stored meanwhile."""
        context, stage = self._context, self._worker.stage
        patience, state, lane = context.patience, context.state, context.lane
        poll = self._worker.kind is Kind.POLL
        rows = of(lane, map(row_of, works))
        await patience.until_done("mark the intent to park", lambda: answered(state.intend_to_park(rows)))
        now, wall = context.clock.monotonic(), context.clock.time()
        due = [max(0.0, work.due - now) for work in works]
        copies = [
            wrap(context.parked_topic, stage, work, row_of(work), due_ms=int((wall + wait) * 1000), poll=poll)
            for work, wait in zip(works, due, strict=True)
        ]
        at = await patience.until_done("append parked copies", lambda: context.log.append(copies))
        now = context.clock.monotonic()  # the log may have been away for long
        parked = [
            Parked(row_of(work), work.generation, where, max(0.0, work.due - now), work.queue, work.record.offset, poll)
            for work, where in zip(works, at, strict=True)
        ]
        put = await patience.until_done("park references", lambda: answered(state.park(of(lane, parked))))
        context.observer.parked(lane.topic, sum(put))
        return put

    # room

    async def _within_caps(self, batch: list[W]) -> list[W]:
        """The works there is room for; the others wait, are refused or buried. Renewing a reference takes no room."""
        fresh = [work for work in batch if work.parked_at is None]
        if fresh:
            await self._count_free()
        room = await self._room({work.gate for work in fresh if self._is_capped(work)})
        allowed: list[W] = []
        for work in batch:
            if work.parked_at is None:
                if (self._is_capped(work) and room[work.gate] <= 0) or self._free <= 0:
                    self._no_room(work)
                    continue
                if work.gate in room:
                    room[work.gate] -= 1
                self._free -= 1
            if work.queue is not None:
                self._parked.add(work.queue)
            allowed.append(work)
        return allowed

    def _is_capped(self, work: W) -> bool:
        """Whether its owner's own cap counts. In a shared lane not for what was sent once: that is never given up for
        lack of room, and must not wait in the others' way; begins see to it that there is not much of it."""
        return self._worker.capped and not (self._context.shared and work.sent)

    async def _room(self, owners: set[str]) -> dict[str, int]:
        """How many more retries each of them may have parked."""
        if not owners:
            return {}
        context, asked = self._context, sorted(owners)
        counts = await context.patience.until_done("count parked", lambda: answered(context.state.parked(asked)))
        cap = context.bounds.parked_per_owner
        return {owner: cap - count.retries for owner, count in zip(asked, counts, strict=True)}

    async def _count_free(self) -> None:
        """What is free for all owners, as of the last second."""
        context = self._context
        now = context.clock.monotonic()
        if now - self._counted_at >= ROOM_S:
            total = await context.patience.until_done("count all parked", context.state.parked_total)
            self._free = context.bounds.parked_total - total.retries - total.polls
            self._counted_at = now

    def _no_room(self, work: W) -> None:
        if self._context.shared and self._free > 0:
            self._buried(work, Dead("backlog_full", NO_ROOM))
            return
        self._refused_at = self._context.clock.monotonic()
        if work.queue is not None and (work.queue in self._parked or self._behind_keys[work.queue]):
            self._wait_behind(work, work.queue)
        else:
            self._refused(work)

    def _wait_behind(self, work: W, queue: bytes) -> None:
        """Not into the lane's order: it would overtake the parked ones. The window fills, and intake stops."""
        self._behind_keys[queue] += 1
        self._behind.append(work)
        self._crowded.set()

    async def _try_again(self) -> None:
        while True:
            await self._crowded.wait()
            await self._context.clock.sleep(ROOM_S)
            if not self._closed():
                await self._look_behind()
                self._crowded.clear()
                for work in self._taken_from_behind():
                    self.park(work)
            elif self._context.clock.monotonic() - self._looked_at >= LOOK_S:
                await self._look_behind()
                for work in self._taken_from_behind():
                    self._wait_on(work)

    def _taken_from_behind(self) -> deque[W]:
        waiting, self._behind = self._behind, deque()
        self._behind_keys.clear()
        return waiting

    def _wait_on(self, work: W) -> None:
        """While the endpoint is closed: elsewhere, once its order key is free, for it may grow too old there."""
        if work.queue is not None and self.blocks(work.queue):
            self._wait_behind(work, work.queue)
        else:
            self._refused(work)

    async def _look_behind(self) -> None:
        """Forget order keys that turn out to have nothing parked: then even without room their works can go on."""
        context = self._context
        self._looked_at = context.clock.monotonic()
        firsts = {work.queue: work for work in reversed(self._behind) if work.queue is not None}
        asks = [IntakeAsk(row_of(work), work.generation, queue) for queue, work in firsts.items()]
        rows = await context.patience.until_done(
            "look at queues", lambda: answered(context.state.intake(of(context.lane, asks)))
        )
        for queue, row in zip(firsts, rows, strict=True):
            if not (row.behind or row.kept):
                self.emptied(queue)

    async def hand_back(self, works: Iterable[W]) -> None:
        """Those of `works` that came from the due index are due for the next owner at once, not only when their leases
        are over. A courtesy: where it fails, the leases do it."""
        context, poll = self._context, self._worker.kind is Kind.POLL
        parked = [
            Parked(row_of(work), work.generation, work.parked_at, 0.0, work.queue, work.record.offset, poll)
            for work in works
            if work.parked_at is not None
        ]
        if parked:
            with suppress(Unavailable, PartitionLost):
                await answered(context.state.park(of(context.lane, parked)))


def _count_down(counter: Counter[bytes], key: bytes) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
