"""A held endpoint - paused by hand, gone, disabled - stays held, even if Redis is lost, until an operator resumes
it."""

import json
from typing import Any

import pytest
from aiohttp import ClientSession
from redis.asyncio import Redis

from relay.sink import Sink
from tests.integration.production import Rig, Sent, messages
from tests.servers.process import RelayProcess
from tests.servers.valkey import ValkeyServer


def sent_to(receiver: str, count: int, start: int = 0) -> list[Sent]:
    return [one for one in messages(3 * 8 * count, start) if one.receiver == receiver][:count]


async def started(running: RelayProcess) -> str:
    """The URL of its API, once it serves."""
    return str(json.loads(await running.line_with('"started"'))["api"])


async def ask(url: str, path: str, **body: str) -> dict[str, Any]:
    """GET, or with `body` POST."""
    async with ClientSession(url) as session:
        call = session.post(path, json=body) if path.endswith(("/pause", "/resume")) else session.get(path)
        async with call as response:
            found: dict[str, Any] = await response.json()
            assert response.status == 200, found
            return found


async def emptied(server: ValkeyServer) -> None:
    async with Redis.from_url(server.url) as client:
        await client.flushall()


async def applied(rig: Rig) -> None:
    """The file again, with a change, by hand."""
    path = rig.cwd / "receivers.yaml"
    declared = json.loads(path.read_text())
    declared["receivers"]["circleci"]["timeout"] = 14
    path.write_text(json.dumps(declared))
    async with rig.relay("receivers", "apply") as running:
        output = await running.finish()
    assert "~ circleci" in output


@pytest.mark.kafka
async def test_a_pause_by_hand_outlives_redis_the_file_and_the_process(rig: Rig, redis_server: ValkeyServer) -> None:
    path = "/v1/receivers/circleci"
    async with rig.relay("run", "--processes", "1") as running:
        url = await started(running)
        paused = await ask(url, f"{path}/pause", reason="moving house")
        hold = paused["hold"]
        assert (paused["condition"], paused["paused"], hold["reason"]) == ("paused", True, "paused")
        assert hold["detail"] == "moving house"
        assert hold["since"] is not None
        await emptied(redis_server)
        await rig.produce(sent_to("nostatus", 1, start=1000))  # who has work notices at once, else a look does
        await running.line_with('"after_loss": true')
        assert (await ask(url, path))["hold"] == hold

    await applied(rig)
    await emptied(redis_server)
    async with rig.relay("run", "--processes", "1") as running:
        url = await started(running)
        assert (await ask(url, path))["hold"] == hold
        held, others = sent_to("circleci", 4), sent_to("nostatus", 4)
        await rig.produce([*held, *others])
        await rig.until(lambda: rig.answered() >= {one.message_id for one in others})
        assert rig.sinks["circleci"].received == []
        resumed = await ask(url, f"{path}/resume")
        assert (resumed["condition"], resumed["hold"]) == ("up", None)
        await rig.until(lambda: rig.answered() >= {one.message_id for one in held})

    await emptied(redis_server)
    async with rig.relay("run", "--processes", "1") as running:
        url = await started(running)
        assert (await ask(url, path))["hold"] is None


@pytest.mark.slow
@pytest.mark.kafka
async def test_what_a_410_said_outlives_redis(rig: Rig, redis_server: ValkeyServer) -> None:
    first, *later = sent_to("nostatus", 4)
    sink = rig.sinks["nostatus"]
    sink.become("fail", fail_status=410)
    async with rig.relay("run", "--processes", "1") as running:
        url = await started(running)
        await rig.produce([first])
        await rig.dead_letters(url, 1)
    await emptied(redis_server)
    sink.become("answer")
    async with rig.relay("run", "--processes", "1") as running:
        url = await started(running)
        shown = await ask(url, "/v1/receivers/nostatus")
        assert (shown["paused"], shown["hold"]["reason"]) == (True, "gone")
        assert "410" in shown["hold"]["detail"]
        await rig.produce(later)
        passed = sent_to("later", 4)
        await rig.produce(passed)
        await rig.until(lambda: rig.answered() >= {one.message_id for one in passed})
        assert [arrival.message_id for arrival in sink.received] == [first.message_id]
        await ask(url, "/v1/receivers/nostatus/resume")
        await rig.until(lambda: rig.answered() >= {one.message_id for one in later})


@pytest.mark.slow
@pytest.mark.kafka
async def test_a_paused_callback_stays_paused(rig: Rig, redis_server: ValkeyServer) -> None:
    path, sent = "/v1/sources/source-0/callback", [one for one in messages(48) if one.source == "source-0"]
    async with rig.relay("run", "--processes", "1") as running:
        url = await started(running)
        await ask(url, f"{path}/pause")
    await emptied(redis_server)
    async with rig.relay("run", "--processes", "1") as running:
        url = await started(running)
        assert (await ask(url, path))["hold"]["reason"] == "paused"
        await rig.produce(sent)
        await rig.until(lambda: sum(map(_seen, rig.sinks.values())) >= len(sent))
        assert rig.callback.received == []
        await ask(url, f"{path}/resume")
        await rig.until(lambda: rig.answered() >= {one.message_id for one in sent})


def _seen(sink: Sink) -> int:
    return len(sink.received)
