"""When to check lanes again that no process reads any more."""

from collections.abc import Hashable
from math import inf
from typing import Final

from relay.clock import Clock

FIRST_S: Final = 300.0
MOST_AT_ONCE: Final = 100


class Sweeps:
    """A late writer gets less likely with time: the next look comes after twice as long as the last one.

    `what` it is like: when that is not the same any more, it begins anew.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[Hashable, float, float]] = {}  # what it was like, when, and how long that is
        self._next = -inf
        self._left = MOST_AT_ONCE
        self._open: set[str] = set()  # taken in this round, and not told about yet

    def begin(self) -> None:
        """A round: each name is to be asked about once."""
        self._next = inf
        self._left = MOST_AT_ONCE
        self._open.clear()

    def is_due(self) -> bool:
        """Whether a round is worth while."""
        return bool(self._open) or self._clock.monotonic() >= self._next

    def takes(self, name: str, what: Hashable) -> bool:
        """Whether `name` is to be looked at in this round. The first look at something is due at once."""
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
