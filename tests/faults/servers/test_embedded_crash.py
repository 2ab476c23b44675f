"""The embedded server of `relay dev` is killed: it is started again, and nothing is lost."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp
from redis.asyncio import Redis

from relay.embedded.relay import STATE_DB
from relay.embedded.valkey import ValkeyServer
from relay.sink import Sink
from relay.transfer.form import FORMAT, BeginLine, EndLine, encode_line
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


async def _lengthen_leases(data: Path) -> list[bytes]:
    """The names of the leases of the relay that ran there: without help they would be held for an hour."""
    server = ValkeyServer(data)
    await server.start()
    try:
        async with Redis.from_url(server.url(STATE_DB)) as redis:
            leases = [key async for key in redis.scan_iter("*lease:*")]
            for key in leases:
                assert await redis.pexpire(key, 3_600_000)
            return leases
    finally:
        await server.stop()


async def test_a_job_of_a_killed_relay_goes_on_before_its_lease_ends(tmp_path: Path) -> None:
    data = tmp_path / "data"
    receiver = {"post_endpoint": "http://127.0.0.1:9/hooks", "retry": {"max_attempts": 1}}
    (tmp_path / "receivers.yaml").write_text(f"receivers: {{mine: {receiver}}}")
    command = ("dev", "--port", "0", "--no-demo", "--data-dir", str(data))
    async with RelayProcess(*command, cwd=tmp_path) as dev, aiohttp.ClientSession() as session:
        await dev.line_with("Ready")
        api = dev.value_of("API")
        for _ in range(3):
            async with session.post(f"{api}/v1/sources/s/messages?receiver=mine", data=b"{}") as sent:
                assert sent.status == 202, await sent.text()
        await dev.lines_with('"dead_letter"', 3)
        async with session.post(f"{api}/v1/replays", json={"receiver": "mine", "rate": 0.1}) as made:
            assert made.status == 202, await made.text()
        await dev.line_with('"replay_begun"')
        dev.signal(signal.SIGKILL)
        await dev.finish()
    leases = await _lengthen_leases(data)
    assert any(key.endswith(b"lease:replays") for key in leases), leases
    async with RelayProcess(*command, cwd=tmp_path) as dev:
        await dev.line_with('"replay_begun"')


async def killed_while_it_imports(data: Path) -> None:
    """It is given no whole line, but more than a pipe holds: it has begun to read, and so has its lease."""
    importing = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "relay", "import", "--data-dir", str(data), "-"), stdin=asyncio.subprocess.PIPE
    )
    assert importing.stdin is not None
    importing.stdin.write(b" " * 2**20)
    await importing.stdin.drain()
    importing.kill()
    await importing.wait()


async def test_an_import_after_a_killed_one_does_not_wait_for_its_lease(tmp_path: Path) -> None:
    data = tmp_path / "data"
    export = encode_line(BeginLine(FORMAT, "empty", 0.0, "1")) + encode_line(EndLine(1))
    (tmp_path / "empty.jsonl").write_bytes(export)
    async with RelayProcess("dev", "--port", "0", "--no-demo", "--data-dir", str(data), cwd=tmp_path) as dev:
        await dev.line_with("Ready")
    await killed_while_it_imports(data)
    leases = await _lengthen_leases(data)
    assert any(key.endswith(b"lease:import") for key in leases), leases
    async with RelayProcess("import", "--data-dir", str(data), "empty.jsonl", cwd=tmp_path) as running:
        output = await running.finish()
    assert running.returncode == 0, output
