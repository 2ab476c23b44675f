"""What it takes to run a broker from its published jars, for the benchmark and for the tests."""

import fcntl
import secrets
import shutil
import socket
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

_VERSION: Final = "4.1.0"
_ROOT: Final = Path(__file__).parents[1]
_CACHE: Final = _ROOT / ".cache"
_JARS: Final = _CACHE / f"kafka-{_VERSION}"
_POM: Final = _ROOT / "tests" / "servers" / "kafka_jars" / "pom.xml"

PROPERTIES: Final = """
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
"""`server.properties` of one node in KRaft mode; `port`, `controller_port` and `data` are to be filled in."""


class Unsuitable(Exception):
    """There is no way to run a broker here; says why."""


def new_cluster_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")


_FIRST_PORT: Final = 12_000
_PORTS: Final = 20_000


def free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to connections: one of these could get the port of a server that is
    restarted."""
    with ExitStack() as sockets:
        ports: list[int] = []
        while len(ports) < count:
            with suppress(OSError):
                port = _FIRST_PORT + secrets.randbelow(_PORTS)
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports


def answers(port: int) -> bool:
    """Whether a broker there answers a request (which versions it speaks), and not only accepts connections."""
    api_versions_v0 = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(api_versions_v0)
            return len(connection.recv(8)) == 8
    except OSError:
        return False


def jars() -> Path:
    """The directory with the broker's jars, which Maven fills once. Raises Unsuitable."""
    if shutil.which("java") is None:
        raise Unsuitable("there is no java")
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / f"kafka-{_VERSION}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _JARS.is_dir():
            _fetch_jars()
    return _JARS


def _fetch_jars() -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unsuitable("there is no mvn")
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
            raise Unsuitable(f"mvn did not get the broker's jars: {done.stdout[-2000:]}")
        target.rename(_JARS)
