"""The lanes of a process, and how each is built: consumer, worker and the setup of its partitions. Their load, too,
which the process reports to its supervisor, as that decides how many processes there are."""

import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final, Protocol

from relay.clock import Clock
from relay.config.limits import lanes_budget
from relay.config.plan import ProcessPlan
from relay.config.settings import Settings
from relay.domain.directory import Directory, Moves
from relay.domain.errors import LogUnavailable, Unavailable
from relay.domain.receiver import Receiver
from relay.domain.route import OwnLanes, is_in_shared, own_lanes
from relay.domain.topics import SHARED, Topics
from relay.engine.effects import Effects
from relay.engine.holding import Holding
from relay.engine.lane import NOTHING, Lane, LaneLevels, LaneSetup
from relay.engine.observer import Observer
from relay.engine.open_lane import OpenLane
from relay.engine.policy import Bounds, BudgetShare, ByteBudget, dedicated, shared, unparked
from relay.engine.pump import Pump
from relay.engine.quarantine import LaneBreaks
from relay.engine.runner import Runner
from relay.engine.supervision import Retrier
from relay.engine.work import WaitFor, Worker
from relay.log.port import NONE_UNABLE, Assignment, Log, LogReader, Subscription, TopicPartition, Unable
from relay.run.autoscale import Load
from relay.run.services import OpenService
from relay.state.port import Lane as LaneId
from relay.state.port import State
from relay.state.read_model import LaneLoad
from relay.state.rows import TAGS, tag_of
from relay.watch.heartbeats import Heartbeats
from workers.dependencies import Dependencies
from workers.failed_messages import FailedMessages, Reporter, Summarize
from workers.from_receiver_async import FromReceiverAsync
from workers.from_sender import FromSender, TracedFromSender
from workers.records import Letters
from workers.to_receiver import ToReceiver
from workers.to_sender import ToSender

ALL_TAGS = tuple(range(TAGS))
_OF_RECEIVERS: Final = ("to-receiver", "from-receiver-async")
"""Roles that read a topic for each receiver with topics of its own."""

_UNABLE: Final = 1_000
"""Maximum number of receivers to consider: more would cover nearly all partitions."""

_ALL_TAGS_OF: Final = dict.fromkeys(("to-sender", *_OF_RECEIVERS), ALL_TAGS)
"""Roles whose lanes park records of many receivers or sources."""


