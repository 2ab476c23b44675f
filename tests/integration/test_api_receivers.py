"""Tests of receivers and their dead letters over the API, and of resuming a receiver that returned 410."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from relay.sink import Sink
from tests.integration.test_demo import relay
from tests.servers.http import started
from tests.servers.process import relay_dev


async def test_a_receiver_that_is_gone_is_paused_until_it_is_resumed(tmp_path: Path) -> None:
    sink = Sink("fail", fail_status=410)
    async with started(sink):
        (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": {"moved": {"post_endpoint": sink.url}}}))
        async with relay_dev(tmp_path) as dev:
            send = ("send", "--source", "github", "--receiver", "moved", "--id")
            code, output = await relay(dev, *send, "first", "--wait", "20", "-", stdin=b"{}")
            assert "failed" in output
            assert '"endpoint": "r:moved"' in await dev.line_with('"endpoint_gone"')
            assert "gone" in output
            code, output = await relay(dev, "receivers", "health", "moved")
            assert "paused until it is resumed" in output
            code, output = await relay(dev, "failed", "list", "-o", "json")
            [letter] = json.loads(output)["items"]
            assert (letter["receiver"], letter["reason"], letter["message_id"]) == ("moved", "gone", "first")
            code, output = await relay(dev, "failed", "show", f"{letter['partition']}/{letter['offset']}")
            assert "relay-reason: gone" in output

            sink.become("answer")
            code, output = await relay(dev, *send, "second", "-", stdin=b"{}")
            assert code == 0, output
            code, output = await relay(dev, "receivers", "resume", "moved")
            assert "not paused" in output
            await dev.line_with("second from moved: answered 200")
            assert [arrival.message_id for arrival in sink.received] == ["first", "second"]


async def test_a_receiver_whose_secret_is_missing_is_shown_with_that_reason_everywhere_and_its_messages_wait(
    tmp_path: Path,
) -> None:
    declared = {"post_endpoint": "http://127.0.0.1:9/", "secret": "${CI_SECRET_OF_NOBODY}"}
    (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": {"ci": declared}}))
    why = "receivers.ci.secret: the environment variable CI_SECRET_OF_NOBODY is not set"
    async with relay_dev(tmp_path) as dev:
        code, output = await relay(dev, "send", "--source", "s", "--receiver", "ci", "--id", "1", "-", stdin=b"{}")
        assert code == 0
        code, output = await relay(dev, "receivers", "health", "ci")
        assert f"ci: refused: receiver_config: {why}" in output
        async with aiohttp.ClientSession(dev.value_of("API")) as api:
            async with api.get("/v1/receivers/ci") as response:
                known = await response.json()
            assert (known["condition"], known["paused"]) == ("refused", False)
            assert why in known["refused"]
            async with api.get("/metrics") as response:
                assert "relay_receivers_refused 1.0" in (await response.text()).splitlines()
            async with api.get("/readyz?verbose") as response:
                text = await response.text()
            assert "[!]configuration warns: this process cannot use 1 entry" in text
            assert why not in text  # any client may ask, and it has names of receivers and variables

            async with asyncio.timeout(20):
                while True:
                    waiting = await _waiting_for(api)
                    if waiting["kind"] == "configuration":
                        break
                    await asyncio.sleep(0.1)  # it has no event to wait for
            assert why in waiting["detail"]


async def _waiting_for(api: aiohttp.ClientSession) -> dict[str, Any]:
    async with api.get("/v1/sources/s/messages/1") as response:
        [delivery] = (await response.json())["deliveries"]
    return delivery["waiting_for"] or {"kind": None}
