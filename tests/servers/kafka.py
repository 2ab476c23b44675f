"""A real Kafka broker for tests: an existing one (`RELAY_TEST_KAFKA=host:port`), one from the published jars (with Java
17 and Maven), or one in a container. Without any of these, the tests are skipped, but fail when CI is `true`.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Protocol

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from bench.kafka_parts import PROPERTIES, Unsuitable, answers, free_ports, jars, new_cluster_id
from tests.servers.asking import until
from tests.servers.class_archive import class_archive
from tests.servers.shared import memory, shared_address, shared_directory

_START_S: Final = 200.0
"""A JVM on a busy machine; tests with a broker of their own have more time than others."""
_STOP_S: Final = 30.0

_PROPERTIES: Final = (
    PROPERTIES
    + """
controller.quorum.bootstrap.servers=
controller.quorum.voters=1@127.0.0.1:{controller_port}
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
group.min.session.timeout.ms=1000
offsets.topic.num.partitions=3
transaction.state.log.num.partitions=1
log.cleaner.backoff.ms=1000
metadata.max.idle.interval.ms=5000
"""
)
"""Each run of the cleaner takes longer with more topics, and tests leave hundreds of them. The storage of a new broker
does not have its voters if they are configured, so that all new ones differ in their ids only."""
_CHECKPOINT: Final = "bootstrap.checkpoint"


class Broker(Protocol):
    """A running broker. `bootstrap`: host:port."""

    @property
    def bootstrap(self) -> str: ...


@dataclass(frozen=True)
class GivenBroker:
    """A broker that was started outside of the tests."""

    bootstrap: str


class KafkaBroker:
    """A broker in KRaft mode that the tests start. `start` returns when it answers; a restart keeps data and port.
    `more`: further lines of `server.properties`, which override the others, and may contain {port}, {controller_port}
    and {data}. `ports`: of the broker and of its controller; None: free ones. `fresh`: how Kafka's tool formats the
    storage; None: like one that it has formatted before, because the tool takes a second of CPU. `archives`: the file
    to which its JVM archives its classes when it is terminated. `within`: the directory that its directory is in; None:
    that of temporary files.
    """

    def __init__(
        self,
        more: str = "",
        *,
        ports: tuple[int, int] | None = None,
        fresh: Sequence[str] | None = None,
        archives: Path | None = None,
        within: Path | None = None,
    ) -> None:
        self._jars = jars().resolve()  # an archive is for the paths of the jars that it was made from
        self._archives = archives
        self._directory = Path(tempfile.mkdtemp(prefix="kafka-", dir=within))
        self._port, controller_port = ports or free_ports(2)
        self._fresh = fresh
        self.data = self._directory / "data"
        self.properties = self._directory / "server.properties"
        self.properties.write_text(
            (_PROPERTIES + more).format(port=self._port, controller_port=controller_port, data=self.data)
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self.launch()
        self.await_answer()

    def launch(self) -> None:
        """Start it without waiting: a broker of several cannot answer before the others run."""
        if not (self.data / "meta.properties").exists():
            self._make_storage()
        classes = f"-XX:ArchiveClassesAtExit={self._archives}" if self._archives else self._shared()
        with self._log().open("ab") as log:
            self._process = subprocess.Popen(
                self._java(classes, "kafka.Kafka", str(self.properties)), cwd=self._directory, stdout=log, stderr=log
            )

    def await_answer(self) -> None:
        """Raises RuntimeError when it has ended, or takes too long."""
        if self._process is None:
            raise RuntimeError("the broker was not started")
        deadline = time.monotonic() + _START_S
        while not answers(self._port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the broker did not start:\n{self._log().read_text()}")
            time.sleep(0.05)

    def terminate(self, within_s: float = _STOP_S) -> None:
        """A clean shutdown, or a kill if it takes longer; the data stay."""
        self._end(signal.SIGTERM, within_s)

    def kill(self) -> None:
        """As `kill -9`; the data stay."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop it (SIGSTOP) until `thaw`: its connections stay open, without an answer."""
        self._signal(signal.SIGSTOP)
        if self.pid is not None:  # another core may run it a little longer
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def ended(self) -> bool:
        """Whether it has ended on its own, or was never started."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Kill it and delete its data; so a clean shutdown would be of no use."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def leave(self) -> int:
        """Leave it running when this object goes; returns its process id."""
        process, self._process = self._process, None
        if process is None:
            raise RuntimeError("the broker was not started")
        process.returncode = 0  # else Popen warns when it goes that the process still runs
        return process.pid

    def _make_storage(self) -> None:
        known = self._jars.with_name(f"{self._jars.name}.{_CHECKPOINT}")
        if self._fresh is None and known.exists():
            self.data.mkdir(exist_ok=True)  # a small disk may be mounted there
            shutil.copy(known, self.data / _CHECKPOINT)
            ids = f"node.id=1\ncluster.id={new_cluster_id()}\ndirectory.id={new_cluster_id()}\n"
            (self.data / "meta.properties").write_text(f"version=1\n{ids}")
            return
        self._format(self._fresh or ("-t", new_cluster_id()))
        if self._fresh is None:
            copy = known.with_name(f"{known.name}.{os.getpid()}")
            shutil.copy(self.data / _CHECKPOINT, copy)
            copy.rename(known)  # others never read a part of it

    def _format(self, arguments: Sequence[str]) -> None:
        subprocess.run(
            self._java(self._shared(), "kafka.tools.StorageTool", "format", *arguments, "-c", str(self.properties)),
            check=True,
            cwd=self._directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _shared(self) -> str:
        archive = None if self._archives else class_archive(self._jars, _archive)
        return f"-XX:SharedArchiveFile={archive}" if archive else "-Xshare:auto"

    def _java(self, classes: str, main: str, *arguments: str) -> list[str]:
        return [
            *("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", classes),
            *("-cp", f"{self._jars}/*", main, *arguments),
        ]

    def _log(self) -> Path:
        return self._directory / "broker.log"

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals, within_s: float = _STOP_S) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _left_running(within: Path) -> tuple[int, str]:
    broker = KafkaBroker(within=within)
    broker.start()
    return broker.leave(), broker.bootstrap


def _archive(target: Path) -> None:
    broker = KafkaBroker(archives=target)
    try:
        broker.start()
        broker.terminate(_START_S)  # writing the archive is CPU time of seconds, on a machine that runs all tests
    finally:
        broker.stop()


def unavailable(reason: str) -> NoReturn:
    """Skip the test because a server is missing, or fail if tests must not be skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"not here: {reason}")
    pytest.skip(f"not here: {reason}")