class _Reading:
    """The topics that a role reads; its `reader`, if any, is kept up to date."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self._unable = NONE_UNABLE
        self._reader: Runner | None = None

    def change(self, topics: Iterable[str], unable: Unable) -> None:
        self.topics, self._unable = frozenset(topics), {each: keys for each, keys in unable.items() if each in topics}
        if self._reader is not None:
            self._reader.subscribe(self.topics, self._unable)

    def read_by(self, reader: Runner) -> None:
        self._reader = reader
        reader.subscribe(self.topics, self._unable)


class LaneDirectory(Directory, Moves, Protocol):
    """All receivers and sources, and all receivers that may have lanes of their own."""

    def receivers(self) -> Mapping[str, Receiver]:
        """The receivers of these lanes; only some of those in the shared lane."""
        ...

    def unusable_in_shared(self, most: int) -> Collection[str]:
        """Receivers with messages in the shared lane whose settings this process cannot use, at most `most`. Raises
        LogUnavailable."""
        ...

    def left_lanes(self) -> frozenset[str]:
        """Receivers whose own topics are no longer in use, and may still hold records."""
        ...


@dataclass(eq=False, repr=False)
class Lanes:
    """The lanes that have to run now, by the plan and the receivers. `process`: this process's name, for operators.
    `load`: POSTs to the receivers of a topic, if measured."""

    settings: Settings
    plan: ProcessPlan
    known: LaneDirectory
    log: Log
    state: State
    dependencies: Dependencies
    observer: Observer
    retrier: Retrier
    reporter: Reporter
    summarize: Summarize = lambda _entry, _attempts: None
    _: KW_ONLY
    process: str = ""
    load: Callable[[str], LaneLoad | None] = lambda _topic: None

    def __post_init__(self) -> None:
        settings, known, log, state, dependencies = self.settings, self.known, self.log, self.state, self.dependencies
        self.heartbeats = Heartbeats(self.process, self._unusable, self.load, self._gathering)
        """Publishes which lanes are served here; the caller runs it."""
        self._topics = topics = Topics(settings.topic_prefix)
        effects = Effects(
            log, state, dependencies.clock, self.retrier, Holding(log, state, topics.receiver_config), topics.parked()
        )
        self.pump = Pump(effects, dependencies.clock, dependencies.request_limiter)
        """Runs the lanes; the caller runs it."""
        letters = Letters(topics, dependencies.clock, dependencies.erasures)
        routing = FromSender if dependencies.tracing is None else TracedFromSender
        self._workers: dict[str, Worker[Any]] = {
            "from-sender": routing(
                topics, known, state, letters, dependencies, max_payload_bytes=settings.max_payload_bytes, moves=known
            ),
            "to-sender": ToSender(known, state, letters, dependencies),
            "failed-messages": FailedMessages(topics, state, letters, self.reporter, self.summarize),
            "to-receiver": ToReceiver(topics, known, state, letters, dependencies, known),
            "from-receiver-async": FromReceiverAsync(topics, known, state, letters, dependencies),
        }
        self._breaks = LaneBreaks()
        self.memory = ByteBudget(lanes_budget(settings))
        """The memory that the lanes use."""
        self._unable_names: frozenset[bytes] = frozenset()
        self._reading = {role: _Reading() for role in self._workers if role in self.plan.roles}

    def services(self) -> Mapping[str, OpenService]:
        """A service for each role of the plan, by its name. They read nothing before `update`."""
        return {role: partial(self._runner, role) for role in self._reading}

    def update(self) -> None:
        """Updates what they read to the current receivers."""
        topics, unable = self._topics_read(), self._unable_in_shared()
        for role, reading in self._reading.items():
            reading.change(topics[role], unable)

    def _topics_read(self) -> dict[str, list[str]]:
        """The topics read, by role."""
        topics, own = self._topics, self._own()
        lanes = [lane for lane in self._lanes_of_receivers(own) if self._can_serve(lane)]
        return {
            "from-sender": [topics.from_sender],
            "to-sender": [topics.to_sender],
            "failed-messages": [topics.failed_messages],
            "to-receiver": [topics.to_receiver(lane) for lane in lanes if lane not in own.gathering],
            "from-receiver-async": [topics.pending(lane) for lane in lanes],
        }

    def _can_serve(self, lane: str) -> bool:
        """The lane of a receiver whose settings this process cannot use is left to processes that can."""
        receiver = None if lane == SHARED else self._receiver(lane)
        return receiver is None or receiver.unusable is None

    def _receiver(self, name: str) -> Receiver | None:
        """None also while its index is being rebuilt: the rebuild is a change, after which all is updated again."""
        with suppress(LogUnavailable):
            return self.known.receiver(name)
        return None

    def _unusable(self) -> list[str]:
        """Owners of the lanes that are left to other processes."""
        if not self._reading.keys() & set(_OF_RECEIVERS):
            return []
        return [f"r:{lane}" for lane in self._lanes_of_receivers(self._own()) if not self._can_serve(lane)]

    def _gathering(self) -> list[TopicPartition]:
        """Partitions of topics of their own that this process will read once the shared lane has finished."""
        own = self._own()
        lanes = own.gathering.intersection(self._lanes_of_receivers(own)) if "to-receiver" in self._reading else ()
        receivers = [one for lane in sorted(lanes) if (one := self._receiver(lane)) and self._can_serve(lane)]
        topics = [(self._topics.to_receiver(one.name), one.partitions) for one in receivers]
        return [TopicPartition(topic, number) for topic, count in topics for number in range(count)]

    def _unable_in_shared(self) -> Unable:
        """Partitions of the shared lane go to processes that can use the settings of all receivers with messages
        there."""
        with suppress(LogUnavailable):  # as in `_receiver`
            self._unable_names = frozenset(name.encode() for name in self.known.unusable_in_shared(_UNABLE))
        return dict.fromkeys((self._topics.to_receiver(SHARED), self._topics.pending(SHARED)), self._unable_names)

    def own(self) -> frozenset[str]:
        """Receivers whose own topics some process has to read."""
        return self._own().all

    def levels(self) -> dict[str, LaneLevels]:
        """Levels by role, summed over this process's lanes."""
        now = self.dependencies.clock.monotonic()
        role_of = {worker.stage: role for role, worker in self._workers.items()}
        found = dict.fromkeys(self._reading, NOTHING)
        for lane in self.pump.lanes():
            role = role_of[lane.worker.stage]
            found[role] = found.get(role, NOTHING).plus(lane.levels(now))
        return found

    def _own(self) -> OwnLanes:
        return own_lanes(self.known.receivers().values(), self.known.left_lanes())

    def _lanes_of_receivers(self, own: OwnLanes) -> list[str]:
        only = self.plan.receivers
        if only is None:
            return sorted(own.all | {SHARED})
        named = filter(None, map(self._receiver, only))
        shared = {SHARED for receiver in named if is_in_shared(receiver)}
        return sorted(own.all & only | shared)

    def _runner(self, role: str) -> Runner:
        reading = self._reading[role]
        subscription = Subscription(
            self._topics.group(role),
            reading.topics,
            rank=self.plan.rank(list(self._workers).index(role)),
            named=self.plan.receivers is not None and role in _OF_RECEIVERS,
            former=self._topics.former_group,
        )
        runner = Runner(
            partial(self.log.consumer, subscription),
            partial(self._open_lane, role),
            self.dependencies.clock,
            self.retrier,
            self.settings.shutdown_grace,
            self.observer,
            role,
            self.memory,
        )
        reading.read_by(runner)
        return runner

    def _open_lane(self, role: str, assignment: Assignment) -> OpenLane:
        worker = self._workers[role]
        name = self._topics.lane_of(assignment.partition.topic) if role in _OF_RECEIVERS else None
        tags = _ALL_TAGS_OF.get(role, ()) if name in (None, SHARED) else (tag_of(f"r:{name}"),)
        setup = self._setup(assignment, tags, worker, is_shared=name in (None, SHARED))
        lane = OpenLane(self.pump, self.dependencies.clock, partial(Lane, setup, worker))
        self.heartbeats.enter(lane)
        return lane

    def _setup(
        self, assignment: Assignment, tags: tuple[int, ...], worker: Worker[Any], *, is_shared: bool
    ) -> LaneSetup:
        settings, hold_s = self.settings, self.settings.hold_max
        policy = (shared if is_shared else dedicated) if worker.parks else unparked
        return LaneSetup(
            lane=LaneId(*assignment.partition, assignment.epoch),
            start=assignment.start,
            tags=tags,
            policy=policy(hold_s, capped=worker.capped),
            bounds=Bounds(
                window=settings.window_records,
                span=settings.window_offsets,
                parked_per_owner=settings.parked_per_receiver,
                parked_total=settings.parked_total,
            ),
            observer=self.observer,
            random=secrets.token_bytes,
            wall=self.dependencies.clock.time,
            breaks=self._breaks,
            memory=BudgetShare(self.memory),
        )


