"""What the engine tells about itself, turned into log lines, metrics and Sentry events."""

import time
from collections.abc import Callable

from relay.domain.errors import StateRecovering, StateUnavailable, Unavailable
from relay.log.port import TopicPartition
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics
from relay.telemetry.sentry import SentryReporter

REPEAT_S = 10.0
"""The same wait is logged again only after this time: a server that is away is one story, not thousands of lines."""


class TelemetryObserver:
    """Implements `relay.engine.observer.Observer`. `ask_recovery` is called when the state is not ready."""

    def __init__(self, metrics: Metrics, sentry: SentryReporter, ask_recovery: Callable[[], None]) -> None:
        self._metrics = metrics
        self._sentry = sentry
        self._ask_recovery = ask_recovery
        self._log = get_logger("relay.engine")
        self._told: dict[str, float] = {}

    def waiting(self, what: str, error: Unavailable) -> None:
        self._metrics.dependency_waits_total.labels(
            "state" if isinstance(error, StateUnavailable | StateRecovering) else "log"
        ).inc()
        now = time.monotonic()
        key = type(error).__name__
        if now - self._told.get(key, -REPEAT_S) >= REPEAT_S:
            self._told[key] = now
            self._log.warning("waiting", to=what, error=str(error))

    def state_recovering(self, tags: frozenset[int]) -> None:
        self._ask_recovery()

    def recovered(self, tags: frozenset[int], put_back: int, in_doubt: bool) -> None:
        self._metrics.state_recoveries_total.inc()
        self._log.info("state_recovered", tags=len(tags), put_back=put_back, after_loss=in_doubt)

    def step_crashed(self, stage: str, error: Exception) -> None:
        self._metrics.step_crashes_total.labels(stage).inc()
        self._log.error("step_crashed", stage=stage, error=type(error).__name__)
        self._sentry.report_crash(error)

    def attempt(self, stage: str, gate: str, outcome: str) -> None:
        match stage:
            case "to_receiver":
                self._metrics.delivery_attempts_total.labels(gate[2:], outcome).inc()
            case "pending":
                self._metrics.status_polls_total.labels(gate[2:], outcome).inc()
            case "to_sender":
                self._metrics.callback_attempts_total.labels(outcome).inc()

    def duplicate(self, stage: str, count: int) -> None:
        if stage == "from_sender":
            self._metrics.duplicates_total.inc(count)

    def dead(self, stage: str, gate: str, reason: str) -> None:
        self._metrics.failed_total.labels(gate[2:] if gate[:2] == "r:" else "-", reason).inc()
        self._log.warning("dead_letter", stage=stage, endpoint=gate, reason=reason)

    def parked(self, topic: str, count: int) -> None:
        self._metrics.parked_total.labels(topic).inc(count)

    def fenced(self, partition: TopicPartition) -> None:
        self._metrics.lanes_fenced_total.labels(partition.topic).inc()
        self._log.warning("fenced", topic=partition.topic, partition=partition.partition)

    def lane(self, partition: TopicPartition, *, unfinished: int) -> None:
        self._metrics.lane_window_records.labels(partition.topic, str(partition.partition)).set(unfinished)
