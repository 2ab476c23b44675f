"""Supervises the services of a process.

Crash-only: a service that ends by an exception ends the process, which is started again; every step is crash-safe. A
failure that concerns one consumer only does not restart the others: its service opens again in place, after a pause.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from relay.clock import Clock, SystemClock
from relay.domain.errors import ConsumerBroken, OffsetMissing, PartitionLost
from relay.engine.observer import Observer
from relay.engine.supervision import Broken, next_pause, raising_stray_cancels

T = TypeVar("T")


class Service(Protocol):
    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, and all calls in flight have ended."""
        ...


OpenService = Callable[[], Service]


@dataclass(eq=False, repr=False)
class Supervisor:
    """Runs services, by name. `update`: called at each of `changes`; the services are opened after the first one."""

    services: Mapping[str, OpenService]
    changes: AsyncIterator[object]
    update: Callable[[], None]
    clock: Clock = field(default_factory=SystemClock)
    observer: Observer = field(default_factory=Observer)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`, and until each service has ended."""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow(tasks, stop))
            await stop.wait()
            following.cancel()

    async def _follow(self, tasks: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        await anext(self.changes)
        self.update()
        for name, open_service in self.services.items():
            tasks.create_task(self._keep(name, open_service, stop), name=name)
        async for _ in self.changes:
            self.update()

    async def _keep(self, name: str, open_service: OpenService, stop: asyncio.Event) -> None:
        pause_s = 0.0
        while True:
            began = self.clock.monotonic()
            failure = await reporting_failure(self.observer, name, _failure_of(open_service(), stop))
            if failure is None or stop.is_set():
                return
            lived_s = self.clock.monotonic() - began
            pause_s = next_pause(pause_s, lived_s)
            self.observer.service_failed(name, failure, pause_s)
            await self.clock.wait(stop, pause_s)
            if stop.is_set():
                return


async def reporting_failure(observer: Observer, name: str, work: Awaitable[T]) -> T:
    """The result of `work`; an exception is reported first, and then raised."""
    try:
        return await raising_stray_cancels(work)
    except Exception as error:
        observer.service_died(name, error)
        raise


async def _failure_of(service: Service, stop: asyncio.Event) -> Broken | None:
    """Run `service`. Returns the failure of its consumer, if nothing else failed."""
    failure: Broken | None = None
    try:
        await service.run(stop)
    except* (ConsumerBroken, OffsetMissing, PartitionLost) as failed:
        failure = _first_of(failed)
    return failure


def _first_of(group: BaseExceptionGroup[Broken]) -> Broken:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
