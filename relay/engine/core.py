"""A lane: one partition of a topic that this process owns. One ordered intake, one commit watermark, and every work in
a phase of `phases.TRANSITIONS`. Pure: events in, commands out. All that decides what becomes of a record is here, and
in the classes that `Lane` is built on, one on top of the other: `Ending`, `Waiting`, `Settling`, `Attempting`.

record -> READ -> WAITING -> BEGINNING -> RUNNING -> SETTLING -> APPENDING -> MARKING -> OVER -> watermark
                     ^                                  |
                     +------- due records <-- PARKING <-+

`now` is monotonic seconds. `relay.engine.pump` brings the events, and makes the calls that the commands ask for.
"""

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

from relay.domain.errors import RecordTooLarge
from relay.engine.attempting import TOKEN_BYTES, Attempting
from relay.engine.commands import ATTEMPTS, BATCH, STILL_COUNT, WAYS_OUT, CallQueue, Command
from relay.engine.ending import LaneSetup
from relay.engine.intake import Arrived, Inbox
from relay.engine.order import Order
from relay.engine.parking import ParkedCopy, TakeUp, Took
from relay.engine.phases import Event, Phase, advance
from relay.engine.settling import RequestSeats
from relay.engine.work import Dead, Done, Seen, Unread, W, WaitFor, Worker
from relay.log.port import Record, TopicPartition, size_of
from relay.state.attempts import CallKind
from relay.state.rows import Due

SHARE: Final = BATCH
"""Records of one lane that are read in one turn, and works of it that start: the others have their turns, too."""


class LaneLevels(NamedTuple):
    """Of one lane, or of many: attempts under way (`in_flight`), and what the rest waits for."""

    in_flight: int
    waits: Counter[WaitFor]

    def plus(self, other: "LaneLevels") -> "LaneLevels":
        return LaneLevels(self.in_flight + other.in_flight, self.waits + other.waits)


NOTHING: Final = LaneLevels(0, Counter())


