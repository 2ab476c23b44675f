"""How many processes the load asks for, where `relay run` is not told: one, until that one is busy.

On a small machine one process is better than one for each core as long as it can keep up: what two ask Kafka and Redis
for apart goes together in one (docs/performance.md). None is taken away again: the sums of `/metrics` would fall.
"""

import os
from pathlib import Path
from typing import Final

BUSY_CORES: Final = 0.85
"""Of CPU that each of the processes takes: beyond it messages wait for the process."""
BUSY_S: Final = 3.0
"""How long they have to be that busy. A burst that is over by then is not worth a process."""
SETTLE_S: Final = 8.0
"""After one was started it is busy with starting, and those before it are with handing over."""
LOOK_EVERY_S: Final = 1.0
CPU_TIMES: Final = Path("/proc/self/stat")
"""Where the system has no such file it does not say what a process takes: then there is one per core from the start."""


class Autoscale:
    """Judges by the CPU seconds that the processes have taken. `most`: how many there may be; `now` in seconds."""

    def __init__(self, most: int, now: float) -> None:
        self._most = most
        self._last: tuple[float, float] | None = None
        self._busy_s = 0.0
        self._settled_at = now + SETTLE_S
        self.count = 1

    @property
    def met(self) -> bool:
        """There are as many as there may be."""
        return self.count >= self._most

    def look(self, now: float, cpu_s: float) -> int:
        """How many there should be. `cpu_s`: what those that run have taken in all since they began."""
        last, self._last = self._last, (now, cpu_s)
        if self.met or last is None or now < self._settled_at or now <= last[0]:
            return self.count
        elapsed = now - last[0]
        busy = (cpu_s - last[1]) / elapsed >= BUSY_CORES * self.count
        self._busy_s = self._busy_s + elapsed if busy else 0.0
        if self._busy_s >= BUSY_S:
            self.count, self._busy_s, self._settled_at = self.count + 1, 0.0, now + SETTLE_S
        return self.count


def cpu_seconds(pid: int, root: Path = Path("/proc")) -> float | None:
    """What process `pid` has taken of CPU since it began; None where it is gone, or the system does not say."""
    try:
        # The second field, the command's name in parentheses, may have blanks.
        fields = (root / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
