"""Watches the difference between the machine's clock and the clock that all processes share."""

from contextlib import suppress
from typing import Final

from relay.clock.shared import OFF_S, SharedClock
from relay.domain.errors import Unavailable
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

EVERY_S: Final = 60.0

_log = get_logger("relay.clock")


class ClockWatch:
    """Measures repeatedly, and logs when the machine's clock is off, or right again."""

    def __init__(self, clock: SharedClock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._told_s = 0.0

    async def run(self) -> None:
        """Runs until cancelled; the clock has been measured before."""
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
