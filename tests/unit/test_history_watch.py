"""How far the history is behind is shown by one process of all, while it is known."""

import asyncio

from relay.domain.topics import Topics
from relay.log.port import NewRecord
from relay.telemetry.metrics import Metrics
from relay.watch.lag import LOOK_S, HistoryWatch
from tests.fakes.history import MemoryHistory
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import LoopClock, virtually


def shown(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("relay_history_behind_seconds")


@virtually
async def test_one_process_shows_how_far_it_is_behind() -> None:
    clock, topics = LoopClock(), Topics()
    broker = MemoryBroker(now_ms=lambda: int(clock.time() * 1000))
    state, log, history = MemoryState(clock=clock.monotonic), MemoryLog(broker), MemoryHistory()
    await log.start()
    await log.create(topics.fixed(), topics.fixed_groups())
    all_metrics = [Metrics("1"), Metrics("1")]
    tasks = [
        asyncio.create_task(HistoryWatch(history, log, state, topics, clock, metrics, owner=f"p-{index}").run())
        for index, metrics in enumerate(all_metrics)
    ]
    await clock.sleep(1.0)
    assert [shown(metrics) for metrics in all_metrics] == [0.0, None]
    await log.append([NewRecord(topics.from_sender, b"k", b"v")])
    await clock.sleep(2 * LOOK_S)
    assert LOOK_S <= (shown(all_metrics[0]) or 0.0) <= 3 * LOOK_S
    broker.available = False
    await clock.sleep(2 * LOOK_S)
    assert [shown(metrics) for metrics in all_metrics] == [None, None]
    broker.available = True
    await clock.sleep(2 * LOOK_S)
    assert sum(shown(metrics) is not None for metrics in all_metrics) == 1
    for task in tasks:
        task.cancel()
