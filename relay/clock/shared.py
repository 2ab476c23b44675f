"""A clock shared by all processes: the clock of the state's server.

With its own clock, a process that is an hour ahead would expire messages early, and one that is behind would delay them
by its offset.
"""

from typing import Final, Protocol

from relay.clock import Clock

OFF_S: Final = 30.0
"""Tolerated offset; receivers of signed requests tolerate a few minutes."""
SAMPLES: Final = 5


class Server(Protocol):
    """The part of the state that the clock needs."""

    async def time(self) -> float: ...


class SharedClock:
    """A Clock whose `time` is the server's, extrapolated with the monotonic clock of `own` between measurements. So
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
