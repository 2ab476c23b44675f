"""Records that broke their lane. A bug of ours that one record brings out ends its lane, which begins anew; the third
time by the same record, that one ends as poison. Pure.

Counted in the memory of a process. One that starts anew, or takes the lane over, counts from the beginning: that costs
a few restarts of this lane more. A count in the state would cost a call for each record that ends.
"""

from typing import Final

from relay.engine.phases import IllegalTransition
from relay.engine.work import Dead, Work
from relay.log.port import Coordinate, Record

TIMES: Final = 3
KEPT: Final = 1_000
"""So many records are remembered, the newest ones."""


class Breaks:
    """Of all lanes of a process."""

    def __init__(self) -> None:
        self._times: dict[Coordinate, int] = {}

    def note(self, record: Record) -> int:
        """It has broken its lane: how often that is by now."""
        times = self._times[record.coordinate] = self._times.pop(record.coordinate, 0) + 1
        if len(self._times) > KEPT:
            del self._times[next(iter(self._times))]
        return times

    @property
    def any(self) -> bool:
        return bool(self._times)

    def poison(self, record: Record) -> Dead | None:
        times = self._times.get(record.coordinate, 0)
        return Dead("poison", f"its lane broke {times} times while it was worked at") if times >= TIMES else None

    def is_hopeless(self, record: Record) -> bool:
        """Its lane broke again when it was to end as poison: not even what is known of it can be looked up."""
        return self._times.get(record.coordinate, 0) > TIMES


class WorkerFault(Exception):
    """A worker raised where it may not; a step may."""

    def __init__(self, work: Work) -> None:
        super().__init__(repr(work))
        self.work = work


def blamed(error: Exception, about: object) -> Record | None:
    """The record that brought out `error`, where there is no doubt. `about`: what the failed event says something of.

    A call to a port that fails says nothing of the records in it: whoever is called may be to blame.
    """
    work = error.work if isinstance(error, IllegalTransition | WorkerFault) else about
    return work.record if isinstance(work, Work) else None
