"""Records become works: read by the worker, in order. Whatever is in a record, it becomes a work or a reason for a dead
letter: nothing read may stop the lane. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic

from relay.domain.errors import InvalidRecord
from relay.engine.asks import Alone, Ask, Asks
from relay.engine.breaks import Breaks
from relay.engine.observer import Observer
from relay.engine.parked_copy import ParkedCopy
from relay.engine.quarantine import NO_OFFSET, Found, Quarantine
from relay.engine.work import Dead, W, Worker
from relay.log.port import Record, TopicPartition


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
        asks: Asks,
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
        self._asks.put(Ask.RESERVE, before)
        return True

    def _highest(self) -> int:
        first = self._waiting[0]
        return NO_OFFSET if first.copy is not None else first.record.offset

    def reserved(self, before: int, found: Found, now: float) -> None:
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
            self._asks.put(Ask.ALONE, Alone(record, None, quarantine.times(record), part, done))

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
