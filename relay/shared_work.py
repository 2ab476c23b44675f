"""What one process of all does for the others, under a lease for each: it watches the receivers file, the backlogs and
the history, moves, replays and rebuilds."""

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

from relay.clock import Clock
from relay.config.registry import Registry
from relay.config.settings import Settings
from relay.domain.topics import Topics
from relay.engine.supervision import Patience
from relay.history.port import History
from relay.lanes import Lanes
from relay.log.port import Log
from relay.plan import API, HISTORY, Plan
from relay.rebuilding import Rebuilding
from relay.replay.desk import Desk
from relay.replay.runner import ReplayRunner
from relay.state.port import State
from relay.telemetry.metrics import Metrics
from relay.watch.backlog import BacklogWatch
from relay.watch.history import HistoryWatch
from relay.watch.lag import LagWatch
from relay.watch.mover import Mover
from relay.watch.receivers_file import FileWatch


@dataclass(frozen=True, slots=True)
class SharedWork:
    """A process's part in it. `owner`: unique per process."""

    settings: Settings
    plan: Plan
    log: Log
    state: State
    topics: Topics
    registry: Registry
    clock: Clock
    patience: Patience
    metrics: Metrics
    lanes: Lanes
    desk: Desk
    file: FileWatch
    history: History | None
    owner: str

    def parts(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """Each by its name; to be run until cancelled."""
        if self.plan.apply_file:
            yield "receivers file watch", self.file.run()
        yield "moves", self._mover().run()
        yield "replays", self._replays().run()
        yield "backlog watch", self._backlog_watch().run()
        yield "lag watch", self._lag_watch().run()
        if self.history is not None and self.plan.roles & {API, HISTORY}:  # the others may not read its topics
            yield "history watch", self._history_watch(self.history).run()
        yield "rebuilding", self._rebuilding().run()

    @property
    def _room(self) -> int:
        """How much of what may be parked for a receiver moves and replays fill: the rest is for what comes in."""
        return self.settings.parked_per_receiver // 4

    def _mover(self) -> Mover:
        return Mover(self.log, self.state, self.topics, self.registry, self.clock, owner=self.owner, room=self._room)

    def _replays(self) -> ReplayRunner:
        return ReplayRunner(self.log, self.state, self.topics, self.desk, self.clock, owner=self.owner, room=self._room)

    def _backlog_watch(self) -> BacklogWatch:
        lanes, owner = self.lanes.own, self.owner
        return BacklogWatch(self.log, self.state, self.topics, lanes, self.clock, self.metrics, owner=owner)

    def _lag_watch(self) -> LagWatch:
        lanes, owner = self.lanes.own, self.owner
        return LagWatch(self.log, self.state, self.topics, lanes, self.clock, self.metrics, owner=owner)

    def _history_watch(self, history: History) -> HistoryWatch:
        return HistoryWatch(history, self.log, self.state, self.topics, self.clock, self.metrics, owner=self.owner)

    def _rebuilding(self) -> Rebuilding:
        return Rebuilding(
            self.log,
            self.state,
            self.topics,
            self.clock,
            self.patience,
            self.metrics,
            owner=self.owner,
            window_s=self.settings.dedup_window,
            rate=self.settings.rebuild_rate,
        )
