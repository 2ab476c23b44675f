"""The state contract in memory, on a Valkey server and on a Valkey cluster."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest
from redis.asyncio import Redis

from relay.state.redis.state import RedisState
from relay.state.rows import TAGS
from tests.contract.state_clock_contract import ClockContract
from tests.contract.state_contract import WINDOW_S, MessagesContract, Rig, RowsContract, TimeContract
from tests.contract.state_endpoints_contract import EndpointsContract, FailedContract
from tests.contract.state_hints_contract import HintsContract
from tests.contract.state_in_flight_contract import InFlightContract
from tests.contract.state_incidents_contract import IncidentsContract
from tests.contract.state_key_use_contract import KeyUseContract
from tests.contract.state_lanes_contract import LanesContract
from tests.contract.state_numbers_contract import NumbersContract
from tests.contract.state_owners_contract import OwnersContract
from tests.contract.state_parking_contract import LifeContract, ParkingContract
from tests.contract.state_quotas_contract import QuotasContract
from tests.contract.state_read_model_contract import ReadModelContract
from tests.contract.state_remains_contract import RemainsContract
from tests.contract.state_room_contract import RoomContract
from tests.contract.state_statistics_contract import StatisticsContract
from tests.contract.state_superseding_contract import SupersedingContract
from tests.contract.state_unseen_contract import UnseenContract
from tests.contract.turned_clock import TurnedClock, age_keys
from tests.fakes.state import MemoryState
from tests.fakes.state_of_process import StateOfProcess
from tests.servers.cluster import ValkeyCluster
from tests.servers.valkey import ValkeyServer

_numbers = count()


class StateContract(
    TimeContract,
    ClockContract,
    MessagesContract,
    RowsContract,
    EndpointsContract,
    RoomContract,
    InFlightContract,
    FailedContract,
    ParkingContract,
    LifeContract,
    ReadModelContract,
    NumbersContract,
    HintsContract,
    OwnersContract,
    RemainsContract,
    LanesContract,
    UnseenContract,
    QuotasContract,
    StatisticsContract,
    IncidentsContract,
    KeyUseContract,
    SupersedingContract,
):
    pass


class TestMemoryState(StateContract):
    @pytest.fixture
    async def rig(self) -> Rig:
        state = MemoryState(clock=TurnedClock(), dedup_window_s=WINDOW_S)

        async def elapse(seconds: float) -> None:
            state.advance(seconds)

        async def lose() -> None:
            state.lose()

        async def fail_over() -> None:
            state.fail_over()

        return Rig(StateOfProcess(state), StateOfProcess(state), elapse, lose, fail_over)


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    cluster = ValkeyCluster()
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.stop()


@asynccontextmanager
async def rig_on(url: str, servers: Sequence[ValkeyServer]) -> AsyncIterator[Rig]:
    """The state at `url`, emptied, on `servers`."""
    clients, clock = [Redis.from_url(server.url) for server in servers], TurnedClock()

    async def elapse(seconds: float) -> None:
        clock.now += seconds
        for client in clients if seconds > 0 else ():
            await age_keys(client, seconds)

    async def lose() -> None:
        for client in clients:
            await client.flushall()

    async def fail_over() -> None:
        for client in clients:
            async for key in client.scan_iter("*:life"):
                await client.delete(key)

    await lose()
    # a cluster forwards hints with a delay: those of one test must not reach another's subscribers
    prefix = f"t{next(_numbers)}-"
    state, other = (RedisState(url, prefix=prefix, dedup_window_s=WINDOW_S, clock=clock) for _ in range(2))
    await state.start()
    assert await state.lost() == frozenset(range(TAGS))
    await state.ready(range(TAGS), in_doubt_s=0)
    yield Rig(state, other, elapse, lose, fail_over)
    await state.close()
    await other.close()
    for client in clients:
        await client.aclose()


class TestRedisState(StateContract):
    @pytest.fixture
    async def rig(self, server: ValkeyServer) -> AsyncIterator[Rig]:
        async with rig_on(server.url, [server]) as rig:
            yield rig


class TestRedisClusterState(StateContract):
    @pytest.fixture
    async def rig(self, cluster: ValkeyCluster) -> AsyncIterator[Rig]:
        async with rig_on(cluster.url, cluster.shards) as rig:
            yield rig
