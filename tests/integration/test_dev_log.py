"""Tests of the log of `relay dev` for developers of a receiver: each attempt is a line, and no warning precedes the
first one."""

import json
import signal
from pathlib import Path
from typing import Any

import aiohttp

from relay.sink import Sink
from tests.integration.test_demo import relay
from tests.servers.http import started
from tests.servers.process import RelayProcess, relay_dev


def events(process: RelayProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.lines if line.startswith("{")]


async def test_each_attempt_at_ones_own_receiver_is_a_line(tmp_path: Path) -> None:
    sink = Sink("fail", fail_status=503)
    async with started(sink):
        quickly = {"retry": {"base": 0.2, "factor": 1, "cap": 0.2, "max_attempts": 2}}
        receivers = {
            "mine": {"post_endpoint": sink.url, "retry": {"base": 0.2, "factor": 1, "cap": 0.2}},
            "nobody": {"post_endpoint": "http://127.0.0.1:9/", **quickly},
        }
        (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": receivers}))
        async with relay_dev(tmp_path) as dev:
            assert [event["event"] for event in events(dev) if event["level"] != "info"] == []
            await relay(dev, "send", "--source", "s", "--receiver", "mine", "--id", "m-1", "-", stdin=b"{}")
            await dev.line_with('"retry"')
            sink.become("answer")
            await dev.line_with('"answered"')
            await relay(dev, "send", "--source", "s", "--receiver", "nobody", "--id", "m-2", "-", stdin=b"{}")
            await dev.line_with('"dead_letter"')
            attempts = [event for event in events(dev) if event["event"] == "attempt"]
    of_mine = [each for each in attempts if each["receiver"] == "mine"]
    first, last = of_mine[0], of_mine[-1]
    assert (first["outcome"], first["status"], first["attempt"], first["message_id"]) == ("retry", 503, 1, "m-1")
    assert first["again_in_s"] <= 0.2
    assert (last["outcome"], last["status"], last["attempt"]) == ("answered", 200, len(of_mine))
    of_nobody = [each for each in attempts if each["receiver"] == "nobody"]
    assert [(each["outcome"], each["reason"]) for each in of_nobody] == [("retry", "refused"), ("dead", "exhausted")]


async def test_on_a_terminal_the_log_does_not_repeat_what_the_live_view_shows(tmp_path: Path) -> None:
    """Nor has it the changes over the API, which are in the audit."""
    async with relay_dev(tmp_path, terminal=True) as dev:
        once = ("--set", "retry={max_attempts: 1}")
        await relay(dev, "receivers", "create", "nobody", "http://127.0.0.1:9/", *once)
        await relay(dev, "send", "--source", "s", "--receiver", "nobody", "--id", "m-1", "-", stdin=b"{}")
        await dev.line_with("failed replay")
        shown = "\n".join(dev.lines)
        assert "m-1" in shown
        assert "dead_letter" not in shown
        assert "audit" not in shown


async def test_the_demo_callback_is_of_sources_that_the_file_does_not_declare(tmp_path: Path) -> None:
    (tmp_path / "receivers.yaml").write_text(json.dumps({"sources": {"github": {"answers": "all"}}}))
    async with relay_dev(tmp_path) as dev:
        [line] = [line for line in dev.lines if line.startswith("Demo callback")]
    assert "of source demo, at http://" in line


async def test_it_is_ready_when_it_prints_so(tmp_path: Path) -> None:
    async with relay_dev(tmp_path) as dev, aiohttp.request("GET", f"{dev.value_of('API')}/readyz") as response:
        assert response.status == 200, await response.text()


async def test_a_hangup_makes_it_read_the_receivers_file_again(tmp_path: Path) -> None:
    async with relay_dev(tmp_path) as dev:
        (tmp_path / "receivers.yaml").write_text("receivers: [nonsense]")
        await dev.line_with('"receivers_file_refused"')
        dev.signal(signal.SIGHUP)
        await dev.lines_with('"receivers_file_refused"', 2)
