"""The clock that all processes share: that of the state's server.

By its own clock, a process that is an hour ahead would let messages die early, and one that is behind would keep them
waiting for as long as it is off.
"""

import asyncio
from contextlib import suppress
from typing import Final, Protocol

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

EVERY_S: Final = 60.0
OFF_S: Final = 30.0
"""Receivers of signed requests allow a few minutes."""
SAMPLES: Final = 5

_log = get_logger("relay.clock")


class Server(Protocol):
    """What of the state is needed."""

    async def time(self) -> float: ...


class SharedClock:
    """A Clock whose `time` is the server's, carried on by `own`'s monotonic clock from one measurement to the next: so
    neither an outage of the server nor a change of the machine's date moves it. Before the first, it is `own`'s."""

    def __init__(self, own: Clock, server: Server) -> None:
        self._own = own
        self._server = server
        self._zero: float | None = None
        """The server's time when the monotonic clock showed 0."""

    def monotonic(self) -> float:
        return self._own.monotonic()

    def time(self) -> float:
        return self._own.time() if self._zero is None else self._own.monotonic() + self._zero

    def wall(self) -> float:
        return self._own.wall()

    async def sleep(self, seconds: float) -> None:
        await self._own.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        await self._own.wait(event, seconds)

    @property
    def ahead_s(self) -> float:
        """How far the machine's clock is ahead of the shared one; negative: behind."""
        return self.wall() - self.time()

    async def measure(self) -> None:
        """Ask the server. Raises StateUnavailable; then the last measurement still counts."""
        self._zero = min([await self._sample() for _ in range(SAMPLES)])[1]  # a short way there and back is a sure one

    async def _sample(self) -> tuple[float, float]:
        """Seconds there and back, and the server's time at monotonic 0, if both ways took as long."""
        begun = self._own.monotonic()
        there = await self._server.time()
        ended = self._own.monotonic()
        return ended - begun, there - (begun + ended) / 2


def off(ahead_s: float) -> str | None:
    """What to tell people of a clock that is ahead of the shared one; None: it is right."""
    if abs(ahead_s) <= OFF_S:
        return None
    way = "ahead of" if ahead_s > 0 else "behind"
    return f"the clock of this machine is {abs(ahead_s):.0f} s {way} that of the state's server: set both by NTP"


class ClockWatch:
    """Measures again and again, and says when the machine's own clock is off, or is right again."""

    def __init__(self, clock: SharedClock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._told_s = 0.0

    async def run(self) -> None:
        """For ever; the clock has been measured."""
        while True:
            self._tell()
            await self._clock.sleep(EVERY_S)
            with suppress(Unavailable):
                await self._clock.measure()

    def _tell(self) -> None:
        ahead_s = self._clock.ahead_s
        self._metrics.clock_offset_seconds.set(ahead_s)
        if abs(ahead_s) <= OFF_S:
            if self._told_s:
                _log.info("clock_right", ahead_s=round(ahead_s, 3))
            self._told_s = 0.0
        elif abs(ahead_s - self._told_s) > OFF_S:
            self._told_s = ahead_s
            _log.warning(
                "clock_off",
                ahead_s=round(ahead_s, 3),
                problem="this machine and the state's server differ; deadlines go by the server, and receivers may "
                "refuse signatures with a wrong time: set both by NTP",
            )
