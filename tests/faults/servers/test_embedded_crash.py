"""The embedded server of `relay dev` is killed: it is started again, and nothing is lost."""

import os
import signal
from pathlib import Path

import aiohttp
from redis.asyncio import Redis

from relay.sink import Sink
from tests.servers.process import RelayProcess


async def pid_of_server(data: Path) -> int:
    async with Redis.from_url(f"unix://{data}/valkey.sock") as redis:
        return int((await redis.info("server"))["process_id"])


async def test_dev_starts_its_server_again_and_delivers_what_it_had(tmp_path: Path) -> None:
    data = tmp_path / "data"
    sink = Sink("fail", fail_status=503)
    await sink.start()
    receiver = {"post_endpoint": sink.url, "retry": {"base": 0.2, "factor": 1, "cap": 0.2}}
    (tmp_path / "receivers.yaml").write_text(f"receivers: {{mine: {receiver}}}")
    headers = {"content-type": "application/json", "ce-id": "before"}
    try:
        command = ("dev", "--port", "0", "--data-dir", str(data))
        async with RelayProcess(*command, cwd=tmp_path) as dev, aiohttp.ClientSession() as session:
            await dev.line_with("Ready")
            url = f"{dev.value_of('API')}/v1/sources/s/messages?receiver=mine"
            async with session.post(url, data=b"{}", headers=headers) as sent:
                assert sent.status == 202, await sent.text()
            await dev.line_with('"retry"')

            os.kill(await pid_of_server(data), signal.SIGKILL)
            await dev.line_with('"server_exited"')
            sink.become("answer")
            await dev.line_with('"answered"')
    finally:
        await sink.stop()
    assert dev.returncode == 0
