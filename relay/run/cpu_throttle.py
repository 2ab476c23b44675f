"""How a process that nobody waits for keeps out of the way of those that somebody waits for."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

CPU_TIMES: Final = Path("/proc/stat")
CROWDED: Final = 0.6
"""The share of all processors that others keep busy, from which on each of our turns is one that they miss: even what
we do beside them, on a core that was idle, has the caches and the disk forget what they need next."""
LEAST: Final = 1 / 64
"""Of all processors, which we take while it is crowded: a burst goes first, and is done soon."""
BURST_S: Final = 60.0
"""Who is further behind than that waits for no end of a burst any more."""
OF_THE_REST: Final = 0.5
"""What we take then of what others leave."""
LONGEST_REST_S: Final = 5.0
"""Members of a consumer group that are asked to hand over have some seconds for it."""
_SHORTEST_LOOK_S: Final = 0.5
"""The system counts in hundredths of a second."""
_NICEST: Final = 19


def lower_priority() -> None:
    """This process has what others leave. On Linux it also never keeps a core for a moment from somebody who wakes up,
    as one that is only nice would."""
    os.nice(_NICEST)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may not have it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def rest_s(others: float, own_s: float, behind_s: float, processors: int) -> float:
    """How long to rest. `others`: the share of all `processors` that they keep busy; `own_s`: what we took of one;
    `behind_s`: how long ago that happened which we are at."""
    if others < CROWDED:
        return 0.0
    share = LEAST if behind_s < BURST_S else max(LEAST, OF_THE_REST * (1 - others))
    return min(LONGEST_REST_S, own_s * max(0.0, 1 / (share * processors) - 1))


class CpuThrottle:
    """Tells after each turn how long to rest before the next one. Where the system does not say how busy it is: never.

    `own_s`: seconds of a processor that this process has taken. `processors`: how many there are; None: as the system
    says.
    """

    def __init__(
        self,
        cpu_times: Path = CPU_TIMES,
        own_s: Callable[[], float] = time.process_time,
        processors: int | None = None,
    ) -> None:
        self._cpu_times = cpu_times
        self._own_s = own_s
        self._processors = processors or os.cpu_count() or 1
        self._last = self._look()

    def __call__(self, behind_s: float) -> float:
        now = self._look()
        if now is None or self._last is None:
            self._last = now
            return 0.0
        busy_s, all_s, own_s = (after - before for after, before in zip(now, self._last, strict=True))
        if all_s < _SHORTEST_LOOK_S:
            return 0.0
        self._last = now
        return rest_s((busy_s - own_s) / all_s, own_s, behind_s, self._processors)

    def _look(self) -> tuple[float, float, float] | None:
        """Since the system began: processors were busy, busy or not; and what this process took. Seconds."""
        try:
            # cpu  user nice system idle iowait irq softirq steal ...; guests are in user and nice
            ticks = [int(field) for field in self._cpu_times.read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return None
        hertz = os.sysconf("SC_CLK_TCK")
        idle = sum(ticks[3:5])
        return (sum(ticks) - idle) / hertz, sum(ticks) / hertz, self._own_s()
