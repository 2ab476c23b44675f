"""Tests of the relay's command with a failpoint, on real Kafka and Redis: it dies there, and no message is lost."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.harness.failpoints import KILLED, read_counts
from tests.integration.production import Rig, messages
from tests.integration.test_production import assert_in_order

ENDS_WITHIN_S = 90.0


@asynccontextmanager
async def relay_with(variable: str, value: str, rig: Rig) -> AsyncIterator[asyncio.subprocess.Process]:
    """`relay run`, started with failpoints; ended with the block."""
    clean = {name: found for name, found in os.environ.items() if not name.startswith("RELAY_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.harness.entry", "run", "--processes", "1"),
        cwd=rig.cwd,
        env=clean | rig.environ | {variable: value},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def settle_soon(rig: Rig) -> None:
    """Shorten the timeout: an ambiguous attempt settles 10 s after the longest time that a POST may take."""
    path = rig.cwd / "receivers.yaml"
    file = json.loads(path.read_text())
    for receiver in file["receivers"].values():
        receiver["timeout"] = "2s"
    path.write_text(json.dumps(file))


@pytest.mark.kafka
async def test_it_dies_at_its_failpoint_and_the_next_one_completes_all(rig: Rig, tmp_path: Path) -> None:
    settle_soon(rig)
    sent = messages(60)
    await rig.produce(sent)
    async with relay_with("RELAY_FAILPOINT", "state.settle.after:3:kill", rig) as first:
        async with asyncio.timeout(ENDS_WITHIN_S):
            assert await first.wait() == KILLED
    assert 0 < len(rig.arrivals()) <= len(sent)

    counts = tmp_path / "counts"
    async with relay_with("RELAY_FAILPOINT_COUNTS", str(counts), rig) as second:
        await rig.until(lambda: rig.answered() >= {message.message_id for message in sent})
        second.send_signal(signal.SIGTERM)
        async with asyncio.timeout(ENDS_WITHIN_S):
            assert await second.wait() == 0
    for name, sink in rig.sinks.items():
        assert_in_order(sink.received)
        arrived = [arrival.message_id for arrival in sink.received]
        assert set(arrived) == {message.message_id for message in sent if message.receiver == name}
        if name != "nostatus":  # without a status endpoint, attempts in flight may be repeated
            assert len(arrived) == len(set(arrived))
    passed = read_counts(counts)
    assert passed["log.append.before"] == passed["log.append.after"] > 0
    assert passed["http.post.after"] > 0
    assert passed["consumer.commit.after"] > 0


async def test_a_mistake_in_its_variables_ends_it_with_one_line(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.harness.entry", "version"),
        cwd=tmp_path,
        env=dict(os.environ) | {"RELAY_FAILPOINT": "state.settled.after:1:kill"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    assert process.returncode == 2
    assert told.startswith(b"error: 'state.settled.after:1:kill': there is no point 'state.settled.after'")
    assert len(told.splitlines()) == 1
