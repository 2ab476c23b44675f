"""How long to wait until what has failed is made anew: longer and longer, while it fails soon again."""

from collections.abc import Mapping
from typing import Final, TypeVar

from relay.log.port import TopicPartition

L = TypeVar("L")

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
LONG_LIFE_S: Final = 300.0
"""What ran for so long was well: the next pause is the first again."""


def next_pause(pause_s: float, lived_s: float) -> float:
    """Seconds until what lived for `lived_s` is made anew; `pause_s`: what it was the last time, 0 before."""
    if pause_s == 0 or lived_s >= LONG_LIFE_S:
        return FIRST_PAUSE_S
    return min(2 * pause_s, LONGEST_PAUSE_S)


class Restarts:
    """The lanes that are being made anew, and when they were so last. Times are seconds on any monotonic clock."""

    def __init__(self) -> None:
        self._under_way: dict[TopicPartition, object] = {}
        """Which lane each of them is meant for: one that has followed it is none of its business."""
        self._last: dict[TopicPartition, tuple[float, float]] = {}
        """When a lane began anew, and after which pause."""

    def begin(self, lanes: Mapping[TopicPartition, L], now: float) -> tuple[dict[TopicPartition, L], float]:
        """Those of them that are not under way already, and the pause before they begin anew."""
        new = object()
        those = {p: lane for p, lane in lanes.items() if self._under_way.get(p, new) is not lane}
        before = [self._last.get(each, (now, 0.0)) for each in those]
        pause_s = max((next_pause(pause_s, now - began) for began, pause_s in before), default=0.0)
        self._last |= dict.fromkeys(those, (now + pause_s, pause_s))
        self._under_way.update(those)
        return those, pause_s

    def end(self, lanes: Mapping[TopicPartition, object]) -> None:
        for partition, lane in lanes.items():
            if self._under_way.get(partition) is lane:
                self._under_way.pop(partition, None)
