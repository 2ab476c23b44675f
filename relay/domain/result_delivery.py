"""The way of a result to its sender: what a source wants done with it, and how that ended, in the one byte that a
finished delivery keeps of it."""

from enum import IntEnum
from typing import NamedTuple

from relay.domain.receiver import Source

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


def handover(source: Source, *, failed: bool, empty: bool) -> Handover:
    """What a source wants done with an answer, or with the notice of a failure."""
    answers_wanted = source.answers == "all" or (source.answers == "non_empty" and not empty)
    if not (source.failures if failed else answers_wanted):
        return Handover.UNWANTED
    if source.callback is None and not source.kafka:
        return Handover.KEPT
    return Handover.DELIVERED
