"""State of a lane: a partition of a topic that this process owns. Pure.

The handlers in `core.HANDLERS` change it; its own methods only read it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final, Generic, NamedTuple, Protocol

from relay.engine.commands import ATTEMPTS, WAYS_OUT, CallQueue, Commands
from relay.engine.decision import Dead
from relay.engine.observer import Observer
from relay.engine.order import Order
from relay.engine.parked_copy import ParkedCopy
from relay.engine.parked_index import DueIndex, ParkedKeys
from relay.engine.policy import ENOUGH, Bounds, BudgetShare, IntakeLimit, LaneHealth, Policy
from relay.engine.quarantine import Arrived, LaneBreaks, Quarantine
from relay.engine.window_shares import WindowShares
from relay.engine.work import Outcome, W, W_contra, WaitFor, Worker
from relay.log.port import Record, TopicPartition, size_of
from relay.state.attempts import CallKind
from relay.state.port import Lane as LaneId

RELIEVE_S: Final = 0.09
"""Minimum time between two calls of `parking.relieve` that have an effect. Less than the time after which the runner
looks again."""
CALLS_KEPT: Final = 8
"""Begins whose shortest duration is the least that one takes."""


class RequestSeats(Protocol[W_contra]):
    """The bounded number of requests in flight of a process (`relay.engine.request_limiter`)."""

    def take(self, work: W_contra) -> bool:
        """Whether there is a seat now; otherwise the event SEATED follows when there is one."""
        ...

    def leave(self, work: W_contra) -> None:
        """Free its seat, if it has one."""
        ...

    def leave_all(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LaneSetup:
    """What a lane gets when it opens. `tags`: hash tags that may hold its parked references. `random`: returns that
    many random bytes. `wall`: Unix seconds, for display. `breaks`: the records that broke lanes of this process.
    `start`: the first offset that a former owner may not have finished; inf: there is none."""

    lane: LaneId
    tags: tuple[int, ...]
    policy: Policy
    bounds: Bounds
    observer: Observer
    random: Callable[[int], bytes]
    wall: Callable[[], float]
    breaks: LaneBreaks = field(default_factory=LaneBreaks)
    memory: BudgetShare = field(default_factory=BudgetShare)
    start: float = inf

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.lane.topic, self.lane.partition)


class LaneLevels(NamedTuple):
    """Attempts in flight of one or more lanes, and what their other works wait for."""

    in_flight: int
    waits: Counter[WaitFor]

    def plus(self, other: "LaneLevels") -> "LaneLevels":
        return LaneLevels(self.in_flight + other.in_flight, self.waits + other.waits)


NOTHING: Final = LaneLevels(0, Counter())


class Watermark:
    """The offset to commit, given the finished records. Offsets are added in growing order; gaps are allowed."""

    def __init__(self) -> None:
        self.unfinished: dict[int, int] = {}
        """Offsets with the sizes of their records, in the order of the offsets."""
        self.seen_next: int | None = None
        """The offset after the newest record."""

    def add(self, records: Sequence[Record]) -> int:
        """Returns their size."""
        total = 0
        for record in records:
            self.unfinished[record.offset] = size = size_of(record)
            total += size
            self.seen_next = record.offset + 1
        return total

    def done(self, offset: int) -> int:
        """Returns its size. Raises KeyError if `offset` is not unfinished: a record is finished exactly once."""
        return self.unfinished.pop(offset)

    @property
    def head(self) -> int | None:
        """The lowest unfinished offset."""
        return next(iter(self.unfinished), None)

    @property
    def next_offset(self) -> int | None:
        """The offset to commit: every record before it is finished. None before the first record."""
        return next(iter(self.unfinished), self.seen_next)

    @property
    def span(self) -> int:
        """Offsets between the watermark and the newest record."""
        return 0 if self.seen_next is None else self.seen_next - next(iter(self.unfinished), self.seen_next)


Identity = tuple[bytes, int]
"""Digest of the row, and generation."""


class WorksByDelivery(Generic[W]):
    """Works in this lane's memory, by delivery and generation. Two of one delivery never run at once: later ones wait,
    and end with the first. Works without a row have no duplicates."""

    def __init__(self) -> None:
        self._here: dict[Identity, tuple[W, list[W]]] = {}

    def __iter__(self) -> Iterator[W]:
        """The works that later ones of their delivery would wait for."""
        return (work for work, _ in self._here.values())

    def oldest(self, before_ms: float, limit: int) -> list[W]:
        """Of each endpoint the first work whose record was appended before `before_ms` (Unix milliseconds); at most
        `limit`. Works that were parked come later than newer ones, and may be left out."""
        found: dict[str, W] = {}
        for work in self:
            if work.record.timestamp_ms > before_ms or len(found) == limit:
                break
            found.setdefault(work.endpoint_id, work)
        return list(found.values())

    def counts(self, limit: int) -> dict[str, int]:
        """Works by endpoint, without those that are parked, of at most `limit` endpoints, those with the most works."""
        return dict(Counter(work.endpoint_id for work in self if work.parked_at is None).most_common(limit))

    def has_other(self, work: W) -> bool:
        """Whether another record of the same delivery is in memory."""
        here = None if work.row is None else self._here.get((work.row.digest, work.generation))
        return here is not None and here[0] is not work

    def add(self, work: W) -> bool:
        """Whether `work` has to wait for an earlier record of the same delivery; it ends when that one leaves."""
        if work.row is None:
            return False
        here = self._here.setdefault((work.row.digest, work.generation), (work, []))
        if here[0] is work:
            return False
        here[1].append(work)
        return True

    def remove(self, work: W) -> list[W]:
        """`work` has ended, or is certainly parked. Returns the works that waited for it, which end, too."""
        identity = None if work.row is None else (work.row.digest, work.generation)
        if identity is None or identity not in self._here or self._here[identity][0] is not work:
            return []
        return self._here.pop(identity)[1]


@dataclass(slots=True, eq=False)
class Lane(Generic[W]):
    """One ordered intake, one commit watermark, and every work in a phase of `phases.TRANSITIONS`. Times are monotonic
    seconds."""

    setup: LaneSetup
    worker: Worker[W]
    seats: RequestSeats[W]

    policy: Policy = field(init=False)
    bounds: Bounds = field(init=False)
    observer: Observer = field(init=False)
    memory: BudgetShare = field(init=False)
    partition: TopicPartition = field(init=False)

    stopping: bool = False
    """Nothing new begins; attempts that have begun and not started are released. Outcomes are still stored."""
    left: bool = False
    """Nothing counts for the watermark any more: the next owner repeats unfinished records."""
    fenced_at: float | None = None
    """When a call reported a newer owner."""
    has_more: bool = False
    """Records to read, or works to start, remain for the next turn."""
    wake_at: float = inf
    """When the next turn is due although nothing happens."""

    calls: Commands = field(default_factory=Commands)

    arrived: deque[Arrived] = field(default_factory=deque)
    """Records that are not read yet."""
    early: list[ParkedCopy] = field(default_factory=list)
    """Parked records that were taken from the due index, until the next turn. Those of a former owner stay here until
    the records before them have arrived, as these may be unfinished ones of their order keys."""
    to_admit: deque[tuple[Arrived, W | Dead | None]] = field(default_factory=deque)
    """Records that are read and not admitted yet, each with its work; see `admission.read`."""
    held_up: bool = False
    """Reading waits for a reservation, or for a suspect."""
    quarantine: Quarantine = field(default_factory=Quarantine)
    intake_limit: IntakeLimit = field(init=False)

    order: Order[W] = field(init=False)
    works: WorksByDelivery[W] = field(default_factory=WorksByDelivery)
    health: LaneHealth = field(default_factory=LaneHealth)

    seating: int = 0
    """Works that wait for a seat."""
    asked_at: float = -inf
    """When the last begin was sent."""
    opened_at: float = inf
    begin_s: deque[float] = field(default_factory=lambda: deque(maxlen=CALLS_KEPT))
    """How long the last begins took."""
    delayed: list[tuple[float, int, W]] = field(default_factory=list)
    """Heap of works that wait for their slot of the rate."""
    numbers: "count[int]" = field(default_factory=count)
    to_run: deque[W] = field(default_factory=deque)
    """Works whose step runs next."""
    running: int = 0
    """Requests in flight, and works that are about to make one or to run a step without one."""
    in_line: int = 0
    """Works whose step runs alone in the process, and those that keep their turn behind them."""

    parked_keys: ParkedKeys[W] = field(default_factory=ParkedKeys)
    due_index: DueIndex = field(init=False)
    relieved_at: float = -RELIEVE_S
    full_since: float | None = None
    congested_until: float = -inf
    """If it is full again by then, it was not relieved enough."""

    to_append: int = 0
    """Bytes that wait for the log."""
    to_mark: list[tuple[W, Outcome]] = field(default_factory=list)
    mark_at: float = 0.0
    watermark: Watermark = field(default_factory=Watermark)

    def __post_init__(self) -> None:
        setup, policy = self.setup, self.setup.policy
        self.policy, self.bounds, self.observer, self.memory = policy, setup.bounds, setup.observer, setup.memory
        self.partition = setup.partition
        isolates = policy.isolates_endpoints and policy.parks  # without parking, no work waits for an endpoint
        shares = WindowShares(self.bounds.window, self.memory) if isolates else None
        self.order = Order(shares)
        self.intake_limit = IntakeLimit(shared=policy.isolates_endpoints, waits=policy.parks)
        self.due_index = DueIndex(setup.tags, self.bounds.max_leased, self.bounds.lease_s, shares or self.memory)

    @property
    def next_offset(self) -> int | None:
        """The offset to commit."""
        return self.watermark.next_offset

    @property
    def unfinished(self) -> int:
        return len(self.watermark.unfinished)

    @property
    def full(self) -> bool:
        """At a bound: intake stops until something ends."""
        bounds, watermark = self.bounds, self.watermark
        return len(watermark.unfinished) >= bounds.window or watermark.span >= bounds.span or self.memory.full

    @property
    def is_blocked(self) -> bool:
        """The only endpoint of the lane is down: at a bound, intake stops and nothing is parked."""
        return self.health.down and not self.policy.isolates_endpoints

    @property
    def idle(self) -> bool:
        """Nothing is in progress that would be lost if the lane ended now. A reservation counts: it is taken back when
        the lane ends, or the next owner would suspect records without need."""
        calls = self.calls
        waits = calls.in_flight(CallQueue.BEGIN) or calls.in_flight(CallQueue.RESERVE)
        return not (self.running or self.to_mark or waits or calls.busy.intersection(WAYS_OUT))

    @property
    def attempting(self) -> bool:
        """Outcomes may still arrive that have to be stored, or copies that may have to be removed."""
        calls = self.calls
        late = calls.in_flight(CallQueue.BEGIN) or calls.in_flight(CallQueue.PARK)
        return bool(self.running or calls.busy.intersection(ATTEMPTS) or late)

    @property
    def stuck_at(self) -> int | None:
        """The lowest unfinished offset, if nothing known will end it: no time, no request, no call. None otherwise."""
        head = self.watermark.head
        if head is None or self.stopping or self.seating:
            return None
        queued = self.arrived or self.early or self.to_admit or self.parked_keys.behind
        waits = queued or not self.idle or self.calls.any_in_flight or self.order.next_due() is not None
        return None if waits else head

    def has_enough(self, now: float, *, crowded: bool) -> bool:
        """Enough records wait in memory; further ones may stay in the log."""
        if self.unfinished + self.due_index.leased < ENOUGH:
            return False  # like almost all of thousands of lanes
        calls = sum(
            map(self.calls.count, (CallQueue.LOOK_UP, CallQueue.APPEND, CallQueue.MARK, CallQueue.RETIRE)),
        )
        waiting = self.order.waiting + len(self.arrived) + len(self.to_admit) + calls
        return self.intake_limit.has_enough(waiting, now, crowded=crowded)

    def levels(self, now: float) -> LaneLevels:
        """Levels of the works in memory, for display."""
        waits = self.order.waits(now)
        if self.worker.kind is CallKind.POLL:
            waits["answer"] += waits.pop("retry", 0)
        waits["rate"] += len(self.delayed)
        waits["seat"] += self.seating
        return LaneLevels(self.running - len(self.delayed), waits)

    def taken_up(self) -> list[W]:
        """Works from the due index that have not ended."""
        return [work for work in self.works if work.parked_at is not None]

    def marks_left(self) -> list[tuple[int, int]]:
        """Offsets of suspects whose marks may be stored, each with the number of marks before this one."""
        alone = self.calls.in_flight(CallQueue.ALONE)
        return [(each.record.offset, each.times - 1) for each in alone if each.times is not None]
