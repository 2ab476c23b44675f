"""Tests of the state on a Valkey cluster: shards that are away, emptied or promoted, slots that move, wrong URLs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from bench.kafka_parts import free_ports
from relay.domain.errors import StateRecovering, StateUnavailable, UserError
from relay.state.attempts import Go
from relay.state.redis.state import RedisState
from relay.state.replies import answered, of
from relay.state.rows import TAGS, RowKey, Stage, tag_of
from tests.contract.state_contract import LANE, ask, begun, peeked, row
from tests.contract.test_state_urls import refuses_to_start
from tests.servers.asking import said, until
from tests.servers.cluster import SHARDS, ValkeyCluster
from tests.servers.valkey import ValkeyServer

EVERY_TAG = frozenset(range(TAGS))
KEYS = [row(1, f"receiver-{number}") for number in range(100)]
MOVING = tag_of(KEYS[0].owner)


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    cluster = ValkeyCluster()
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.stop()


@asynccontextmanager
async def ready_on(cluster: ValkeyCluster) -> AsyncIterator[RedisState]:
    state = RedisState(cluster.url)
    try:
        await state.start()
        await state.ready(sorted(await state.lost()), in_doubt_s=0)
        yield state
    finally:
        await state.close()


def of_shard(cluster: ValkeyCluster, number: int) -> frozenset[int]:
    return frozenset(tag for tag in EVERY_TAG if cluster.shard_of(tag) == number)


def parted(cluster: ValkeyCluster, number: int) -> tuple[list[RowKey], list[RowKey]]:
    """The rows on a shard, and all others."""
    own = of_shard(cluster, number)
    here = [key for key in KEYS if tag_of(key.owner) in own]
    return here, [key for key in KEYS if key not in here]


async def test_every_shard_has_its_tags_and_a_batch_reaches_them_all(cluster: ValkeyCluster) -> None:
    async with ready_on(cluster) as state, cluster.clients() as clients:
        assert await answered(state.begin(of(LANE, [ask(key) for key in KEYS]))) == [Go(1, 0.0)] * len(KEYS)
        assert {found.stage for found in await answered(state.peek(KEYS))} == {Stage.SENDING}
        for number, client in enumerate(clients):
            lives = {int(key[7:9]) async for key in client.scan_iter("relay:*:life")}
            assert lives == of_shard(cluster, number) != frozenset()


async def test_a_shard_that_is_emptied_stops_its_tags_alone(cluster: ValkeyCluster) -> None:
    here, elsewhere = parted(cluster, 1)
    async with ready_on(cluster) as state, Redis.from_url(cluster.shards[1].url) as client:
        await client.flushall()
        verdicts = await state.begin(of(LANE, map(ask, KEYS)))
        for key, verdict in zip(KEYS, verdicts, strict=True):
            assert verdict == Go(1, 0.0) or (key in here and isinstance(verdict, StateRecovering))
        assert {found.stage for found in await answered(state.peek(elsewhere))} == {Stage.SENDING}
        assert await state.lost() == of_shard(cluster, 1)
        await state.ready(sorted(of_shard(cluster, 1)), in_doubt_s=0)
        assert {found.stage for found in await answered(state.peek(here))} == {Stage.NONE}


async def test_a_shard_that_is_away_stops_its_tags_alone_until_it_is_back(cluster: ValkeyCluster) -> None:
    here, elsewhere = parted(cluster, 2)
    async with ready_on(cluster) as state:
        cluster.shards[2].kill()
        verdicts = await state.begin(of(LANE, map(ask, KEYS)))
        for key, verdict in zip(KEYS, verdicts, strict=True):
            assert verdict == Go(1, 0.0) or (key in here and isinstance(verdict, StateUnavailable))
        assert {found.stage for found in await answered(state.peek(elsewhere))} == {Stage.SENDING}
        assert await state.lost() == frozenset()
        assert not await state.set_edition(1)
        await asyncio.to_thread(cluster.shards[2].start)
        await until(lambda: is_reported_lost(state, here[0]))
        assert await state.lost() == of_shard(cluster, 2)
        await state.ready(sorted(of_shard(cluster, 2)), in_doubt_s=0)
        assert await begun(state, here[0]) == Go(1, 0.0)
        assert await state.set_edition(1)


async def is_reported_lost(state: RedisState, key: RowKey) -> bool:
    """Whether the state reports the row's memory as lost, instead of only unavailable."""
    try:
        await answered(state.peek([key]))
    except StateUnavailable:
        return False
    except StateRecovering:
        return True
    raise AssertionError("its server has lost nothing")


async def test_a_shard_that_is_silent_does_not_hold_up_the_others(cluster: ValkeyCluster) -> None:
    here, elsewhere = parted(cluster, 0)
    async with ready_on(cluster) as state:
        cluster.shards[0].freeze()
        hindered = asyncio.ensure_future(answered(state.peek([*here, *elsewhere])))
        for _ in range(20):
            assert len(await answered(state.peek(elsewhere))) == len(elsewhere)
        assert not hindered.done()
        cluster.shards[0].thaw()
        assert len(await hindered) == len(KEYS)


