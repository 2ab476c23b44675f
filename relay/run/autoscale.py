"""Decides how many processes the load needs. Pure, and small: the supervisor imports it."""

from typing import Final

BUSY_CORES: Final = 0.85
"""CPU use per process beyond which messages wait for the process."""
BUSY_S: Final = 3.0
"""How long they must be that busy. A shorter burst does not justify another process."""
SETTLE_S: Final = 8.0
"""After a start, the new process is busy starting, and the others are busy handing over partitions."""


class Autoscale:
    """How many processes the load needs if `relay run` is given no number: one, until that one is busy.

    On a small machine one process is better than one per core as long as it can keep up: it batches requests to Kafka
    and Redis that two would make apart (docs/performance.md). A process is never removed: the sums of `/metrics` would
    fall. `most`: the largest number of processes; `now` in seconds.
    """

    def __init__(self, most: int, now: float) -> None:
        self._most = most
        self._last: tuple[float, float] | None = None
        self._busy_s = 0.0
        self._settled_at = now + SETTLE_S
        self.count = 1

    @property
    def complete(self) -> bool:
        """Whether the largest number is running."""
        return self.count >= self._most

    def look(self, now: float, cpu_s: float) -> int:
        """How many there should be. `cpu_s`: CPU seconds of all running processes since they started."""
        last, self._last = self._last, (now, cpu_s)
        if self.complete or last is None or now < self._settled_at or now <= last[0]:
            return self.count
        elapsed = now - last[0]
        busy = (cpu_s - last[1]) / elapsed >= BUSY_CORES * self.count
        self._busy_s = self._busy_s + elapsed if busy else 0.0
        if self._busy_s >= BUSY_S:
            self.count, self._busy_s, self._settled_at = self.count + 1, 0.0, now + SETTLE_S
        return self.count
