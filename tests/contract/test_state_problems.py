"""Tests of the problems that the state reports about badly configured servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from relay.state.redis.problems import ServerInfo, judged
from relay.state.redis.state import RedisState
from tests.servers.asking import said
from tests.servers.sentinel import SentinelGroup
from tests.servers.valkey import Fsync, ValkeyServer

KEEPS_NOTHING = "stores nothing on disk: after a restart it does not know what was delivered; set `appendonly yes`"
SNAPSHOTS = "appendonly is off: a restart loses all writes since the last snapshot; set `appendonly yes`"
NO_MINIMUM = "min-replicas-to-write is 0: a fail-over loses writes that no replica has yet; set it to 1"


@asynccontextmanager
async def connected(fsync: Fsync | None, *options: str) -> AsyncIterator[tuple[RedisState, Redis]]:
    server = ValkeyServer(fsync=fsync, options=options)
    server.start()
    state = RedisState(server.url)
    try:
        async with Redis.from_url(server.url) as client:
            yield state, client
    finally:
        await state.close()
        server.stop()


async def test_a_server_that_keeps_everything_has_none() -> None:
    async with connected("everysec") as (state, _):
        assert await state.problems() == []


@pytest.mark.parametrize(("save", "problem"), [("", KEEPS_NOTHING), ("3600 1", SNAPSHOTS)])
async def test_what_a_restart_would_lose(save: str, problem: str) -> None:
    async with connected(None, "--save", save) as (state, _):
        assert await state.problems() == [problem]


async def test_settings_that_are_not_shown_to_us_are_not_judged() -> None:
    async with connected(None) as (_, client):
        await said(client, "ACL", "SETUSER", "default", "-config")
        path = client.connection_pool.connection_kwargs["path"]
        state = RedisState(f"unix://{path}")
        assert await state.problems() == [SNAPSHOTS]
        await state.close()


async def test_memory_that_is_nearly_full_and_a_policy_that_was_changed() -> None:
    async with connected("everysec") as (state, client):
        await state.start()
        used = (await client.info("memory"))["used_memory"]
        await client.config_set("maxmemory", str(used))
        await client.config_set("maxmemory-policy", "allkeys-lru")
        policy, memory = await state.problems()
        assert policy == "maxmemory-policy is allkeys-lru: it may drop what keeps messages from being delivered twice"
        assert memory.endswith("of maxmemory is used: at the limit it refuses writes, and delivery stops")


@pytest.fixture
async def group() -> AsyncIterator[SentinelGroup]:
    group = SentinelGroup(fsync="everysec")
    try:
        await group.start()
        yield group
    finally:
        group.stop()


async def test_writes_that_no_replica_has_to_have(group: SentinelGroup) -> None:
    state = RedisState(group.url)
    assert await state.problems() == [NO_MINIMUM]
    async with Redis.from_url(group.servers[0].url) as master:
        await master.config_set("min-replicas-to-write", 1)
        assert await state.problems() == []
    await state.close()


def facts(ahead_s: float = 0.0, coverage: str | None = None, **info: object) -> ServerInfo:
    """The INFO reply of a server that has these problems only."""
    usual = {"redis_version": "7.0.15", "redis_mode": "standalone", "maxmemory_policy": "noeviction", "aof_enabled": 1}
    lines = [f"{name}:{value}" for name, value in (usual | info).items()]
    return ServerInfo("\r\n".join(lines).encode(), "", coverage, ahead_s)


@pytest.mark.parametrize(
    ("found", "replicated", "problem"),
    [
        (facts(ahead_s=31), False, "its clock is 31 s ahead of ours"),
        (facts(ahead_s=-90), False, "its clock is 90 s behind ours"),
        (facts(ahead_s=29), False, None),
        (facts(redis_version="5.0.14"), False, "version 5.0.14 is too old for our scripts; 6.0 or newer is needed"),
        (facts(redis_version="6.0.0"), False, None),
        (facts(), True, "has no replica: nothing takes over if it fails"),
        (facts(connected_slaves=1), True, NO_MINIMUM),
        (facts(connected_slaves=1, min_slaves_good_slaves=1), True, None),
        (facts(coverage="yes", redis_mode="cluster"), False, "cluster-require-full-coverage is yes"),
        (facts(coverage="yes"), False, None),
    ],
)
def test_what_is_judged(found: ServerInfo, replicated: bool, problem: str | None) -> None:
    said_of_it = list(judged(found, replicated=replicated))
    assert [text.startswith(problem or "") for text in said_of_it] == [True] * (problem is not None)
