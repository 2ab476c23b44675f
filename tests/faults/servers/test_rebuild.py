"""Redis loses everything under a working relay, which rebuilds the rows of finished messages. A receiver with a status
endpoint gets none twice; afterwards no receiver does. Until then no message is reported as unknown."""

import json
from collections import Counter
from typing import Any

import pytest
from aiohttp import ClientSession
from redis.asyncio import Redis

from tests.integration.production import SOURCES, Rig, Sent, messages
from tests.servers.process import RelayProcess
from tests.servers.valkey import ValkeyServer

ASKED = ("circleci", "later")
"""Receivers with a status endpoint."""


async def started(running: RelayProcess) -> str:
    """The URL of its API, once it serves."""
    return str(json.loads(await running.line_with('"started"'))["api"])


async def emptied(server: ValkeyServer) -> None:
    async with Redis.from_url(server.url) as client:
        await client.flushall()


def ids(sent: list[Sent]) -> set[str]:
    return {message.message_id for message in sent}


def given(rig: Rig, names: tuple[str, ...]) -> Counter[str]:
    return Counter(arrival.message_id for name in names for arrival in rig.sinks[name].received)


async def status(api: ClientSession, source: str, message_id: str) -> tuple[int, Any]:
    async with api.get(f"/v1/sources/{source}/messages/{message_id}") as response:
        if response.status == 503:
            assert int(response.headers["Retry-After"]) > 0
        return response.status, await response.json()


async def metric(api: ClientSession, name: str) -> float:
    async with api.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


@pytest.mark.kafka
async def test_finished_messages_are_known_again_by_itself(rig: Rig, redis_server: ValkeyServer) -> None:
    rig.environ["RELAY_REBUILD_RATE"] = "60"  # slow enough to be looked at
    sent = messages(150)
    async with rig.relay("run", "--processes", "1") as running, ClientSession(await started(running)) as api:
        await rig.produce(sent)
        await rig.until(lambda: rig.answered() >= ids(sent))
        under_way = messages(50, start=150)
        await rig.produce(under_way)
        config = f"{rig.environ['RELAY_TOPIC_PREFIX']}receiver_config"
        # A record of a kind that only a newer release knows.
        await rig.producer.send_and_wait(config, b"{}", key=b"newer:1", partition=0)
        await emptied(redis_server)
        begun = json.loads(await running.line_with('"rebuild_begun"'))
        assert begun["tags"] == 64

        code, body = await status(api, "nobody", "unknown")
        assert code == 503, body
        await rig.produce(sent)  # while nothing of them is known
        fresh = messages(50, start=200)
        await rig.produce(fresh)
        seen = [await status(api, message.source, message.message_id) for message in sent]
        assert {code for code, _ in seen} <= {200, 503}
        assert await metric(api, "relay_state_tags_rebuilding") == 64

        done = json.loads(await running.line_with('"rebuilt"'))
        assert done["rows"]["enqueued"] >= 150
        assert done["rows"]["done"] >= 1
        # What no offset was committed for when the state was emptied is proved to be published, and no more.
        assert done["rows"]["done"] + done["rows"].get("published", 0) >= 150
        assert await metric(api, "relay_state_tags_rebuilding") == 0
        assert await metric(api, "relay_rebuild_records_total") >= 300
        everything = [*sent, *under_way, *fresh]
        await rig.until(lambda: rig.answered() >= ids(everything))
        doubled = {message_id for message_id, count in given(rig, ASKED).items() if count > 1}
        assert doubled == set()

        assert (await status(api, "nobody", "unknown"))[0] == 404
        for message in sent:
            code, body = await status(api, message.source, message.message_id)
            assert (code, body["status"]) == (200, "response_delivered_to_sender"), body
            assert "rebuilding" not in body
        before = given(rig, tuple(rig.sinks))
        await rig.produce(everything)
        last = messages(SOURCES * 3, start=264)  # behind every repeated one, of each source to each receiver
        await rig.produce(last)
        await rig.until(lambda: rig.answered() >= ids([*everything, *last]))
        after = given(rig, tuple(rig.sinks))
        assert {message_id: after[message_id] for message_id in before} == before
