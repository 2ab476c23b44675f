"""Evicts the longest-waiting connection when the connection limit is reached. Pure.

Only connections without a complete request head may be evicted. So new clients are always admitted while others just
hold connections open, however many do.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
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
    """At most `most` connections, of them `per_address` from the same address, and `reserve` beyond."""

    def __init__(self, *, most: int, per_address: int, reserve: int) -> None:
        self._most = most
        self._per_address = per_address
        self._reserve_size = reserve
        self._seated: dict[C, str | None] = {}
        self._of_address: Counter[str] = Counter()
        self._waiting: OrderedDict[C, None] = OrderedDict()
        self._reserve: dict[C, None] = {}
        self._waiting_in_reserve: OrderedDict[C, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seated) + len(self._reserve)

    def enter(self, one: C, address: str | None) -> Seated[C] | None:
        """A newcomer, which waits. None: it is refused. `address` None: one that is not counted by address."""
        full_of_it = address is not None and self._of_address[address] >= self._per_address
        if not full_of_it and len(self._seated) < self._most:
            return self._seat(one, address, None)
        longest = self._longest(address if full_of_it else None)
        if longest is not None:
            self.leave(longest)
            return self._seat(one, address, longest)
        return self._seat_in_reserve(one)

    def works(self, one: C) -> None:
        """It has a complete request head: from now on it is not evicted."""
        self._waiting.pop(one, None)
        self._waiting_in_reserve.pop(one, None)

    def waits(self, one: C) -> None:
        """Its request is answered; it waits for the next one."""
        if one in self._seated:
            self._waiting[one] = None
        elif one in self._reserve:
            self._waiting_in_reserve[one] = None

    def leave(self, one: C) -> None:
        """It is closed, or about to be. May be called twice, and for one that was never admitted."""
        self.works(one)
        self._reserve.pop(one, None)
        if one in self._seated:
            address = self._seated.pop(one)
            if address is not None:
                self._of_address[address] -= 1
                if not self._of_address[address]:
                    del self._of_address[address]

    def in_reserve(self, one: C) -> bool:
        return one in self._reserve

    def _longest(self, address: str | None) -> C | None:
        """The one that has waited longest, of those from `address`, or None of all."""
        if address is None:
            return next(iter(self._waiting), None)
        return next((one for one in self._waiting if self._seated[one] == address), None)

    def _seat(self, one: C, address: str | None, closes: C | None) -> Seated[C]:
        self._seated[one] = address
        if address is not None:
            self._of_address[address] += 1
        self._waiting[one] = None
        return Seated(closes)

    def _seat_in_reserve(self, one: C) -> Seated[C] | None:
        longest = None
        if len(self._reserve) >= self._reserve_size:
            longest = next(iter(self._waiting_in_reserve), None)
            if longest is None:
                return None
            self.leave(longest)
        self._reserve[one] = self._waiting_in_reserve[one] = None
        return Seated(longest, reserve=True)
