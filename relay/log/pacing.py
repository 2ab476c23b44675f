"""How much work a busy process gathers before it asks for more: a little delay where that saves CPU, else none.

A fetch or a produce request costs about as much as 20 records. While the CPU is idle that does not matter, and every
record goes at once; near its limit, requests that carry more records are the difference between keeping up and not.
"""

import os
import time
from collections.abc import Callable
from functools import cache
from typing import Final

IDLE_LOAD: Final = 0.65
"""Below this part of the CPU nothing is ever delayed."""

BUSY_LOAD: Final = 0.95
"""From here on the full delay is taken."""

FETCH_PAUSE_S: Final = 0.25
LINGER_S: Final = 0.02
GATHER_S: Final = 0.01

_STEEPNESS: Final = 5
"""The power of the load between the two with which waits grow: half way they are a thirtieth of the full ones. Only
where throughput is at stake they may be noticed."""

FULL_FLOW: Final = 1_500.0
"""Records a second that a process takes in, from which on the full wait for a fetch is worth it. A slower flow waits
less, in proportion: others may be what keeps the machine busy, and little would gather."""

_SAMPLE_S: Final = 0.5
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_CORES: Final = os.cpu_count() or 1


class Rate:
    """How much `tell` grew a second lately: over the last half second or more, so that a burst does not count.

    `clock`: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float], tell: Callable[[], float]) -> None:
        self._clock = clock
        self._tell = tell
        self._sampled_at = clock()
        self._then = tell()
        self._rate = 0.0

    def __call__(self) -> float:
        now = self._clock()
        passed = now - self._sampled_at
        if passed >= _SAMPLE_S:
            told = self._tell()
            self._rate = (told - self._then) / passed
            self._sampled_at, self._then = now, told
        return self._rate


class Load:
    """How busy the CPU was lately, in [0, 1].

    `clock`: seconds, monotonic. `used`: each tells the seconds of CPU used so far, of one core; the busiest counts.
    """

    def __init__(self, clock: Callable[[], float], *used: Callable[[], float]) -> None:
        self._rates = [Rate(clock, tell) for tell in used]

    def __call__(self) -> float:
        return min(1.0, max(0.0, *(rate() for rate in self._rates)))


def machine_cpu() -> float:
    """Seconds that the average core of this machine has worked, for whomever; 0 where the system does not tell.

    A process that shares its cores with the broker is as busy as they are: it never gets a whole core for itself.
    """
    try:
        with open("/proc/stat", "rb") as stat:
            fields = stat.readline().split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / _TICKS / _CORES


@cache
def load_here() -> Load:
    """Of this process, or its machine: one for all who ask."""
    return Load(time.monotonic, time.process_time, machine_cpu)


class FetchPace:
    """How long consumers ask for nothing more once they took records, so that the next fetch brings more.

    One for all consumers of a process, which so go on at the same ticks: what they take then shares its further way.
    `load` in [0, 1]; `clock`: seconds, monotonic.
    """

    def __init__(self, load: Callable[[], float], clock: Callable[[], float]) -> None:
        self._load = load
        self._clock = clock
        self._taken = 0
        self._flow = Rate(clock, lambda: self._taken)

    def took(self, records: int) -> None:
        """A consumer took so many."""
        self._taken += records

    def pause(self) -> float:
        """Seconds until the next tick. Records that come after a longer silence are fetched at once: nothing waits."""
        return fetch_pause(self._load(), self._flow(), self._clock())


def fetch_pause(load: float, flow: float, now: float) -> float:
    """Seconds until a consumer that took records asks for more: four times a second at the least.

    `flow`: records a second that the process takes in. `now`: seconds, monotonic.
    """
    return _until_tick(now, FETCH_PAUSE_S * min(1.0, flow / FULL_FLOW) * _strain(load))


def linger(load: float) -> float:
    """Seconds to wait for more records before a batch that could go now is sent."""
    return LINGER_S * _strain(load)


def gather(load: float, now: float) -> float:
    """Seconds to wait for more begins or outcomes that can share a call to the state. `now`: seconds, monotonic.

    Waits end together, at ticks, so that the calls of all lanes become one.
    """
    return _until_tick(now, GATHER_S * _strain(load))


def _until_tick(now: float, tick_s: float) -> float:
    """All who wait end together."""
    return tick_s - now % tick_s if tick_s > 0 else 0.0


def _strain(load: float) -> float:
    """0 up to IDLE_LOAD, 1 from BUSY_LOAD on, steeper and steeper in between."""
    return min(1.0, max(0.0, (load - IDLE_LOAD) / (BUSY_LOAD - IDLE_LOAD))) ** _STEEPNESS
