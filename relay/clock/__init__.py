"""The clock port: the only source of time for the engine, the workers and the watchers, so that tests can control
it."""

import asyncio
import time
from functools import partial
from typing import Protocol

# CLOCK_BOOTTIME continues while the machine is suspended: a resumed process must notice that its `begin` is too old.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since a fixed moment; continues during a suspend."""
        ...

    def time(self) -> float:
        """Unix time in seconds, for ages, deadlines and due times; synchronized across processes if possible."""
        ...

    def wall(self) -> float:
        """Unix time in seconds by the machine's own clock, for signatures, which others compare with their clock."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Wait until `event` is set, or `seconds` have passed (None for no limit)."""
        ...


async def set_within(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until `event` is set, or `seconds` have passed (None for no limit)."""
    if event.is_set():
        return
    if seconds is None:
        await event.wait()
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


class SystemClock:
    """The machine's clock, which is only as synchronized as the machines are."""

    monotonic = staticmethod(partial(time.clock_gettime, _BOOTTIME))  # called many times per message
    wall = staticmethod(time.time)
    wait = staticmethod(set_within)

    def time(self) -> float:
        return self.wall()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