class Lane(Attempting[W]):
    """Runs a worker's step for every record of a partition, safely."""

    def __init__(self, setting: LaneSetup, worker: Worker[W], seats: RequestSeats[W]) -> None:
        super().__init__(setting, worker, seats)
        self._inbox: Inbox[W] = Inbox(
            worker, self._asks, self._quarantine, setting.observer, setting.partition, setting.breaks
        )
        self.has_more = False
        """Something to be read, or to be started, was left for the next turn."""
        self.fenced_at: float | None = None
        """When a newer owner was met."""

    # what others see

    @property
    def setting(self) -> LaneSetup:
        return self._setting

    @property
    def worker(self) -> Worker[W]:
        return self._worker

    @property
    def partition(self) -> TopicPartition:
        return self._setting.partition

    @property
    def order(self) -> Order[W]:
        return self._order

    @property
    def next_offset(self) -> int | None:
        """What to commit."""
        return self._watermark.next_offset

    @property
    def unfinished(self) -> int:
        return len(self._watermark)

    def levels(self, now: float) -> LaneLevels:
        """Of what is in memory: looked at for people."""
        waits = self._order.waits(now)
        if self._worker.kind is CallKind.POLL:
            waits["answer"] += waits.pop("retry", 0)
        waits["rate"] += len(self._delayed)
        waits["seat"] += self._seating
        return LaneLevels(self.in_flight - len(self._delayed), waits)

    def sated(self, now: float, *, crowded: bool) -> bool:
        """There is enough at hand: intake may wait, with its records still in the log."""
        asked = sum(map(self._asks.count, (CallQueue.LOOK_UP, CallQueue.APPEND, CallQueue.MARK, CallQueue.RETIRE)))
        return self._appetite.sated(self._order.waiting + len(self._inbox) + asked, now, crowded=crowded)

    @property
    def room(self) -> int:
        """Bytes of records that it may take up now."""
        return self._memory.room

    @property
    def idle(self) -> bool:
        """Nothing of it is under way but what will come by itself, if it is left alone. A reservation is not: it is to
        be taken back when the lane ends, or the next owner would suspect somebody."""
        asks = self._asks
        waits = asks.under_way(CallQueue.BEGIN) or asks.under_way(CallQueue.RESERVE)
        return not (self._under_way or self._to_mark or waits or asks.busy(WAYS_OUT))

    @property
    def in_flight(self) -> int:
        """Requests, and steps of workers that make none, which are under way."""
        return self._under_way

    def parked_keys(self, limit: int) -> list[tuple[bytes, str]]:
        """Order keys that have parked records, as far as known here, and whose; up to `limit`."""
        return self._keys.parked(limit)

    @property
    def attempting(self) -> bool:
        """Settling may still come that have to be stored."""
        return bool(self._under_way or self._asks.busy(ATTEMPTS) or self._asks.under_way(CallQueue.BEGIN))

    @property
    def stuck_at(self) -> int | None:
        """The lowest unfinished offset, where nothing is known that will come for it: a time, a request, a server that
        is away. It would stay for ever."""
        head = self._watermark.head
        if head is None or self.stopping or self._seating:
            return None
        waits = len(self._inbox) > 0 or not self.idle or self._asks.any_under_way or self._order.next_due() is not None
        return None if waits else head

    # events

    def offer(self, records: Sequence[Record], now: float) -> None:
        """Take the next records of the partition, in order."""
        held = 0
        for record in records:
            size = size_of(record)
            self._watermark.add(record.offset, size)
            held += size
        self._memory.take(held)
        self._inbox.put(Arrived(record) for record in records)
        self._appetite.offered(now)

    def carried_out(self, command: Command, reply: Any, now: float) -> None:
        """What a command asked for is done."""
        ask, items = command
        self._asks.answered(ask)
        match ask:
            case CallQueue.LOOK_UP:
                self._looked_up(items, reply, now)
            case CallQueue.BEGIN:
                self._begun(items, reply, now)
            case CallQueue.SETTLE:
                self._settled(items, reply, now)
            case CallQueue.ECHO:
                self._echoed(items, now)
            case CallQueue.APPEND:
                self._appended(items, reply, now)
            case CallQueue.MARK:
                self._marked(items, now)
            case CallQueue.RETIRE:
                self._retired(items, reply, now)
            case CallQueue.PARK:
                self._parked(items, reply, now)
            case CallQueue.LOOK_BEHIND:
                self._looked_behind(items, reply, now)
            case CallQueue.TAKE_DUE:
                self._took_due(items[0], reply, now)
            case CallQueue.RESERVE:
                self._inbox.reserved(items[0], reply, now)
            case CallQueue.ALONE:
                items[0].done(reply, now)

    def refused(self, command: Command, error: RecordTooLarge, now: float) -> None:
        """One of the records to be appended is too large for good."""
        self._asks.answered(command.ask)
        self._too_large(command.items, error)

    def resumed(self, gate: str, now: float) -> None:
        """An endpoint was resumed. Whether it may be sent to, the next begin says: the state knows of it by now."""
        self._order.reopen(gate, now)
        self._due.expect(gate, 0.0)

    def lost(self, command: Command, now: float) -> None:
        """A newer owner has the lane: the call said so, and did nothing. Nothing of ours may count any more, but
        outcomes of what is under way."""
        self._asks.answered(command.ask)
        if self.fenced_at is None:
            self.fenced_at = now
            self._observer.fenced(self.partition)

    def stop(self) -> None:
        """Nothing new is begun: what is not finished when `idle` is read again by the next owner."""
        self.stopping = True
        self._mark_all()
        self._inbox.clear()
        for ask in (CallQueue.LOOK_UP, CallQueue.BEGIN, CallQueue.TAKE_DUE, CallQueue.LOOK_BEHIND, CallQueue.RESERVE):
            self._asks.drop(ask)

    def taken_up(self) -> list[W]:
        """Works that came from the due index and have not ended."""
        return [work for work in self._twins if work.parked_at is not None]

    def marks_left(self) -> list[tuple[int, int]]:
        """Offsets of suspects whose marks may be there, and how often each was under one before."""
        alone = self._asks.under_way(CallQueue.ALONE)
        return [(each.record.offset, each.times - 1) for each in alone if each.times is not None]

    def leaves_suspects(self, now: float) -> bool:
        """Whether its next owner has somebody to suspect."""
        return self._quarantine.leaves_behind(self.next_offset, now)

    def leave(self) -> None:
        """Nothing counts for the watermark any more; what came of attempts is still stored."""
        self.left = True
        self._to_mark.clear()
        self._to_append = 0
        for ask in CallQueue:
            if ask not in STILL_COUNT:
                self._asks.drop(ask)

    def abandon(self) -> None:
        """Nobody will say any more how its attempts end."""
        self._seats.leave_all()
        self._memory.close()

    # commands

    def commands(self) -> list[Command]:
        """What is to be asked for now. Before it: `take_up`, and every one of `steps`."""
        return self._asks.commands()

    def take_up(self, now: float) -> None:
        """Read what came, start what may start."""
        self._opened_at = min(self._opened_at, now)
        self._start_delayed(now)
        self._mark_in_time(now)
        self.has_more = False
        if self.stopping:
            return
        taken = self._inbox.take(SHARE, now)
        for arrived, read in taken:
            self._understood_as(arrived, read, now)
        works = self._order.take(now, 0 if self._holds_back else SHARE)
        works += self._order.take_over(self._is_over, SHARE - len(works))
        for work in works:
            self._start(work, now)
        self.has_more = SHARE in (len(taken), len(works))
        self._look_behind(now)
        if self._policy.parks and now >= self._due.next_look() and not self._asks.busy([CallQueue.TAKE_DUE]):
            self._take_due(now)

    def wake_at(self) -> float:
        """When to be called again although nothing has happened."""
        if self.stopping:
            return inf
        times = [self._order.next_due() or inf, self._keys.next_look(still=self._still())]
        if self._to_mark:
            times.append(self._mark_at)
        if self._delayed:
            times.append(self._delayed[0][0])
        if self._policy.parks and not self._asks.busy([CallQueue.TAKE_DUE]):
            times.append(self._due.next_look())
        return min(times)

    # intake

    def _understood_as(self, arrived: Arrived, read: W | Dead | None, now: float) -> None:
        copy, record = arrived.copy, arrived.record
        if read is None:
            if copy is None:
                self._done(record.offset, now)
            else:
                self._memory.take(-size_of(record))
        elif isinstance(read, Dead):
            self._bury(record, copy, read, now)
        else:
            if copy is not None:
                read.parked_at = copy.at
                read.attempts = max(read.attempts, copy.attempts)
                read.failing_since = now - copy.failing_for_s if copy.failing_for_s else None
                if copy.out_of_order:
                    read.queue, read.out_of_order = None, True
            self._take_in(read, now)

    def _take_in(self, work: W, now: float) -> None:
        """Most have no row yet, which their begin finds out by itself. The others are looked up first."""
        if (
            work.parked_at is not None
            or self._keys.blocks(work.queue)
            or work.end is not None
            or not self._worker.table.may_begin_unseen(work)
            or self._asks.count(CallQueue.LOOK_UP)
        ):
            self._asks.put(CallQueue.LOOK_UP, work)
        elif self._twins.join(work):
            advance(work, Event.TAKEN_IN, Phase.TWIN)
        else:
            work.unseen = True
            self._add(work, Event.TAKEN_IN, now)

    def _bury(self, record: Record, copy: ParkedCopy | None, dead: Dead, now: float) -> None:
        """Nothing can be made of it (any more: since a copy was parked its receiver was removed, say)."""
        unread: Any = Unread(record, None, 0, None, "-")
        if copy is not None:
            unread.row, unread.generation, unread.queue = copy.row, copy.generation, copy.queue
            unread.parked_at, unread.owes_tombstone = copy.at, True
        unread.end = dead
        advance(unread, Event.LOOKED_UP, Phase.APPENDING)
        self._append(unread, (self._worker.bury(record, None, dead),))

    def _looked_up(self, works: Sequence[W], seen: Sequence[Seen], now: float) -> None:
        if self.stopping:
            return
        for work, what in zip(works, seen, strict=True):
            self._keys.was_looked_up(work)
            if what is Seen.FINISHED or not self._is_twin(work):
                self._place(work, what, Event.LOOKED_UP, now)

    def _is_twin(self, work: W) -> bool:
        if work.parked_at is not None and self._twins.has(work):
            advance(work, Event.LOOKED_UP, Phase.OVER)  # it comes again if the one that is here does not end it
            self._put_back(work)
        elif self._twins.join(work):
            advance(work, Event.LOOKED_UP, Phase.TWIN)
        else:
            return False
        return True

    def _is_over(self, work: W) -> bool:
        """It ends whether or not its endpoint is open: nothing is sent any more."""
        return isinstance(self._asked(work, self._worker.overdue, work), Dead | Done)

    # due records

    def _take_due(self, now: float) -> None:
        if self._due.full:
            self._put_down_stuck(now)
        asked = self._due.take_up(self._setting.random(TOKEN_BYTES), now)
        if asked is not None:
            self._asks.put(CallQueue.TAKE_DUE, asked)

    def wants(self, due: Due, now: float) -> bool:
        """Whether a reference that was taken is of use here; else it is left to its lease."""
        return self._due.is_new(due) and not self._would_wait(due, now)

    def _took_due(self, asked: TakeUp, took: Took, now: float) -> None:
        self._due.looked(asked, took.upcoming, now)
        for owner in took.promoted:
            self._due.expect(owner, 0.0)
        for copy in took.copies:
            self._due.take_in_hand(copy.row.digest)
            self._memory.take(size_of(copy.record))
        self._inbox.put(Arrived(copy.record, copy) for copy in took.copies)
