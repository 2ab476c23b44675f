"""What a small world of the model is: two messages of one source to one receiver that is promised their order.

The lanes are the engine's own cores, with the workers' own steps, on the state and the log in memory that the contract
suites compare with the real ones. A world is copied by its bytes: what worlds share stays as it is.
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import structs

from relay.domain.dead_letter import parse_dead_letter
from relay.domain.exchange import Request
from relay.domain.hop import Hop, decode_hop, encode_hop
from relay.domain.identity import DeliveryId, MessageId
from relay.domain.message import Message, message_headers
from relay.domain.receiver import BreakerPolicy, Receiver, Source
from relay.domain.timing import Timing
from relay.engine.commands import CallQueue, Command
from relay.engine.decision import Call, Dead, Done, Later
from relay.engine.lane import Lane, LaneSetup
from relay.engine.observer import Observer
from relay.engine.parked_copy import LIFE_KEY
from relay.engine.phases import Phase
from relay.engine.policy import Bounds, Policy, dedicated, shared, unparked
from relay.engine.work import EndpointRules, Work
from relay.log.port import NewRecord, Record, TopicPartition
from relay.state.attempts import Change, Limits, Settlement
from relay.state.port import Lane as LaneId
from relay.state.rows import Arrival, MessageRow, MessageStage, Result, RowKey, Stage, delivery_row, tag_of
from tests.fakes.log import MemoryBroker
from tests.fakes.state import MemoryState
from tests.fakes.world import message
from tests.faults.model.here import (
    HERE,
    HOLD_S,
    LANES,
    OBSERVER,
    SECOND,
    SOURCE,
    SPECS,
    TOPICS,
    Cast,
    Here,
    Role,
    client,
    finished,
)
from workers.dependencies import Dependencies
from workers.from_sender import FromSender
from workers.to_receiver import ToReceiver
from workers.to_sender import ToSender

MESSAGES: Final = (0, 1)
START: Final = 1_700_000_000.0
_MINE: Final = {tag_of(f"s:{SOURCE}"), tag_of("r:r")}
"""Hash tags that are in use. All others are the same empty one."""


class Faults(NamedTuple):
    """How many of each may still happen. `lost`: responses that never come, or come too late. `repeats`: calls to the
    state or the log whose answer is lost, so that they are made twice. `clocks`: the state's clock is set back by an
    hour. `moves`: lanes that are given up in order; `zombies`: without their owner's knowledge. `rejected`: answers
    that end a life; each replay begins another."""

    crashes: int = 0
    lost: int = 0
    dropped: int = 0
    refused: int = 0
    flushes: int = 0
    resends: int = 0
    repeats: int = 0
    moves: int = 0
    zombies: int = 0
    rejected: int = 0
    replays: int = 0
    clocks: int = 0


class State(MemoryState):
    """One whose copies cost little."""

    def lose(self) -> None:
        super().lose()
        empty = next(tag for number, tag in enumerate(self._tags) if number not in _MINE)
        self._tags = [tag if number in _MINE else empty for number, tag in enumerate(self._tags)]

    @property
    def behind_s(self) -> float:
        """Its time, which looking at does not move, from that of the world."""
        return max(self.server_now + self._ahead_s, self._last) - HERE.time()

    @property
    def tags(self) -> list[Any]:
        """Those in use."""
        return [self._tags[number] for number in sorted(_MINE)]

    @property
    def owners_before(self) -> Any:
        """What the state says of who was at what."""
        return self._taken

    @property
    def was_lost(self) -> bool:
        return any(tag.lost_at for tag in self.tags)

    def stage(self, role: Role, number: int) -> int:
        """Of the row by which this worker's part is known to be over."""
        identity = MessageId(SOURCE, f"{SOURCE}-{number}")
        if role == "from_sender":
            message_row = self._message(identity)
            return message_row.stage if message_row is not None else 0
        return self._peek(delivery_row(DeliveryId("r", *identity))).stage

    @property
    def has_parked(self) -> bool:
        return any(index.references for tag in self.tags for index in tag.lanes.values())

    @property
    def has_rows(self) -> bool:
        return any(tag.messages or tag.rows.active or tag.rows.finished or tag.rows.intents for tag in self.tags)


class _FreeSeats:
    """There is room for every request."""

    def take(self, work: Any) -> bool:
        return True

    def leave(self, work: Any) -> None:
        return

    def leave_all(self) -> None:
        return


@dataclass(slots=True)
class UnderWay:
    """A command that is being carried out. `known`: what its first calls have answered."""

    command: Command
    known: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Asked:
    """A request with a work that waits for its outcome."""

    work: Work
    call: Call[Any]


