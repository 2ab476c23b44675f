"""A log that is silent does not hold up those who wait for a page; one that is slow is waited for."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from relay.domain.coordinate import Coordinate
from relay.domain.errors import LogUnavailable
from relay.log.port import NewRecord, TopicPartition
from relay.log.prompt import PATIENCE_S, PROBE_S, SILENT_S, PromptLog
from tests.fakes.log import MemoryLog
from tests.fakes.two_processes import TwoProcesses
from tests.fakes.virtual_time import LoopClock, virtually

READS: dict[str, Callable[[PromptLog, str], Awaitable[object]]] = {
    "read": lambda log, topic: log.read([(Coordinate(topic, 0, 0), None)]),
    "ends": lambda log, topic: log.ends([TopicPartition(topic, 0)]),
    "describe": lambda log, topic: log.describe([topic]),
    "backlogs": lambda log, topic: log.backlogs({topic: "group"}),
}


async def _silent(*_: object) -> None:
    await asyncio.Event().wait()


async def _slow(*_: object) -> list[None]:
    await asyncio.sleep(10)
    return [None]


@pytest.mark.parametrize("name", READS)
@virtually
async def test_a_read_of_a_silent_log_fails_soon_and_those_behind_it_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await TwoProcesses().started()
    log, topic = PromptLog(rig.log, LoopClock()), rig.topics.from_sender
    with monkeypatch.context() as frozen:
        for each in (name, "cluster_id"):
            frozen.setattr(MemoryLog, each, _silent)
        async with asyncio.timeout(PATIENCE_S + PROBE_S + 0.1):
            for _ in range(3):
                with pytest.raises(LogUnavailable, match="does not answer"):
                    await READS[name](log, topic)
    await asyncio.sleep(SILENT_S)
    await READS[name](log, topic)


@virtually
async def test_a_slow_log_that_answers_other_requests_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await TwoProcesses().started()
    log, topic = PromptLog(rig.log, LoopClock()), rig.topics.from_sender
    monkeypatch.setattr(MemoryLog, "read", _slow)
    assert await READS["read"](log, topic) == [None]


@virtually
async def test_an_append_waits_as_long_as_the_log_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await TwoProcesses().started()
    monkeypatch.setattr(MemoryLog, "append", _slow)
    monkeypatch.setattr(MemoryLog, "cluster_id", _silent)
    log = PromptLog(rig.log, LoopClock())
    assert await log.append([NewRecord(rig.topics.from_sender, b"k", b"v")]) == [None]
