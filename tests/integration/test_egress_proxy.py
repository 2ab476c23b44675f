"""Tests of `relay dev` behind an egress proxy: its demo, on the same machine, does not use the proxy."""

import socket
from pathlib import Path

from tests.servers.process import RelayProcess


async def test_the_demo_does_not_go_through_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody_answers:
        environ = {"RELAY_EGRESS_PROXY": f"http://user:pw@127.0.0.1:{nobody_answers.getsockname()[1]}"}
        async with RelayProcess("dev", "--port", "0", "--ephemeral", cwd=tmp_path, environ=environ) as dev:
            await dev.line_with("Ready")
            assert "user:pw" not in "".join(dev.lines)


async def test_a_proxy_that_is_none_is_the_users_mistake(tmp_path: Path) -> None:
    environ = {"RELAY_EGRESS_PROXY": "https://user:pw@proxy:3128"}
    async with RelayProcess("dev", "--port", "0", "--ephemeral", cwd=tmp_path, environ=environ) as dev:
        output = await dev.finish()
    assert dev.returncode == 2
    assert "RELAY_EGRESS_PROXY: not the URL of a proxy" in output
    assert "Traceback" not in output
    assert "user:pw" not in output
