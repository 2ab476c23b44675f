"""A Valkey cluster of three masters, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from redis.asyncio import Redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from bench.kafka_parts import free_ports
from tests.servers.asking import said, until
from tests.servers.valkey import Fsync, ValkeyServer

SHARDS: Final = 3


class ValkeyCluster:
    """`shards[n]` serves the n-th part of the slots. The others go on while one is down."""

    def __init__(self, *, fsync: Fsync | None = None) -> None:
        ports = free_ports(2 * SHARDS)
        self._addresses = list(zip(ports[:SHARDS], ports[SHARDS:], strict=True))
        self.shards = [_server(port, bus, fsync) for port, bus in self._addresses]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port, _ in self._addresses)

    def shard_of(self, tag: int) -> int:
        """The index in `shards` of the server of a hash tag."""
        return key_slot(b"{%02d}" % tag) * SHARDS // REDIS_CLUSTER_HASH_SLOTS

    async def start(self) -> None:
        """Returns when every shard knows the server of every slot."""
        for shard in self.shards:
            await asyncio.to_thread(shard.start)
        async with self.clients() as clients:
            for number, client in enumerate(clients):
                first, end = (-(-part * REDIS_CLUSTER_HASH_SLOTS // SHARDS) for part in (number, number + 1))
                await said(client, "CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
                await said(client, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            for address in self._addresses[1:]:
                await _meet(clients[0], *address)
            for client in clients:
                await until(partial(_complete, client))

    @asynccontextmanager
    async def clients(self) -> AsyncIterator[list[Redis]]:
        """A client of each shard."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(Redis.from_url(shard.url)) for shard in self.shards]

    @asynccontextmanager
    async def replica_of(self, number: int) -> AsyncIterator[Redis]:
        """A client of an up-to-date replica of that shard."""
        port, bus = free_ports(2)
        server = _server(port, bus, None)
        try:
            await asyncio.to_thread(server.start)
            async with Redis.from_url(server.url) as replica, Redis.from_url(self.shards[number].url) as master:
                await _meet(master, port, bus)
                await until(partial(_complete, replica))
                await said(replica, "CLUSTER", "REPLICATE", (await said(master, "CLUSTER", "MYID")).decode())
                await until(partial(_linked, replica))
                yield replica
        finally:
            server.stop()

    def stop(self) -> None:
        for shard in self.shards:
            shard.stop()


def _server(port: int, bus: int, fsync: Fsync | None) -> ValkeyServer:
    cluster = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "2000")
    alone = ("--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
    return ValkeyServer(fsync=fsync, port=port, options=(*cluster, *alone))


async def _meet(client: Redis, port: int, bus: int) -> None:
    await said(client, "CLUSTER", "MEET", "127.0.0.1", str(port), str(bus))


async def _linked(replica: Redis) -> bool:
    return bool((await replica.info("replication")).get("master_link_status") == "up")


async def _complete(client: Redis) -> bool:
    info: bytes = await said(client, "CLUSTER", "INFO")
    return b"cluster_state:ok" in info and f"cluster_slots_ok:{REDIS_CLUSTER_HASH_SLOTS}\r".encode() in info
