"""Tests of receivers that are registered while the relay runs: with `relay dev` by its commands, and with two processes
on Kafka."""

import asyncio
import base64
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis.asyncio
from aiokafka import AIOKafkaConsumer

from relay.sink import Sink
from tests.integration.production import Rig
from tests.integration.test_demo import relay
from tests.servers.http import started
from tests.servers.process import relay_dev

CANARY = base64.b64encode(b"canary-4711-canary-4711-canary!!").decode()
SECRET = f"whsec_{CANARY}"
TOKEN = "canary-token-4711-canary"
CANARIES = (CANARY, TOKEN)


async def test_a_receiver_registered_by_hand_is_sent_to_and_outlives_a_restart(tmp_path: Path) -> None:
    sink = Sink("answer", secret=SECRET)
    async with started(sink):
        (tmp_path / "receiver.json").write_text(json.dumps({"secret": SECRET, "bearer_token": TOKEN}))
        send = ("send", "--source", "s", "--receiver", "ci", "--wait", "20", "-")
        kept = ("--no-demo", "--data-dir", str(tmp_path / "data"))
        async with relay_dev(tmp_path, *kept) as dev:
            document = ("--from", str(tmp_path / "receiver.json"))
            made = ("receivers", "create", "ci", sink.url, "--owner", "team-1", "--label", "env=prod", *document)
            code, output = await relay(dev, *made)
            assert (code, output) == (0, "ci: registered, in the shared lane\n")
            code, output = await relay(dev, *made)
            assert (code, "409" in output and "declared already" in output) == (1, True), output
            code, output = await relay(dev, "receivers", "patch", "ci", "--set", "retry.cap=2h", "--set", "timeout=7")
            assert (code, "ci: changed" in output) == (0, True), output
            code, output = await relay(
                dev, "receivers", "rotate", "ci", "--grace", "10m"
            )  # the sink verifies the former
            assert (code, "along until" in output, "shown only this once: whsec_" in output) == (0, True, True), output
            code, output = await relay(dev, "receivers", "test", "ci")
            assert (code, "< 200 in " in output, "> authorization: ********" in output) == (0, True, True), output
            code, output = await relay(dev, "receivers", "show", "ci")
            assert "cap=7200.0" in output
            assert "owner: team-1" in output
            assert not any(canary in output for canary in CANARIES)
            code, output = await relay(dev, *send, stdin=b"{}")
            assert code == 0, output
            code, output = await relay(dev, "receivers", "list", "--owner", "team-1", "-o", "json")
            assert [item["name"] for item in json.loads(output)["items"]] == ["ci"]
            assert not any(canary in "\n".join(dev.lines) for canary in CANARIES)
        key = tmp_path / "data" / "secrets_key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert not any(canary.encode() in _all_bytes(tmp_path / "data") for canary in CANARIES)

        newer = {"RELAY_SECRETS_KEY": base64.b64encode(os.urandom(32)).decode()}  # before the one in the directory
        async with relay_dev(tmp_path, *kept, environ=newer) as dev:
            code, output = await relay(dev, "secrets", "reencrypt", "--dry-run")
            assert (code, "of which 1 have secrets of older keys" in output) == (0, True), output
            code, output = await relay(dev, "secrets", "reencrypt", "-o", "json")
            told = json.loads(output)
            assert (code, told["outdated"], told["rewritten"], told["cursor"]) == (0, 1, 1, None)
        key.unlink()  # another one is made

        async with relay_dev(tmp_path, *kept, environ=newer) as dev:
            code, output = await relay(dev, "receivers", "stats", "ci", "-o", "json")  # stored when the process ended
            stats = json.loads(output)
            assert (stats["attempts"], stats["outcomes"]["delivered"], stats["last_response"]["status"]) == (1, 1, 200)
            code, output = await relay(dev, *send, stdin=b"{}")
            assert code == 0, output
            ping, _, arrival = sink.received
            assert (ping.verified, ping.headers["ce-type"]) == (True, "relay.ping")
            assert (arrival.verified, arrival.headers["authorization"]) == (True, f"Bearer {TOKEN}")
            code, output = await relay(dev, "receivers", "delete", "ci")
            counted = re.search(r"ci: [01] unfinished in", output)  # commits may come a moment late
            assert (code, counted is not None and "Confirm with --yes" in output) == (2, True), output
            code, output = await relay(dev, "receivers", "delete", "ci", "--yes")
            assert (code, "ci: removed" in output) == (0, True), output
            code, output = await relay(dev, "receivers", "show", "ci")
            assert (code, "no receiver named 'ci'" in output) == (1, True), output


