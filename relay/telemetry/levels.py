"""Memory use of this process's lanes, computed for each exposition of the metrics."""

from collections.abc import Callable, Mapping
from typing import get_args

from relay.engine.core import LaneLevels
from relay.engine.policy import ByteBudget
from relay.engine.work import WaitFor
from relay.telemetry.metrics import Metrics


def show_levels(metrics: Metrics, look: Callable[[], Mapping[str, LaneLevels]], memory: ByteBudget) -> None:
    """From now on. `look`: by role, over all lanes."""
    metrics.memory_budget_bytes.set(memory.limit)

    def set_levels() -> None:
        metrics.memory_held_bytes.set(memory.used)
        metrics.requests_in_flight.clear()
        metrics.waiting_records.clear()
        for role, levels in look().items():
            metrics.requests_in_flight.labels(role).set(levels.in_flight)
            for reason in get_args(WaitFor):
                metrics.waiting_records.labels(role, reason).set(levels.waits[reason])

    metrics.before_collecting(set_levels)
