"""The plain pipeline of a run: its topics and its processes."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.children import Child, own_environ
from bench.plain import PlainJob
from bench.system import System

_START_S: Final = 60.0
_PARTITIONS: Final = 10
"""As many as `from_sender` has."""


class PlainProcess(System):
    """Processes of `bench.plain`, which share the partitions. Can be stopped and started again; see System."""

    name = "plain"

    def __init__(self, directory: Path, kafka: str, prefix: str, urls: Mapping[str, str], *, processes: int) -> None:
        self._job = PlainJob(kafka, f"{prefix}plain_from_sender", f"{prefix}plain_to_receiver", urls)
        self._directory = directory
        self._processes = processes
        self.children = []

    @property
    def topic(self) -> str:
        return self._job.source

    async def make_topics(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._job.kafka)
        await admin.start()
        try:
            names = (self._job.source, self._job.onward)  # replicated as the broker does by default, like the relay's
            await admin.create_topics([NewTopic(name, _PARTITIONS, -1, replica_assignments={}) for name in names])
        finally:
            await admin.close()

    async def start(self) -> None:
        """Returns when each process has partitions of both topics."""
        command = [sys.executable, "-m", "bench.plain", self._job.as_json()]
        self.children = [
            Child(f"plain-{number}", command, self._directory, environ=own_environ(), piped=True)
            for number in range(self._processes)
        ]
        async with asyncio.timeout(_START_S), asyncio.TaskGroup() as starting:
            for child in self.children:
                starting.create_task(_started(child))


async def _started(child: Child) -> None:
    await child.start()
    await child.read_line()