async def test_a_file_leaves_what_the_api_made_alone_and_says_what_it_cannot_have(tmp_path: Path) -> None:
    async with relay_dev(tmp_path, "--no-demo") as dev:
        code, output = await relay(
            dev, "receivers", "create", "ci", "http://127.0.0.1:9/made", "--set", "signature=none"
        )
        assert code == 0, output
        code, output = await relay(dev, "receivers", "create", "far", "http://10.0.0.1/made")
        warning = "warning: with these settings the relay would send nothing to http://10.0.0.1/made: 10.0.0.1 is not a"
        assert (code, warning in output) == (0, True), output
        declared = {"ci": {"post_endpoint": "http://127.0.0.1:9/filed"}, "cd": {"post_endpoint": "http://127.0.0.1:9/"}}
        (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": declared}))
        told = await dev.line_with('"receivers_file_entry_refused"')
        assert "ci was registered over the API and stays as it is" in told
        await dev.line_with('"receivers_applied"')
        code, output = await relay(dev, "receivers", "list", "--registered", "-o", "json")
        known = {item["name"]: (item["declared_by"], item["post_endpoint"]) for item in json.loads(output)["items"]}
        assert known["ci"] == ("api", "http://127.0.0.1:9/made")
        assert known["cd"] == ("file", "http://127.0.0.1:9/")


@pytest.mark.kafka
async def test_what_one_process_registers_another_sends_to_and_no_secret_is_anywhere(rig: Rig) -> None:
    sink = Sink("answer", secret=SECRET, on_arrival=lambda _arrival: rig.changed.set())
    async with started(sink):
        rig.environ["RELAY_SECRETS_KEY"] = base64.b64encode(os.urandom(32)).decode()
        body = {"name": "ci", "post_endpoint": sink.url, "secret": SECRET, "bearer_token": TOKEN}
        async with (
            rig.relay("run", "--processes", "1") as one,
            rig.relay("run", "--processes", "1") as other,
            aiohttp.ClientSession() as session,
        ):
            apis = [json.loads(await each.line_with('"started"'))["api"] for each in (one, other)]
            told = []
            for lane in ("shared", "dedicated"):
                name = f"ci-{lane}"
                async with session.post(f"{apis[0]}/v1/receivers", json=body | {"name": name, "lane": lane}) as made:
                    told.append(await made.text())
                    assert made.status == 201, told
                # a process returns 422 until it has read the record
                async with asyncio.timeout(2):
                    while (await _send(session, apis[1], name))[0] == 422:
                        pass
                async with session.patch(f"{apis[1]}/v1/receivers/{name}", json={"timeout": 7}) as changed:
                    told.append(await changed.text())
                    assert changed.status == 200, told
                async with session.get(f"{apis[0]}/v1/receivers/{name}") as shown:
                    told.append(await shown.text())
            await rig.until(lambda: {a.message_id for a in sink.received} >= {"to-ci-shared", "to-ci-dedicated"})
            assert all(arrival.verified for arrival in sink.received)
            assert {arrival.headers["authorization"] for arrival in sink.received} == {f"Bearer {TOKEN}"}
            for path in ("/metrics", "/v1/receivers", "/readyz?verbose"):
                for api in apis:
                    async with session.get(api + path) as response:
                        told.append(await response.text())
            async with session.post(f"{apis[0]}/v1/receivers", json=body | {"name": "Not a name", "timeout": 0}) as bad:
                assert bad.status == 422
                told.append(await bad.text())
        seen = "\n".join((*told, *one.lines, *other.lines, await _on_kafka(rig), await _in_redis(rig)))
        assert "ci-dedicated" in seen
        assert [canary for canary in CANARIES if canary in seen] == []


async def _send(session: aiohttp.ClientSession, api: str, name: str) -> tuple[int, Any]:
    path, headers = f"{api}/v1/sources/s/messages?receiver={name}", {"ce-id": f"to-{name}"}
    async with session.post(path, data=b"{}", headers=headers) as response:
        return response.status, await response.json()


async def _on_kafka(rig: Rig) -> str:
    """All that the relay has on its topics."""
    servers, prefix = rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"], rig.environ["RELAY_TOPIC_PREFIX"]
    async with AIOKafkaConsumer(bootstrap_servers=servers) as consumer:
        topics = [name for name in await consumer.topics() if name.startswith(prefix)]
    assert f"{prefix}receiver_config" in topics
    async with AIOKafkaConsumer(*topics, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        found, ends = list[str](), await consumer.end_offsets(list(consumer.assignment()))
        while any([await consumer.position(part) < end for part, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [f"{record.key!r} {record.value!r} {record.headers!r}" for record in records]
        return "\n".join(found)


async def _in_redis(rig: Rig) -> str:
    """All that the relay has in Redis."""
    client = redis.asyncio.from_url(rig.environ["RELAY_REDIS_URL"])
    try:
        return "\n".join([f"{key!r} {await client.dump(key)!r}" async for key in client.scan_iter(count=1_000)])
    finally:
        await client.aclose()


def _all_bytes(directory: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())
