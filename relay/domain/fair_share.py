"""Seats for a bounded number of requests, fair over those who make them. Pure.

Half of the seats are for parties that have none. Of the others a party may take one while it has fewer than are free:
one alone gets half of these, and n that want all they can get come to 1/(n+1) of them each (dynamic thresholds,
Choudhury and Hahne, 1998). So as many parties as half of the seats may hang, whatever they got hold of before, and
whoever comes next still finds a seat.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

OF_RESERVE: Final = 8
"""Where administrators have a reserve, it is one in so many seats."""

Sit = Callable[[], bool]
"""Called when there is a seat; False: it is not wanted any more."""


class FairShare:
    """`most`: how many seats there are."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._reserved = most // 2
        self._seated: dict[str, int] = {}
        self._waiting: dict[str, deque[Sit]] = {}
        self._by_seats: dict[int, dict[str, None]] = {}  # those who wait, by what they have; in their turns

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def free(self) -> int:
        return self._free

    def has(self, party: str) -> bool:
        return party in self._seated

    def take(self, party: str) -> bool:
        """Whether there is a seat for `party` now; then it has it."""
        seats = self._seated.get(party, 0)
        if party in self._waiting or not self._may_have_more(seats):
            return False
        self._seated[party] = seats + 1
        self._free -= 1
        return True

    def wait(self, party: str, sit: Sit) -> None:
        """Call `sit` when there is a seat, in a later `call_up`."""
        line = self._waiting.get(party)
        if line is None:
            line = self._waiting[party] = deque()
            self._line_up(party, self._seated.get(party, 0))
        line.append(sit)

    def leave(self, party: str) -> None:
        """One seat of `party` is free again."""
        self._free += 1
        self._has(party, self._seated[party] - 1)

    def call_up(self, most: int | None = None) -> None:
        """Give seats to those who wait and may have one: who has the fewest comes first. `most`: so many, at most."""
        given = 0
        while self._by_seats and given != most:
            seats = min(self._by_seats)
            if not self._may_have_more(seats):
                return
            given += self._seat_next(next(iter(self._by_seats[seats])), seats)

    def _may_have_more(self, seats: int) -> bool:
        return may_have_one_more(seats, self._free, self._reserved)

    def _seat_next(self, party: str, seats: int) -> bool:
        line = self._waiting[party]
        sit = line.popleft()
        self._free -= 1
        self._has(party, seats + 1)
        if not line:
            del self._waiting[party]
            self._step_out(party, seats + 1)
        taken = sit()
        if not taken:
            self.leave(party)
        return taken

    def _has(self, party: str, seats: int) -> None:
        if party in self._waiting:
            self._step_out(party, self._seated.get(party, 0))
            self._line_up(party, seats)
        if seats:
            self._seated[party] = seats
        else:
            del self._seated[party]

    def _line_up(self, party: str, seats: int) -> None:
        self._by_seats.setdefault(seats, {})[party] = None

    def _step_out(self, party: str, seats: int) -> None:
        line = self._by_seats[seats]
        del line[party]
        if not line:
            del self._by_seats[seats]


def may_have_one_more(seats: int, free: int, reserved: int) -> bool:
    """Whether a party that has `seats` may take one of the `free` ones, `reserved` of which are for those with none."""
    return free > 0 if seats == 0 else seats < free - reserved
