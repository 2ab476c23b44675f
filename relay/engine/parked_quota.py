"""Quota of parked records: in total, and for each receiver or source.

No owner gets more than is left free for all others. So one that takes all it can leaves half of the room free, two
leave a third, and an owner with few always finds some. No number of owners has to be known, and no share to be set.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import structs

from relay.clock import Clock
from relay.engine.lane import Lane
from relay.engine.parked_index import NotParked
from relay.engine.policy import Bounds
from relay.engine.supervision import Retrier
from relay.engine.work import Work
from relay.state.attempts import BeginRequest, CallKind
from relay.state.port import State
from relay.state.replies import answered

COUNTED_FOR_S: Final = 1.0


class ParkingQuota:
    """One for all lanes of a process."""

    def __init__(self, state: State, clock: Clock, retrier: Retrier) -> None:
        self._state = state
        self._clock = clock
        self._retrier = retrier
        self._counted_at = -COUNTED_FOR_S
        self._free = 0
        self._most = 0

    async def refusals(self, lane: Lane[Any], works: Sequence[Work]) -> list[NotParked | None]:
        """For each work, NotParked if there is no room. Renewing a reference takes none; that of polls was reserved at
        their begin."""
        policy, fresh = lane.setup.policy, [work.parked_at is None for work in works]
        if any(fresh):
            await self._count(lane.setup.bounds)
        polls, crowded = lane.worker.kind is CallKind.POLL, self.crowded
        counts = [
            is_fresh and not polls and policy.counts_room(sent=work.sent, crowded=crowded)
            for work, is_fresh in zip(works, fresh, strict=True)
        ]
        left = await self._left(lane, {work.endpoint_id for work, each in zip(works, counts, strict=True) if each})
        found: list[NotParked | None] = []
        for work, is_fresh, counted in zip(works, fresh, counts, strict=True):
            if is_fresh and (self._free <= 0 or (counted and left[work.endpoint_id] <= 0)):
                found.append(NotParked(over_all=not (counted and left[work.endpoint_id] < self._free)))
                continue
            if is_fresh:
                self._free -= 1
                if work.endpoint_id in left:
                    left[work.endpoint_id] -= 1
            found.append(None)
        return found

    async def share_to_retry(self, bounds: Bounds) -> int | None:
        """An owner with more retries than that begins no first attempt that may need one. None: no such limit."""
        if self.crowded:
            await self._count(bounds)
        return max(1, self._free) if self.crowded else None

    async def _left(self, lane: Lane[Any], owners: set[str]) -> dict[str, int]:
        """How many more records each of them may have parked: each of them also takes one of the free places."""
        if not owners:
            return {}
        asked, bounds = sorted(owners), lane.setup.bounds
        cap = bounds.parked_per_owner if lane.setup.policy.capped else bounds.parked_total
        counts = await self._retrier.until_done("count parked", lambda: answered(self._state.parked(asked)))
        return {
            owner: min(cap - count.retries, (self._free - count.retries - count.polls + 1) // 2)
            for owner, count in zip(asked, counts, strict=True)
        }

    async def _count(self, bounds: Bounds) -> None:
        """Update the free room, at most once a second."""
        now = self._clock.monotonic()
        if now - self._counted_at >= COUNTED_FOR_S:
            self._counted_at = now
            total = await self._retrier.until_done("count all parked", self._state.parked_total)
            self._most = bounds.parked_total
            self._free = self._most - total.retries - total.polls

    @property
    def crowded(self) -> bool:
        """Whether an owner may have more parked than is free."""
        return self._free < self._most // 2


def within(ask: BeginRequest, share: int) -> BeginRequest:
    """Apply `ParkingQuota.share_to_retry`; no change if a retry needs no room."""
    if ask.room_to_retry is None:
        return ask
    return structs.replace(ask, room_to_retry=min(ask.room_to_retry, share))
