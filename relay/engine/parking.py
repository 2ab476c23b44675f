"""Long waits: off the lane's window, onto `parked_messages`, and back when due.

Intent in the state, copy on the log, reference in the state, then finished: in this order, so that a crash between any
two leaves the record either uncommitted or referenced, and a parked copy is always known to somebody.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic

from relay.domain.errors import InvalidRecord, PartitionLost
from relay.engine.context import LaneContext
from relay.engine.gather import Gather
from relay.engine.parked_copy import parked_key, unwrap, wrap
from relay.engine.rows import row_of
from relay.engine.work import Dead, W, Worker
from relay.log.port import Coordinate, Record
from relay.state.port import Due, Kind, Parked, tag_of

RECHECK_S = 30.0
"""How often the due index is looked at although nothing is known to be due: references that others put there."""


class Parking(Generic[W]):
    """Parks works with their order keys, and takes up those whose time has come.

    `finished(work)`: parked for sure. `refused(work)`: the global cap is reached, or the lane's only receiver has as
    many parked as it may. `buried(work, dead)`: no room, and the lane must not stop for it. `taken(records)`: parked
    records, to be worked on; in order of their due times.
    """

    def __init__(
        self,
        context: LaneContext,
        worker: Worker[W],
        *,
        finished: Callable[[W], None],
        refused: Callable[[W], None],
        buried: Callable[[W, Dead], None],
        fence: Callable[[], None],
    ) -> None:
        self._context = context
        self._worker = worker
        self._finished = finished
        self._refused = refused
        self._buried = buried
        self._fence = fence
        self._parking: Gather[W] = Gather(self._park)
        self.loops = (self._parking.run,)
        self._keys: Counter[bytes] = Counter()  # order keys with works on their way to be parked
        self._parked_keys: set[bytes] = set()  # order keys that have parked records, as far as known here
        self._in_hand: set[bytes] = set()  # digests of parked works that this lane is busy with
        self._next_look: dict[int, float] = dict.fromkeys(context.tags, 0.0)
        self._looked_at = 0.0
        self._total: tuple[float, int] = (-RECHECK_S, 0)
        self.expecting = asyncio.Event()
        """Set when `next_due` may have become earlier."""

    def __len__(self) -> int:
        return len(self._parking)

    # into the parking place

    def blocks(self, queue: bytes | None) -> bool:
        """Whether records of this order key have to queue behind parked ones."""
        return queue is not None and (queue in self._parked_keys or self._keys[queue] > 0)

    def park(self, work: W) -> None:
        """Park a work that is neither in flight nor in the lane's order. Works of one key: in order."""
        if work.queue is not None:
            self._keys[work.queue] += 1
            self._parked_keys.add(work.queue)
        self._parking.put(work)

    async def _park(self, batch: list[W]) -> None:
        try:
            allowed = await self._within_caps(batch)
            if allowed:
                await self._store(allowed)
        except PartitionLost:
            self._fence()
            return
        for work in batch:
            if work.queue is not None:
                self._keys[work.queue] -= 1
        for work in allowed:
            self._in_hand.discard(row_of(work).digest)
            self._finished(work)

    async def _store(self, works: list[W]) -> None:
        context, stage = self._context, self._worker.stage
        patience, state, lane = context.patience, context.state, context.lane
        poll = self._worker.kind is Kind.POLL
        rows = [(row_of(work), work.generation) for work in works]
        await patience.until_done("mark the intent to park", lambda: state.intend_to_park(lane, rows))
        now, wall = context.clock.monotonic(), context.clock.time()
        due = [max(0.0, work.due - now) for work in works]
        copies = [
            wrap(context.parked_topic, stage, work, row_of(work), due_ms=int((wall + wait) * 1000), poll=poll)
            for work, wait in zip(works, due, strict=True)
        ]
        at = await patience.until_done("append parked copies", lambda: context.log.append(copies))
        parked = [
            Parked(row_of(work), work.generation, where, wait, work.queue, work.record.offset, poll)
            for work, where, wait in zip(works, at, due, strict=True)
        ]
        await patience.until_done("park references", lambda: state.park(lane, parked))
        context.observer.parked(lane.topic, len(works))
        for work, wait in zip(works, due, strict=True):
            self._expect(work, now + wait)

    async def _within_caps(self, batch: list[W]) -> list[W]:
        """The works there is room for; the others are refused or buried. Renewing a reference takes no room."""
        fresh = [work for work in batch if work.parked_at is None]
        if not fresh:
            return batch
        room = await self._room(fresh)
        allowed: list[W] = []
        for work in batch:
            if work.parked_at is None:
                if room[work.gate] <= 0:
                    self._no_room(work)
                    continue
                room[work.gate] -= 1
            allowed.append(work)
        return allowed

    async def _room(self, works: Sequence[W]) -> dict[str, int]:
        context = self._context
        owners = sorted({work.gate for work in works})
        counts = await context.patience.until_done("count parked", lambda: context.state.parked(owners))
        free = context.bounds.parked_total - await self._parked_total()
        poll = self._worker.kind is Kind.POLL
        cap = context.bounds.parked_per_owner
        return {
            owner: min(free, cap - (count.polls if poll else count.retries))
            for owner, count in zip(owners, counts, strict=True)
        }

    async def _parked_total(self) -> int:
        """All parked references; a figure of the last seconds is good enough for a cap."""
        context = self._context
        at, total = self._total
        if context.clock.monotonic() - at > 5.0:
            counts = await context.patience.until_done("count all parked", context.state.parked_total)
            total = counts.retries + counts.polls
            self._total = (context.clock.monotonic(), total)
        return total

    def _no_room(self, work: W) -> None:
        full_for_all = self._total[1] >= self._context.bounds.parked_total
        if self._context.shared and not full_for_all:
            self._buried(work, Dead("backlog_full", "the receiver has as many parked messages as it may"))
        else:
            self._refused(work)

    # out of it

    def next_due(self) -> float:
        """When to call `take_up` next (monotonic)."""
        return min(min(self._next_look.values(), default=self._looked_at + RECHECK_S), self._looked_at + RECHECK_S)

    async def take_up(self) -> list[tuple[Coordinate, Record]]:
        """Due parked records, with where their copies are. Each is in hand until `released` or parked again."""
        context = self._context
        now = context.clock.monotonic()
        if now - self._looked_at >= RECHECK_S:
            self._next_look = dict.fromkeys(context.tags, 0.0)
            self._looked_at = now
        tags = [tag for tag, at in self._next_look.items() if at <= now]
        free = context.bounds.due_in_hand - len(self._in_hand)
        if not tags or free <= 0:
            if tags:
                self._next_look.update(dict.fromkeys(tags, now + 0.05))
            return []
        try:
            taken = await context.state.take_due(
                context.lane, tags, limit=max(1, free // len(tags)), lease_s=context.bounds.lease_s
            )
            upcoming = await context.state.next_due(context.lane, tags)
        except PartitionLost:
            self._fence()
            return []
        self._look_again(tags, upcoming)
        return await self._read([due for due in taken if due.row.digest not in self._in_hand])

    def _look_again(self, tags: Sequence[int], upcoming: dict[int, float]) -> None:
        now = self._context.clock.monotonic()
        for tag in tags:
            if tag in upcoming:
                self._next_look[tag] = now + max(0.0, upcoming[tag])
            else:
                self._next_look.pop(tag, None)

    async def _read(self, taken: list[Due]) -> list[tuple[Coordinate, Record]]:
        if not taken:
            return []
        wanted = [(due.at, parked_key(self._worker.stage, due.row)) for due in taken]
        log = self._context.log
        copies = await self._context.patience.until_done("read parked records", lambda: log.read(wanted))
        found: list[tuple[Coordinate, Record]] = []
        for due, copy in zip(taken, copies, strict=True):
            original = _original(copy)
            if original is not None:  # else its lease runs out, and the recovery pass knows the newest copy
                self._in_hand.add(due.row.digest)
                found.append((due.at, original))
        return found

    def released(self, work: W, promoted: bool) -> None:
        """A parked work has ended, and its reference is gone. `promoted`: the next of its order key is due now."""
        self._in_hand.discard(row_of(work).digest)
        if promoted:
            self._expect(work, 0.0)
        elif work.queue is not None and not self._keys[work.queue]:
            self._parked_keys.discard(work.queue)

    def _expect(self, work: W, at: float) -> None:
        tag = tag_of(row_of(work).owner)
        self._next_look[tag] = min(at, self._next_look.get(tag, at))
        self.expecting.set()


def _original(copy: Record | None) -> Record | None:
    if copy is None:
        return None
    try:
        return unwrap(copy).record
    except InvalidRecord:
        return None
