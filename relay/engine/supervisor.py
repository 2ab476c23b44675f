"""Keeps the wanted services running: starts what is new, stops what is gone, and ends when one of them fails.

Crash-only: a service that ends by an exception takes the process down, to be started again; every step is crash-safe.
A failure that concerns one consumer only is no reason to restart the others: such a service is made anew in place,
after a pause, and they go on. (What concerns one lane restarts that lane: see the runner.)
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from relay.domain.errors import ConsumerBroken, OffsetMissing, PartitionLost
from relay.engine.clock import Clock, SystemClock
from relay.engine.observer import Observer, SilentObserver
from relay.engine.pauses import next_pause
from relay.engine.runner import Broken
from relay.engine.tasks import never_in_silence


class Service(Protocol):
    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, and what is in flight has ended."""
        ...


OpenService = Callable[[], Service]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Running:
    stop: asyncio.Event
    task: asyncio.Task[None]


class Supervisor:
    """Runs the services that `wanted` names, and looks again at each of `changes`."""

    def __init__(
        self,
        wanted: Callable[[], Mapping[str, OpenService]],
        changes: AsyncIterator[object],
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._wanted = wanted
        self._changes = changes
        self._clock = clock or SystemClock()
        self._observer = observer or SilentObserver()
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
                    task = tasks.create_task(self._keep(name, open_service, stop), name=name)
                    self._running[name] = _Running(stop, task)

    async def _keep(self, name: str, open_service: OpenService, stop: asyncio.Event) -> None:
        pause_s = 0.0
        while True:
            began = self._clock.monotonic()
            failure = await telling(self._observer, name, _failure_of(open_service(), stop))
            if failure is None or stop.is_set():
                return
            lived_s = self._clock.monotonic() - began
            pause_s = next_pause(pause_s, lived_s)
            self._observer.service_failed(name, failure, pause_s)
            await self._clock.wait(stop, pause_s)
            if stop.is_set():
                return


async def telling(observer: Observer, name: str, work: Awaitable[T]) -> T:
    """The result of `work`; what ends it is told first, and then raised."""
    try:
        return await never_in_silence(work)
    except Exception as error:
        observer.service_died(name, error)
        raise


async def _failure_of(service: Service, stop: asyncio.Event) -> Broken | None:
    """Run `service`; why its consumer cannot go on, if that is all that failed."""
    found: list[Broken] = []
    try:
        await service.run(stop)
    except* (ConsumerBroken, OffsetMissing, PartitionLost) as failed:
        found += _leaves(failed)
    return found[0] if found else None


def _leaves(
    group: BaseExceptionGroup[Broken],
) -> list[Broken]:
    found: list[Broken] = []
    for each in group.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found
