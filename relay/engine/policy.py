"""Bounds of a lane, its intake limit, and the decision on a work that cannot start now. Pure; times are monotonic
seconds.

Three kinds of lanes decide differently. A *dedicated* lane has one receiver: while that accepts nothing, the lane stops
its intake, and its backlog stays in its topic. A *shared* lane serves many receivers, or sources with their callbacks:
nothing waits there in the way of others. The steps of an *unparked* lane are harmless to repeat, and wait for no
endpoint.
"""

import sys
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final


class Fate(Enum):
    """HOLD: the work waits in memory. PARK: it leaves the lane, with a due time. STOP_INTAKE: it waits in memory, and
    later records stay in the log. DEAD_LETTER: it becomes a dead letter."""

    HOLD = "hold"
    PARK = "park"
    STOP_INTAKE = "stop intake"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of works that cannot go on; made by `dedicated`, `shared` and `unparked`.

    `hold_s`: longer waits are parked. `capped`: the parked works of an owner are counted, and those whose answer is
    pending. `parks`: works may be parked. `isolates_endpoints`: at the bound, works that wait for one endpoint are
    parked, so that they do not block others. `retries_need_room`: a first attempt needs room to park its retry.
    """

    hold_s: float
    capped: bool
    parks: bool
    isolates_endpoints: bool
    retries_need_room: bool

    def waiting(self, wait_s: float, *, down: bool) -> Fate:
        """For a work that has to wait so long. `down`: the endpoint that closed last did so for its own reasons."""
        if not self.parks or wait_s <= self.hold_s:
            return Fate.HOLD
        return self.behind_parked(down=down)

    def behind_parked(self, *, down: bool) -> Fate:
        """For a work that must not overtake parked records of its order key."""
        return Fate.STOP_INTAKE if down and not self.isolates_endpoints else Fate.PARK

    def no_room_to_park(self, *, over_all: bool, full: bool) -> Fate:
        """`over_all`: no owner has room; otherwise this owner has used up its own. `full`: the lane is at its bound, so
        that its works are in the way of others. Where owners have no cap, only those are given up."""
        gives_up = self.retries_need_room and not over_all and (self.capped or full)
        return Fate.DEAD_LETTER if gives_up else Fate.STOP_INTAKE

    def no_room_for_answer(self, *, attempted: bool) -> Fate:
        """For a work whose receiver has as many messages as allowed that wait for an answer or for a retry."""
        if not self.retries_need_room:
            return Fate.STOP_INTAKE
        return Fate.HOLD if attempted else Fate.DEAD_LETTER

    def counts_room(self, *, sent: bool, crowded: bool) -> bool:
        """Whether parking this work counts against its owner. `crowded`: an owner may have more than its share.

        A work that was sent once is never given up for lack of room if room was checked before it was sent.
        """
        if self.retries_need_room and self.capped:
            return not sent
        return crowded or (self.capped and not self.retries_need_room)


def dedicated(hold_s: float, *, capped: bool = False) -> Policy:
    """Policy of a lane with one receiver."""
    return Policy(hold_s, capped, parks=True, isolates_endpoints=False, retries_need_room=False)


def shared(hold_s: float, *, capped: bool = False) -> Policy:
    """Policy of a lane with many receivers or sources."""
    return Policy(hold_s, capped, parks=True, isolates_endpoints=True, retries_need_room=True)


def unparked(hold_s: float, *, capped: bool = False) -> Policy:
    """Policy of a lane whose works are never parked."""
    return Policy(hold_s, capped, parks=False, isolates_endpoints=True, retries_need_room=False)


class LaneHealth:
    """Whether the endpoint that a lane sends to accepts requests, as known here. Useful for lanes with one endpoint."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self.down = False
        """It accepts nothing for its own reasons, not only because of our pace."""

    def closed(self, *, down: bool) -> None:
        """The endpoint accepts nothing now. `down`: for its own reasons."""
        self.down = self.down or down

    def record(self, *, healthy: bool, enough: int | None) -> None:
        """Record whether it handled a request well. `enough`: so many failures in a row open its breaker.

        Begins will report that, too; but a failed work is parked before the next of them.
        """
        self.failures = 0 if healthy else self.failures + 1
        if healthy:
            self.down = False
        elif enough is not None and self.failures >= enough:
            self.down = True


