"""The number of requests that a broker has handled, by kind: its own counters, read through its JVM.

The broker's JVM is started with FLAGS. Its attach listener's socket gives its own user the address of a management
agent that listens on loopback. Kafka's own tool reads one round of counters there, in a process of half a second, so
that nothing is spent on it between two readings.
"""

import re
import socket
from asyncio import to_thread
from pathlib import Path
from typing import Final

from bench.children import Child
from bench.servers import finish, kafka_jars

_PROPERTIES: Final = b"1\0agentProperties\0\0\0\0"
"""Version, command, and three arguments of the attach protocol of HotSpot, each ended by a zero."""
_ADDRESS: Final = "com.sun.management.jmxremote.localConnectorAddress="
_COUNT: Final = re.compile(r"request=(\w+),version=\d+:Count=(\d+)")
_TOLD_TWICE: Final = ("FetchConsumer", "FetchFollower")
"""Of all fetches, which count as Fetch as well."""
_TOOL: Final = (
    *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    *("-cp", "{jars}/*", "org.apache.kafka.tools.JmxTool", "--jmx-url", "{url}", "--one-time", "true"),
    *("--object-name", "kafka.network:type=RequestMetrics,name=RequestsPerSec,*", "--attributes", "Count"),
    *("--report-format", "properties"),
)


class BrokerRequests:
    """Of the broker in process `pid`. `directory`: for logs."""

    def __init__(self, pid: int, directory: Path) -> None:
        self._pid = pid
        self._directory = directory
        self._url = ""

    async def read(self) -> dict[str, int]:
        """By kind, since the broker's start. Raises ChildFailed, OSError."""
        self._url = self._url or await to_thread(address_of, self._pid)
        command = [part.format(jars=kafka_jars(), url=self._url) for part in _TOOL]
        log = self._directory / "broker-requests.log"
        log.unlink(missing_ok=True)
        return counts(await finish(Child(log.stem, command, self._directory)))


def address_of(pid: int) -> str:
    """Of the JVM's management agent. Raises OSError where there is none."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.connect(f"/tmp/.java_pid{pid}")  # noqa: S108 - where every JVM has it
        listener.sendall(_PROPERTIES)
        told = b"".join(iter(lambda: listener.recv(65536), b"")).decode()
    for line in told.splitlines():
        if line.startswith(_ADDRESS):
            return line.removeprefix(_ADDRESS).replace("\\", "")
    raise OSError(f"the JVM {pid} has no management agent")


def counts(told: str) -> dict[str, int]:
    """From the tool's output: its lines differ by version, which does not matter here."""
    found = dict[str, int]()
    for kind, count in _COUNT.findall(told):
        if kind not in _TOLD_TWICE:
            found[kind] = found.get(kind, 0) + int(count)
    return found
