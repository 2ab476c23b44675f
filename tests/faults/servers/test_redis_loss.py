"""The state loses its memory, all of it or its end, under a relay at work: every message comes back answered, and no
receiver that can be asked is given one twice."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from relay.domain.receiver import Endpoint
from relay.state.rows import TAGS
from tests.integration.loss_rig import LossRig, in_doubt, relay_on
from tests.servers.cluster import ValkeyCluster
from tests.servers.sentinel import SentinelGroup
from tests.servers.valkey import ValkeyServer

EVERY_TAG = frozenset(range(TAGS))
MESSAGES = 60


@pytest.fixture(autouse=True)
def quick_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback no POST is still in flight seconds after its timeout."""
    monkeypatch.setattr(Endpoint, "settle_s", property(lambda endpoint: endpoint.timeout + 0.5))


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    server = ValkeyServer(fsync="everysec")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def sentinel() -> AsyncIterator[SentinelGroup]:
    group = SentinelGroup(fsync="everysec")
    try:
        await group.start()
        yield group
    finally:
        group.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[ValkeyCluster]:
    cluster = ValkeyCluster()
    try:
        await cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def half_done(rig: LossRig) -> None:
    """Messages are on their way: some answered, some in flight, some parked."""
    await rig.send(MESSAGES)
    await rig.answered(MESSAGES // 2)


async def emptied(server: ValkeyServer) -> None:
    async with Redis.from_url(server.url) as client:
        await client.flushall()


async def test_emptied_while_it_runs(server: ValkeyServer, tmp_path: Path) -> None:
    async with relay_on(server.url, tmp_path) as rig:
        await half_done(rig)
        await emptied(server)
        await rig.send_again()
        await rig.send(MESSAGES)
        await rig.all_answered()
        assert rig.doubled() == set()
    assert await in_doubt([server]) == EVERY_TAG


async def test_emptied_again_while_it_recovers(server: ValkeyServer, tmp_path: Path) -> None:
    async with relay_on(server.url, tmp_path) as rig:
        await half_done(rig)
        for _ in range(3):
            await emptied(server)
            await rig.send(MESSAGES // 3)
        await rig.all_answered()
        assert rig.doubled() == set()
    assert await in_doubt([server]) == EVERY_TAG


async def test_restarted_without_what_came_last(server: ValkeyServer, tmp_path: Path) -> None:
    """As after a power cut, when the last second of the append-only file never reached the disk."""
    of_server, of_before = server.directory / "appendonlydir", tmp_path / "before"
    async with relay_on(server.url, tmp_path) as rig:
        await half_done(rig)
        shutil.copytree(of_server, of_before)
        await rig.send(MESSAGES)
        await rig.answered(MESSAGES)
        server.kill()
        shutil.rmtree(of_server)
        of_before.rename(of_server)
        await asyncio.to_thread(server.start)
        await rig.send_again()
        await rig.send(MESSAGES)
        await rig.all_answered()
        assert rig.doubled() == set()
    assert await in_doubt([server]) == EVERY_TAG


async def test_failed_over_to_a_replica_that_lagged(sentinel: SentinelGroup, tmp_path: Path) -> None:
    master, replica = sentinel.servers
    async with relay_on(sentinel.url, tmp_path) as rig:
        await half_done(rig)
        async with sentinel.cut_off():
            await rig.send(MESSAGES)
            await rig.answered(MESSAGES)
            master.kill()
        await rig.send_again()
        await rig.send(MESSAGES)
        await rig.all_answered()
        assert rig.doubled() == set()
    assert await in_doubt([replica]) == EVERY_TAG


async def test_one_shard_of_a_cluster_emptied(cluster: ValkeyCluster, tmp_path: Path) -> None:
    of_shard = frozenset(tag for tag in range(TAGS) if cluster.shard_of(tag) == 1)
    async with relay_on(cluster.url, tmp_path) as rig:
        await half_done(rig)
        await emptied(cluster.shards[1])
        await rig.send_again()
        await rig.send(MESSAGES)
        await rig.all_answered()
        assert rig.doubled() == set()
    assert await in_doubt(cluster.shards) == of_shard


async def test_a_master_that_was_cut_off_leads_again_after_its_successor(tmp_path: Path) -> None:
    """It still says that its memory is ready, as nothing has made it a replica meanwhile."""
    with ValkeyServer() as master, ValkeyServer() as successor:
        address = master.directory / "address"
        address.symlink_to(master.directory / "s")
        async with relay_on(f"unix://{address}", tmp_path) as rig:
            await half_done(rig)
            master.freeze()
            address.unlink()
            address.symlink_to(successor.directory / "s")
            await rig.send(MESSAGES)
            await rig.answered(2 * MESSAGES)
            successor.kill()
            address.unlink()
            address.symlink_to(master.directory / "s")
            master.thaw()
            await rig.send_again()
            await rig.send(MESSAGES)
            await rig.all_answered()
            assert (rig.doubled(), rig.failed()) == (set(), set())
        assert await in_doubt([master]) == EVERY_TAG
