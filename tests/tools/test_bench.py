"""Test of the benchmark on the embedded engine: all of its processes, a few hundred messages, and its report."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


async def bench(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "relay", "bench", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def finished(process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(100):
        output, _ = await process.communicate()
    return output.decode()


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_small_case_loses_and_doubles_nothing_and_leaves_a_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("--case", "round-trip", "--embedded", "--drain", "300", "--rate", "50", "--seconds", "2")
    process = await bench(*asked, "--out", str(out))
    output = await finished(process)
    assert process.returncode == 0, output
    case: dict[str, Any] = json.loads((out / "report.json").read_text())["cases"][0]
    held = case["fixed"][0]["relay"]
    for phase, sent in ((case["drain"], 300), (held, 100)):
        counts = phase["counts"]
        assert counts == {"sent": sent, "lost": 0, "duplicated": 0, "misordered": 0, "refused": 0, "rejected": 0}
    assert sum(held["latency"]["buckets"].values()) == 100
    assert held["usage"]["cpu_us"]["relay"] > 0
    assert held["usage"]["rss"]["redis"] > 0
    assert held["usage"]["largest"]["relay"] > 0
    assert held["traffic"]["wakeups"]["relay"] > 0
    assert case["fixed"][0]["plain"] is None
    assert "round-trip" in (out / "report.md").read_text()
    assert (out / "report.svg").read_text().startswith("<svg")


async def test_an_interrupt_ends_all_that_was_started(tmp_path: Path) -> None:
    process = await bench("--embedded", "--rate", "50", "--seconds", "60", "--out", str(tmp_path))
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while b"everything runs" not in await process.stdout.readline():
            pass
    started = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    await finished(process)
    assert process.returncode == 130
    assert len(started) >= 2  # the receiver and the relay
    assert not [pid for pid in started if is_there(pid)]
    assert not os.listdir(tmp_path)


@pytest.mark.slow
async def test_requests_that_are_held_are_in_flight_together_and_none_is_sent_twice(tmp_path: Path) -> None:
    process = await bench("--case", "in-flight", "--embedded", "--quick", "--backlog", "60", "--out", str(tmp_path))
    output = await finished(process)
    assert process.returncode == 0, output
    found = json.loads((tmp_path / "report.json").read_text())["cases"][0]["in_flight"]
    assert [level["held"] for level in found["levels"]] == [0, 30, 60]
    assert all(level["rss"] > 0 for level in found["levels"])
    assert (found["counts"]["sent"], found["counts"]["lost"], found["counts"]["duplicated"]) == (60, 0, 0)
