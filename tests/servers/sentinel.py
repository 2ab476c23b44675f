"""A master, a replica, and a sentinel that fails over to the replica within seconds, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from redis.asyncio import Redis

from bench.kafka_parts import free_ports
from tests.servers.asking import said, until
from tests.servers.valkey import Fsync, ValkeyServer

NAME: Final = "relay-state"
_IN_SYNC_S: Final = 60.0
"""More than the client's own timeout: on a busy machine a replica takes its time."""


class _Sentinel(ValkeyServer):
    started = "+monitor"

    def __init__(self, port: int, master_port: int) -> None:
        super().__init__()
        file = self.directory / "sentinel.conf"
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {NAME} 127.0.0.1 {master_port} 1",
            f"sentinel down-after-milliseconds {NAME} 2000",  # a starved master is not dead
            f"sentinel failover-timeout {NAME} 3000",
        ]
        file.write_text("\n".join(lines))
        self._arguments = [str(file), "--sentinel"]


class SentinelGroup:
    """`servers`: the first one begins as master. A quorum of one sentinel is enough here."""

    def __init__(self, *, fsync: Fsync | None = None) -> None:
        self._ports = free_ports(3)
        first, second, third = self._ports
        quick = ("--repl-diskless-sync-delay", "0")
        self.servers = [ValkeyServer(fsync=fsync, port=port, options=quick) for port in (first, second)]
        self._sentinel = _Sentinel(third, first)

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self._ports[2]}/{NAME}"

    @property
    def sentinel_url(self) -> str:
        return f"redis://127.0.0.1:{self._ports[2]}"

    def sentinel(self) -> Redis:
        """A client of the sentinel."""
        return Redis.from_url(self.sentinel_url)

    async def start(self) -> None:
        """Returns when the replica is up to date and known to the sentinel."""
        for server in self.servers:
            await asyncio.to_thread(server.start)
        await _follow(self.servers[1], self._ports[0])
        await asyncio.to_thread(self._sentinel.start)
        await until(self._replica_is_known)

    async def in_sync(self) -> None:
        """Returns when the replica has all that the master has acknowledged so far."""
        async with Redis.from_url(self.servers[0].url, socket_timeout=_IN_SYNC_S) as master:
            await master.set("in-sync", "")
            await master.wait(1, 0)

    @asynccontextmanager
    async def cut_off(self) -> AsyncIterator[None]:
        """Within the block the replica is stopped, and gets no writes of the master."""
        self.servers[1].freeze()
        async with Redis.from_url(self.servers[0].url) as master:
            await said(
                master, "CLIENT", "KILL", "TYPE", "replica"
            )  # otherwise it would read the writes from its socket later
        yield
        self.servers[1].thaw()

    async def failed_over(self) -> None:
        """Returns when the sentinel names the second server as master."""
        await until(self._second_is_named)

    async def demote(self) -> None:
        """Make the first server a replica of the second one, as the sentinel does some seconds after a fail-over."""
        await _follow(self.servers[0], self._ports[1])

    def stop(self) -> None:
        for server in (self._sentinel, *self.servers):
            server.stop()

    async def _replica_is_known(self) -> bool:
        async with self.sentinel() as sentinel:
            replicas: list[dict[bytes, bytes]] = await said(sentinel, "SENTINEL", "REPLICAS", NAME)
        return any(about[b"master-link-status"] == b"ok" for about in replicas)

    async def _second_is_named(self) -> bool:
        async with self.sentinel() as sentinel:
            _, port = await said(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(port) == self._ports[1]


async def _follow(server: ValkeyServer, master_port: int) -> None:
    """Make it a replica; returns when it is up to date."""

    async def linked() -> bool:
        return bool((await client.info("replication")).get("master_link_status") == "up")

    async with Redis.from_url(server.url) as client:
        await said(client, "REPLICAOF", "127.0.0.1", str(master_port))
        await until(linked)
