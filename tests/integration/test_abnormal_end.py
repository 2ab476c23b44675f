"""A process that dies of a bug ends, on real Kafka and Redis, and says of what."""

import asyncio
import json
import os
import sys

import pytest

from tests.integration.buggy_relay import BUG
from tests.integration.production import Rig, messages

ENDS_WITHIN_S = 60.0
"""The watchdog would end it, too, and say nothing of the cause."""


@pytest.mark.kafka
async def test_a_bug_in_one_lane_ends_the_process_and_is_told(rig: Rig) -> None:
    clean = {name: found for name, found in os.environ.items() if not name.startswith("RELAY_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.buggy_relay", "run", "--processes", "1"),
        cwd=rig.cwd,
        env=clean | rig.environ | {"RELAY_LOG_FORMAT": "json", "PYTHONPATH": os.getcwd()},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        await rig.produce(messages(8))
        async with asyncio.timeout(ENDS_WITHIN_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = output.decode().splitlines()
    assert process.returncode == 1, "by itself, and not by the watchdog"
    deaths = [json.loads(line) for line in lines if '"service_died"' in line]
    assert deaths, "and it says of what; several lanes may have died of it at the same time"
    for died in deaths:
        assert (died["level"], died["service"]) == ("critical", "to-sender")
        assert BUG in died["error"]
        assert "_place" not in died["error"]
        assert "buggy_relay" in died["exception"]
    assert not any("event_loop_stuck" in line for line in lines)