@dataclass(slots=True)
class Owner:
    """A process that has a lane. `read`: the next offset. `verdicts`: replies to begins that it has not taken up: time
    may pass before it does."""

    role: Role
    core: Lane[Any]
    read: int
    under_way: list[UnderWay] = field(default_factory=list)
    verdicts: list[tuple[Command, Any]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """Something may happen to it at any moment."""
        return bool(self.under_way or self.verdicts or self.asked)


@dataclass(slots=True)
class Posted:
    """A POST on the wire. `until`: when it has arrived, if it ever will. `by` None: no owner waits for its answer any
    longer."""

    message: int
    until: float
    to_sender: bool
    by: Owner | None
    asked: Asked | None


@dataclass(slots=True)
class World:
    """`messages`: all messages. `owners`: of each lane that is served. `former`: a former owner that does not know of
    the new one, or is still releasing the lane. `committed`: the offset that was surely committed when an owner last
    changed: see `events`. `seen`: arrivals at the receiver by message, `back`: whether the sender has its answer.
    `untimely`: a message was sent before it was due, or after its deadline. `tokens`: how many were issued."""

    cast: Cast
    messages: frozenset[int]
    faults: Faults
    broker: MemoryBroker
    state: State
    now: float = START
    owners: dict[Role, Owner] = field(default_factory=dict)
    former: Owner | None = None
    committed: dict[Role, int] = field(default_factory=dict)
    wire: list[Posted] = field(default_factory=list)
    seen: list[int] = field(default_factory=lambda: [0 for _ in MESSAGES])
    back: list[bool] = field(default_factory=lambda: [False for _ in MESSAGES])
    disordered: bool = False
    untimely: bool = False
    tokens: int = 0

    def end(self, role: Role) -> int:
        return self.broker[LANES[role]].end

    def records(self, role: Role) -> list[Record]:
        """Records of the log that this worker reads."""
        return self.broker[LANES[role]].records

    def log(self, role: Role) -> tuple[int, ...]:
        """The messages there."""
        return tuple(map(number_of, self.records(role)))

    @property
    def beside(self) -> tuple[int, ...]:
        """The messages in the lane of the second receiver."""
        return tuple(map(number_of, self.broker[SECOND].records))

    def append(self, records: list[NewRecord]) -> None:
        finished(client().append(records))

    @property
    def letters(self) -> list[Record]:
        """Dead letters, of all partitions."""
        return self.broker.records(TOPICS.failed_messages)

    @property
    def dead(self) -> frozenset[tuple[int, str]]:
        """The messages that have dead letters, and why, where some have times or keys of their own."""
        if not self.cast.timings:
            return frozenset()
        return frozenset((number_of(each), parse_dead_letter(each.headers).reason) for each in self.letters)

    def posts(self, number: int) -> None:
        """A request with this message begins, which may take as long to start as an attempt is good for."""
        timing = self.timing(number)
        is_late = 0.0 < timing.deadline < self.now - Bounds().start_within_s
        self.untimely = self.untimely or timing.deliver_at > self.now or is_late

    def arrived(self, number: int) -> None:
        """At the receiver. Those that are delayed have left the order; those with a key or a deadline may stay away,
        but not come after a newer one."""
        ordered = [m for m in MESSAGES if not self.timing(m).deliver_at and not self.timing(m).window]
        if number in ordered:
            missing = any(not self.seen[m] and m not in self.cast.timings for m in ordered if m < number)
            late = not self.seen[number] and any(self.seen[m] for m in ordered if m > number)
            self.disordered = self.disordered or missing or late
        self.seen[number] += 1

    def timing(self, number: int) -> Timing:
        return self.cast.timings.get(number, Timing())

    def replay(self) -> None:
        """The first record of the receiver's lane once more, in its next life."""
        first = self.records("to_receiver")[0]
        hop = decode_hop(first.headers)
        again = structs.replace(hop, generation=len(self.log("to_receiver")))
        self.append([NewRecord(first.topic, first.key, first.value, encode_hop(again))])

    def open(self, role: Role, epoch: int) -> Owner:
        """A new owner, which begins where was committed."""
        worker = self.cast.workers[role]
        own = role == "to_receiver"
        policy = (dedicated if own else shared) if worker.parks else unparked
        tags = (tag_of("r:r"),) if own else tuple(sorted(_MINE)) if worker.parks else ()
        setup = LaneSetup(
            lane=LaneId(*LANES[role], epoch),
            tags=tags,
            policy=policy(HOLD_S, capped=worker.capped),
            bounds=Bounds(),
            observer=OBSERVER,
            random=HERE.random,
            wall=HERE.time,
        )
        owner = self.owners[role] = Owner(role, Lane(setup, worker, SEATS), self.committed[role])
        return owner

    @property
    def copies(self) -> int:
        """How often the receiver got what it had got before."""
        return sum(max(0, times - 1) for times in self.seen)

    @property
    def is_at_rest(self) -> bool:
        """Whether no obligation is left."""
        idle = not any(owner.busy for owner in self.owners.values())
        read = all(owner.read == self.end(role) and not owner.core.unfinished for role, owner in self.owners.items())
        return idle and read and not (self.wire or self.former or self.state.has_parked or self.faults.replays)


def beginning(cast: Cast, faults: Faults, **logs: tuple[int, ...]) -> World:
    """`logs`: by the workers that are at work here, which messages are on the logs that they read. Nothing else has
    happened."""
    messages = frozenset(number for numbers in logs.values() for number in numbers)
    world = HERE.world = World(cast, messages, faults, _broker({}), State(clock=HERE.time))
    world.append([NewRecord(TOPICS.parked_messages, LIFE_KEY, b"ready")])
    for role, make in _MADE.items():
        if role in logs:
            world.append(make(cast, logs[role]))
            world.committed[role] = 0
    for role in world.committed:
        world.open(role, 1)
    return world


def sent(cast: Cast, numbers: tuple[int, ...]) -> list[NewRecord]:
    """The records by which a sender hands in these messages."""
    messages = [structs.replace(message(n, SOURCE, *cast.names), timing=cast.timings.get(n)) for n in numbers]
    return [NewRecord(LANES["from_sender"].topic, SOURCE.encode(), m.payload, message_headers(m)) for m in messages]


def _hops(cast: Cast, numbers: tuple[int, ...]) -> list[NewRecord]:
    """What FromSender makes of them."""
    return [_made(cast, "from_sender", record, offset) for offset, record in enumerate(sent(cast, numbers))]


def _answers(cast: Cast, numbers: tuple[int, ...]) -> list[NewRecord]:
    """What ToReceiver makes of those."""
    return [_made(cast, "to_receiver", record) for record in _hops(cast, numbers)]


_MADE: Final[dict[Role, Callable[[Cast, tuple[int, ...]], list[NewRecord]]]] = {
    "from_sender": sent,
    "to_receiver": _hops,
    "to_sender": _answers,
}


def _made(cast: Cast, role: Role, record: NewRecord, offset: int = 0) -> NewRecord:
    worker = cast.workers[role]
    work = worker.admit(Record(*LANES[role], offset, record.key, record.value, record.headers, int(START * 1000)))
    if work is None:
        raise AssertionError("it was done before")
    end = worker.resume(work, ANSWER) if role == "to_receiver" else worker.step(work)
    if not isinstance(end, Done):
        raise AssertionError(f"it does not go on: {end}")
    return end.records[0]


ANSWER: Final = Result("answered", 200, "application/json", b"{}")


def number_of(record: Record) -> int:
    """Which message it is about."""
    identity = next(value for name, value in record.headers if name == "ce_id")
    return int(identity.rsplit(b"-", 1)[1])


# --- copies -----------------------------------------------------------------------------------------------------

SEATS: Final = _FreeSeats()
_shared: list[Any] = []
_numbers: dict[int, int] = {}


def copied(world: World) -> bytes:
    """Good until `forget_copies`."""
    copy = io.BytesIO()
    _Pickler(copy, pickle.HIGHEST_PROTOCOL).dump(world)
    return copy.getvalue()


def restored(copy: bytes) -> World:
    """From here on this is the world that is being looked at."""
    world: World = pickle.loads(copy)  # noqa: S301  it was made here
    HERE.world = world
    return world


def forget_copies() -> None:
    _shared.clear()
    _numbers.clear()


def _share(value: Any) -> tuple[Any, ...]:
    number = _numbers.get(id(value))
    if number is None:
        number = _numbers[id(value)] = len(_shared)
        _shared.append(value)
    return _nth, (number,)


def _nth(number: int) -> Any:
    return _shared[number]


def _broker(records: dict[TopicPartition, list[Record]]) -> MemoryBroker:
    broker = MemoryBroker(now_ms=HERE.now_ms)
    broker.specs = SPECS
    for at, some in records.items():
        broker[at].records = some
    return broker


def _reduced(broker: MemoryBroker) -> tuple[Any, ...]:
    partitions = broker._partitions.items()
    return _broker, ({at: partition.records for at, partition in partitions if partition.records},)


VALUES: Final[tuple[type[Any], ...]] = (
    *(Arrival, Bounds, BreakerPolicy, Cast, Change, Dead, Done, FromSender, EndpointRules, Here, Hop, Later),
    *(
        Limits,
        Message,
        MessageRow,
        MessageStage,
        NewRecord,
        Dependencies,
        Phase,
        Policy,
        Receiver,
        Record,
        Request,
        Result,
    ),
    *(
        RowKey,
        Settlement,
        Observer,
        Source,
        Stage,
        Timing,
        ToReceiver,
        ToSender,
        _FreeSeats,
        LaneSetup,
        CallQueue,
    ),
)
"""What never changes is not copied."""


class _Pickler(pickle.Pickler):
    dispatch_table = dict.fromkeys(VALUES, _share) | {MemoryBroker: _reduced}
