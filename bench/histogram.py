"""Latencies in logarithmic buckets, each 1 % wider than the one before: percentiles within half a per cent."""

from collections.abc import Iterable, Mapping
from math import exp, log
from typing import Final

PER_E: Final = 100
"""Buckets per factor of e: a bucket is exp(1/100) times as wide as the one before."""

SIZE: Final = 2_800
"""The last one begins at e**28 ns, 24 minutes; it also counts higher values."""


class Histogram:
    """Counts of durations in nanoseconds. `most_ns`: the longest, exactly."""

    __slots__ = ("buckets", "most_ns")

    def __init__(self) -> None:
        self.buckets = [0] * SIZE
        self.most_ns = 0

    def add(self, duration_ns: int) -> None:
        """Anything below 1 ns, as when the clock was set back, counts as 1."""
        if duration_ns > self.most_ns:
            self.most_ns = duration_ns
        index = int(log(duration_ns) * PER_E) if duration_ns > 0 else 0
        self.buckets[index if index < SIZE else SIZE - 1] += 1

    @property
    def total(self) -> int:
        return sum(self.buckets)

    def percentile_ms(self, share: float) -> float:
        """The duration, in milliseconds, that `share` (0 to 1) of all are not above. 0 when there are none."""
        wanted, seen = share * self.total, 0
        for index, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                middle = exp((index + 0.5) / PER_E)
                return min(middle, float(self.most_ns)) / 1e6
        return self.most_ns / 1e6

    @property
    def most_ms(self) -> float:
        return self.most_ns / 1e6

    def sparse(self) -> dict[str, int]:
        """The buckets that are not empty, by index, for JSON."""
        return {str(index): count for index, count in enumerate(self.buckets) if count}

    @classmethod
    def merged(cls, parts: Iterable[tuple[Mapping[str, int], int]]) -> "Histogram":
        """From the sparse buckets and the longest duration of each part."""
        whole = cls()
        for buckets, most_ns in parts:
            whole.most_ns = max(whole.most_ns, most_ns)
            for index, count in buckets.items():
                whole.buckets[int(index)] += count
        return whole
