"""What a lane wants done by the ports: one queue for each kind of call, of which one is under way at a time. Pure."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from relay.engine.slices import SLICE_BYTES
from relay.engine.work import Work
from relay.log.port import Record

T = TypeVar("T")


class CallQueue(Enum):
    """Kinds of calls, in the order in which they are made: what ends something goes before what begins something."""

    __hash__ = object.__hash__  # Enum's own is Python

    SETTLE = "store outcomes"
    ECHO = "store outcomes of pings"
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


BATCH: Final = 250
Weigh = Callable[[Any], int]
"""Bytes that an item brings to its call, which takes a slice of them (`relay.engine.slices`), or one item."""
_LIMITS: Final = {CallQueue.ALONE: 1, CallQueue.RESERVE: 1, CallQueue.TAKE_DUE: 1}
ATTEMPTS: Final = (CallQueue.SETTLE, CallQueue.ECHO)
STILL_COUNT: Final = frozenset({CallQueue.BEGIN, CallQueue.ALONE, *ATTEMPTS})
"""Also when the lane was left."""
WAYS_OUT: Final = (*ATTEMPTS, CallQueue.APPEND, CallQueue.MARK, CallQueue.RETIRE, CallQueue.PARK, CallQueue.ALONE)


NOTHING_WEIGHS: Final[Mapping[CallQueue, Weigh]] = {}


class Command(NamedTuple):
    """One call for these items; what comes of it is told with `Lane.carried_out` or `Lane.refused`."""

    ask: CallQueue
    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Alone:
    """Run `part` of ours for `record`, and put the question to the outside that it returns for `work`, if it is one;
    `times`: under a mark that says so often, None: without one. `done` gets anything else that it returns; None: the
    question is put. Both are told the time (monotonic)."""

    record: Record
    work: Work | None
    times: int | None
    part: Callable[[float], Any]
    done: Callable[[Any, float], None]


class _Queue(Generic[T]):
    __slots__ = ("alone", "limit", "under_way", "waiting", "weigh")

    def __init__(self, limit: int, weigh: Weigh | None) -> None:
        self.limit = limit
        self.weigh = weigh
        self.waiting: deque[T] = deque()
        self.under_way: list[T] = []
        self.alone = 0
        """So many of the first are asked for one by one."""

    def take(self) -> list[T]:
        count = min(1 if self.alone else self.limit, len(self.waiting))
        if self.weigh is not None and count > 1:
            count = self._in_a_slice(count, self.weigh)
        self.alone = max(0, self.alone - 1)
        self.under_way = [self.waiting.popleft() for _ in range(count)]
        return self.under_way

    def _in_a_slice(self, most: int, weigh: Weigh) -> int:
        weights = list(map(weigh, islice(self.waiting, most)))
        if sum(weights) <= SLICE_BYTES:
            return most
        return max(1, sum(weight <= SLICE_BYTES for weight in accumulate(weights)))


class Commands:
    """The calls of one lane."""

    def __init__(self, weights: Mapping[CallQueue, Weigh] = NOTHING_WEIGHS) -> None:
        self._queues: dict[CallQueue, _Queue[Any]] = {
            ask: _Queue(_LIMITS.get(ask, BATCH), weights.get(ask)) for ask in CallQueue
        }
        self._ready: set[CallQueue] = set()

    def put(self, ask: CallQueue, item: Any) -> None:
        queue = self._queues[ask]
        queue.waiting.append(item)
        if not queue.under_way:
            self._ready.add(ask)

    def commands(self) -> list[Command]:
        """What can be asked for now."""
        if not self._ready:
            return []
        ready = [ask for ask in CallQueue if ask in self._ready] if len(self._ready) > 1 else list(self._ready)
        self._ready.clear()
        return [Command(ask, items) for ask in ready if (items := self._queues[ask].take())]

    def answered(self, ask: CallQueue) -> None:
        """The call that was under way is over."""
        queue = self._queues[ask]
        queue.under_way = []
        if queue.waiting:
            self._ready.add(ask)

    def one_by_one(self, ask: CallQueue, items: Sequence[Any]) -> None:
        """`items`, which have come back, go first, each in a call of its own."""
        queue = self._queues[ask]
        queue.waiting.extendleft(reversed(items))
        queue.alone += len(items)
        self._ready.add(ask)

    def withdraw(self, ask: CallQueue, those: Callable[[Any], bool]) -> list[Any]:
        """Such of what waits, in order: it is not to be asked for now."""
        out: list[Any] = []
        stay: deque[Any] = deque()
        for item in self._queues[ask].waiting:
            (out if those(item) else stay).append(item)
        self._queues[ask].waiting = stay
        return out

    def drop(self, ask: CallQueue) -> None:
        """What waits is not wanted any more."""
        self._queues[ask].waiting.clear()

    def waiting(self, ask: CallQueue) -> int:
        return len(self._queues[ask].waiting)

    def count(self, ask: CallQueue) -> int:
        queue = self._queues[ask]
        return len(queue.waiting) + len(queue.under_way)

    def under_way(self, ask: CallQueue) -> list[Any]:
        return self._queues[ask].under_way

    @property
    def any_under_way(self) -> bool:
        return any(queue.under_way for queue in self._queues.values())

    def busy(self, asks: Sequence[CallQueue]) -> bool:
        return any(self._queues[ask].under_way or self._queues[ask].waiting for ask in asks)
