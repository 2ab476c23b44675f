"""Keeps the wanted services running: starts what is new, stops what is gone, and ends when one of them fails.

Crash-only: a service that ends by an exception takes the process down, to be started again; every step is crash-safe.
Only a consumer that its client library has let down is replaced in place.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from relay.domain.errors import ConsumerBroken


class Service(Protocol):
    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, and what is in flight has ended."""
        ...


OpenService = Callable[[], Service]


@dataclass(frozen=True, slots=True)
class _Running:
    stop: asyncio.Event
    task: asyncio.Task[None]


class Supervisor:
    """Runs the services that `wanted` names, and looks again at each of `changes`."""

    def __init__(self, wanted: Callable[[], Mapping[str, OpenService]], changes: AsyncIterator[object]) -> None:
        self._wanted = wanted
        self._changes = changes
        self._running: dict[str, _Running] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then every service is stopped and waited for."""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow(tasks))
            await stop.wait()
            following.cancel()
            for running in self._running.values():
                running.stop.set()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        async for _ in self._changes:
            wanted = self._wanted()
            for name in self._running.keys() - wanted.keys():
                self._running.pop(name).stop.set()
            for name, open_service in wanted.items():
                if name not in self._running:
                    stop = asyncio.Event()
                    self._running[name] = _Running(stop, tasks.create_task(_keep(open_service, stop), name=name))


async def _keep(open_service: OpenService, stop: asyncio.Event) -> None:
    broken = True
    while broken:
        broken = False
        try:
            await open_service().run(stop)
        except* ConsumerBroken:
            broken = not stop.is_set()