# --- load ---------------------------------------------------------------------------------------------------------


REPORT_EVERY_S: Final = 1.0
LOOK_AT_LOG_FROM: Final = 100
"""Unfinished records in memory from which the log is asked how many more there are."""
_OURS: Final[frozenset[WaitFor]] = frozenset({"turn", "order", "max_in_flight", "seat"})
"""Waits that may be due to this process: a response that it has not read yet keeps its place at the receiver."""


@dataclass(eq=False)
class LoadReport:
    """Reports this process's load to its parent, which decides on the number of processes. `late_s`: the mean delay of
    the event loop. `descriptor`: where the reports are written, a line each; one that does not fit is dropped."""

    lanes: Lanes
    log: LogReader
    clock: Clock
    late_s: Callable[[], float]
    descriptor: int

    async def run(self) -> None:
        """Runs until cancelled."""
        os.set_blocking(self.descriptor, False)
        while True:
            load = await self.look()
            with suppress(OSError):  # full, as with a fixed number of processes, or the supervisor has ended
                os.write(self.descriptor, load.line())
            await self.clock.sleep(REPORT_EVERY_S)

    async def look(self) -> Load:
        now, late_s = self.clock.monotonic(), self.late_s()
        lanes = [lane for lane in self.lanes.pump.lanes() if lane.unfinished and not _is_held_up(lane, now)]
        backlog = sum(lane.unfinished for lane in lanes)
        if backlog >= LOOK_AT_LOG_FROM:  # otherwise the process keeps up, and has read nearly all
            with suppress(Unavailable):
                backlog = max(backlog, await self._behind(lanes))
        return Load(backlog, late_s)

    async def _behind(self, lanes: list[Lane[Any]]) -> int:
        """Records that these lanes have not finished, with those that are only on the log. Raises Unavailable."""
        following = {lane.partition: lane.next_offset for lane in lanes if lane.next_offset is not None}
        ends = await self.log.ends(list(following))
        return sum(max(0, end - following[at]) for at, end in ends.items() if at in following)


def _is_held_up(lane: Lane[Any], now: float) -> bool:
    """Whether most of its records wait for a receiver that is away, paused, or limits its rate."""
    waits = lane.levels(now).waits
    return 2 * sum(count for why, count in waits.items() if why not in _OURS) > lane.unfinished
