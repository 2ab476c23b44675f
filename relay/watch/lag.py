"""Watches the lag of each lane's group, the age of its first unfinished record, and whether a process serves it.

One process of the cluster checks all lanes, also those that no process serves: only so a missing worker is noticed.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.domain.topics import Topics
from relay.log.port import Log
from relay.state.lanes import LaneNow, lanes_of, oldest, to_be_read
from relay.state.port import State
from relay.telemetry.metrics import Metrics
from relay.telemetry.series import MAX_RECEIVERS, OTHER

EVERY_S: Final = 15.0
COST: Final = 10.0
"""A check is repeated after this many times its own duration: checks never take more than a tenth of the time."""
LEASE: Final = "lag-watch"
LEASE_S: Final = 45.0
"""Beyond the time until the next check."""
MANY: Final = "-"
"""In place of the receiver, for a lane with many."""


class LagWatch:
    """One per process; a lease lets one process at a time check. `lanes`: receivers with lanes of their own.

    `owner`: unique per process.
    """

    def __init__(
        self,
        log: Log,
        state: State,
        topics: Topics,
        lanes: Callable[[], Iterable[str]],
        clock: Clock,
        metrics: Metrics,
        *,
        owner: str,
    ) -> None:
        self._log = log
        self._state = state
        self._topics = topics
        self._lanes = lanes
        self._clock = clock
        self._metrics = metrics
        self._owner = owner

    async def run(self) -> None:
        """Runs until cancelled. While log or state are unavailable, no value is published."""
        pause_s = EVERY_S
        while True:
            begun = self._clock.monotonic()
            try:
                looks = await self._state.lease(LEASE, self._owner, pause_s + LEASE_S)
                self._show(await self.look() if looks else ())
            except Unavailable:
                self._show(())
                await self._let_others_look()
            pause_s = max(EVERY_S, COST * (self._clock.monotonic() - begun))
            await self._clock.sleep(pause_s)

    async def _let_others_look(self) -> None:
        """Gives up the lease: another process may reach what this one cannot."""
        with suppress(Unavailable):
            await self._state.release(LEASE, self._owner)

    async def look(self) -> Sequence[LaneNow]:
        """One check. Raises Unavailable."""
        backlogs = await self._log.backlogs(self._topics.groups(self._lanes()))
        signs = await self._state.signs([backlog.partition for backlog in backlogs])
        lanes = lanes_of(self._topics, backlogs, signs)
        ages = await oldest(self._log, to_be_read(lanes), self._clock.time())
        return [replace(lane, oldest_s=ages.get(lane.key)) for lane in lanes]

    def _show(self, lanes: Sequence[LaneNow]) -> None:
        metrics, named = self._metrics, worst(lanes)
        for family in (metrics.consumer_lag, metrics.oldest_message_age_seconds, metrics.lanes_unserved):
            family.clear()
        for lane in lanes:
            receiver = lane.receiver or MANY
            place = (receiver, lane.key.topic, str(lane.key.partition))
            if receiver not in named:
                receiver, *_ = place = (OTHER, OTHER, OTHER)
            metrics.consumer_lag.labels(lane.role, *place).add(lane.lag)
            metrics.oldest_message_age_seconds.labels(lane.role, *place).raise_to(lane.oldest_s or 0.0)
            metrics.lanes_unserved.labels(lane.role, receiver).add(not lane.served)


def worst(lanes: Iterable[LaneNow]) -> frozenset[str]:
    """The receivers to name: of those with lanes of their own, those without a serving process and those with the
    largest lag."""
    lags: dict[str, tuple[int, int]] = {}
    for lane in lanes:
        if lane.receiver is not None:
            unserved, lag = lags.get(lane.receiver, (0, 0))
            lags[lane.receiver] = unserved + (not lane.served and lane.lag > 0), lag + lane.lag
    ranked = sorted(lags, key=lambda name: (-lags[name][0], -lags[name][1], name))
    return frozenset((MANY, *ranked[:MAX_RECEIVERS]))
