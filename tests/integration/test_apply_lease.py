"""Test that `relay receivers apply` changes receivers only while no other process does."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from relay.cli.receivers_apply import alone
from relay.config.settings import Settings
from relay.control.apply import LEASE
from relay.run.composition import redis_state
from relay.state.port import State
from tests.servers.valkey import ValkeyServer


@pytest.fixture
def settings(redis_server: ValkeyServer, unique_prefix: str) -> Settings:
    return Settings(redis_url=SecretStr(redis_server.url), topic_prefix=unique_prefix)


@pytest.fixture
async def state(settings: Settings) -> AsyncIterator[State]:
    state = redis_state(settings)
    yield state
    await state.close()


async def test_nobody_else_gets_the_lease_meanwhile(settings: Settings, state: State) -> None:
    async with alone(settings):
        assert not await state.lease(LEASE, "an API", 1)
    assert await state.lease(LEASE, "an API", 1)


async def test_it_waits_for_who_has_the_lease(settings: Settings, state: State) -> None:
    assert await state.lease(LEASE, "an API", 60)
    begun = asyncio.Event()

    async def applying() -> None:
        async with alone(settings):
            begun.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(applying())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(begun.wait(), 0.3)
        await state.release(LEASE, "an API")
        await begun.wait()


async def test_without_redis_it_says_so_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    async with alone(Settings(redis_url=SecretStr("redis://127.0.0.1:9/0"))):
        assert "note: no lock in Redis" in capsys.readouterr().err