class TestMovingSlot:
    """The slot of KEYS[0] goes from its shard to the next one."""

    TAG = MOVING
    SLOT = str(key_slot(b"{%02d}" % MOVING))
    OTHER = next(key for key in KEYS if tag_of(key.owner) != MOVING)

    async def test_while_it_moves_it_is_away_alone(self, cluster: ValkeyCluster) -> None:
        async with ready_on(cluster) as state, cluster.clients() as clients:
            await begun(state, KEYS[0])
            source, target = self.ends(cluster, clients)
            await said(target, "CLUSTER", "SETSLOT", self.SLOT, "IMPORTING", await name_of(source))
            await said(source, "CLUSTER", "SETSLOT", self.SLOT, "MIGRATING", await name_of(target))
            with pytest.raises(StateUnavailable):
                await answered(state.peek([KEYS[0], self.OTHER]))
            assert (await peeked(state, self.OTHER)).stage is Stage.NONE
            assert not [key async for key in target.scan_iter(f"relay:{{{self.TAG:02d}}}:*")]
            for end in (source, target):
                await said(end, "CLUSTER", "SETSLOT", self.SLOT, "STABLE")
            assert (await peeked(state, KEYS[0])).stage is Stage.SENDING

    async def test_where_it_has_arrived_its_memory_counts_as_lost(self, cluster: ValkeyCluster) -> None:
        async with ready_on(cluster) as state, cluster.clients() as clients:
            source, target = self.ends(cluster, clients)
            keys = [key async for key in source.scan_iter(f"relay:{{{self.TAG:02d}}}:*")]
            copies = [(key, await source.dump(key) or b"") for key in keys]
            await source.delete(*keys)
            name = await name_of(target)
            for end in (target, source, *clients):
                await said(end, "CLUSTER", "SETSLOT", self.SLOT, "NODE", name)
            for key, copy in copies:
                await target.restore(key, 0, copy)
            with pytest.raises(StateRecovering) as refused:
                await answered(state.peek([KEYS[0], self.OTHER]))
            assert refused.value.tags == {self.TAG}
            assert await state.lost() == {self.TAG}
            await state.ready([self.TAG], in_doubt_s=0)
            assert await begun(state, KEYS[0]) == Go(1, 0.0)

    def ends(self, cluster: ValkeyCluster, clients: list[Redis]) -> tuple[Redis, Redis]:
        number = cluster.shard_of(self.TAG)
        return clients[number], clients[(number + 1) % SHARDS]


async def name_of(client: Redis) -> str:
    name: bytes = await said(client, "CLUSTER", "MYID")
    return name.decode()


async def test_a_promoted_replica_takes_over_its_tags_which_recover(cluster: ValkeyCluster) -> None:
    here, elsewhere = parted(cluster, 1)
    async with ready_on(cluster) as state, cluster.replica_of(1) as replica:
        assert await begun(state, here[0]) == Go(1, 0.0)
        await said(replica, "CLUSTER", "FAILOVER")
        await until(lambda: is_master(replica))
        with pytest.raises(StateRecovering) as refused:
            await answered(state.peek([here[0], elsewhere[0]]))
        assert refused.value.tags == {tag_of(here[0].owner)}
        assert await state.lost() == of_shard(cluster, 1)
        await state.ready(sorted(of_shard(cluster, 1)), in_doubt_s=60)
        assert (await peeked(state, here[0])).stage is Stage.SENDING


async def is_master(client: Redis) -> bool:
    return bool((await client.info("replication"))["role"] == "master")


async def test_the_time_is_that_of_the_first_tags_shard(cluster: ValkeyCluster) -> None:
    async with ready_on(cluster) as state, cluster.clients() as clients:
        of_first = clients[cluster.shard_of(0)]
        before = await of_first.time()
        now = await state.time()
        after = await of_first.time()
        assert before[0] + before[1] / 1e6 <= now <= after[0] + after[1] / 1e6
        cluster.shards[cluster.shard_of(0)].stop()
        with pytest.raises(StateUnavailable):
            await state.time()


class TestUrl:
    async def test_any_host_of_it_will_do(self, cluster: ValkeyCluster) -> None:
        scheme, _, hosts = cluster.url.partition("://")
        state = RedisState(f"{scheme}://127.0.0.1:9,{hosts.split(',')[1]}")
        await state.start()
        assert await state.lost() == EVERY_TAG
        await state.close()

    async def test_a_cluster_that_is_taken_for_one_server_is_refused(self, cluster: ValkeyCluster) -> None:
        await refuses_to_start(cluster.shards[0].url, UserError, r"redis\+cluster://")

    async def test_a_server_that_is_taken_for_a_cluster_is_refused(self) -> None:
        (port,) = free_ports(1)
        with ValkeyServer(port=port):
            await refuses_to_start(f"redis+cluster://127.0.0.1:{port}", UserError, "redis://")
