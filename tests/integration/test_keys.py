"""Tests of API keys at running relays: created by one process, used, rotated, expired and revoked in another."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.integration.production import Rig
from tests.servers.process import RelayProcess, relay_dev

REVOKED_S = 2.0


async def started(running: RelayProcess) -> str:
    """The URL of the process's API, once it is ready."""
    return str(json.loads(await running.line_with('"started"'))["api"])


async def command(cwd: Path, url: str, key: str | None, *arguments: str) -> Any:
    """The output of `relay keys ...`."""
    environ = {"RELAY_API_URL": url} | ({"RELAY_API_KEY": key} if key else {})
    async with RelayProcess("keys", *arguments, "-o", "json", cwd=cwd, environ=environ) as running:
        output = await running.finish()
    assert running.returncode == 0, output
    return json.loads(output)


async def audit(cwd: Path, url: str, key: str) -> Any:
    """The output of `relay audit`."""
    environ = {"RELAY_API_URL": url, "RELAY_API_KEY": key}
    async with RelayProcess("audit", "-o", "json", cwd=cwd, environ=environ) as running:
        return json.loads(await running.finish())


async def status(url: str, key: str | None, path: str = "/metrics") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with ClientSession() as session, session.get(url + path, headers=headers) as response:
        await response.read()
        return response.status


async def until(url: str, key: str, expected: int, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while True:
            if await status(url, key) == expected:
                return
            await asyncio.sleep(0.02)  # the other process has no event to wait for


@pytest.mark.kafka
async def test_a_key_is_in_force_and_out_of_it_in_every_process(rig: Rig) -> None:
    (rig.cwd / "receivers.yaml").unlink()
    async with rig.relay("run", "--processes", "1") as one, rig.relay("run", "--processes", "1") as other:
        urls = [await started(one), await started(other)]
        assert [await status(url, None) for url in urls] == [200, 200]
        admin = (await command(rig.cwd, urls[0], None, "create", "--scope", "admin"))["key"]
        made = await command(rig.cwd, urls[0], admin, "create", "--scope", "metrics", "--name", "prometheus")
        short = await command(rig.cwd, urls[0], admin, "create", "--scope", "metrics", "--expires-in", "6s")
        await until(urls[1], made["key"], 200, REVOKED_S)
        assert [await status(url, None) for url in urls] == [401, 401]
        assert [await status(url, made["key"], "/v1/keys") for url in urls] == [403, 403]
        rotated = await command(rig.cwd, urls[1], admin, "rotate", made["id"], "--overlap", "0s")
        await until(urls[0], rotated["key"], 200, REVOKED_S)
        assert [await status(url, made["key"]) for url in urls] == [401, 401]
        await command(rig.cwd, urls[0], admin, "revoke", made["id"])
        assert await status(urls[0], rotated["key"]) == 401
        await until(urls[1], rotated["key"], 401, REVOKED_S)
        await until(urls[1], short["key"], 401, 10.0)
        listed = await command(rig.cwd, urls[1], admin, "list")
        assert {item["id"]: item["status"] for item in listed["items"]} == {
            short["id"]: "expired",
            admin.split("_")[1]: "active",
        }
        told = (await audit(rig.cwd, urls[1], admin))["items"]
        assert [(line["what"], line["whom"]) for line in told[:3]] == [
            ("key.revoked", made["id"]),
            ("key.rotated", made["id"]),
            ("key.created", short["id"]),
        ]
        assert {line["outcome"] for line in told} == {"done"}
        output = "\n".join((*one.lines, *other.lines))
    # a process that starts now knows them, too, and may be reached by others, as there is a key
    rig.environ["RELAY_API_HOST"] = "0.0.0.0"  # noqa: S104
    async with rig.relay("run", "--processes", "1") as third:
        url = (await started(third)).replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        assert [await status(url, key) for key in (admin, rotated["key"], None)] == [200, 401, 401]
        output += "\n".join(third.lines)
    for text in (admin, made["key"], short["key"], rotated["key"]):
        assert text.split("_")[2] not in output


async def test_a_relay_of_its_own_starts_again_with_its_keys(tmp_path: Path) -> None:
    kept = ("--data-dir", str(tmp_path / "data"), "--no-demo")
    async with relay_dev(tmp_path, *kept) as dev:
        assert any("relay keys create" in line for line in dev.lines)
        url = dev.value_of("API")
        admin = (await command(tmp_path, url, None, "create", "--scope", "admin"))["key"]
        made = await command(tmp_path, url, admin, "create", "--scope", "metrics")
        await command(tmp_path, url, admin, "revoke", made["id"])
        told = (await audit(tmp_path, url, admin))["items"]
        assert [line["what"] for line in told] == ["key.revoked", "key.created", "key.created"]
    async with relay_dev(tmp_path, *kept) as dev:
        url = dev.value_of("API")
        assert [await status(url, key, "/v1/keys") for key in (admin, made["key"], None)] == [200, 401, 401]
    refused = RelayProcess("dev", "--port", "0", *kept, cwd=tmp_path, environ={"RELAY_API_KEY": admin})
    async with refused as dev:
        output = await dev.finish()
    assert (dev.returncode, "relay keys create" in output, "Traceback" in output) == (2, True, False)
