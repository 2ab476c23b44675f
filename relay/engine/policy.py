"""What a lane keeps to: its bounds, when it has enough at hand, and what becomes of a work that cannot go now. That is
one decision, made by the policy of its kind of lane. Pure; times are monotonic seconds.

A *dedicated* lane has one receiver. When that takes nothing, the lane stops its intake, and its backlog stays in its
topic. In a *shared* one many are served, also sources with their callbacks: nothing waits there in the others' way. An
*unparked* one has steps that are harmless to repeat, and nobody outside to wait for.
"""

import sys
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final


class Fate(Enum):
    """HOLD: it waits in memory. PARK: off the lane, with a due time. STOP_INTAKE: it waits in memory, and what follows
    stays in the log. BURY: a dead letter."""

    HOLD = "hold"
    PARK = "park"
    STOP_INTAKE = "stop intake"
    BURY = "bury"


@dataclass(frozen=True, slots=True)
class Policy:
    """Of an unparked lane. `hold_s`: longer waits are parked. `capped`: an owner's parked works are counted, and those
    whose answer is still to come."""

    hold_s: float
    capped: bool = False
    parks = False
    clears_the_way = True
    """Whoever may go on is not to wait for another endpoint: at the bound, what is in the way is parked."""
    retries_need_room = False
    """A first attempt is made only where there is room to park its retry."""

    def waiting(self, wait_s: float, *, down: bool) -> Fate:
        """It has to wait so long. `down`: the endpoint that last was closed is so for its own reasons."""
        return Fate.HOLD

    def behind_parked(self, *, down: bool) -> Fate:
        """Records of its order key are parked, and it may not overtake them."""
        return Fate.PARK

    def no_room_to_park(self, *, over_all: bool, full: bool) -> Fate:
        """`over_all`: there is none for anybody; else only its owner has used up its own. `full`: the lane is at its
        bound, so that what waits there is in the way of others."""
        return Fate.STOP_INTAKE

    def no_room_for_answer(self, *, attempted: bool) -> Fate:
        """As many of its receiver's messages as may wait for an answer or for a retry."""
        return Fate.STOP_INTAKE

    def counts_room(self, *, sent: bool, crowded: bool) -> bool:
        """Whether it counts when it is parked how much its owner has. `crowded`: that may be more than its share."""
        return self.capped or crowded

    def stands_still(self, *, down: bool) -> bool:
        """Intake stops: what would be taken in could only wait."""
        return False


class Dedicated(Policy):
    parks = True
    clears_the_way = False
    __slots__ = ()

    def waiting(self, wait_s: float, *, down: bool) -> Fate:
        if wait_s <= self.hold_s:
            return Fate.HOLD
        return Fate.STOP_INTAKE if down else Fate.PARK

    def behind_parked(self, *, down: bool) -> Fate:
        return Fate.STOP_INTAKE if down else Fate.PARK

    def stands_still(self, *, down: bool) -> bool:
        return down


class SharedLanePolicy(Policy):
    parks = True
    retries_need_room = True
    __slots__ = ()

    def waiting(self, wait_s: float, *, down: bool) -> Fate:
        return Fate.HOLD if wait_s <= self.hold_s else Fate.PARK

    def no_room_to_park(self, *, over_all: bool, full: bool) -> Fate:
        """Where owners have no cap, it is only given up where it is in the way."""
        return Fate.BURY if not over_all and (self.capped or full) else Fate.STOP_INTAKE

    def no_room_for_answer(self, *, attempted: bool) -> Fate:
        return Fate.HOLD if attempted else Fate.BURY

    def counts_room(self, *, sent: bool, crowded: bool) -> bool:
        """What was sent once is never given up for lack of room, where that was looked at before it was sent."""
        return not sent if self.capped else crowded


class LaneStanding:
    """Whether the endpoint that a lane sends to takes anything now, as far as known here. Of use where it has but
    one."""

    def __init__(self) -> None:
        self._failures = 0  # in a row
        self.down = False
        """It takes nothing, for its own reasons, not only because of our pace."""

    def closed(self, *, down: bool) -> None:
        """The endpoint takes nothing now. `down`: for its own reasons."""
        self.down = self.down or down

    def heard(self, *, healthy: bool, enough: int | None) -> None:
        """It took a request as it should, or did not. `enough`: so many failures in a row open its breaker.

        Begins will say so, too; but what has failed is parked before the next of them.
        """
        self._failures = 0 if healthy else self._failures + 1
        if healthy:
            self.down = False
        elif enough is not None and self._failures >= enough:
            self.down = True


