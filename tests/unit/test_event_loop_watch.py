"""A loop that stands still is noticed from outside, with the stack of what blocks it; a process that slept is not."""

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.telemetry.logging import configure
from relay.telemetry.metrics import Metrics
from relay.telemetry.series import Spread
from relay.watch import event_loop
from relay.watch.event_loop import BEAT_S, Blockage, LoopWatch, stack_of

PATIENCE_S = 30.0
ticks = st.lists(st.tuples(st.booleans(), st.floats(0, 100)), min_size=1, max_size=50)


@given(ticks)
def test_only_time_through_which_the_thread_went_on_counts(seen: list[tuple[bool, float]]) -> None:
    now, beat = 1000.0, 0
    blockage, since_beat = Blockage(now), 0.0
    blockage.tick(beat, now)
    for turned, passed in seen:
        now, beat = now + passed, beat + turned
        blockage.tick(beat, now)
        since_beat = 0.0 if turned else since_beat + min(passed, 2 * BEAT_S)
        assert blockage.lasts_s == pytest.approx(since_beat)


def test_a_process_that_slept_is_not_called_stuck() -> None:
    blockage = Blockage(0.0)
    blockage.tick(1, 0.5)
    blockage.tick(1, 3600.0)  # stopped, and continued; the loop has not had its turn yet
    assert blockage.lasts_s == 2 * BEAT_S
    blockage.tick(2, 3600.5)
    assert blockage.lasts_s == 0


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> "Lines":
    """The watch with a hundredth of its times, so that a test is short. Its log lines go to `lines`."""
    monkeypatch.setattr(event_loop, "BEAT_S", 0.005)
    monkeypatch.setattr(event_loop, "BLOCKED_S", 0.02)
    return Lines()


class Lines(io.StringIO):
    """A log that can be waited for, also by a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()
        configure("json", stream=self)

    def flush(self) -> None:
        self.said.set()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


class Lags(Spread):
    """A distribution that can be waited for."""

    def __init__(self) -> None:
        super().__init__([1.0])
        self._told = asyncio.Queue[float]()

    def observe(self, value: float) -> None:
        self._told.put_nowait(value)

    async def until_measured(self, times: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(times):
                await self._told.get()


def measured() -> tuple[Metrics, Lags]:
    metrics, lags = Metrics("1"), Lags()
    metrics.event_loop_lag_seconds = lags
    return metrics, lags


def a_call_that_blocks(until: threading.Event) -> None:
    assert until.wait(PATIENCE_S)


@contextmanager
def watched(watch: LoopWatch) -> Iterator[None]:
    watch.arm()
    running = asyncio.get_running_loop().create_task(watch.run())
    try:
        yield
    finally:
        running.cancel()


async def test_what_blocks_is_said_once_with_its_stack(lines: Lines) -> None:
    metrics, lags = measured()
    with watched(LoopWatch(metrics)):
        await asyncio.sleep(0)
        a_call_that_blocks(lines.said)
        await lags.until_measured(1)
    [line] = lines.events()
    assert (line["event"], line["level"]) == ("event_loop_blocked", "warning")
    assert any("a_call_that_blocks: assert until.wait(PATIENCE_S)" in frame for frame in line["stack"])
    assert "test_what_blocks_is_said_once" in "\n".join(line["stack"])


async def test_a_loop_that_stays_blocked_ends_the_process(lines: Lines) -> None:
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with watched(LoopWatch(Metrics("1"), exit_after_s=0.05, end_process=end)):
        await asyncio.sleep(0)
        a_call_that_blocks(ended)
    assert codes == [os.EX_SOFTWARE]
    last = lines.events()[-1]
    assert (last["event"], last["level"]) == ("event_loop_stuck", "error")
    assert any("a_call_that_blocks" in frame for frame in last["stack"])


async def test_before_it_has_members_it_is_only_said(lines: Lines) -> None:
    codes = list[int]()
    watch = LoopWatch(Metrics("1"), exit_after_s=0.001, end_process=codes.append)
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    a_call_that_blocks(lines.said)
    running.cancel()
    assert codes == []
    assert [line["event"] for line in lines.events()] == ["event_loop_blocked"]


async def test_it_ends_also_when_the_log_itself_is_what_blocks(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_SAY_S", 0.01)
    ended, unblocked = threading.Event(), threading.Event()

    def full_pipe() -> None:
        unblocked.wait(PATIENCE_S)

    monkeypatch.setattr(lines, "flush", full_pipe)
    with watched(LoopWatch(Metrics("1"), exit_after_s=0.05, end_process=lambda _: ended.set())):
        await asyncio.sleep(0)
        a_call_that_blocks(ended)
    unblocked.set()


async def test_a_loop_that_turns_is_left_alone(lines: Lines) -> None:
    (metrics, lags), codes = measured(), list[int]()
    with watched(LoopWatch(metrics, exit_after_s=PATIENCE_S, end_process=codes.append)):
        await lags.until_measured(3)
    assert codes == []


def test_the_stack_of_nobody_is_empty() -> None:
    assert stack_of(0) == []


STUCK = """
import asyncio, time
from relay.telemetry.logging import configure
from relay.telemetry.metrics import Metrics
from relay.watch import event_loop
event_loop.BEAT_S = event_loop.BLOCKED_S = 0.01
configure("json")
async def main():
    watch = event_loop.LoopWatch(Metrics("1"), exit_after_s=0.05)
    watch.arm()
    watching = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    time.sleep(600)
asyncio.run(main())
"""


def test_the_service_manager_sees_a_failure() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, timeout=60, check=False)
    assert ended.returncode == os.EX_SOFTWARE
    last = json.loads(ended.stderr.splitlines()[-1])
    assert last["event"] == "event_loop_stuck"
    assert "time.sleep(600)" in "".join(last["stack"]) or "main" in "".join(last["stack"])
