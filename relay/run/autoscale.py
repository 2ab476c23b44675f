"""Decides how many processes the load needs. Pure, and small: the supervisor imports it.

On a small machine one process is better than one per core as long as it can keep up: it batches requests to Kafka and
Redis that two would make apart (docs/performance.md).
"""

from collections.abc import Sequence
from math import inf
from typing import Final, Literal, NamedTuple

Pressure = Literal["short", "enough", "idle"]


class Load(NamedTuple):
    """What a process reports about itself."""

    backlog: int
    """Records in its lanes that it has not finished, without lanes that their receivers hold up."""
    late_s: float
    """Mean delay of its event loop: how long callbacks that are ready wait for the process."""

    def line(self) -> bytes:
        return f"{self.backlog} {self.late_s:.6f}\n".encode()

    @classmethod
    def of_line(cls, line: bytes) -> "Load":
        backlog, late_s = line.split()
        return cls(int(backlog), float(late_s))


class LoadSample(NamedTuple):
    """The processes that should run, at one time. `loads`: the last report of each, None before its first."""

    now: float
    cpu_s: float
    """CPU seconds of all running processes since they started."""
    loads: Sequence[Load | None]


class ScaleLimits(NamedTuple):
    """Limits of the decision. A process is added at a load at which it would not be removed: cores in use of at least
    `busy_cores` per process, against at most `idle_cores` for each that would remain."""

    busy_cores: float = 0.7
    late_s: float = 0.005
    """Delay of the event loops at which messages count as waiting for CPU of the processes."""
    backlog: int = 500
    drain_s: float = 30.0
    """A backlog that will be worked off in this time needs no further process."""
    idle_cores: float = 0.5
    short_s: float = 4.0
    """How long the processes have to be short of CPU. A shorter burst does not justify another process."""
    quiet_s: float = 300.0
    """How long they have to be idle before one is removed."""
    settle_s: float = 10.0
    """After a change, processes are busy starting, and handing over partitions."""


class Demand(NamedTuple):
    """The number of processes, and what led to it. `since`: when the pressure began."""

    processes: int
    settled_at: float
    pressure: Pressure = "enough"
    since: float = inf
    last: LoadSample | None = None
    falls: float = 0.0
    """By how many records a second the backlog falls, as a moving average; below 0 it grows."""


_SMOOTHING_S: Final = 3.0


def first(now: float, limits: ScaleLimits) -> Demand:
    return Demand(1, now + limits.settle_s)


def decide(before: Demand, sample: LoadSample, most: int, limits: ScaleLimits) -> Demand:
    """The demand after `sample`. At most one process is added or removed at a time, from 1 to `most`."""
    last = before.last
    if last is None or sample.now <= last.now or sample.now < before.settled_at:
        return before._replace(last=sample, since=inf, pressure="enough", falls=0.0)
    falls = _falls(before.falls, last, sample)
    pressure = _pressure(before.processes, last, sample, falls, limits)
    since = before.since if pressure == before.pressure else sample.now
    after = Demand(before.processes, before.settled_at, pressure, since, sample, falls)
    step, lasting_s = {"short": (1, limits.short_s), "idle": (-1, limits.quiet_s), "enough": (0, inf)}[pressure]
    count = min(max(before.processes + step, 1), most)
    if count == before.processes or sample.now - since < lasting_s:
        return after
    return Demand(count, sample.now + limits.settle_s, last=sample)


def _pressure(count: int, last: LoadSample, sample: LoadSample, falls: float, limits: ScaleLimits) -> Pressure:
    loads = [load for load in sample.loads if load is not None]
    cores = (sample.cpu_s - last.cpu_s) / (sample.now - last.now)
    if len(loads) < count or cores < 0:  # one has just been started, or has ended with its CPU seconds
        return "enough"
    backlog = sum(load.backlog for load in loads)
    late_s = sum(load.late_s for load in loads) / count
    if backlog < limits.backlog:
        return "idle" if cores <= limits.idle_cores * (count - 1) else "enough"
    is_late = cores >= limits.busy_cores * count and late_s >= limits.late_s
    return "short" if is_late and falls * limits.drain_s < backlog else "enough"


def _falls(before: float, last: LoadSample, sample: LoadSample) -> float:
    elapsed = sample.now - last.now
    fallen = (_backlog(last) - _backlog(sample)) / elapsed
    share = min(1.0, elapsed / _SMOOTHING_S)
    return before + share * (fallen - before)


def _backlog(sample: LoadSample) -> int:
    return sum(load.backlog for load in sample.loads if load is not None)
