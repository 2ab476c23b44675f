"""What a phase cost: CPU time per message and memory, by group of processes, and what else ran on the machine."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from bench.procstat import Sample

FIT_SHARE: Final = 0.03
"""Steal, or foreign work, beyond this share of the machine makes a measurement unfit."""

FOREIGN_LOAD: Final = "foreign load"
"""The group of what was asked to run beside the relay."""

_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Usage:
    """`cpu_us`: per message, `rss`: the most seen (bytes), both by group. `cores`: CPU seconds per second, by group.
    `largest`: the most seen of one process, by group (bytes).

    `steal`, `foreign`: shares (0 to 1) of the machine's CPU time, over the phase. `load`: of the minute before it.
    """

    seconds: float
    cpu_us: dict[str, float] = field(default_factory=dict)
    cores: dict[str, float] = field(default_factory=dict)
    rss: dict[str, int] = field(default_factory=dict)
    steal: float = 0.0
    foreign: float = 0.0
    largest: dict[str, int] = field(default_factory=dict)
    load: float = 0.0

    @property
    def fit(self) -> bool:
        return self.steal <= FIT_SHARE and self.foreign <= FIT_SHARE


def usage(first: Sample, last: Sample, messages: int, rss: dict[str, int], cpus: int) -> Usage:
    """Between two samples, in which `messages` went through."""
    seconds = last.at - first.at
    spent = {name: last.groups[name] - first.groups.get(name, 0.0) for name in last.groups}
    available = max(seconds * cpus, 1e-9)
    foreign = (last.busy_s - first.busy_s) - (last.kernel_s - first.kernel_s) - sum(spent.values())
    return Usage(
        seconds=seconds,
        cpu_us={name: cpu / max(messages, 1) * 1e6 for name, cpu in spent.items()},
        cores={name: cpu / max(seconds, 1e-9) for name, cpu in spent.items()},
        rss=rss,
        steal=max(0.0, last.steal_s - first.steal_s) / available,
        foreign=max(0.0, foreign) / available,
        load=first.load,
    )


class Meter:
    """Samples a rig over a phase; `begin` and `end` may lie within the block that keeps it running."""

    def __init__(self, take: Callable[[], Sample]) -> None:
        self._take = take
        self._rss: dict[str, int] = {}
        self._largest: dict[str, int] = {}
        self._first: Sample | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Meter"]:
        watching = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            watching.cancel()

    def begin(self) -> None:
        self._first = self._sample()

    def end(self, messages: int) -> Usage:
        """Since `begin`, in which `messages` went through."""
        if self._first is None:
            raise RuntimeError("the meter has not begun")
        found = usage(self._first, self._sample(), messages, dict(self._rss), os.cpu_count() or 1)
        return replace(found, largest=dict(self._largest))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            self._sample()

    def _sample(self) -> Sample:
        now = self._take()
        for most, seen in ((self._rss, now.rss), (self._largest, now.largest)):
            for name, size in seen.items():
                most[name] = max(most.get(name, 0), size)
        return now
