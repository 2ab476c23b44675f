"""Dead letters and receivers over the API, and the way back for a receiver that said 410."""

import json
from pathlib import Path

from relay.sink import Sink
from tests.integration.test_demo import relay
from tests.servers.process import RelayProcess


async def test_a_receiver_that_is_gone_is_paused_until_it_is_resumed(tmp_path: Path) -> None:
    sink = Sink("fail", fail_status=410)
    await sink.start()
    (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": {"moved": {"post_endpoint": sink.url}}}))
    try:
        async with RelayProcess("dev", "--port", "0", "--ephemeral", cwd=tmp_path) as dev:
            await dev.line_with("Ready")
            send = ("send", "--source", "github", "--receiver", "moved", "--id")
            code, output = await relay(dev, *send, "first", "--wait", "20", "-", stdin=b"{}")
            assert "failed" in output
            assert "gone" in output
            code, output = await relay(dev, "receivers", "health", "moved")
            assert "paused until it is resumed" in output
            code, output = await relay(dev, "failed", "list", "-o", "json")
            [letter] = json.loads(output)
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
    finally:
        await sink.stop()
