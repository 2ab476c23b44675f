"""How a work leaves its lane: its records are appended, then its row is marked, then its parked copy is removed; then
it is over, and counts for the watermark. Produce, acknowledge, mark, commit: the order of rule 1. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from relay.domain.dead_letter import is_letter, smaller_forms
from relay.domain.errors import RecordTooLarge
from relay.engine.commands import BATCH, CallQueue, Commands, Weigh
from relay.engine.intake import Breaks, WorkerFault
from relay.engine.observer import Observer
from relay.engine.order import Order, Twins, Watermark
from relay.engine.parking import DueIndex, ParkedKeys
from relay.engine.phases import Event, Phase, advance
from relay.engine.policy import Bounds, BudgetShare, IntakeLimit, LaneStanding, Policy
from relay.engine.slices import SLICE_BYTES, measured
from relay.engine.work import Dead, Done, Outcome, Unread, W, Work, Worker, is_awaited, row_of
from relay.log.port import Coordinate, NewRecord, TopicPartition, size_of
from relay.state.port import Lane as LaneId

T = TypeVar("T")

MARK_EVERY_S: Final = 0.2
"""A mark comes at once where there was none for so long, or where a request waits for it, else together with the next
ones: who waits for it then is only the commit, and one call for many costs what one for one does. All lanes of a
process mark at the same times."""


def _answer_bytes(settled: Any) -> int:
    result = settled.settlement.result
    return 0 if result is None else len(result.body or b"")


def _copy_bytes(work: Work) -> int:
    return size_of(work.record)


WEIGHTS: Final[Mapping[CallQueue, Weigh]] = {
    CallQueue.SETTLE: _answer_bytes,
    CallQueue.APPEND: attrgetter("weight"),
    CallQueue.PARK: _copy_bytes,
}

TOO_LITTLE: Final = "too little for any dead letter; raise the topic's max.message.bytes"


@dataclass(frozen=True, slots=True)
class LaneSetup:
    """What a lane is given. `tags`: hash tags under which its parked references may be. `random`: so many random bytes.
    `wall`: Unix seconds, for what is told to people. `breaks`: who has broken lanes of this process."""

    lane: LaneId
    tags: tuple[int, ...]
    policy: Policy
    bounds: Bounds
    observer: Observer
    random: Callable[[int], bytes]
    wall: Callable[[], float]
    breaks: Breaks = field(default_factory=Breaks)
    memory: BudgetShare = field(default_factory=BudgetShare)

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.lane.topic, self.lane.partition)


class LaneExit(Generic[W]):
    """What a lane has in memory, and the way out of it."""

    def __init__(self, setting: LaneSetup, worker: Worker[W]) -> None:
        self._setting = setting
        self._worker = worker
        self._policy = setting.policy
        self._bounds = setting.bounds
        self._memory = setting.memory
        self._observer = setting.observer
        self._asks = Commands(WEIGHTS)
        self._to_append = 0
        self._watermark = Watermark()
        self._order: Order[W] = Order()
        self._twins: Twins[W] = Twins()
        self._standing = LaneStanding()
        self._keys: ParkedKeys[W] = ParkedKeys()
        self._due = DueIndex(setting.tags, setting.bounds.due_in_hand, setting.memory)
        self._appetite = IntakeLimit(shared=setting.policy.clears_the_way, waits=setting.policy.parks)
        self._full_since: float | None = None
        self._to_mark: list[tuple[W, Outcome]] = []
        self._mark_at = 0.0
        self.stopping = False
        """Nothing is begun any more; what is begun and not started yet is released. Outcomes are still stored."""
        self.left = False
        """Nothing counts for the watermark any more: what still comes to its end is the next owner's business, too."""

    # what the worker says of a work

    def _asked(self, work: W, ask: Callable[..., T], *of: Any) -> T:
        """Raises WorkerFault."""
        try:
            return ask(*of)
        except Exception as error:
            raise WorkerFault(work) from error

    def _letter(self, work: W, dead: Dead) -> NewRecord:
        return self._asked(work, self._worker.bury, work.record, work, dead)

    def _resume(self, work: W, event: Event, now: float) -> None:
        """Its outcome is stored."""
        if work.result is None:
            raise AssertionError("resumed without a result")
        self._publish(work, event, self._asked(work, self._worker.resume, work, work.result), now)

    @property
    def full(self) -> bool:
        """At the bound: intake has to stop until something ends."""
        bounds, unfinished = self._bounds, self._watermark
        return len(unfinished) >= bounds.window or unfinished.span >= bounds.span or self._memory.full

    # out: append

    def _publish(self, work: W, event: Event, end: Done | Dead, now: float) -> None:
        """How it ends is stored, or harmless to find out again: the next of its order key need not wait for the log."""
        if self.left:
            return
        if work.taken:
            self._order.finish(work, now)
        advance(work, event, Phase.APPENDING)
        work.end = end
        self._append(work, (self._letter(work, end),) if isinstance(end, Dead) else end.records)

    def _append(self, work: W, records: tuple[NewRecord, ...]) -> None:
        work.out, work.forms = records, None
        work.weight, held = measured(records, work.record.value)
        self._to_append += work.weight
        self._holds(work, held)
        self._asks.put(CallQueue.APPEND, work)

    def _holds(self, work: W, size: int) -> None:
        """It has come to so much, beside its record."""
        self._memory.take(size - work.held)
        work.held = size

    @property
    def _backed_up(self) -> bool:
        """More waits for the log than goes with the next call: a step that makes records had better wait."""
        return self._to_append > SLICE_BYTES

    def _appended(self, works: Sequence[W], at: Sequence[Coordinate], now: float) -> None:
        """`at`: where the records of all of them are, in order."""
        start = 0
        for work in works:
            self._to_append -= work.weight
            end, following = work.end, start + len(work.out)
            if end is None:
                raise AssertionError("appended without an end")
            outcome = Outcome(end, tuple(at[start:following]))
            start = following
            if isinstance(work, Unread) and work.row is None:
                self._buried(work, end)
                advance(work, Event.APPENDED, Phase.OVER)
                self._over(work, now)
            else:
                advance(work, Event.APPENDED, Phase.MARKING)
                self._to_mark.append((work, outcome))
                if work.owes_tombstone or is_awaited(work, end):  # the next of its order key waits for it, or a request
                    self._mark_at = now
        self._appetite.ended(now)
        self._mark_in_time(now)

    def _too_large(self, works: Sequence[W], error: RecordTooLarge) -> None:
        """The log refused them, as one of their records is too large for good: it is looked for, and becomes smaller.
        Where it is no dead letter, its work is given up instead."""
        if len(works) == 1:
            self._shrink(works[0], error)
        self._asks.one_by_one(CallQueue.APPEND, works)

    def _shrink(self, work: W, error: RecordTooLarge) -> None:
        if work.forms is None:
            work.forms = ever_smaller(work.out)
        smaller = next(work.forms, None)
        if smaller is not None:
            work.out = smaller
        elif isinstance(work.end, Done):
            work.end = Dead("too_large", str(error))
            work.out, work.forms, work.places = (self._letter(work, work.end),), None, None
        else:  # no message is to blame for that, and somebody can mend it: the last form is tried for ever
            work.last_form = True

    # out: mark, remove what was parked

    def _mark_in_time(self, now: float) -> None:
        if self._to_mark and (now >= self._mark_at or self.stopping or self.full or len(self._to_mark) >= BATCH):
            self._mark_at = (now // MARK_EVERY_S + 1) * MARK_EVERY_S
            self._mark_all()

    def _mark_all(self) -> None:
        for each in self._to_mark:
            self._asks.put(CallQueue.MARK, each)
        self._to_mark.clear()

    def _marked(self, outcomes: Sequence[tuple[W, Outcome]], now: float) -> None:
        for work, outcome in outcomes:
            self._buried(work, outcome.decision)
            self._retire(work, Event.MARKED, now)

    def _buried(self, work: W, end: Done | Dead) -> None:
        if not isinstance(end, Dead):
            return
        if isinstance(work, Unread):
            self._observer.dead(self._worker.stage, "-", work.out[0], end)
        else:
            self._observer.dead(self._worker.stage, work.gate, work.record, end)

    def _retire(self, work: W, event: Event, now: float) -> None:
        """Its output is acknowledged and marked."""
        if work.owes_tombstone:
            advance(work, event, Phase.RETIRING)
            self._asks.put(CallQueue.RETIRE, work)
        else:
            advance(work, event, Phase.OVER)
            self._over(work, now)

    def _known(self, work: W, event: Event, now: float) -> None:
        """Its output is acknowledged already, or a higher generation lives."""
        if not self.left:
            self._observer.duplicate(self._worker.stage)
            self._retire(work, event, now)

    def _retired(self, works: Sequence[W], promoted: Sequence[bool], now: float) -> None:
        """`promoted`: the next of its parked order key became due."""
        for work, next_is_due in zip(works, promoted, strict=True):
            advance(work, Event.RETIRED, Phase.OVER)
            if next_is_due:
                self._due.expect(row_of(work).owner, 0.0)
            elif work.queue is not None:
                self._keys.emptied(work.queue)
            self._over(work, now)

    # over

    def _over(self, work: W, now: float) -> None:
        """It is in memory no more: finished, parked, or put down."""
        if work.taken:
            self._order.finish(work, now)
        self._holds(work, 0)
        if work.parked_at is None:
            self._done(work.record.offset, now)
        else:
            self._put_back(work)
        for twin in self._twins.leave(work):
            advance(twin, Event.TWIN_LEFT, Phase.OVER)
            self._done(twin.record.offset, now)

    def _put_back(self, work: W) -> None:
        """A parked copy is in memory no more."""
        self._due.put_down(row_of(work).digest)
        self._memory.take(-size_of(work.record))

    def _done(self, offset: int, now: float) -> None:
        self._memory.take(-self._watermark.done(offset))
        self._appetite.ended(now)
        if self._full_since is not None and not self.full:
            self._full_since = None


def ever_smaller(records: Sequence[NewRecord]) -> Iterator[tuple[NewRecord, ...]]:
    """The records with the dead letters among them in ever smaller forms; nothing where there are none."""
    for forms in zip(*(_smaller(record) for record in records if is_letter(record.headers)), strict=False):
        smaller = iter(forms)
        yield tuple(next(smaller) if is_letter(record.headers) else record for record in records)


def _smaller(letter: NewRecord) -> Iterator[NewRecord]:
    for form in smaller_forms(letter.key, letter.value, letter.headers):
        yield NewRecord(letter.topic, *form)
