"""Delays events for a moment, so that records that are written later are sent in the order of their time. Pure.

Attempts are written in batches, after the answers and dead letters that they led to.
"""

from collections.abc import Iterable
from typing import Final

from relay.api.tail.event import TailedEvent

HOLD_S: Final = 0.4
"""Attempts are written each quarter of a second."""


class InOrder:
    """By the moments at which things happened."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self._hold_s = hold_s
        self._held: list[tuple[TailedEvent, float]] = []

    def put(self, found: Iterable[TailedEvent], now: float) -> None:
        """What was seen at `now`, in seconds of a clock that only goes on."""
        self._held += [(happening, now) for happening in found]
        self._held.sort(key=lambda held: held[0].place)

    def due(self, now: float) -> list[TailedEvent]:
        """The events to send now: those that were held long enough, and all that happened before them."""
        last = max((n for n, (_, seen) in enumerate(self._held) if seen <= now - self._hold_s), default=-1)
        told, self._held = self._held[: last + 1], self._held[last + 1 :]
        return [happening for happening, _ in told]
