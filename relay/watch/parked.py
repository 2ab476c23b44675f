"""Watches how much is parked over all receivers and sources: at the bound every intake that would park more stops."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.state.port import State
from relay.telemetry.observer import is_many

EVERY_S: Final = 10.0


class ParkedWatch:
    """`cap`: how much may be parked in all. `told(count, cap)` is called after each measurement.

    `warning`: text while half of the cap is used or more; otherwise None.
    """

    def __init__(self, state: State, clock: Clock, cap: int, told: Callable[[int, int], None]) -> None:
        self._state = state
        self._clock = clock
        self._cap = cap
        self._told = told
        self.warning: str | None = None

    async def run(self) -> None:
        """For ever. While the state is away, what was seen last stands; others say that it is away."""
        while True:
            with suppress(Unavailable):
                await self.look()
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        """Once. Raises Unavailable."""
        total = await self._state.parked_total()
        count = total.retries + total.polls
        self._told(count, self._cap)
        words = f"{count} of {self._cap} records that may be parked in all"
        self.warning = words if is_many(count, self._cap) else None
