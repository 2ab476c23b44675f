"""Which source sends to which receiver, message by message."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

_SEED = 20_240_229


@dataclass(frozen=True)
class Drawing:
    """Message number `serial` belongs to a pair of source and receiver; every pair comes once before any comes again.

    The order of the pairs is shuffled, and always the same. A pair's number is source * receivers + receiver.
    """

    sources: int
    receivers: int
    _order: Sequence[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        order = list(range(self.pairs))
        random.Random(_SEED).shuffle(order)
        object.__setattr__(self, "_order", order)

    @property
    def pairs(self) -> int:
        return self.sources * self.receivers

    def pair(self, serial: int) -> int:
        return self._order[serial % len(self._order)]

    def source_of(self, pair: int) -> int:
        return pair // self.receivers

    def receiver_of(self, pair: int) -> int:
        return pair % self.receivers


def source_name(index: int) -> str:
    return f"source-{index}"


def receiver_name(index: int) -> str:
    return f"r{index}"