ENOUGH: Final = 128
"""Records that wait in memory are enough while some end all the time. More would only leave the log too early, and the
CPU's caches before their turn."""

STALLED_S: Final = 0.09
"""Nothing has ended for so long: records further on may not have to wait for the same. One poll more is taken at a
time, as the whole process may just be busy. Less than the time after which the runner looks again."""


CROWDED: Final = 4_096
"""Unfinished records of all lanes of a worker in one process, some 8 kB each. A lane in which nothing ends is then more
likely slow because the process is busy, and what it takes is memory."""

STALLED_IN_A_CROWD_S: Final = 1.0
"""STALLED_S in a crowded process."""


class IntakeLimit:
    """Whether a lane has enough records in memory, so that the others may stay in the log.

    In a `shared` lane the end of a record says nothing, as it may be of a slow receiver, and later records of another.
    So one poll more is taken each time, up to the window, whichever records end. If its works wait for no endpoint (not
    `waits`), later records would wait for the same and only take memory: ten full windows of `from_sender` are 100 MB.
    Such a lane never takes more than enough.
    """

    def __init__(self, *, shared: bool, waits: bool = True) -> None:
        self._shared = shared
        self._stalled_s = STALLED_S if waits else inf
        self.moved_at = -inf
        """When records were offered, or one ended."""

    def ended(self, now: float) -> None:
        if not self._shared:
            self.moved_at = now

    def has_enough(self, waiting: int, now: float, *, crowded: bool) -> bool:
        """`waiting`: records in memory that have not begun. `crowded`: the process has many, in all its lanes."""
        stalled_s = max(self._stalled_s, STALLED_IN_A_CROWD_S) if crowded else self._stalled_s
        return waiting >= ENOUGH and now - self.moved_at < stalled_s


class ByteBudget:
    """Bytes of records that all lanes of a process hold together: unfinished records, and their answers and hop records
    until the log has these. Above `limit` a lane gets one more record only if it has none, so that each can work."""

    def __init__(self, limit: int = sys.maxsize) -> None:
        self.limit = limit
        self.used = 0

    @property
    def free(self) -> int:
        return self.limit - self.used


class BudgetShare:
    """The bytes that one lane holds of the budget. A lane takes more while it holds less than is free: a single lane
    gets half of it, and n that take all they can get 1/(n+1) each, so that some is always left for another (dynamic
    thresholds, Choudhury and Hahne, 1998)."""

    __slots__ = ("_budget", "_closed", "held")

    def __init__(self, budget: ByteBudget | None = None) -> None:
        self._budget = budget or ByteBudget()
        self._closed = False
        self.held = 0

    @property
    def most(self) -> int:
        """Bytes that it may hold, while the other lanes hold what they do."""
        return (self._budget.free + self.held) // 2

    @property
    def room(self) -> int:
        """Bytes that it may take now."""
        return max(0, self.most - self.held)

    @property
    def full(self) -> bool:
        return 0 < self.held >= self._budget.limit - self._budget.used

    def take(self, size: int) -> None:
        """Hold `size` bytes more; if negative, give them back."""
        if not self._closed:
            self.held += size
            self._budget.used += size

    def close(self) -> None:
        """The lane has ended: give back all that it held."""
        self.take(-self.held)
        self._closed = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """Everything is bounded. Counts are per lane unless stated otherwise; durations in seconds."""

    window: int = 2_000
    """Unfinished records, at most."""
    span: int = 20_000
    """Offsets between the commit watermark and the newest record, at most."""
    parked_per_owner: int = 100_000
    """Parked references of a receiver; polls are counted apart."""
    parked_total: int = 1_000_000
    max_leased: int = 500
    """Parked records in memory at a time."""
    lease_s: float = 60.0
    """How long a reference taken from the due index stays with this lane before it becomes due again."""
    start_within_s: float = 5.0
    """A request starts within this time of its begin, or the begin is released."""
    crashes: int = 3
    """Unexpected exceptions of a step until its record is called poison."""
