"""How far the history is behind is shown by one process of all, while it is known."""

import asyncio

import pytest

from relay.history.lag import LOG_WITHIN_S, Behind
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


@virtually
async def test_a_log_that_is_silent_does_not_hold_up_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of messages and incidents come without it."""
    rig = await TwoProcesses().started()

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(type(rig.log), "backlogs", silent)
    behind = Behind(MemoryHistory(), rig.log, rig.topics, rig.clock)
    async with asyncio.timeout(LOG_WITHIN_S + 1):
        assert await behind.seconds() is None
