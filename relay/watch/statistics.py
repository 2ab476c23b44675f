"""Writes this process's counts of POSTs to receivers into the state: every few seconds, many in one call."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.state.port import State
from relay.state.statistics import Tally
from relay.telemetry.tallies import Tallies

EVERY_S: Final = 5.0
AT_ONCE: Final = 50
"""Tallies in one call: about a millisecond of the server."""
_LAST_S: Final = 2.0
"""Longest wait for the state to take the rest when the process ends."""


class StatisticsTeller:
    """`teller`: unique per process. `took`: called with the number of POSTs to each receiver, as they are taken.

    A failed call is repeated unchanged before newer counts are written, so that nothing counts twice.
    """

    def __init__(
        self,
        tallies: Tallies,
        state: State,
        clock: Clock,
        *,
        teller: str,
        took: Callable[[Mapping[str, int]], None] = lambda _sent: None,
    ) -> None:
        self._tallies = tallies
        self._state = state
        self._clock = clock
        self._teller = teller
        self._took = took
        self._number = 1
        self._untold: list[list[Tally]] = []

    async def run(self) -> None:
        """Runs until cancelled. While the state is unavailable, counts stay in memory."""
        while True:
            await self._clock.sleep(EVERY_S)
            with suppress(Unavailable):
                await self.write()

    async def write(self) -> None:
        """Writes all counts so far. Raises Unavailable; the rest is written first the next time."""
        if not self._untold:
            taken = self._tallies.take()
            self._took({tally.owner[2:]: tally.counted.attempts for tally in taken})
            self._untold = [taken[first : first + AT_ONCE] for first in range(0, len(taken), AT_ONCE)]
        while self._untold:
            await self._state.tally(self._teller, self._number, self._untold[0])
            self._number += 1
            del self._untold[0]

    async def end(self) -> None:
        """Writes the rest, if that is possible at once."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await self.write()  # what was left over
                await self.write()
