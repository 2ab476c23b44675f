"""Which lanes a process runs, and how each is made: a consumer, a worker, and the surroundings of its partitions."""

import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from relay.config.settings import Settings
from relay.domain.directory import Directory, Moves
from relay.domain.receiver import Receiver
from relay.domain.route import OwnLanes, is_in_shared, own_lanes
from relay.domain.topics import SHARED, Topics
from relay.engine.bounds import Bounds
from relay.engine.core import Lane
from relay.engine.effects import Effects
from relay.engine.ending import Setting
from relay.engine.holding import Holding
from relay.engine.lane import OpenLane
from relay.engine.observer import Observer
from relay.engine.patience import Patience
from relay.engine.policy import Dedicated, Policy, Shared
from relay.engine.pump import Pump
from relay.engine.resumes import Resumes
from relay.engine.roster import Roster
from relay.engine.runner import Runner
from relay.engine.supervisor import OpenService
from relay.engine.work import Worker
from relay.log.port import Assignment, Log
from relay.plan import Plan
from relay.state.port import Lane as LaneId
from relay.state.port import State
from relay.state.rows import TAGS, tag_of
from workers.failed_messages import FailedMessages, Reporter
from workers.from_receiver_async import FromReceiverAsync
from workers.from_sender import FromSender
from workers.letters import Letters
from workers.outside import Outside
from workers.to_receiver import ToReceiver
from workers.to_sender import ToSender

ALL_TAGS = tuple(range(TAGS))


class Known(Directory, Moves, Protocol):
    """Who is known, and all who may have lanes of their own."""

    def receivers(self) -> Mapping[str, Receiver]:
        """Of those in the shared lane only some."""
        ...

    def left_lanes(self) -> frozenset[str]:
        """Receivers whose own topics are not in use any more, and may hold something."""
        ...


class Lanes:
    """What has to run now, given the plan and the receivers there are."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        known: Known,
        log: Log,
        state: State,
        outside: Outside,
        observer: Observer,
        patience: Patience,
        reporter: Reporter,
        resumes: Resumes | None = None,
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._known = known
        self._log = log
        self._state = state
        self._outside = outside
        self._observer = observer
        self._patience = patience
        self.roster = Roster()
        """Which lanes are served here; somebody has to run it."""
        self._topics = topics = Topics(settings.topic_prefix)
        effects = Effects(
            log, state, outside.clock, patience, Holding(log, state, topics.receiver_config), topics.parked_messages
        )
        self.pump = Pump(effects, outside.clock, outside.turnstile)
        """Runs the lanes; somebody has to run it."""
        (resumes or Resumes()).listen(self.pump.resumed)
        letters = Letters(topics, outside.clock)
        self._from_sender = FromSender(
            topics, known, state, letters, outside, max_payload_bytes=settings.max_payload_bytes, moves=known
        )
        self._to_receiver = ToReceiver(topics, known, state, letters, outside, known)
        self._from_receiver_async = FromReceiverAsync(topics, known, state, letters, outside)
        self._to_sender = ToSender(known, state, letters, outside)
        self._failed_messages = FailedMessages(topics, state, letters, reporter)

    def wanted(self) -> Mapping[str, OpenService]:
        """Services by name: `from-sender`, ..., and `to-receiver/<lane>` per lane."""
        topics = self._topics
        fixed: dict[str, OpenService] = {
            "from-sender": self._runner("from-sender", None, 0, topics.from_sender, self._from_sender, ()),
            "to-sender": self._runner("to-sender", None, 1, topics.to_sender, self._to_sender, ALL_TAGS),
            "failed-messages": self._runner(
                "failed-messages", None, 2, topics.failed_messages, self._failed_messages, ()
            ),
        }
        wanted = {role: service for role, service in fixed.items() if role in self._plan.roles}
        own = self._own()
        for number, lane in enumerate(self._lanes_of_receivers(own)):
            tags = ALL_TAGS if lane == SHARED else (tag_of(f"r:{lane}"),)
            for role, topic, worker in (
                ("to-receiver", topics.to_receiver(lane), self._to_receiver),
                ("from-receiver-async", topics.pending(lane), self._from_receiver_async),
            ):
                gathers = role == "to-receiver" and lane in own.gathering
                if role in self._plan.roles and not gathers:
                    wanted[f"{role}/{lane}"] = self._runner(role, lane, number, topic, worker, tags)
        return wanted

    def own(self) -> frozenset[str]:
        """Receivers whose own topics have to be read by somebody."""
        return self._own().all

    def _own(self) -> OwnLanes:
        return own_lanes(self._known.receivers().values(), self._known.left_lanes())

    def _lanes_of_receivers(self, own: OwnLanes) -> list[str]:
        only = self._plan.receivers
        if only is None:
            return sorted(own.all | {SHARED})
        named = filter(None, map(self._known.receiver, only))
        shared = {SHARED for receiver in named if is_in_shared(receiver)}
        return sorted(own.all & only | shared)

    def _runner(
        self, role: str, lane: str | None, number: int, topic: str, worker: Worker[Any], tags: tuple[int, ...]
    ) -> OpenService:
        group = self._topics.group(role, lane)
        shared = lane in (None, SHARED)

        def open_lane(assignment: Assignment) -> OpenLane:
            setting = self._setting(assignment, tags, worker, shared=shared)
            lane = OpenLane(self.pump, self._outside.clock, partial(Lane, setting, worker))
            self.roster.enter(lane)
            return lane

        return lambda: Runner(
            partial(self._log.consumer, group, [topic], rank=self._plan.rank(number)),
            open_lane,
            self._outside.clock,
            self._patience,
            self._settings.shutdown_grace,
        )

    def _setting(self, assignment: Assignment, tags: tuple[int, ...], worker: Worker[Any], *, shared: bool) -> Setting:
        settings, hold_s = self._settings, self._settings.hold_max
        kind = (Shared if shared else Dedicated) if worker.parks else Policy
        return Setting(
            lane=LaneId(*assignment.partition, assignment.epoch),
            tags=tags,
            policy=kind(hold_s, capped=worker.capped),
            bounds=Bounds(
                window=settings.window_records,
                span=settings.window_offsets,
                parked_per_owner=settings.parked_per_receiver,
                parked_total=settings.parked_total,
            ),
            observer=self._observer,
            random=secrets.token_bytes,
            wall=self._outside.clock.time,
        )
