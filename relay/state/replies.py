"""Replies of the state item by item, and what stands in place of one: the lane is fenced, or its hash tag is away."""

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from relay.domain.errors import PartitionLost, StateRecovering, StateUnavailable

T = TypeVar("T")
L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer owner has the lane: nothing was done for this item."""


Away = StateRecovering | StateUnavailable
"""Ask again later: the tag is not ready, and nothing was done for this item; or its server did not answer, and nobody
knows whether it was done."""

Refusal = Fenced | Away
"""In place of a reply."""
REFUSALS: Final = (Fenced, StateRecovering, StateUnavailable)
"""To tell one from a reply."""


def of(lane: L, items: Iterable[T]) -> list[tuple[L, T]]:
    """The items of one lane, as a call takes them."""
    return [(lane, item) for item in items]


async def answered(asked: Awaitable[Sequence[T | Fenced | StateRecovering | StateUnavailable]]) -> list[T]:
    """All replies, for callers who can do nothing with some of them.

    Raises PartitionLost if a lane is fenced, else StateRecovering with all tags that are not ready, else
    StateUnavailable; what was not refused was done all the same.
    """
    replies: list[T] = []
    refusals: list[Refusal] = []
    for reply in await asked:
        if isinstance(reply, REFUSALS):
            refusals.append(reply)
        else:
            replies.append(reply)
    if refusals:
        raise refused(refusals)
    return replies


def refused(refusals: Sequence[Refusal]) -> PartitionLost | StateRecovering | StateUnavailable:
    """One error for them all."""
    if any(isinstance(each, Fenced) for each in refusals):
        return PartitionLost("a newer owner has the lane")
    if tags := frozenset(tag for each in refusals if isinstance(each, StateRecovering) for tag in each.tags):
        return StateRecovering(tags)
    return next(each for each in refusals if isinstance(each, StateUnavailable))
