"""When the messages of an open loop are due. Times are nanoseconds since its start."""

from math import ceil
from typing import Final

_ROUNDING: Final = 1e-6
"""Of a message: what floating point may take away from one that is due exactly now."""


class Pace:
    """`rate` messages a second, sent together by slices of `slice_s` at least: message n is meant for n / rate."""

    def __init__(self, rate: float, slice_s: float) -> None:
        self._rate = rate
        self._slice_ns = slice_s * 1e9

    def meant(self, number: int) -> int:
        """When message `number` should be sent."""
        return int(number / self._rate * 1e9)

    def due(self, elapsed_ns: int) -> int:
        """How many messages should have been sent by now."""
        return int(elapsed_ns * self._rate / 1e9 + _ROUNDING) + 1

    def next_look(self, elapsed_ns: int, sent: int) -> int:
        """When to send again: in the next slice, but not before a message is due. At that moment one is."""
        next_slice = ceil((elapsed_ns // self._slice_ns + 1) * self._slice_ns)
        return max(next_slice, ceil(sent / self._rate * 1e9))
