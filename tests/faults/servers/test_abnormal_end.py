"""What a bug ends, on real Kafka and Redis: the process, which says of what, or one lane, which begins anew."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relay.engine.quarantine import TIMES
from tests.integration.buggy_relay import BUG, BUGGY
from tests.integration.production import Rig, messages

ENDS_WITHIN_S = 60.0
"""The watchdog would end it, too, and say nothing of the cause."""


@asynccontextmanager
async def _buggy(rig: Rig, where: str) -> AsyncIterator[asyncio.subprocess.Process]:
    clean = {name: found for name, found in os.environ.items() if not name.startswith("RELAY_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.buggy_relay", where, "run", "--processes", "1"),
        cwd=rig.cwd,
        env=clean | rig.environ | {"RELAY_LOG_FORMAT": "json", "PYTHONPATH": os.getcwd()},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _said(output: bytes, event: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.decode().splitlines() if f'"{event}"' in line]


@pytest.mark.kafka
async def test_a_bug_in_a_service_ends_the_process_and_is_told(rig: Rig) -> None:
    async with _buggy(rig, "service") as process:
        await rig.produce(messages(8))
        async with asyncio.timeout(ENDS_WITHIN_S):
            output, _ = await process.communicate()
    assert process.returncode == 1, "by itself, and not by the watchdog"
    deaths = _said(output, "service_died")
    assert deaths
    for died in deaths:
        assert (died["level"], died["service"]) == ("critical", "to-sender")
        assert BUG in died["error"]
        assert "_offer" not in died["error"]
        assert "buggy_relay" in died["exception"]
    assert not _said(output, "event_loop_stuck")


@pytest.mark.slow
@pytest.mark.kafka
async def test_a_bug_that_one_record_brings_out_restarts_its_lane_until_that_is_poison(rig: Rig) -> None:
    good = messages(16)
    headers = {"ce_id": BUGGY.encode(), "ce_source": b"source-0", "ce_receiver": b"circleci"}
    async with _buggy(rig, "lane") as process:
        reading = asyncio.create_task(process.communicate())
        await rig.produce(good[:8])
        await rig.producer.send_and_wait(rig.topic, b"{}", key=b"source-0", headers=list(headers.items()))
        await rig.produce(good[8:])
        await rig.until(lambda: rig.answered() == {each.message_id for each in good} and bool(_failures(rig)))
        process.terminate()
        output, _ = await reading
    assert process.returncode == 0
    assert _failures(rig) == {BUGGY: "poison"}
    assert set(rig.arrivals().values()) == {1}
    broken = _said(output, "lane_broken")
    assert [each["times"] for each in broken] == list(range(1, TIMES + 1))
    for each in broken:
        assert (each["phase"], each["work_event"]) == ("running", "first left")
        assert each["topic"].endswith("to_receiver_circleci")
        assert f"{each['topic']}/{each['partition']}/{each['offset']}" in each["error"]


def _failures(rig: Rig) -> dict[str, str]:
    return {
        a.headers["relay-message-id"]: a.headers["relay-reason"]
        for a in rig.callback.received
        if a.headers["relay-outcome"] == "failed"
    }
