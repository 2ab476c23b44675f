"""Tests of `relay dev` behind an egress proxy: its demo, on the same machine, does not use the proxy."""

import socket
from pathlib import Path

from tests.servers.process import relay_dev


async def test_the_demo_does_not_go_through_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody_answers:
        environ = {"RELAY_EGRESS_PROXY": f"http://user:pw@127.0.0.1:{nobody_answers.getsockname()[1]}"}
        async with relay_dev(tmp_path, environ=environ) as dev:
            assert "user:pw" not in "".join(dev.lines)
