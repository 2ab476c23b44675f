"""How far the history is behind is shown by one process of all, while it is known."""

import asyncio

from relay.watch.lag import LOOK_S, HistoryWatch
from tests.fakes.history import MemoryHistory
from tests.fakes.two_processes import TwoProcesses
from tests.fakes.virtual_time import virtually


@virtually
async def test_one_process_shows_how_far_it_is_behind() -> None:
    rig, history = await TwoProcesses().started(), MemoryHistory()
    tasks = [
        asyncio.create_task(
            HistoryWatch(history, rig.log, rig.state, rig.topics, rig.clock, metrics, owner=f"p-{index}").run()
        )
        for index, metrics in enumerate(rig.metrics)
    ]

    async def shown_after(seconds: float) -> list[float | None]:
        await rig.clock.sleep(seconds)
        return [rig.value("relay_history_behind_seconds", process=process) for process in (0, 1)]

    assert await shown_after(1.0) == [0.0, None]
    await rig.append(rig.topics.from_sender)
    [behind_s, _] = await shown_after(2 * LOOK_S)
    assert LOOK_S <= (behind_s or 0.0) <= 3 * LOOK_S
    rig.broker.available = False
    assert await shown_after(2 * LOOK_S) == [None, None]
    rig.broker.available = True
    assert (await shown_after(2 * LOOK_S)).count(None) == 1
    for task in tasks:
        task.cancel()
