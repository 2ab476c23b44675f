"""Records become works: read by the worker, in order. Whatever is in a record, it becomes a work or a reason for a dead
letter: nothing read may stop the lane. Whom to be wary of is known here, too. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, Generic

from relay.domain.errors import InvalidRecord
from relay.engine.commands import Alone, CallQueue, Commands
from relay.engine.observer import Observer
from relay.engine.parking import ParkedCopy
from relay.engine.phases import IllegalTransition
from relay.engine.work import Dead, W, Work, Worker
from relay.log.port import Coordinate, Record, TopicPartition
from relay.state.port import Remains

TIMES: Final = 3
"""So often a record may do harm until it is poison: end a process, alone under its mark, or break its lane."""
AHEAD: Final = 500
"""Offsets reserved beyond those that are taken up: one call to the state for so many records."""
NO_OFFSET: Final = -1
WARY_S: Final = 60.0
"""So long the parked records that come up are suspected, too: those that were in hand come up at once."""


@dataclass(frozen=True, slots=True)
class ReservationResult:
    """What a reservation found. `remains`: of an owner that ended abnormally; None: there is nothing. `end`: of the
    partition, then: what came later nobody can have had."""

    remains: Remains | None
    end: int


class Quarantine:
    """Whom to suspect after a process has ended abnormally: the records that it had in hand. One for each lane.

    While all is well nothing is written for a record. A lane reserves offsets in the state, some hundreds at a time,
    before it takes their records up, and gives the reservation back when it ends properly. Its next owner finds what
    was left behind; then each record that may have been in hand is alone, in the whole process, while something of ours
    runs with it, and under a mark in the state meanwhile. A record under whose mark the process has ended each of three
    times is poison. What waits for somebody outside has no mark: whoever kills the process then says nothing of the
    record.
    """

    def __init__(self) -> None:
        self._reserved = -1
        self.suspected_below = -1
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

    def reserved(self, before: int, found: ReservationResult, now: float) -> bool:
        """Whether that found somebody to suspect. It does so at the first time only."""
        first, self._reserved = self._reserved < 0, before
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
        rest = next_offset is None or next_offset < self.suspected_below
        return self.wary and (rest or now < self._wary_until)


KEPT: Final = 1_000
"""So many records are remembered, the newest ones."""


class Breaks:
    """Records that broke their lane, of all lanes of a process. A bug of ours that one record brings out ends its lane,
    which begins anew; the third time by the same record, that one ends as poison.

    Counted in the memory of a process. One that starts anew, or takes the lane over, counts from the beginning: that
    costs a few restarts of this lane more. A count in the state would cost a call for each record that ends.
    """

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


@dataclass(frozen=True, slots=True)
class Arrived:
    """A record of the lane's topic, or a parked copy of one."""

    record: Record
    copy: ParkedCopy | None = None


class Inbox(Generic[W]):
    """`take` says what became of each of what was put in, in order, as far as it may be taken up."""

    def __init__(
        self,
        worker: Worker[W],
        asks: Commands,
        quarantine: Quarantine,
        observer: Observer,
        partition: TopicPartition,
        breaks: Breaks,
    ) -> None:
        self._worker = worker
        self._asks = asks
        self._observer = observer
        self._partition = partition
        self._waiting: deque[Arrived] = deque()
        self._read: deque[tuple[Arrived, W | Dead | None]] = deque()
        self._held_up = False  # until a reservation, or a suspect, is through
        self._quarantine = quarantine
        self._breaks = breaks

    def __len__(self) -> int:
        return len(self._waiting) + len(self._read)

    def put(self, arrived: Iterable[Arrived]) -> None:
        self._waiting.extend(arrived)

    def clear(self) -> None:
        self._waiting.clear()
        self._read.clear()

    def take(self, limit: int, now: float) -> list[tuple[Arrived, W | Dead | None]]:
        """Up to `limit` of them; None: all about it is done."""
        while self._waiting and not self._held_up and len(self._read) < limit:
            if self._quarantine.wary or self._to_be_reserved():
                self._take_warily(now)
            else:
                arrived = self._waiting.popleft()
                self._read.append((arrived, self._admit(arrived.record)))
        read, self._read = self._read, deque()
        return list(read)

    def _to_be_reserved(self) -> bool:
        before = self._quarantine.to_reserve(self._highest())
        if before is None:
            return False
        self._held_up = True
        self._asks.put(CallQueue.RESERVE, before)
        return True

    def _highest(self) -> int:
        first = self._waiting[0]
        return NO_OFFSET if first.copy is not None else first.record.offset

    def reserved(self, before: int, found: ReservationResult, now: float) -> None:
        self._held_up = False
        quarantine = self._quarantine
        if quarantine.reserved(before, found, now):
            self._observer.wary(self._partition, quarantine.suspected_below, quarantine.marked)

    def _take_warily(self, now: float) -> None:
        if self._held_up or self._to_be_reserved():
            return
        arrived = self._waiting.popleft()
        record, quarantine = arrived.record, self._quarantine
        if not quarantine.suspects(record, now, parked=arrived.copy is not None):
            self._read.append((arrived, self._admit(record)))
        elif (poison := quarantine.poison(record)) is not None:
            self._read.append((arrived, poison))
        else:
            self._held_up = True
            part, done = partial(self._admit, record), partial(self._was_alone, arrived)
            self._asks.put(CallQueue.ALONE, Alone(record, None, quarantine.times(record), part, done))

    def _was_alone(self, arrived: Arrived, read: W | Dead | None, now: float) -> None:
        self._held_up = False
        if read is not None and not isinstance(read, Dead):
            read.suspect = True
        self._read.append((arrived, read))

    def _admit(self, record: Record, now: float = 0.0) -> W | Dead | None:
        if record.flaw is not None:
            if record.flaw.first_offset is not None:
                self._observer.skipped(self._partition, record.flaw.first_offset, record.offset, record.flaw.detail)
            return Dead(record.flaw.reason, record.flaw.detail)
        try:
            read = self._worker.admit(record)
            return self._judged(record, read) if self._breaks.any else read
        except InvalidRecord as error:
            return Dead(error.reason, error.detail)
        except Exception as error:  # noqa: BLE001  a bug that one record brings out must not stop the others
            self._observer.step_crashed(self._worker.stage, error)
            return Dead("poison", f"{type(error).__name__} when it was read for {self._worker.stage}")

    def _judged(self, record: Record, read: W | None) -> W | Dead | None:
        """One that has broken the lane too often is looked up, as it may have been finished, and then it is over."""
        poison = self._breaks.poison(record)
        if poison is None or read is None:
            return read
        if self._breaks.is_hopeless(record):
            return poison
        read.end = poison
        return read
