"""Whether a rate is sustained: what has been sent and has not arrived stays small, and does not grow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

MOST_S: Final = 2.0
"""A sustained rate leaves less than this many seconds of traffic unfinished."""

GROWTH: Final = 0.02
"""... and falls behind by less than this share of the rate, over the second half of the window."""


LEAST_S: Final = 0.2
"""... or by so few seconds of traffic, in all of that half, that chance explains it."""


class Depth(NamedTuple):
    """`at_s` seconds after the start of the window, `backlog` messages were unfinished."""

    at_s: float
    backlog: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`behind_s`: the backlog at the end, in seconds of traffic. `growth`: of the backlog, as a share of the rate."""

    sustained: bool
    behind_s: float
    growth: float


def judge(depths: Sequence[Depth], rate: float) -> Verdict:
    """From depths over a window of traffic at `rate` a second, the last of them at its end."""
    if not depths:
        return Verdict(False, float("inf"), float("inf"))
    half = depths[0].at_s + (depths[-1].at_s - depths[0].at_s) / 2
    growth = _slope([depth for depth in depths if depth.at_s >= half]) / rate
    grown_s = growth * (depths[-1].at_s - half)
    behind_s = depths[-1].backlog / rate
    return Verdict(behind_s < MOST_S and (growth < GROWTH or grown_s < LEAST_S), behind_s, growth)


def _slope(depths: Sequence[Depth]) -> float:
    """Messages a second by which the backlog grows: the least-squares line through `depths`."""
    mean_at = sum(depth.at_s for depth in depths) / len(depths)
    mean_backlog = sum(depth.backlog for depth in depths) / len(depths)
    spread = sum((depth.at_s - mean_at) ** 2 for depth in depths)
    together = sum((depth.at_s - mean_at) * (depth.backlog - mean_backlog) for depth in depths)
    return together / spread if spread else 0.0
