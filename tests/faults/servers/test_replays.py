"""Replay and discard in a real relay: over the command line, and on Kafka and Redis with processes that die."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relay.sink import Sink
from tests.integration.production import TIMEOUT_S, Rig, Sent
from tests.integration.test_demo import relay
from tests.servers.process import RelayProcess


async def lettered(dev: RelayProcess, count: int) -> list[dict[str, Any]]:
    """The dead letters, once there are so many."""
    while True:
        code, output = await relay(dev, "failed", "list", "-o", "json")
        assert code == 0, output
        found: list[dict[str, Any]] = json.loads(output)["items"]
        if len(found) >= count:
            return found


async def test_what_failed_is_seen_mended_and_replayed_from_the_command_line(tmp_path: Path) -> None:
    sink = Sink("fail", fail_status=422)
    await sink.start()
    (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": {"ci": {"post_endpoint": sink.url}}}))
    try:
        async with RelayProcess("dev", "--port", "0", "--ephemeral", cwd=tmp_path) as dev:
            await dev.line_with("Ready")
            for number in range(5):
                send = ("send", "--source", "github", "--receiver", "ci", "--id", f"m-{number}", "-")
                code, output = await relay(dev, *send, stdin=b"{}")
                assert code == 0, output
            letters = await lettered(dev, 5)
            place = next(f"{each['partition']}/{each['offset']}" for each in letters if each["message_id"] == "m-0")
            code, output = await relay(dev, "failed", "list")
            assert f"relay failed replay {place}" in output
            code, output = await relay(dev, "failed", "show", place)
            assert output.rstrip().endswith(f"To replay it: relay failed replay {place}")
            sink.become("answer")

            code, output = await relay(dev, "failed", "replay", place)
            assert (code, "replayed: github m-0 for ci, generation 1" in output) == (0, True), output
            await dev.line_with("m-0 from ci: answered 200")
            code, output = await relay(dev, "failed", "replay", place, "0/999")
            assert (code, "It was replayed already" in output, "0/999: " in output) == (1, True, True), output

            code, output = await relay(dev, "replay", "--receiver", "ci", "--dry-run")
            assert (code, "5 selected, 4 to replay; 1 not (replayed 1)" in output) == (0, True), output
            code, output = await relay(dev, "replay", "--receiver", "ci")
            assert (code, "--yes" in output) == (2, True), "nobody is there to be asked"
            code, output = await relay(dev, "failed", "discard", "--id", "m-4", "--yes")
            assert (code, "1 discarded" in output) == (0, True), output
            code, output = await relay(dev, "replay", "--receiver", "ci", "--yes", "-o", "json")
            job = json.loads(output)
            assert (code, job["state"], job["sent"], job["counted"]) == (0, "done", 3, 5), output
            assert job["skipped_because"] == {"discarded": 1, "replayed": 1}
            await dev.line_with("m-3 from ci: answered 200")
            arrived = Counter(arrival.message_id for arrival in sink.received)
            assert arrived == {f"m-{number}": 2 for number in range(4)} | {"m-4": 1}
            assert await lettered(dev, 0) == []

            code, output = await relay(dev, "replay", "list")
            assert (code, output.count(" done ")) == (0, 2), output
            code, output = await relay(dev, "replay", "show", job["id"])
            assert f"job {job['id']}: done, 3 replayed; 2 not (discarded 1, replayed 1)" in output
            code, output = await relay(dev, "replay", "stop", job["id"], "-o", "json")
            assert (code, json.loads(output)["state"]) == (0, "done")
            code, output = await relay(dev, "replay", "delivery", "github", "m-1", "ci")
            assert (code, "It was delivered" in output) == (1, True), output
            code, output = await relay(dev, "replay", "delivery", "github", "m-1", "ci", "--all")
            assert (code, "generation 2" in output) == (0, True), output
            code, output = await relay(dev, "status", "github", "m-4")
            assert "discarded" in output
    finally:
        await sink.stop()


NAME = "circleci"
KILL = 9
COUNT = 240


async def _rejected(rig: Rig) -> list[Sent]:
    """Messages that the receiver has rejected, and how it is declared: to be asked, and soon known to be settled."""
    sink = rig.sinks[NAME]
    file = json.loads((rig.cwd / "receivers.yaml").read_text())
    entry = {"post_endpoint": sink.url, "status_endpoint": sink.status_url_template, "timeout": 1, "rate_limit": 200}
    (rig.cwd / "receivers.yaml").write_text(json.dumps(file | {"receivers": {NAME: entry}}))
    sink.become("fail", fail_status=422)
    return [Sent(number, f"source-{number % 4}", NAME, b"{}") for number in range(COUNT)]


@pytest.mark.kafka
async def test_a_job_whose_process_is_killed_twice_sends_each_once_and_in_order(rig: Rig) -> None:
    sent, sink = await _rejected(rig), rig.sinks[NAME]
    arrived: list[str] = []

    def so_far() -> int:
        arrived[:] = [arrival.message_id for arrival in sink.received if arrival.status == 200]
        return len(arrived)

    async with rig.relay("run", "--processes", "1") as first:
        api = await _api_of(first)
        await rig.produce(sent)
        assert len(await rig.dead_letters(api, COUNT)) == COUNT
        sink.become("answer")
        async with aiohttp.ClientSession(api) as session:
            asked = {"receiver": NAME, "rate": 80}
            async with session.post("/v1/replays", json=asked | {"dry_run": True}) as response:
                counted = await response.json()
            assert (response.status, counted["counted"], counted["to_send"]) == (200, COUNT, COUNT)
            async with session.post("/v1/replays", json=asked) as response:
                job = await response.json()
            assert response.status == 202
        await rig.until(lambda: so_far() >= COUNT // 4)
        first.signal(KILL)
    async with rig.relay("run", "--processes", "1") as second:
        await rig.until(lambda: so_far() >= COUNT // 2)
        second.signal(KILL)
    async with rig.relay("run", "--processes", "2") as third:
        await rig.until(lambda: so_far() >= COUNT)
        async with aiohttp.ClientSession(await _api_of(third)) as session:
            over = await _over(session, job["id"])
            assert (over["state"], over["counted"], over["sent"]) == ("done", COUNT, COUNT), over
            async with session.post("/v1/replays", json={"receiver": NAME}) as response:
                again = await _over(session, (await response.json())["id"])
        assert (again["sent"], again["skipped_because"]) == (0, {"replayed": COUNT})
        await rig.until(lambda: len(rig.answered()) == COUNT)
        assert await rig.dead_letters(await _api_of(third), 0) == []
        assert so_far() == COUNT
        async with aiohttp.ClientSession(await _api_of(third)) as session:
            asked = {"receiver": NAME, "ids": [sent[0].message_id], "since": "1h", "only_failed": False}
            async with session.post("/v1/replays", json=asked) as response:
                delivered = await _over(session, (await response.json())["id"])
        assert (delivered["sent"], delivered["skipped_because"]) == (1, {"replayed": 1}), delivered
        await rig.until(lambda: so_far() > COUNT)
        assert arrived.pop() == sent[0].message_id, "what was delivered is sent once more, if that is asked for"
    assert len(arrived) == len(set(arrived)) == COUNT, "each once"
    for source in {message.source for message in sent}:
        assert [one for one in arrived if one.startswith(f"{source}-")] == [
            message.message_id for message in sent if message.source == source
        ]


async def _api_of(process: RelayProcess) -> str:
    return str(json.loads(await process.line_with('"api": "http'))["api"])


async def _over(session: aiohttp.ClientSession, id: str) -> Any:
    """The job, once it is over."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            async with session.get(f"/v1/replays/{id}") as response:
                job = await response.json()
            if job["state"] in ("done", "failed", "stopped"):
                return job
            await asyncio.sleep(0.2)  # a job has no event to wait for
