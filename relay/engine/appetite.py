"""Whether a lane has enough at hand, so that the rest may stay in the log. Pure; times are monotonic seconds."""

from math import inf
from typing import Final

ENOUGH: Final = 128
"""Records that wait here are enough while some end all the time: more would only be kept from the log too early, and
out of the CPU's caches when their turn comes."""

STALLED_S: Final = 0.09
"""Nothing has ended for so long: others further on may not have to wait for what these wait for. One poll more is taken
at a time, as the whole process may just be busy. Less than the time after which the runner looks again."""


class Appetite:
    """Of one lane. In a `shared` one it says nothing that something ends: it may be a slow receiver's, and what is
    further on another's. So there one poll more is taken each time, up to the window, whoever ends what. Where its
    works do not wait for anybody outside (not `waits`), what is further on would wait for the same, and only take
    memory: ten full windows of `from_sender` are 100 MB. So enough is enough there."""

    def __init__(self, *, shared: bool, waits: bool = True) -> None:
        self._shared = shared
        self._stalled_s = STALLED_S if waits else inf
        self._moved_at = -inf

    def offered(self, now: float) -> None:
        self._moved_at = now

    def ended(self, now: float) -> None:
        if not self._shared:
            self._moved_at = now

    def sated(self, waiting: int, now: float) -> bool:
        """`waiting`: records that are at hand and have not begun."""
        return waiting >= ENOUGH and now - self._moved_at < self._stalled_s
