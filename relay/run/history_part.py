"""The process's history: one store, for queries and for the worker that fills it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from relay.clock import Clock
from relay.config.plan import HISTORY, ProcessPlan
from relay.config.settings import Settings
from relay.domain.topics import Topics
from relay.engine.supervision import OpenService, Patience
from relay.history.opening import open_history
from relay.history.port import History
from relay.log.port import Log, TopicPartition
from relay.run.cpu_throttle import CpuThrottle
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from workers.history import HistoryWorker, Watcher, never_throttle, topics_read

AT_ONCE: Final = 1_000
"""Facts of a transaction in a process that also runs lanes, which need the event loop."""
AT_ONCE_ALONE: Final = 3_000

_log = get_logger("relay.history")


def opened(settings: Settings) -> History | None:
    """None if none is configured. Raises UserError."""
    return None if settings.history_url is None else open_history(settings.history_url.get_secret_value())


class HistoryPart:
    """`store`: not started; None: none is configured."""

    def __init__(
        self,
        settings: Settings,
        plan: ProcessPlan,
        log: Log,
        topics: Topics,
        clock: Clock,
        patience: Patience,
        metrics: Metrics,
    ) -> None:
        self.store = opened(settings)
        self._settings = settings
        self._plan = plan
        self._log = log
        self._topics = topics
        self._clock = clock
        self._patience = patience
        self._watcher = HistoryLog(metrics)

    def beside(self, others: Callable[[], Mapping[str, OpenService]]) -> Callable[[], Mapping[str, OpenService]]:
        """These services and the history's worker."""
        return lambda: {**others(), **self.wanted()}

    def wanted(self) -> Mapping[str, OpenService]:
        """The worker, if this process has the role."""
        if self.store is None or HISTORY not in self._plan.roles:
            return {}
        return {HISTORY: partial(self._worker, self.store)}

    def _worker(self, store: History) -> HistoryWorker:
        settings, topics = self._settings, self._topics
        return HistoryWorker(
            partial(self._log.consumer, topics.group(HISTORY), topics_read(topics), rank=self._plan.rank(0)),
            self._log,
            store,
            topics,
            self._clock,
            self._patience,
            keep=settings.history_bodies,
            retention_s=settings.history_retention,
            at_once=AT_ONCE_ALONE if self._plan.is_history_alone else AT_ONCE,
            give_way=CpuThrottle() if self._plan.is_history_alone else never_throttle,
            watcher=self._watcher,
        )

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()


class HistoryLog(Watcher):
    """Logs and counts the events of the history's worker."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def wrote(self, records: int, rubbish: int) -> None:
        self._metrics.history_records_total.labels("taken").inc(records - rubbish)
        if rubbish:
            self._metrics.history_records_total.labels("unreadable").inc(rubbish)

    def lost(self, gaps: Mapping[TopicPartition, tuple[int, int]]) -> None:
        records = sum(first - has for has, first in gaps.values())
        _log.warning("history_gap", records=records, partitions=_named(gaps), problem="the log has deleted them unread")

    def ahead(self, partitions: Mapping[TopicPartition, int]) -> None:
        problem = "the topics were recreated; `relay history rebuild` rebuilds the history from them"
        _log.error("history_ahead", partitions=_named(partitions), problem=problem)

    def moved(self) -> None:
        _log.warning(
            "history_begun_anew",
            problem="it was cleared, or restored from an older copy: it is filled again from the log",
        )

    def pruned(self, messages: int) -> None:
        if messages:
            _log.info("history_pruned", messages=messages)


def _named(partitions: Mapping[TopicPartition, object]) -> list[str]:
    return sorted(f"{topic}/{number}" for topic, number in partitions)
