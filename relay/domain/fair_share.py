"""Fair limiter of concurrent requests: a bounded number of seats, shared by parties. Pure.

Half of the seats are for parties that have none. A party may take one of the other seats while it has fewer than are
free: a single party gets half of these, and n parties that take all they can get 1/(n+1) of them each (dynamic
thresholds, Choudhury and Hahne, 1998). So as many parties as half of the seats may hang, however many seats they had
taken before, and the next party still finds a seat.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

OF_RESERVE: Final = 8
"""One seat out of this many is reserved for administrators, if they have a reserve."""

Sit = Callable[[], bool]
"""Called when there is a seat; returns False if it is no longer wanted."""


class FairShare:
    """Limiter of the requests of all parties. `most`: the number of seats."""

    def __init__(self, most: int) -> None:
        self.free = most
        self._reserved = most // 2
        self._seated: dict[str, int] = {}
        self._waiting: dict[str, deque[Sit]] = {}
        self._by_seats: dict[int, dict[str, None]] = {}  # waiting parties by their seats, in order of arrival

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def has(self, party: str) -> bool:
        return party in self._seated

    def take(self, party: str) -> bool:
        """Take a seat for `party` if it may have one now; returns whether it did."""
        seats = self._seated.get(party, 0)
        if party in self._waiting or not may_have_one_more(seats, self.free, self._reserved):
            return False
        self._seated[party] = seats + 1
        self.free -= 1
        return True

    def wait(self, party: str, sit: Sit) -> None:
        """Call `sit` when there is a seat, in a later `call_up`."""
        line = self._waiting.get(party)
        if line is None:
            line = self._waiting[party] = deque()
            self._line_up(party, self._seated.get(party, 0))
        line.append(sit)

    def leave(self, party: str) -> bool:
        """Release one seat of `party`. Returns whether any party waits."""
        self.free += 1
        self._has(party, self._seated[party] - 1)
        return bool(self._waiting)

    def call_up(self, most: int | None = None) -> None:
        """Give seats to waiting parties that may have one, those with the fewest first; at most `most` seats."""
        given = 0
        while self._by_seats and given != most:
            seats = min(self._by_seats)
            if not may_have_one_more(seats, self.free, self._reserved):
                return
            given += self._seat_next(next(iter(self._by_seats[seats])), seats)

    def _seat_next(self, party: str, seats: int) -> bool:
        line = self._waiting[party]
        sit = line.popleft()
        self.free -= 1
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
    """Whether a party with `seats` may take one of the `free` seats, `reserved` of which are for parties without
    one."""
    return free > 0 if seats == 0 else seats < free - reserved
