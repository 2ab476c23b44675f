"""Whom to suspect after a process has ended abnormally: the records that it had in hand. Pure.

While all is well nothing is written for a record. A lane reserves offsets in the state, some hundreds at a time, before
it takes their records up, and gives the reservation back when it ends properly. Its next owner finds what was left
behind; then each record that may have been in hand is alone, in the whole process, while something of ours runs with
it, and under a mark in the state meanwhile. A record under whose mark the process has ended each of three times is
poison. What waits for somebody outside has no mark: whoever kills the process then says nothing of the record.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

from relay.engine.work import Dead
from relay.log.port import Record
from relay.state.port import Remains

AHEAD: Final = 500
"""Offsets reserved beyond those that are taken up: one call to the state for so many records."""
NO_OFFSET: Final = -1
TIMES: Final = 3
"""Ends of a process, one after the other, with the same record alone under its mark."""
WARY_S: Final = 60.0
"""So long the parked records that come up are suspected, too: those that were in hand come up at once."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a reservation found. `remains`: of an owner that ended abnormally; None: there is nothing. `end`: of the
    partition, then: what came later nobody can have had."""

    remains: Remains | None
    end: int


class Quarantine:
    """One for each lane. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._reserved = -1
        self._suspected_below = -1
        self._wary_until = -inf
        self._left: dict[int, int] = {}  # offset -> how often a process ended under its mark, as its owner left it
        self.wary = False
        """Whether there may be suspects."""

    def to_reserve(self, offset: int) -> int | None:
        """What has to be reserved, up to where, before records up to `offset`, or with NO_OFFSET parked ones, are taken
        up; None: it is."""
        if 0 <= offset < self._reserved or (offset == NO_OFFSET and self._reserved >= 0):
            return None
        return offset + 1 + AHEAD

    def reserved(self, before: int, found: Found, now: float) -> bool:
        """Whether that found somebody to suspect. It does so at the first time only."""
        first, self._reserved = self._reserved < 0, before
        if not first or found.remains is None:
            return False
        self._suspected_below = min(found.remains.reserved, found.end)
        self._left = dict(found.remains.marked)
        self._wary_until = now + WARY_S
        self.wary = True
        return True

    @property
    def suspected_below(self) -> int:
        return self._suspected_below

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
        return record.offset < self._suspected_below

    def times(self, record: Record) -> int:
        """Of its next mark."""
        return self._left.get(record.offset, 0) + 1

    def poison(self, record: Record) -> Dead | None:
        times = self._left.get(record.offset, 0)
        if times < TIMES:
            return None
        return Dead("poison", f"the process ended {times} times while it worked at this record alone")

    def leaves_behind(self, next_offset: int | None, now: float) -> bool:
        """Whether its next owner, too, has somebody to suspect: whom we had no time for. `next_offset`: all before it
        is finished."""
        if self._reserved < 0:
            return True
        rest = next_offset is None or next_offset < self._suspected_below
        return self.wary and (rest or now < self._wary_until)
