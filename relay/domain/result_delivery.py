"""Delivery of a result to its sender: how a source wants it, and how it ended, in the one byte that a finished row
keeps."""

from enum import IntEnum
from typing import NamedTuple

from relay.domain.receiver import Source

_MOST_ATTEMPTS = 63


class Handover(IntEnum):
    """DELIVERED: the callback accepted it, or a Kafka consumer reads it from `to_sender`. UNWANTED: the source wants no
    such results. KEPT: the source has no callback and queries the API. FAILED: the callback was given up."""

    DELIVERED = 0
    UNWANTED = 1
    KEPT = 2
    FAILED = 3


class Handed(NamedTuple):
    """`attempts`: callback requests made, counted up to 63."""

    how: Handover
    attempts: int


def to_code(how: Handover, attempts: int) -> int:
    """0-255."""
    return how | min(attempts, _MOST_ATTEMPTS) << 2


def from_code(code: int) -> Handed:
    return Handed(Handover(code & 3), code >> 2)


def handover(source: Source, *, failed: bool, empty: bool) -> Handover:
    """How a source wants an answer, or a failure notice, to be delivered."""
    answers_wanted = source.answers == "all" or (source.answers == "non_empty" and not empty)
    if not (source.failures if failed else answers_wanted):
        return Handover.UNWANTED
    if source.callback is None and not source.kafka:
        return Handover.KEPT
    return Handover.DELIVERED
