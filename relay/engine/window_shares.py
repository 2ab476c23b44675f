"""What each endpoint of a lane of many, and each owner, may have in flight, so that it is not in the way of others.
Pure.

A work in flight cannot be parked. So an endpoint may have another one in flight while it has fewer than are free in the
lane's window, and would have no more bytes than are free in its memory: one alone gets half of both, and n that take
all they can get 1/(n+1) each, as in `relay/domain/fair_share.py`. The endpoints of one owner get at most three quarters
together, however many they are; an endpoint without an owner counts as one. An owner may always have one work.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from relay.engine.policy import BudgetShare
from relay.engine.work import Work
from relay.log.port import size_of

_OF_OWNER: Final = 3
"""An owner may have so many times the free part."""


@dataclass(slots=True)
class InFlight:
    """Works in flight, and the bytes of their records. `owner`: of an endpoint."""

    owner: str = ""
    works: int = 0
    size: int = 0


_NONE: Final = InFlight()


class WindowShares:
    """`window`: works that the lane may have in memory; `memory`: and bytes of them."""

    def __init__(self, window: int, memory: BudgetShare | None = None) -> None:
        self.free = window
        """The window without works in flight; parked ones that are due come in addition, so it may be negative."""
        self._memory = memory or BudgetShare()
        self._size = 0
        self._endpoints: dict[str, InFlight] = {}
        self._owners: dict[str, InFlight] = {}
        self._refused: dict[str, dict[str, None]] = {}  # endpoints by owner, in the order of their refusals

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
        """Whether its endpoint may have another work in flight, which is this one. If not, `leave` names it later."""
        name = _owner_of(work)
        owner = self._owners.get(name)
        if owner is None:
            return True
        own, size = self._endpoints.get(work.endpoint_id, _NONE), size_of(work.record)
        left = self.free_size - size
        has_room = own.works < self.free and own.size + size <= left
        works, sizes = own.works + owner.works, own.size + owner.size + 2 * size
        if has_room and works < _OF_OWNER * self.free and sizes <= _OF_OWNER * left:
            return True
        self._refused.setdefault(name, {})[work.endpoint_id] = None
        return False

    def was_refused(self, work: Work) -> bool:
        return work.endpoint_id in self._refused.get(_owner_of(work), ())

    def take(self, work: Work) -> None:
        own = self._endpoints.get(work.endpoint_id)
        if own is None:
            own = self._endpoints[work.endpoint_id] = InFlight(_owner_of(work))
        work.size = size_of(work.record)
        self._count(work, own, self._owners.setdefault(own.owner, InFlight()), 1)

    def leave(self, work: Work) -> list[str]:
        """Returns endpoints that were refused, and may have another work now."""
        own = self._endpoints[work.endpoint_id]
        owner = self._owners[own.owner]
        self._count(work, own, owner, -1)
        if not own.works:
            del self._endpoints[work.endpoint_id]
        woken = [work.endpoint_id]
        self._refused.get(own.owner, {}).pop(work.endpoint_id, None)
        if owner.works:
            woken += self._next_of(own.owner)
        else:
            del self._owners[own.owner]
            woken += self._refused.pop(own.owner, ())  # no other of its works will leave, and wake the rest
        if self._refused:
            woken += self._next_of(next(iter(self._refused)))
        return woken

    def _count(self, work: Work, own: InFlight, owner: InFlight, sign: Literal[1, -1]) -> None:
        for each in (own, owner):
            each.works += sign
            each.size += sign * work.size
        self.free -= sign
        self._size += sign * work.size

    def _next_of(self, owner: str) -> list[str]:
        """The endpoint of this owner that was refused first. The owner then comes after all others."""
        refused = self._refused.pop(owner, {})
        first = [*islice(refused, 1)]
        for endpoint in first:
            del refused[endpoint]
        if refused:
            self._refused[owner] = refused
        return first


def _owner_of(work: Work) -> str:
    rules = work.rules
    return work.endpoint_id if rules is None or rules.owner is None else rules.owner
