"""Time, passed in: the only way the engine, the workers, and what looks after them learn what time it is."""

import asyncio
import time
from typing import Protocol

# CLOCK_BOOTTIME goes on while the machine sleeps: a process that was suspended must notice that its begin is too old.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed moment; goes on during a suspend."""
        ...

    def time(self) -> float:
        """Unix time in seconds, for ages, deadlines and due times: the same in all processes, as far as is known."""
        ...

    def wall(self) -> float:
        """Unix time in seconds by the machine's own clock, for what outsiders compare with theirs: signatures."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        """Until `event` is set, or `seconds` have passed (None: for ever)."""
        ...


class SystemClock:
    """The machine's clock: right for all processes only as far as the machines agree."""

    def monotonic(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def time(self) -> float:
        return self.wall()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        if event.is_set():
            return
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return
