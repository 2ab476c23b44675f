"""Throttles a background process, so that it does not slow down the processes that carry messages."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

CPU_TIMES: Final = Path("/proc/stat")
CROWDED: Final = 0.6
"""The share of all processors that others use above which each of our turns costs them theirs. Even work on an idle
core evicts data from the caches that they need next."""
LEAST: Final = 1 / 64
"""Our share of all processors meanwhile: the others' burst goes first, and ends soon."""
BURST_S: Final = 60.0
"""With a longer lag we no longer wait for the end of a burst."""
OF_THE_REST: Final = 0.5
"""Our share of the time that the others leave in that case."""
LONGEST_REST_S: Final = 5.0
"""Longest rest: members of a consumer group have some seconds to hand over partitions."""
_SHORTEST_LOOK_S: Final = 0.5
"""The system counts in hundredths of a second."""
_NICEST: Final = 19


def lower_priority() -> None:
    """Give this process only the time that others leave. On Linux SCHED_IDLE also never delays a process that wakes
    up, as niceness alone would."""
    os.nice(_NICEST)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may not have it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def rest_s(others: float, own_s: float, behind_s: float, processors: int) -> float:
    """How long to rest. `others`: their share of all `processors`; `own_s`: CPU seconds of this process; `behind_s`:
    the lag."""
    if others < CROWDED:
        return 0.0
    share = LEAST if behind_s < BURST_S else max(LEAST, OF_THE_REST * (1 - others))
    return min(LONGEST_REST_S, own_s * max(0.0, 1 / (share * processors) - 1))


class CpuThrottle:
    """Returns after each turn how long to rest before the next; never, if the system does not report its load.

    `own_s`: CPU seconds of this process. `processors`: their number; None: the system's.
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
        """Since boot: busy processor seconds, all processor seconds, and the CPU seconds of this process."""
        try:
            # cpu  user nice system idle iowait irq softirq steal ...; guests are in user and nice
            ticks = [int(field) for field in self._cpu_times.read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return None
        hertz = os.sysconf("SC_CLK_TCK")
        idle = sum(ticks[3:5])
        return (sum(ticks) - idle) / hertz, sum(ticks) / hertz, self._own_s()
