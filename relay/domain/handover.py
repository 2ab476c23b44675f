"""How an answer's way ended, in the one byte that a finished delivery keeps of it."""

from enum import IntEnum
from typing import NamedTuple

_MOST_ATTEMPTS = 63


class Handover(IntEnum):
    """DELIVERED: the callback took it, or it was left on `to_sender` for a Kafka consumer. UNWANTED: the source wants
    no such answers. KEPT: the source has no callback and asks for it. FAILED: the callback was given up."""

    DELIVERED = 0
    UNWANTED = 1
    KEPT = 2
    FAILED = 3


class Handed(NamedTuple):
    """`attempts`: callbacks made, at most 63 are counted."""

    how: Handover
    attempts: int


def to_code(how: Handover, attempts: int) -> int:
    """0-255."""
    return how | min(attempts, _MOST_ATTEMPTS) << 2


def from_code(code: int) -> Handed:
    return Handed(Handover(code & 3), code >> 2)
