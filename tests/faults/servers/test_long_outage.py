"""A receiver that is down for long, in a real relay: pings, an alert, and recovery, automatic or by hand."""

import json
from pathlib import Path

from relay.sink import Sink
from tests.integration.test_demo import relay
from tests.servers.process import RelayProcess

QUICK = {
    "retry": {"base": "200ms", "cap": "200ms", "max_attempts": 1000},
    "breaker": {"failures": 2, "open_for": "500ms"},
    "offline": {"after": "1s", "ping_every": "1s", "disable_after": "8s"},
}


async def test_it_is_pinged_comes_back_and_is_disabled_the_next_time(tmp_path: Path) -> None:
    sink = Sink("fail", fail_status=500)
    await sink.start()
    (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": {"weak": {"post_endpoint": sink.url, **QUICK}}}))
    send = ("send", "--source", "github", "--receiver", "weak", "--id")
    try:
        async with RelayProcess("dev", "--port", "0", "--ephemeral", cwd=tmp_path) as dev:
            await dev.line_with("Ready")
            await relay(dev, *send, "first", "-", stdin=b"{}")
            await dev.line_with("endpoint_offline")
            sink.become("answer")
            await dev.line_with("first from weak: answered 200")

            sink.become("fail")
            await relay(dev, *send, "second", "-", stdin=b"{}")
            await dev.line_with("endpoint_disabled")
            code, output = await relay(dev, "receivers", "health", "weak")
            assert "disabled since" in output
            assert "paused until it is resumed" in output
            sink.become("answer")
            code, output = await relay(dev, "receivers", "resume", "weak")
            assert (code, "not paused" in output) == (0, True)
            await dev.line_with("second from weak: answered 200")
    finally:
        await sink.stop()
