"""Replay and discard in a real relay: over the command line, and on Kafka and Redis with processes that die."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from relay.sink import Sink
from tests.integration.test_demo import relay
from tests.servers.process import RelayProcess


async def lettered(dev: RelayProcess, count: int) -> list[dict[str, Any]]:
    """The dead letters, once there are so many."""
    while True:
        code, output = await relay(dev, "failed", "list", "-o", "json")
        assert code == 0, output
        if len(found := json.loads(output)) >= count:
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
            assert (code, "replayed: github m-0 for ci, life 1" in output) == (0, True), output
            await dev.line_with("m-0 from ci: answered 200")
            code, output = await relay(dev, "failed", "replay", place)
            assert (code, "It was replayed already" in output) == (1, True), output

            code, output = await relay(dev, "replay", "--receiver", "ci", "--dry-run")
            assert (code, "5 chosen, 4 to replay; 1 not (replayed 1)" in output) == (0, True), output
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
            assert (code, "life 2" in output) == (0, True), output
            code, output = await relay(dev, "status", "github", "m-4")
            assert "discarded" in output
    finally:
        await sink.stop()
