"""Watches how many records are parked in all: at the limit, every intake that would park more stops."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.state.port import State
from relay.telemetry.observer import is_many

EVERY_S: Final = 10.0


class ParkedWatch:
    """`cap`: most parked records in all. `report(count, cap)` is called at each check.

    `warning`: for operators, while at least half of the limit is used; else None.
    """

    def __init__(self, state: State, clock: Clock, cap: int, report: Callable[[int, int], None]) -> None:
        self._state = state
        self._clock = clock
        self._cap = cap
        self._report = report
        self.warning: str | None = None

    async def run(self) -> None:
        """Runs until cancelled. While the state is unavailable, the last count stays; other parts report that."""
        while True:
            with suppress(Unavailable):
                await self.look()
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        """One check. Raises Unavailable."""
        total = await self._state.parked_total()
        count = total.retries + total.polls
        self._report(count, self._cap)
        words = f"{count} of {self._cap} records that may be parked in all"
        self.warning = words if is_many(count, self._cap) else None
