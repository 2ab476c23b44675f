"""`relay recover` on real Kafka and Redis, and on the engine of `relay dev`."""

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from relay.embedded.relay import STATE_DB
from relay.embedded.valkey import ValkeyServer as EmbeddedServer
from relay.state.redis.state import RedisState
from relay.state.rows import tag_of
from tests.integration.production import SOURCES, Rig, messages
from tests.servers.process import RelayProcess
from tests.servers.valkey import ValkeyServer


async def recovered(rig: Rig, *arguments: str) -> dict[str, Any]:
    async with rig.relay("recover", "-o", "json", *arguments) as running:
        output = await running.finish()
    assert running.returncode == 0, output
    found: dict[str, Any] = json.loads(output[output.index("{") :])
    return found


async def stopped(running: RelayProcess) -> None:
    running.signal(signal.SIGTERM)
    await running.finish()
    assert running.returncode == 0


@pytest.mark.kafka
async def test_after_a_total_loss_nothing_is_delivered_again(rig: Rig, redis_server: ValkeyServer) -> None:
    """Beside a running relay: it has healed itself, and knows nothing of what it did before."""
    sent = messages(300)
    everything = {message.message_id for message in sent}
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        await rig.produce(sent)
        await rig.until(lambda: rig.answered() >= everything)
        await stopped(running)

    redis_server.wipe()
    counted = await recovered(rig, "--dedup", "--dry-run")
    assert counted["tags_not_ready"] == 64
    async with rig.relay("run", "--processes", "1") as running:
        noticed = json.loads(await running.line_with('"state_recovered"'))
        assert noticed["memory"] == "lost"
        assert noticed["in_doubt_until"]
        await running.line_with('"started"')
        done = await recovered(rig, "--dedup")
        assert done["memory"] == "ready"
        prefix = rig.environ["RELAY_TOPIC_PREFIX"]
        topics = {each["topic"].removeprefix(prefix): each for each in done["topics"]}
        assert topics["from_sender"]["enqueued"] == 300
        assert topics["to_sender"]["done"] == 300
        assert topics["pending_from_receiver_later"]["awaiting"] == sum(m.receiver == "later" for m in sent)
        assert done["topics"] == counted["topics"]

        await rig.produce(sent)
        last = messages(SOURCES * 3, start=300)  # behind every repeated one, of each source to each receiver
        await rig.produce(last)
        await rig.until(lambda: rig.answered() >= everything | {message.message_id for message in last})
        assert set(rig.arrivals().values()) == {1}
        assert len(rig.callback.received) == 300 + len(last)
        await stopped(running)


@pytest.mark.kafka
async def test_by_hand_while_no_relay_runs(rig: Rig, redis_server: ValkeyServer) -> None:
    """Parked records are restored, once."""
    for sink in rig.sinks.values():
        await sink.stop()
    rig.environ["RELAY_HOLD_MAX"] = "1s"
    sent = [message for message in messages(48) if message.receiver == "circleci"]
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        await rig.produce(sent)
        parked = await _until_parked(rig, redis_server)
        await stopped(running)

    redis_server.wipe()
    done = await recovered(rig)
    assert (done["tags_not_ready"], done["memory"]) == (64, "lost")
    assert done["put_back"] == done["parked"] >= parked
    assert [owner["name"] for owner in done["owners"]] == ["circleci"]
    assert (await recovered(rig))["put_back"] == 0
    async with rig.relay("recover") as running:
        output = await running.finish()
    assert re.search(rf"receiver +circleci +{done['parked']} +0 +0", output), output
    assert "state: ready" in output


async def _until_parked(rig: Rig, redis_server: ValkeyServer) -> int:
    state = RedisState(redis_server.url, prefix=rig.environ["RELAY_TOPIC_PREFIX"])
    try:
        async with asyncio.timeout(60):
            while True:
                if parked := (await state.parked_total()).retries:
                    return parked
                await asyncio.sleep(0.1)  # the index has no event to wait for
    finally:
        await state.close()


