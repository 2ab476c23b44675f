"""The clock that all processes share: that of the state's server.

By its own clock, a process that is an hour ahead would let messages die early, and one that is behind would keep them
waiting for as long as it is off.
"""

import asyncio
from typing import Final, Protocol

from relay.clock import Clock

OFF_S: Final = 30.0
"""Receivers of signed requests allow a few minutes."""
SAMPLES: Final = 5


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
