"""How much work a busy process gathers before it asks for more: a little delay where that saves CPU, else none.

A fetch or a produce request costs about as much as 20 records. While the CPU is idle that does not matter, and every
record goes at once; near its limit, requests that carry more records are the difference between keeping up and not.
"""

from collections.abc import Callable
from typing import Final

IDLE_LOAD: Final = 0.3
"""Below this part of a core nothing is ever delayed."""

BUSY_LOAD: Final = 0.8
"""From here on the full delay is taken."""

FETCH_PAUSE_S: Final = 0.010
LINGER_S: Final = 0.005

GATHER_S: Final = 0.002

PLENTY: Final = 100
"""So many records of one fetch share its cost well enough: the next one need not wait."""

_SAMPLE_S: Final = 0.05


class Load:
    """The part of one core, in [0, 1], that this process used lately: over the last 50 ms or more.

    `clock`: seconds, monotonic. `cpu`: seconds of CPU that the process has used so far, as `time.process_time`.
    """

    def __init__(self, clock: Callable[[], float], cpu: Callable[[], float]) -> None:
        self._clock = clock
        self._cpu = cpu
        self._sampled_at = clock()
        self._used = cpu()
        self._load = 0.0

    def __call__(self) -> float:
        now = self._clock()
        passed = now - self._sampled_at
        if passed >= _SAMPLE_S:
            used = self._cpu()
            self._load = min(1.0, max(0.0, (used - self._used) / passed))
            self._sampled_at, self._used = now, used
        return self._load


def fetch_pause(since_last_s: float, records: int, load: float) -> float:
    """Seconds to leave fetched records where they are, so that the fetch which follows brings more.

    `since_last_s`: since records were last taken. `records`: how many those were. Takes are so spread to one in 10 ms
    at most; a record that comes after a longer silence never waits.
    """
    if records >= PLENTY:
        return 0.0
    return max(0.0, FETCH_PAUSE_S * _strain(load) - since_last_s)


def linger(load: float) -> float:
    """Seconds to wait for more records before a batch that could go now is sent."""
    return LINGER_S * _strain(load)


def gather(load: float) -> float:
    """Seconds to wait for more begins or outcomes that can share a call to the state."""
    return GATHER_S * _strain(load)


def _strain(load: float) -> float:
    """0 up to IDLE_LOAD, 1 from BUSY_LOAD on, linear in between."""
    return min(1.0, max(0.0, (load - IDLE_LOAD) / (BUSY_LOAD - IDLE_LOAD)))