@pytest.mark.kafka
async def test_it_makes_the_cluster_that_has_replaced_another_the_one_of_the_state(
    rig: Rig, redis_server: ValkeyServer
) -> None:
    """A running relay does not."""
    client, prefix = Redis.from_url(redis_server.url), rig.environ["RELAY_TOPIC_PREFIX"]
    claim = f"{prefix}relay:{{{tag_of('l:cluster'):02d}}}:lease:cluster"
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        own = await client.get(claim)
        await stopped(running)
    assert own
    await client.set(claim, "another")
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        await stopped(running)
    assert await client.get(claim) == b"another"
    await recovered(rig, "--dry-run")
    assert await client.get(claim) == b"another"
    await recovered(rig)
    assert await client.get(claim) == own
    await client.aclose()


@pytest.mark.kafka
async def test_while_another_is_at_it(rig: Rig, redis_server: ValkeyServer) -> None:
    client, prefix = Redis.from_url(redis_server.url), rig.environ["RELAY_TOPIC_PREFIX"]
    await recovered(rig)
    lease = f"{prefix}relay:{{{tag_of('l:recovery'):02d}}}:lease:recovery"
    await client.set(lease, "somebody")
    async with rig.relay("recover", "--no-wait") as refused:
        output = await refused.finish()
    assert refused.returncode == 1
    assert "another recovery is running" in output
    async with rig.relay("recover") as waiting:
        await waiting.line_with("another recovery is running")
        await client.delete(lease)
        await waiting.finish()
    assert waiting.returncode == 0
    await client.aclose()


async def test_without_servers_or_topics(tmp_path: Path) -> None:
    environ = {"RELAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "RELAY_REDIS_URL": "redis://127.0.0.1:9/0"}
    async with RelayProcess("recover", cwd=tmp_path, environ=environ) as running:
        output = await running.finish()
    assert running.returncode == 1, output
    assert "Traceback" not in output
    async with RelayProcess("recover", "--data-dir", "nowhere", cwd=tmp_path) as running:
        output = await running.finish()
    assert running.returncode == 2, output
    assert "nowhere" in output


async def test_on_the_engine_of_relay_dev(tmp_path: Path) -> None:
    """It holds its directory while it runs; stopped, its state can be rebuilt, too."""
    data = tmp_path / "data"
    arguments = ("dev", "--data-dir", str(data), "--port", "0")
    recover = ("recover", "--dedup", "--data-dir", str(data), "-o", "json")
    async with RelayProcess(*arguments, cwd=tmp_path) as running:
        await running.line_with("Ready")
        async with RelayProcess(*recover, cwd=tmp_path) as refused:
            output = await refused.finish()
        assert refused.returncode == 2
        assert len(output.splitlines()) == 1, output
        assert f"a `relay dev` runs on {data}; a running `relay dev` restores its state on its own" in output
        await stopped(running)

    server = EmbeddedServer(data)
    await server.start()
    client = Redis.from_url(server.url(STATE_DB))
    await client.flushdb()
    await client.aclose()
    await server.stop()
    async with RelayProcess(*recover, cwd=tmp_path) as running:
        output = await running.finish()
    assert running.returncode == 0, output
    done = json.loads(output[output.index("{") :])
    assert done["memory"] == "lost"
    assert {each["topic"]: each for each in done["topics"]}["to_sender"]["done"] == 1  # the probe's answer


async def test_a_clean_restart_of_relay_dev_is_no_loss(tmp_path: Path) -> None:
    arguments = ("dev", "--data-dir", str(tmp_path / "data"), "--port", "0")
    environ = {"RELAY_LOG_FORMAT": "json", "RELAY_LOG_LEVEL": "debug"}
    told = []
    for _ in range(2):
        async with RelayProcess(*arguments, cwd=tmp_path, environ=environ) as running:
            await running.line_with("Ready")
            told.append(json.loads(await running.line_with("state_recovered")))
            await stopped(running)
    assert [(each["memory"], each["after_loss"], each["in_doubt_until"]) for each in told] == [
        ("new", False, None),
        ("kept", False, None),
    ]
