"""The clock port: the only source of time for the engine, the workers and the watchers, so that tests can control
it."""

import asyncio
import time
from functools import partial
from typing import Final, Protocol

# CLOCK_BOOTTIME continues while the machine is suspended: a resumed process must notice that its `begin` is too old.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

OFF_S: Final = 30.0
"""Tolerated offset from the shared clock; receivers of signed requests tolerate a few minutes."""
SAMPLES: Final = 5


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


class Server(Protocol):
    """The part of the state that the clock needs."""

    async def time(self) -> float: ...


class SharedClock:
    """The clock of all processes: that of the state's server. With its own clock, a process that is an hour ahead would
    expire messages early, and one that is behind would delay them by its offset.

    A Clock whose `time` is the server's, extrapolated with the monotonic clock of `own` between measurements. So
    neither an outage of the server nor a change of the machine's date affects it. Before the first measurement, it is
    `own`'s."""

    def __init__(self, own: Clock, server: Server) -> None:
        self._own = own
        self._server = server
        self._zero: float | None = None
        """The server's time when the monotonic clock showed 0."""
        self.monotonic, self.wall = own.monotonic, own.wall  # many times per message
        self.sleep, self.wait = own.sleep, own.wait

    def time(self) -> float:
        return self._own.time() if self._zero is None else self._own.monotonic() + self._zero

    @property
    def ahead_s(self) -> float:
        """Offset of the machine's clock from the shared one; negative if it is behind."""
        return self.wall() - self.time()

    async def measure(self) -> None:
        """Measure the server's time. Raises StateUnavailable; the last measurement then stays in effect."""
        self._zero = min([await self._sample() for _ in range(SAMPLES)])[1]  # the shortest round trip is the most exact

    async def _sample(self) -> tuple[float, float]:
        """(round-trip seconds, the server's time at monotonic 0), assuming that both directions took equally long."""
        begun = self._own.monotonic()
        there = await self._server.time()
        ended = self._own.monotonic()
        return ended - begun, there - (begun + ended) / 2
