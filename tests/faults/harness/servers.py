"""Kafka and Redis of the harness, with proxies. Several stacks may share them."""

import asyncio
import random
from types import TracebackType
from typing import Self

from bench.kafka_parts import free_ports
from tests.faults.harness.proxy import Proxy
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_cluster import KafkaCluster
from tests.servers.valkey import ValkeyServer

# A second listener, which advertises the port of a proxy, so that its clients reconnect through the proxy.
_PROXIED = """
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},PROXIED://127.0.0.1:{inner}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},PROXIED://127.0.0.1:{outer}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT
"""


class Servers:
    """They run during the `async with` block. `brokers`: one, or three that replicate. `proxied`: the relay reaches
    Kafka and Redis through proxies; the harness itself never does. `kafka_more`: lines for `server.properties`."""

    def __init__(self, *, brokers: int = 1, proxied: bool = False, seed: int = 0, kafka_more: str = "") -> None:
        inner, outer, self.redis_port = free_ports(3)
        chance = random.Random(seed).random
        self.kafka_proxy = Proxy("127.0.0.1", inner, port=outer, chance=chance) if proxied else None
        self.redis_proxy = Proxy("127.0.0.1", self.redis_port, chance=chance) if proxied else None
        more = _PROXIED.format(inner=inner, outer=outer) if proxied else ""
        self.cluster = KafkaCluster(brokers) if brokers > 1 else None
        self.brokers = self.cluster.nodes if self.cluster else [KafkaBroker(more + kafka_more)]
        self.valkey = ValkeyServer(
            fsync="everysec", options=("--port", str(self.redis_port), "--maxmemory-policy", "noeviction")
        )

    @property
    def broker(self) -> KafkaBroker:
        return self.brokers[0]

    @property
    def bootstrap(self) -> str:
        """For the harness's own clients."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def kafka_for_relay(self) -> str:
        return f"127.0.0.1:{self.kafka_proxy.port}" if self.kafka_proxy else self.bootstrap

    @property
    def redis_for_relay(self) -> str:
        return f"redis://127.0.0.1:{self.redis_proxy.port if self.redis_proxy else self.redis_port}/0"

    @property
    def redis(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}/0"

    async def __aenter__(self) -> Self:
        try:
            for proxy in (self.kafka_proxy, self.redis_proxy):
                if proxy is not None:
                    await proxy.start()
            await asyncio.to_thread(self.valkey.start)
            await asyncio.to_thread(self.cluster.start if self.cluster else self.broker.start)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def heal(self) -> None:
        """End all faults, and start servers that are down."""
        for proxy in (self.kafka_proxy, self.redis_proxy):
            if proxy is not None:
                proxy.restore()
        self.valkey.thaw()
        for broker in self.brokers:
            broker.thaw()
            if broker.ended:
                await asyncio.to_thread(broker.start)

    async def _stop(self) -> None:
        self.valkey.thaw()
        self.valkey.stop()
        for broker in self.brokers:
            broker.thaw()
            broker.stop()
        for proxy in (self.kafka_proxy, self.redis_proxy):
            if proxy is not None:
                await proxy.stop()
