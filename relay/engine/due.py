"""Parked records come back: what is due in the state's index is read from the log, and is in hand until it has ended
or is parked again."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from relay.domain.errors import InvalidRecord, PartitionLost
from relay.engine.context import LaneContext
from relay.engine.parked_copy import ParkedCopy, parked_key, unwrap
from relay.log.port import Record
from relay.state.port import Due, DueAsk
from relay.state.replies import answered, of
from relay.state.rows import RowKey, tag_of

RECHECK_S = 30.0
"""How often the due index is looked at although nothing is known to be due: references that others put there."""
FULL_S = 1.0
"""How soon to look again when as many are in hand as may be."""


class DueRecords:
    """Takes up what is due for one lane, a bounded number at a time.

    `closed(owner)`: whether works of that owner would only wait here, in the others' way: they are left alone until
    their lease is over. `fence()`: a newer owner has the lane.
    """

    def __init__(
        self, context: LaneContext, stage: str, *, closed: Callable[[str], bool], fence: Callable[[], None]
    ) -> None:
        self._context = context
        self._stage = stage
        self._closed = closed
        self._fence = fence
        self._in_hand: set[bytes] = set()
        self._next_look: dict[int, float] = {}
        self._looked_at = -inf
        self._full_at = -inf
        self._news: dict[int, float] = {}  # what was heard about tags while the index was being asked
        self.expecting = asyncio.Event()
        """Set when `next_look` may have become earlier."""

    @property
    def full(self) -> bool:
        """As many are in hand as may be."""
        return len(self._in_hand) >= self._context.bounds.due_in_hand

    def next_look(self) -> float:
        """When to call `take_up` next (monotonic)."""
        if self.full:
            return self._full_at + FULL_S
        return min((self._looked_at + RECHECK_S, *self._next_look.values()))

    def expect(self, owner: str, at: float) -> None:
        """Something of `owner` will be due at the monotonic time `at` (0: is due)."""
        tag = tag_of(owner)
        self._next_look[tag] = min(at, self._next_look.get(tag, at))
        self._news[tag] = min(at, self._news.get(tag, at))
        self.expecting.set()

    def put_down(self, digest: bytes) -> None:
        """A work has ended, is parked again, or is left to its lease."""
        if digest in self._in_hand:
            if self.full:
                self.expecting.set()
            self._in_hand.discard(digest)

    async def take_up(self) -> list[ParkedCopy]:
        """Due records, from now on in hand; earliest first per tag."""
        context = self._context
        now = context.clock.monotonic()
        if self.full:
            self._full_at = now
            return []
        if now - self._looked_at >= RECHECK_S:
            await self._look(context.tags)
            self._looked_at = now
        tags = [tag for tag, at in self._next_look.items() if at <= now]
        if not tags:
            return []
        limit = max(1, (context.bounds.due_in_hand - len(self._in_hand)) // len(tags))
        asks = of(context.lane, [DueAsk(tag, limit) for tag in tags])
        try:
            parts = await context.patience.until_done(
                "take due records", lambda: answered(context.state.take_due(asks, lease_s=context.bounds.lease_s))
            )
        except PartitionLost:
            self._fence()
            return []
        await self._look(tags)
        return await self._read([due for part in parts for due in part if due.row.digest not in self._in_hand])

    async def _look(self, tags: Sequence[int]) -> None:
        """Learn when the first of each tag is due."""
        context = self._context
        self._news.clear()
        upcoming = await context.patience.until_done(
            "look what is due", lambda: answered(context.state.next_due(of(context.lane, tags)))
        )
        now = context.clock.monotonic()
        for tag, in_s in zip(tags, upcoming, strict=True):
            at = min(inf if in_s is None else now + in_s, self._news.get(tag, inf))
            if at < inf:
                self._next_look[tag] = at
            else:
                self._next_look.pop(tag, None)

    async def _read(self, taken: Sequence[Due]) -> list[ParkedCopy]:
        taken = [due for due in taken if not self._closed(due.row.owner)]
        if not taken:
            return []
        context = self._context
        keys = [parked_key(self._stage, due.row) for due in taken]
        wanted = [(due.at, key) for due, key in zip(taken, keys, strict=True)]
        records = await context.patience.until_done("read parked records", lambda: context.log.read(wanted))
        missing = {due.at.partition for due, record in zip(taken, records, strict=True) if record is None}
        newest = await self._newest(missing)
        found: list[ParkedCopy] = []
        gone: list[RowKey] = []
        for due, key, record in zip(taken, keys, records, strict=True):
            record = record or newest.get(key)
            copy = _copy(record)
            if copy is not None:
                self._in_hand.add(due.row.digest)
                found.append(copy)
            elif record is None:
                gone.append(due.row)
        await self._forget(gone)
        return found

    async def _newest(self, partitions: set[int]) -> dict[bytes, Record]:
        """All living copies there, by key: rarely needed, when one was not where its reference says."""
        context = self._context
        newest: dict[bytes, Record] = {}
        for partition in partitions:
            records = await context.patience.until_done(
                "search parked records", partial(context.log.snapshot, context.parked_topic, partition)
            )
            newest |= {record.key: record for record in records if record.key is not None}
        return newest

    async def _forget(self, rows: Sequence[RowKey]) -> None:
        """Their tombstones are on the log, so they are over, but somebody died before their references were removed.
        They would block their order keys for ever."""
        if rows:
            context = self._context
            promoted = await context.patience.until_done(
                "remove left-over references",
                lambda: answered(context.state.unpark(of(context.lane, [(row, None) for row in rows]))),
            )
            for row, next_is_due in zip(rows, promoted, strict=True):
                if next_is_due:
                    self.expect(row.owner, 0.0)


def _copy(record: Record | None) -> ParkedCopy | None:
    if record is None:
        return None
    try:
        return unwrap(record)
    except InvalidRecord:
        return None  # not ours, so not an obligation of ours