ENOUGH: Final = 128
"""Records that wait here are enough while some end all the time: more would only be kept from the log too early, and
out of the CPU's caches when their turn comes."""

STALLED_S: Final = 0.09
"""Nothing has ended for so long: others further on may not have to wait for what these wait for. One poll more is taken
at a time, as the whole process may just be busy. Less than the time after which the runner looks again."""


CROWDED: Final = 4_096
"""Unfinished records of all lanes of a worker in one process, some 8 kB each: then a lane in which nothing ends is more
likely slow because the process is busy, and what it takes is memory."""

STALLED_IN_A_CROWD_S: Final = 1.0
"""What counts as stalled then."""


class IntakeLimit:
    """Whether a lane has enough at hand, so that the rest may stay in the log. In a `shared` one it says nothing that
    something ends: it may be a slow receiver's, and what is further on another's. So there one poll more is taken each
    time, up to the window, whoever ends what. Where its works do not wait for anybody outside (not `waits`), what is
    further on would wait for the same, and only take memory: ten full windows of `from_sender` are 100 MB. So enough is
    enough there."""

    def __init__(self, *, shared: bool, waits: bool = True) -> None:
        self._shared = shared
        self._stalled_s = STALLED_S if waits else inf
        self._moved_at = -inf

    def offered(self, now: float) -> None:
        self._moved_at = now

    def ended(self, now: float) -> None:
        if not self._shared:
            self._moved_at = now

    def sated(self, waiting: int, now: float, *, crowded: bool) -> bool:
        """`waiting`: records that are at hand and have not begun. `crowded`: the process has many, in all its lanes."""
        stalled_s = max(self._stalled_s, STALLED_IN_A_CROWD_S) if crowded else self._stalled_s
        return waiting >= ENOUGH and now - self._moved_at < stalled_s


class ByteBudget:
    """Bytes of records that all lanes of a process hold together: of those that are unfinished, and of what they have
    come to, until the log has that. Above `limit` a lane gets one record more only where it has none, so that each has
    something to work at."""

    def __init__(self, limit: int = sys.maxsize) -> None:
        self.limit = limit
        self.used = 0

    @property
    def free(self) -> int:
        return self.limit - self.used


class BudgetShare:
    """What one lane holds of it. A lane takes more while it holds less than is free: one alone comes to half of it, and
    n that take what they get to 1/(n+1) each, so that there is always some left for another (dynamic thresholds,
    Choudhury and Hahne, 1998)."""

    __slots__ = ("_budget", "_closed", "held")

    def __init__(self, budget: ByteBudget | None = None) -> None:
        self._budget = budget or ByteBudget()
        self._closed = False
        self.held = 0

    @property
    def room(self) -> int:
        """Bytes that it may take now."""
        return max(0, (self._budget.free - self.held) // 2)

    @property
    def full(self) -> bool:
        return self.held >= self._budget.free and self.held > 0

    def take(self, size: int) -> None:
        """Negative: give back."""
        if not self._closed:
            self.held += size
            self._budget.used += size

    def close(self) -> None:
        """The lane is over: what it held is held no more."""
        self.take(-self.held)
        self._closed = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """Everything is bounded. Counts are per lane unless said otherwise; durations in seconds."""

    window: int = 2_000
    """Unfinished records, at most."""
    span: int = 20_000
    """Offsets between the commit watermark and the newest record, at most."""
    parked_per_owner: int = 100_000
    """Parked references of a receiver; polls are counted apart."""
    parked_total: int = 1_000_000
    due_in_hand: int = 500
    """Parked records taken up at a time."""
    lease_s: float = 60.0
    """How long a reference taken from the due index stays with this lane before it comes again."""
    start_within_s: float = 5.0
    """A request starts within this time of its begin, or the begin is released."""
    crashes: int = 3
    """Unexpected exceptions of a step before its record is called poison."""