def _container(why_not_jars: str) -> Iterator[Broker]:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        unavailable(f"{why_not_jars}, and no container engine answers")
    from testcontainers.community.kafka import KafkaContainer  # its imports take time in each process

    with KafkaContainer().with_kraft() as container:
        yield GivenBroker(container.get_bootstrap_server())


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Broker]:
    """A broker for the whole run, that all processes of xdist share. Each test uses its own topics and groups."""
    if given := os.environ.get("RELAY_TEST_KAFKA"):
        yield GivenBroker(given)
        return
    try:
        if (shared := shared_directory()) is not None:
            yield GivenBroker(shared_address(shared, "broker", _left_running))
            return
        broker = KafkaBroker(within=memory())
    except Unsuitable as reason:
        yield from _container(str(reason))
        return
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    """A broker that the tests of a module may stop and kill. One that `RELAY_TEST_KAFKA` names is never used for
    this."""
    if "RELAY_TEST_KAFKA" in os.environ:
        pytest.skip("RELAY_TEST_KAFKA: no other broker is started")
    try:
        broker = KafkaBroker(within=memory())
    except Unsuitable as reason:
        unavailable(str(reason))
    try:
        broker.start()
        yield broker
    finally:
        broker.thaw()
        broker.stop()


async def alter_topic(bootstrap: str, topic: str, **configs: str) -> None:
    """Set a topic's configuration, as an operator would with Kafka's own tools; other settings get the broker's
    defaults. Returns once it is in effect, which is a moment after the reply."""
    named = {"max.message.bytes": "2162688"} | {name.replace("_", "."): value for name, value in configs.items()}
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, named)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)

    async def is_in_effect() -> bool:
        [answer] = await admin.describe_configs([resource])
        [(*_, entries)] = answer.resources
        return named.items() <= {name: value for name, value, *_ in entries}.items()

    await admin.start()
    try:
        await admin.alter_configs([resource])
        await until(is_in_effect)
    finally:
        await admin.close()
