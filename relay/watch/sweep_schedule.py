"""Schedules sweeps of lanes that no process reads any more."""

from collections.abc import Hashable
from math import inf
from typing import Final

from relay.clock import Clock

FIRST_S: Final = 300.0
MOST_AT_ONCE: Final = 100


class Sweeps:
    """A late writer gets less likely with time: each interval is twice as long as the one before.

    `what`: the lane's state; when it changes, the schedule starts again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # the lane's state, the time of its last sweep, and the interval
        self._known: dict[str, tuple[Hashable, float, float]] = {}
        self._next = -inf
        self._left = MOST_AT_ONCE
        self._open: set[str] = set()  # taken in this round, and not reported yet

    def begin(self) -> None:
        """Begin a round: each name is checked once."""
        self._next = inf
        self._left = MOST_AT_ONCE
        self._open.clear()

    def is_due(self) -> bool:
        """Whether a round is due."""
        return bool(self._open) or self._clock.monotonic() >= self._next

    def takes(self, name: str, what: Hashable) -> bool:
        """Whether `name` is to be swept in this round. The first sweep is due at once."""
        known = self._known.get(name)
        at = known[1] if known is not None and known[0] == what else -inf
        if at <= self._clock.monotonic() and self._left > 0:
            self._left -= 1
            self._open.add(name)
            return True
        self._next = min(self._next, at)
        return False

    def found_nothing(self, name: str, what: Hashable) -> None:
        known = self._known.get(name)
        wait_s = 2 * known[2] if known is not None and known[0] == what else FIRST_S
        at = self._clock.monotonic() + wait_s
        self._open.discard(name)
        self._known[name] = what, at, wait_s
        self._next = min(self._next, at)

    def never_again(self, name: str, what: Hashable) -> None:
        self._open.discard(name)
        self._known[name] = what, inf, inf

    def forget(self, name: str) -> None:
        self._open.discard(name)
        self._known.pop(name, None)
