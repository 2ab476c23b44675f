"""Watches how far the history is behind: one process of those that know its store, whichever fills it."""

from contextlib import suppress
from typing import Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.domain.topics import Topics
from relay.history.lag import Behind
from relay.history.port import HistoryReader
from relay.log.port import Log
from relay.state.port import State
from relay.telemetry.metrics import Metrics

EVERY_S: Final = 15.0
LEASE: Final = "history-watch"
LEASE_S: Final = 60.0


class HistoryWatch:
    """One per process. `owner`: unique per process."""

    def __init__(
        self,
        history: HistoryReader,
        log: Log,
        state: State,
        topics: Topics,
        clock: Clock,
        metrics: Metrics,
        *,
        owner: str,
    ) -> None:
        self._behind = Behind(history, log, topics, clock)
        self._state = state
        self._clock = clock
        self._metrics = metrics
        self._owner = owner

    async def run(self) -> None:
        """Runs until cancelled. While the lag is unknown, no value is published."""
        while True:
            may_be_ours, behind_s = True, None
            with suppress(Unavailable):
                may_be_ours = await self._state.lease(LEASE, self._owner, LEASE_S)
                behind_s = await self._behind.seconds() if may_be_ours else None
            if behind_s is None:
                self._metrics.history_behind_seconds.clear()
                if may_be_ours:
                    await self._let_others_look()
            else:
                self._metrics.history_behind_seconds.labels().set(behind_s)
            await self._clock.sleep(EVERY_S)

    async def _let_others_look(self) -> None:
        """Gives up the lease: another process may reach what this one cannot."""
        with suppress(Unavailable):
            await self._state.release(LEASE, self._owner)
