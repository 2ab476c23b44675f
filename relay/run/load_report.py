"""Reports the load of a process to its supervisor, which decides how many processes there are."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from relay.clock import Clock
from relay.domain.errors import Unavailable
from relay.engine.lane import Lane
from relay.engine.work import WaitFor
from relay.log.port import LogReader
from relay.run.autoscale import Load
from relay.run.lanes import Lanes

REPORT_EVERY_S: Final = 1.0
LOOK_AT_LOG_FROM: Final = 100
"""Unfinished records in memory from which the log is asked how many more there are."""
_OURS: Final[frozenset[WaitFor]] = frozenset({"turn", "order", "max_in_flight", "seat"})
"""Waits that may be due to this process: a response that it has not read yet keeps its place at the receiver."""


@dataclass(eq=False)
class LoadReport:
    """`late_s`: the mean delay of the event loop. `descriptor`: where the reports are written, a line each; one that
    does not fit is dropped."""

    lanes: Lanes
    log: LogReader
    clock: Clock
    late_s: Callable[[], float]
    descriptor: int

    async def run(self) -> None:
        """Runs until cancelled."""
        os.set_blocking(self.descriptor, False)
        while True:
            load = await self.look()
            with suppress(OSError):  # full, as with a fixed number of processes, or the supervisor has ended
                os.write(self.descriptor, load.line())
            await self.clock.sleep(REPORT_EVERY_S)

    async def look(self) -> Load:
        now, late_s = self.clock.monotonic(), self.late_s()
        lanes = [lane for lane in self.lanes.pump.lanes() if lane.unfinished and not _is_held_up(lane, now)]
        backlog = sum(lane.unfinished for lane in lanes)
        if backlog >= LOOK_AT_LOG_FROM:  # otherwise the process keeps up, and has read nearly all
            with suppress(Unavailable):
                backlog = max(backlog, await self._behind(lanes))
        return Load(backlog, late_s)

    async def _behind(self, lanes: list[Lane[Any]]) -> int:
        """Records that these lanes have not finished, with those that are only on the log. Raises Unavailable."""
        following = {lane.partition: lane.next_offset for lane in lanes if lane.next_offset is not None}
        ends = await self.log.ends(list(following))
        return sum(max(0, end - following[at]) for at, end in ends.items() if at in following)


def _is_held_up(lane: Lane[Any], now: float) -> bool:
    """Whether most of its records wait for a receiver that is away, paused, or limits its rate."""
    waits = lane.levels(now).waits
    return 2 * sum(count for why, count in waits.items() if why not in _OURS) > lane.unfinished
