"""Refusals that the state returns instead of an item's reply: the lane is fenced, or its hash tag is unavailable."""

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, TypeVar

from relay.domain.errors import PartitionLost, StateRecovering, StateUnavailable

T = TypeVar("T")
L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Fenced:
    """The lane has a newer owner; nothing was done for this item."""


Away = StateRecovering | StateUnavailable
"""Retry later: the tag is not ready, and nothing was done for this item; or its server did not answer, and the effect
is unknown."""

Refusal = Fenced | Away
"""Returned instead of a reply."""
REFUSALS: Final = (Fenced, StateRecovering, StateUnavailable)
"""For isinstance checks of replies."""


def of(lane: L, items: Iterable[T]) -> list[tuple[L, T]]:
    """The items of one lane, in the form of a call's argument."""
    return list(zip(repeat(lane), items))


async def answered(asked: Awaitable[Sequence[T | Fenced | StateRecovering | StateUnavailable]]) -> list[T]:
    """All replies, for callers that need every one.

    Raises PartitionLost if a lane is fenced, else StateRecovering with all tags that are not ready, else
    StateUnavailable; items that were not refused were processed.
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
    """A single error for several refusals."""
    if any(isinstance(each, Fenced) for each in refusals):
        return PartitionLost("a newer owner has the lane")
    if tags := frozenset(tag for each in refusals if isinstance(each, StateRecovering) for tag in each.tags):
        return StateRecovering(tags)
    return next(each for each in refusals if isinstance(each, StateUnavailable))
