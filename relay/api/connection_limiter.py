"""Which connections the API admits, and which one is evicted for a new one. Pure."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Seated(Generic[C]):
    """The new connection is admitted. `closes`: the one that is evicted for it. `reserve`: all others are busy, so it
    is admitted for monitoring only."""

    closes: C | None = None
    reserve: bool = False


class ConnectionLimiter(Generic[C]):
    """Limits connections: at most `most`, of these `per_address` from one address, and `reserve` more for
    monitoring."""

    def __init__(self, *, most: int, per_address: int, reserve: int) -> None:
        self._most = most
        self._per_address = per_address
        self._reserve_size = reserve
        self._seated: dict[C, str | None] = {}
        self._of_address: Counter[str] = Counter()
        self._reserve: dict[C, None] = {}
        self._waiting: dict[C, None] = {}
        """In the order in which they began to wait."""

    def __len__(self) -> int:
        return len(self._seated) + len(self._reserve)

    def enter(self, one: C, address: str | None) -> Seated[C] | None:
        """A newcomer, which waits. None: it is refused. `address` None: one that is not counted by address."""
        full_of_it = address is not None and self._of_address[address] >= self._per_address
        longest = None
        if full_of_it or len(self._seated) >= self._most:
            longest = self._evicted(
                lambda each: each in self._seated and (not full_of_it or self._seated[each] == address)
            )
            if longest is None:
                return self._enter_reserve(one)
        self._seated[one] = address
        self._waiting[one] = None
        if address is not None:
            self._of_address[address] += 1
        return Seated(longest)

    def works(self, one: C) -> None:
        """The connection has a complete request head, so it is no longer evicted."""
        self._waiting.pop(one, None)

    def waits(self, one: C) -> None:
        """The connection's request is answered; it waits for the next one."""
        if one in self._seated or one in self._reserve:
            self._waiting[one] = None

    def leave(self, one: C) -> None:
        """The connection is closed, or about to be. May be called twice, and for a connection that was never
        admitted."""
        self.works(one)
        self._reserve.pop(one, None)
        address = self._seated.pop(one, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def in_reserve(self, one: C) -> bool:
        return one in self._reserve

    def _enter_reserve(self, one: C) -> Seated[C] | None:
        longest = None
        if len(self._reserve) >= self._reserve_size and (longest := self._evicted(self.in_reserve)) is None:
            return None
        self._reserve[one] = self._waiting[one] = None
        return Seated(longest, reserve=True)

    def _evicted(self, may_go: Callable[[C], bool]) -> C | None:
        """The one that has waited longest of those that may go, which leaves; None if none of them waits."""
        longest = next(filter(may_go, self._waiting), None)
        if longest is not None:
            self.leave(longest)
        return longest
