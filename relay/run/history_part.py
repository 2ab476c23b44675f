"""The process's history: one store, for queries and for the worker that fills it, at the pace that the CPU permits."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from relay.config.plan import HISTORY
from relay.config.settings import Settings
from relay.domain.errors import UserError
from relay.engine.supervision import Retrier
from relay.history.lag import topics_read
from relay.history.port import History
from relay.history.sqlite import SqliteHistory
from relay.log.port import Subscription, TopicPartition
from relay.run.composition import ProcessContext
from relay.run.services import OpenService
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from workers.history import HistoryEvents, HistoryWorker, never_throttle

AT_ONCE: Final = 1_000
"""Facts of a transaction in a process that also runs lanes, which need the event loop."""
AT_ONCE_ALONE: Final = 3_000


CPU_TIMES: Final = Path("/proc/stat")
BUSY_SHARE: Final = 0.6
"""Share of all processors in use by others, above which each of our turns slows them down. Even work on an idle core
evicts data from the caches that they need next."""
LEAST_SHARE: Final = 1 / 64
"""Our share of all processors then: the burst of the others goes first, and ends soon."""
BURST_S: Final = 60.0
"""Lag in seconds above which the history no longer waits for the end of a burst."""
SHARE_OF_THE_REST: Final = 0.5
"""Our share of the idle processor time in that case."""
LONGEST_REST_S: Final = 5.0
"""Longest rest: members of a consumer group have some seconds to hand over partitions."""
_SHORTEST_INTERVAL_S: Final = 0.5
"""The system counts in hundredths of a second."""
_NICEST: Final = 19

_log = get_logger("relay.history")


def opened(settings: Settings) -> History | None:
    """The store of the history; None if none is configured. Raises UserError."""
    return None if settings.history_url is None else open_history(settings.history_url.get_secret_value())


class HistoryPart:
    """The part of a process that has the history: its store, and its worker. `store`: not started; None: none is
    configured."""

    def __init__(self, context: ProcessContext, retrier: Retrier, metrics: Metrics) -> None:
        self.store = opened(context.settings)
        self._context = context
        self._retrier = retrier
        self._events = HistoryLog(metrics)

    def services(self) -> Mapping[str, OpenService]:
        """The worker, if this process has the role."""
        if self.store is None or HISTORY not in self._context.plan.roles:
            return {}
        return {HISTORY: partial(self._worker, self.store)}

    def _worker(self, store: History) -> HistoryWorker:
        context, alone = self._context, self._context.plan.is_history_alone
        settings, topics, log = context.settings, context.topics, context.log
        subscription = Subscription(topics.group(HISTORY), topics_read(topics), rank=context.plan.rank(0))
        return HistoryWorker(
            partial(log.consumer, subscription),
            log,
            store,
            topics,
            context.clock,
            self._retrier,
            keep=settings.history_bodies,
            retention_s=settings.history_retention,
            at_once=AT_ONCE_ALONE if alone else AT_ONCE,
            throttle=CpuThrottle() if alone else never_throttle,
            events=self._events,
            erasures=context.registry.erasures,
        )

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()


class HistoryLog(HistoryEvents):
    """Logs and counts the events of the history's worker."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def wrote(self, records: int, unreadable: int) -> None:
        self._metrics.history_records_total.labels("taken").inc(records - unreadable)
        if unreadable:
            self._metrics.history_records_total.labels("unreadable").inc(unreadable)

    def lost(self, gaps: Mapping[TopicPartition, tuple[int, int]]) -> None:
        records = sum(first - has for has, first in gaps.values())
        _log.warning("history_gap", records=records, partitions=_named(gaps), problem="the log deleted them unread")

    def ahead(self, partitions: Mapping[TopicPartition, int]) -> None:
        problem = "the topics were recreated, or have lost their end: it goes on with what they have now"
        _log.error("history_ahead", partitions=_named(partitions), problem=problem)

    def moved(self) -> None:
        _log.warning(
            "history_begun_anew",
            problem="it was cleared, restored, or lost its last second in a crash; it is filled again from the log",
        )

    def pruned(self, messages: int) -> None:
        if messages:
            _log.info("history_pruned", messages=messages)


def _named(partitions: Mapping[TopicPartition, object]) -> list[str]:
    return sorted(f"{topic}/{number}" for topic, number in partitions)


# --- the pace -------------------------------------------------------------------------------------------------------


def lower_priority() -> None:
    """Give this process only the time that others leave. On Linux SCHED_IDLE also never delays a process that wakes
    up, as niceness alone would."""
    os.nice(_NICEST)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may not have it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def rest_s(others: float, own_s: float, behind_s: float, processors: int) -> float:
    """How long to rest. `others`: their share of all `processors`; `own_s`: CPU seconds of this process; `behind_s`:
    the lag."""
    if others < BUSY_SHARE:
        return 0.0
    share = LEAST_SHARE if behind_s < BURST_S else max(LEAST_SHARE, SHARE_OF_THE_REST * (1 - others))
    return min(LONGEST_REST_S, own_s * max(0.0, 1 / (share * processors) - 1))


@dataclass(eq=False, repr=False)
class CpuThrottle:
    """Throttles a background process, so that it does not slow down the processes that carry messages: returns after
    each turn how long to rest before the next. It never rests if the system does not report its load.

    `own_s`: CPU seconds of this process. `processors`: their number; None: the system's.
    """

    cpu_times: Path = CPU_TIMES
    own_s: Callable[[], float] = time.process_time
    processors: int | None = None

    def __post_init__(self) -> None:
        self._processors = self.processors or os.cpu_count() or 1
        self._last = self._read_times()

    def __call__(self, behind_s: float) -> float:
        now = self._read_times()
        if now is None or self._last is None:
            self._last = now
            return 0.0
        busy_s, all_s, own_s = (after - before for after, before in zip(now, self._last, strict=True))
        if all_s < _SHORTEST_INTERVAL_S:
            return 0.0
        self._last = now
        return rest_s((busy_s - own_s) / all_s, own_s, behind_s, self._processors)

    def _read_times(self) -> tuple[float, float, float] | None:
        """Since boot: busy processor seconds, all processor seconds, and the CPU seconds of this process."""
        try:
            # cpu  user nice system idle iowait irq softirq steal ...; guests are in user and nice
            ticks = [int(field) for field in self.cpu_times.read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return None
        hertz = os.sysconf("SC_CLK_TCK")
        idle = sum(ticks[3:5])
        return (sum(ticks) - idle) / hertz, sum(ticks) / hertz, self.own_s()


def open_history(url: str) -> History:
    """The store, not started yet. `url`: checked by `check_history_url`. Raises UserError if it is PostgreSQL's and its
    driver is not installed."""
    if url.startswith("sqlite:"):
        return SqliteHistory(Path(unquote(urlsplit(url).path)))
    try:
        from relay.history.postgres import PostgresHistory
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise UserError(
            "RELAY_HISTORY_URL: PostgreSQL needs asyncpg; install it with: pip install 'webhook-relay[postgres]'"
        ) from error
    return PostgresHistory(url)
