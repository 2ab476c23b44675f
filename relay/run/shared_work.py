"""The jobs that exactly one process of a cluster runs, each under a lease: watching the receivers file, backlogs and
history, and running moves, replays and rebuilds."""

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

from relay.config.plan import API, HISTORY
from relay.engine.supervision import Patience
from relay.history.port import History
from relay.recovery.rebuilding import Rebuilding
from relay.replay.replay_service import ReplayService
from relay.replay.runner import ReplayRunner
from relay.run.context import ProcessContext
from relay.run.lanes import Lanes
from relay.telemetry.metrics import Metrics
from relay.watch.lag import BacklogWatch, HistoryWatch, LagWatch
from relay.watch.lane_migration import LaneMigration
from relay.watch.registry import FileWatch


@dataclass(frozen=True, slots=True)
class SharedWork:
    """This process's share of the jobs."""

    context: ProcessContext
    patience: Patience
    metrics: Metrics
    lanes: Lanes
    desk: ReplayService
    file: FileWatch
    history: History | None

    def parts(self) -> Iterator[tuple[str, Awaitable[None]]]:
        """Each with its name; to be run until cancelled."""
        if self.context.plan.apply_file:
            yield "receivers file watch", self.file.run()
        yield "moves", self._mover().run()
        yield "replays", self._replays().run()
        yield "backlog watch", self._backlog_watch().run()
        yield "lag watch", self._lag_watch().run()
        # others may lack the right to read its topics
        if self.history is not None and self.context.plan.roles & {API, HISTORY}:
            yield "history watch", self._history_watch(self.history).run()
        yield "rebuilding", self._rebuilding().run()

    @property
    def _room(self) -> int:
        """Records per receiver that moves and replays may park; the rest of the limit is for new messages."""
        return self.context.settings.parked_per_receiver // 4

    def _mover(self) -> LaneMigration:
        context = self.context
        return LaneMigration(
            context.log,
            context.state,
            context.topics,
            context.registry,
            context.clock,
            owner=context.owner,
            room=self._room,
        )

    def _replays(self) -> ReplayRunner:
        context = self.context
        return ReplayRunner(
            context.log, context.state, context.topics, self.desk, context.clock, owner=context.owner, room=self._room
        )

    def _backlog_watch(self) -> BacklogWatch:
        context = self.context
        return BacklogWatch(
            context.log, context.state, context.topics, self.lanes.own, context.clock, self.metrics, owner=context.owner
        )

    def _lag_watch(self) -> LagWatch:
        context = self.context
        return LagWatch(
            context.log, context.state, context.topics, self.lanes.own, context.clock, self.metrics, owner=context.owner
        )

    def _history_watch(self, history: History) -> HistoryWatch:
        context = self.context
        return HistoryWatch(
            history, context.log, context.state, context.topics, context.clock, self.metrics, owner=context.owner
        )

    def _rebuilding(self) -> Rebuilding:
        context = self.context
        return Rebuilding(
            context.log,
            context.state,
            context.topics,
            context.clock,
            self.patience,
            self.metrics,
            owner=context.owner,
            window_s=context.settings.dedup_window,
            rate=context.settings.rebuild_rate,
        )
