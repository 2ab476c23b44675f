"""What each endpoint of a lane of many may have in flight, so that it is not in the way of others. Pure.

A work in flight cannot be parked. So an endpoint may have another one in flight while it has fewer than are free in the
lane's window, and would have no more bytes than are free in its memory: one alone gets half of both, and n that take
all they can get 1/(n+1) each, as in `relay/domain/fair_share.py`.
"""

from dataclasses import dataclass

from relay.engine.policy import BudgetShare
from relay.engine.work import Work
from relay.log.port import size_of


@dataclass(slots=True)
class InFlight:
    """Works in flight, and the bytes of their records."""

    works: int = 0
    size: int = 0


class WindowShares:
    """`window`: works that the lane may have in memory; `memory`: and bytes of them."""

    def __init__(self, window: int, memory: BudgetShare | None = None) -> None:
        self.free = window
        """The window without works in flight; parked ones that are due come in addition, so it may be negative."""
        self._memory = memory or BudgetShare()
        self._size = 0
        self._endpoints: dict[str, InFlight] = {}

    @property
    def free_size(self) -> int:
        """The bytes that the lane may hold, without those of works in flight."""
        return self._memory.most - self._size

    @property
    def room(self) -> int:
        """Bytes of parked records that may be taken up now: half of the free ones, as new records need the others."""
        return max(0, self.free_size // 2 - (self._memory.held - self._size))

    @property
    def full(self) -> bool:
        return self._memory.full

    def may_take(self, work: Work) -> bool:
        """Whether its endpoint may have another work in flight, which is this one."""
        own = self._endpoints.get(work.gate)
        return own is None or (own.works < self.free and own.size + 2 * size_of(work.record) <= self.free_size)

    def take(self, work: Work) -> None:
        own = self._endpoints.get(work.gate)
        if own is None:
            own = self._endpoints[work.gate] = InFlight()
        work.size = size_of(work.record)
        own.works += 1
        own.size += work.size
        self.free -= 1
        self._size += work.size

    def leave(self, work: Work) -> None:
        own = self._endpoints[work.gate]
        own.works -= 1
        own.size -= work.size
        self.free += 1
        self._size -= work.size
        if not own.works:
            del self._endpoints[work.gate]
