"""Test of two processes of the relay, one of which lacks a variable with a receiver's secret."""

import asyncio
import json
from dataclasses import replace
from urllib.parse import quote

import pytest
from aiohttp import ClientSession

from bench.kafka_parts import free_ports
from tests.faults.servers.test_holds import ask, sent_to, started
from tests.integration.production import Rig


@pytest.mark.kafka
async def test_a_receiver_s_messages_wait_for_the_process_that_has_its_secret(rig: Rig) -> None:
    environ = {name: value for name, value in rig.environ.items() if name != "CIRCLECI_SECRET"}
    held, others = sent_to("circleci", 8), sent_to("nostatus", 8)
    async with replace(rig, environ=environ).relay("run", "--processes", "1") as without:
        url = await started(without)
        await rig.produce([*held, *others])
        await rig.until(lambda: rig.answered() >= {one.message_id for one in others})
        waits = f"/v1/sources/{quote(held[0].source)}/messages/{held[0].message_id}"
        async with asyncio.timeout(60):
            while True:
                [delivery] = (await ask(url, waits))["deliveries"]
                if (delivery["waiting_for"] or {}).get("kind") == "configuration":
                    break
                await asyncio.sleep(0.2)  # an API has no event to wait for
        async with ClientSession(url) as session, session.get("/readyz?verbose") as response:
            assert "[!]configuration warns: " in await response.text()
        assert rig.sinks["circleci"].received == []
        async with rig.relay("run", "--processes", "1") as able:
            await rig.until(lambda: rig.answered() >= {one.message_id for one in held})
            assert (await ask(await started(able), "/v1/failed"))["items"] == []
    arrived = [json.loads(arrival.body)["n"] for arrival in rig.sinks["circleci"].received]
    for source in {one.source for one in held}:
        mine = [one.number for one in held if one.source == source]
        assert [number for number in arrived if number in mine] == mine


@pytest.mark.kafka
async def test_a_process_that_sends_nothing_lacks_no_secret(rig: Rig) -> None:
    """Charts and compose files give it none, so an alert about it would never end."""
    [port] = free_ports(1)
    environ = {name: value for name, value in rig.environ.items() if name != "CIRCLECI_SECRET"}
    environ["RELAY_METRICS_PORT"] = str(port)
    async with replace(rig, environ=environ).relay("worker", "from-sender") as worker:
        await worker.line_with('"started"')
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            async with session.get("/readyz?verbose") as response:
                assert "configuration" not in await response.text()
            async with session.get("/metrics") as response:
                assert "relay_receivers_refused 0.0" in (await response.text()).splitlines()
