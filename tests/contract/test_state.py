"""The state contract, against memory and against a Valkey server."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from relay.state.port import TAGS, State
from relay.state.redis import RedisState
from tests.contract.state_contract import (
    WINDOW_S,
    MessagesContract,
    Rig,
    RowsContract,
)
from tests.contract.state_endpoints_contract import EndpointsContract, FailedContract
from tests.contract.state_parking_contract import LifeContract, ParkingContract
from tests.contract.turned_clock import TurnedClock, age_keys
from tests.fakes.state import MemoryState
from tests.servers.valkey import ValkeyServer


class StateContract(MessagesContract, RowsContract, EndpointsContract, FailedContract, ParkingContract, LifeContract):
    pass


class TestMemoryState(StateContract):
    @pytest.fixture
    async def rig(self) -> Rig:
        state = MemoryState(clock=TurnedClock(), dedup_window_s=WINDOW_S)

        async def elapse(seconds: float) -> None:
            state.advance(seconds)

        async def lose() -> None:
            state.lose()

        checked: State = state
        return Rig(checked, elapse, lose)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    server.start()
    yield server
    server.stop()


class TestRedisState(StateContract):
    @pytest.fixture
    async def rig(self, server: ValkeyServer) -> AsyncIterator[Rig]:
        client, clock = Redis.from_url(server.url), TurnedClock()
        await client.flushall()
        state = RedisState(server.url, prefix="t-", dedup_window_s=WINDOW_S, clock=clock)
        await state.start()
        assert await state.lost() == frozenset(range(TAGS))
        await state.ready(range(TAGS), in_doubt_s=0)

        async def elapse(seconds: float) -> None:
            clock.now += seconds
            await age_keys(client, seconds)

        async def lose() -> None:
            await client.flushall()

        checked: State = state
        yield Rig(checked, elapse, lose)
        await state.close()
        await client.aclose()
