"""Records that may have ended a process, or have broken their lane: the third time they become dead letters. Pure."""

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from relay.engine.decision import Dead
from relay.engine.parked_copy import ParkedCopy
from relay.engine.phases import IllegalTransition
from relay.engine.work import Work
from relay.log.port import Coordinate, Record
from relay.state.port import UnreleasedReservation

TIMES: Final = 3
"""A record is poison when it has done harm so often: ended a process, alone under its mark, or broken its lane."""
FEW: Final = 32
MOST: Final = 512
"""Offsets reserved beyond the one that is read. Few, because they are suspects even if they are never read; many where
they are used up fast, because a reservation is a call to the state, and reading waits for it."""
USED_UP_S: Final = 1.0
"""A reservation that is used up sooner is followed by one of four times as many offsets, others by one of a quarter."""
NO_OFFSET: Final = -1
WARY_S: Final = 60.0
"""How long parked records are suspected, too: those that were in progress become due at once."""
KEPT: Final = 1_000
"""Records remembered by LaneBreaks, at most; the newest ones."""


class Arrived(NamedTuple):
    """A record of the lane's topic, or a parked copy of one."""

    record: Record
    copy: ParkedCopy | None = None


@dataclass(frozen=True, slots=True)
class ReservationResult:
    """`remains`: of an owner that ended abnormally; None if there is none. `end`: of the partition at that time; no
    process can have read later records."""

    remains: UnreleasedReservation | None
    end: int


class Quarantine:
    """The suspects of one lane after a process has ended abnormally: the records that it had in memory.

    Normally nothing is written for a record. A lane reserves offsets in the state, for many records at a time, before
    it reads them, and gives the reservation back when it ends properly. Otherwise its next owner finds it. Then each
    record that may have been in memory is alone in the whole process while our code runs with it, and the state has a
    mark for it during that time. A record under whose mark the process has ended TIMES times is poison. A request in
    flight has no mark: if the process is killed then, that says nothing about the record.
    """

    def __init__(self) -> None:
        self.reserved_below = -1
        """Offsets below it may be read."""
        self.suspected_below = -1
        self._ahead = FEW
        self._reserved_at = -inf
        self._wary_until = -inf
        self._left: dict[int, int] = {}  # offset -> how often a process ended under its mark, as its owner left it
        self.wary = False
        """Whether there may be suspects."""

    def to_reserve(self, offset: int, now: float) -> int | None:
        """The offset before which records have to be reserved, so that `offset` may be read (NO_OFFSET for a parked
        record); None if that is done."""
        if 0 <= offset < self.reserved_below or (offset == NO_OFFSET and self.reserved_below >= 0):
            return None
        is_fast = now - self._reserved_at < USED_UP_S
        self._ahead = min(4 * self._ahead, MOST) if is_fast else max(self._ahead // 4, FEW)
        self._reserved_at = now
        return offset + 1 + self._ahead

    def reserved(self, before: int, found: ReservationResult, now: float) -> bool:
        """Returns whether there are suspects, at the first reservation only."""
        first, self.reserved_below = self.reserved_below < 0, before
        if not first or found.remains is None:
            return False
        self.suspected_below = min(found.remains.reserved, found.end)
        self._left = dict(found.remains.marked)
        self._wary_until = now + WARY_S
        self.wary = True
        return True

    @property
    def marked(self) -> int:
        """Records that were under a mark."""
        return len(self._left)

    def suspects(self, record: Record, now: float, *, parked: bool) -> bool:
        if not self.wary:
            return False
        if record.offset in self._left:
            return True
        if parked:
            return now < self._wary_until
        return record.offset < self.suspected_below

    def times(self, record: Record) -> int:
        """The number in its next mark."""
        return self._left.get(record.offset, 0) + 1

    def poison(self, record: Record) -> Dead | None:
        times = self._left.get(record.offset, 0)
        if times < TIMES:
            return None
        return Dead("poison", f"the process ended {times} times while it worked at this record alone")

    def leaves_behind(self, next_offset: int | None, now: float) -> bool:
        """Whether the next owner has suspects, too: those that were not reached. `next_offset`: all records before it
        are finished."""
        if self.reserved_below < 0:
            return True
        rest = next_offset is None or next_offset < self.suspected_below
        return self.wary and (rest or now < self._wary_until)


class LaneBreaks:
    """Counts how often a record broke its lane, for all lanes of a process.

    A bug of the engine that one record triggers ends its lane, which opens again; the third time by the same record,
    that record ends as poison. The count is in memory: a new process, or a new owner of the lane, starts from zero.
    That costs a few more restarts of this lane. A count in the state would cost a call for each record that ends.
    """

    def __init__(self) -> None:
        self.times: dict[Coordinate, int] = {}
        """By record, in the order of their last break."""

    def note(self, record: Record) -> int:
        """`record` has broken its lane; returns how often by now."""
        times = self.times[record.coordinate] = self.times.pop(record.coordinate, 0) + 1
        if len(self.times) > KEPT:
            del self.times[next(iter(self.times))]
        return times

    def poison(self, record: Record) -> Dead | None:
        times = self.times.get(record.coordinate, 0)
        return Dead("poison", f"its lane broke {times} times while it was worked at") if times >= TIMES else None

    def is_hopeless(self, record: Record) -> bool:
        """Whether its lane broke again when the record was to end as poison: not even its row can be looked up then."""
        return self.times.get(record.coordinate, 0) > TIMES


class WorkerFault(Exception):
    """A worker raised where it must not; only a step may."""

    def __init__(self, work: Work) -> None:
        super().__init__(repr(work))
        self.work = work


def blamed(error: Exception, about: object) -> Record | None:
    """The record that caused `error`, if there is no doubt. `about`: the subject of the event that failed.

    A call to a port that fails says nothing about the records in it, as the port may be the cause.
    """
    work = error.work if isinstance(error, IllegalTransition | WorkerFault) else about
    return work.record if isinstance(work, Work) else None
