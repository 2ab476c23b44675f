"""Calls to the ports that a lane requests: one queue for each kind of call, with at most one call in flight. Pure."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from relay.engine.slices import SLICE_BYTES
from relay.engine.work import Work
from relay.log.port import Record, size_of

T = TypeVar("T")


class CallQueue(Enum):
    """Kinds of calls, in the order in which they are made: those that end something before those that begin
    something."""

    __hash__ = object.__hash__  # that of Enum is Python code

    SETTLE = "store outcomes"
    SETTLE_PING = "store outcomes of pings"
    APPEND = "append hop records"
    MARK = "mark rows"
    RETIRE = "remove parked copies"
    PARK = "park"
    BEGIN = "begin attempts"
    LOOK_UP = "look up rows"
    LOOK_BEHIND = "look at queues"
    TAKE_DUE = "take due records"
    RESERVE = "reserve offsets"
    ALONE = "run with a suspect alone"


_ORDER: Final = {ask: number for number, ask in enumerate(CallQueue)}
BATCH: Final = 250
_LIMITS: Final = {CallQueue.ALONE: 1, CallQueue.RESERVE: 1, CallQueue.TAKE_DUE: 1}
ATTEMPTS: Final = (CallQueue.SETTLE, CallQueue.SETTLE_PING)
STILL_COUNT: Final = frozenset({CallQueue.BEGIN, CallQueue.ALONE, *ATTEMPTS})
"""Calls that are still made when the lane was left."""
WAYS_OUT: Final = (*ATTEMPTS, CallQueue.APPEND, CallQueue.MARK, CallQueue.RETIRE, CallQueue.PARK, CallQueue.ALONE)


class Command(NamedTuple):
    """One call for these items; its result goes to `core.carried_out`, `core.refused` or `core.lost`."""

    ask: CallQueue
    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Alone:
    """Run `part` of our code for `record` alone in the process, and make the request for `work` if `part` returns one.

    `times`: the number in the mark that is stored meanwhile; None for no mark. `done` gets the result, which is None if
    a request was made, and otherwise the decision on `work`. Both functions get the time (monotonic seconds).
    """

    record: Record
    work: Work | None
    times: int | None
    part: Callable[[float], Any]
    done: Callable[[Any, float], None] | None


def _answer_bytes(settled: Any) -> int:
    result = settled.settlement.result
    return 0 if result is None else len(result.body or b"")


def _copy_bytes(work: Work) -> int:
    return size_of(work.record)


Weigh = Callable[[Any], int]
_WEIGHTS: Final[Mapping[CallQueue, Weigh]] = {
    CallQueue.SETTLE: _answer_bytes,
    CallQueue.APPEND: attrgetter("weight"),
    CallQueue.PARK: _copy_bytes,
}
"""Bytes that an item adds to its call, which takes a slice of them (`relay.engine.slices`), or one item."""


@dataclass(slots=True)
class _Queue(Generic[T]):
    """`alone`: how many of the first items go in a call of their own."""

    limit: int
    weigh: Weigh | None
    has_batches: bool = False
    waiting: deque[T] = field(default_factory=deque)
    in_flight: list[T] = field(default_factory=list)
    alone: int = 0

    def take(self) -> list[T]:
        count = min(1 if self.alone else self.limit, len(self.waiting))
        if self.weigh is not None and count > 1:
            count = self._in_a_slice(count, self.weigh)
        if self.has_batches and 0 < count < len(self.waiting):
            count = self._with_whole_batch(count)
        self.alone = max(0, self.alone - 1)
        if count == len(self.waiting):
            self.in_flight = list(self.waiting)
            self.waiting.clear()
        else:
            self.in_flight = [self.waiting.popleft() for _ in range(count)]
        return self.in_flight

    def _with_whole_batch(self, count: int) -> int:
        """Works that share a request begin in one call."""
        waiting: deque[Any] = self.waiting
        last = waiting[count - 1].batch
        while last is not None and count < len(waiting) and waiting[count].batch is last:
            count += 1
        return count

    def _in_a_slice(self, most: int, weigh: Weigh) -> int:
        weights = list(map(weigh, islice(self.waiting, most)))
        if sum(weights) <= SLICE_BYTES:
            return most
        return max(1, sum(weight <= SLICE_BYTES for weight in accumulate(weights)))


class Commands:
    """The calls of one lane."""

    def __init__(self) -> None:
        self._queues: dict[CallQueue, _Queue[Any]] = {
            ask: _Queue(_LIMITS.get(ask, BATCH), _WEIGHTS.get(ask), ask is CallQueue.BEGIN) for ask in CallQueue
        }
        self.ready: set[CallQueue] = set()
        """Queues whose next call can be made."""
        self.busy: set[CallQueue] = set()
        """Queues with items that wait or are in flight."""

    def put(self, ask: CallQueue, item: Any) -> None:
        queue = self._queues[ask]
        if not queue.waiting:
            self.busy.add(ask)
            if not queue.in_flight:
                self.ready.add(ask)
        queue.waiting.append(item)

    def commands(self) -> list[Command]:
        """The calls that can be made now."""
        found = []
        for ask in sorted(self.ready, key=_ORDER.__getitem__) if len(self.ready) > 1 else tuple(self.ready):
            if items := self._queues[ask].take():
                found.append(Command(ask, items))  # noqa: PERF401  a comprehension is a call of its own
        self.ready.clear()
        return found

    def answered(self, ask: CallQueue) -> None:
        """The call in flight has ended."""
        queue = self._queues[ask]
        queue.in_flight = []
        if queue.waiting:
            self.ready.add(ask)
        else:
            self.busy.discard(ask)

    def one_by_one(self, ask: CallQueue, items: Sequence[Any]) -> None:
        """Put `items`, whose call has failed, first again, each in a call of its own."""
        queue = self._queues[ask]
        queue.waiting.extendleft(reversed(items))
        queue.alone += len(items)
        self.ready.add(ask)
        self.busy.add(ask)

    def withdraw(self, ask: CallQueue, those: Callable[[Any], bool]) -> list[Any]:
        """Remove such of the items that wait, and return them in order."""
        out: list[Any] = []
        stay: deque[Any] = deque()
        for item in self._queues[ask].waiting:
            (out if those(item) else stay).append(item)
        self._queues[ask].waiting = stay
        self._note_busy(ask)
        return out

    def drop(self, ask: CallQueue) -> None:
        """Forget the items that wait."""
        self._queues[ask].waiting.clear()
        self._note_busy(ask)

    def _note_busy(self, ask: CallQueue) -> None:
        if not self.count(ask):
            self.busy.discard(ask)

    def waiting(self, ask: CallQueue) -> int:
        return len(self._queues[ask].waiting)

    def count(self, ask: CallQueue) -> int:
        queue = self._queues[ask]
        return len(queue.waiting) + len(queue.in_flight)

    def in_flight(self, ask: CallQueue) -> list[Any]:
        return self._queues[ask].in_flight

    @property
    def any_in_flight(self) -> bool:
        return any(queue.in_flight for queue in self._queues.values())
