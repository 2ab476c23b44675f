"""Lanes that the state takes for lost, and that their group says are ours: their epochs begin anew.

A group that was deleted, whose offsets expired, or whose cluster was rebuilt counts its generations from 1 again, while
the state still knows the last one of before. The group decides: but only a group that answers now, and only about the
epoch that was read before it was asked. What it has confirmed counts as long as it would not have given the lane to
another without our having been asked.
"""

from collections.abc import Sequence
from typing import Protocol

from relay.domain.errors import PartitionLost
from relay.engine.clock import Clock
from relay.log.port import Assignment, Consumer, TopicPartition
from relay.state.port import Lane, State


class Owned(Protocol):
    """A lane as its context has it. `tags`: where its fence may stand."""

    @property
    def lane(self) -> Lane: ...

    @property
    def tags(self) -> tuple[int, ...]: ...

    @property
    def state(self) -> State: ...

    @property
    def partition(self) -> TopicPartition: ...


async def begin_anew(consumer: Consumer, lanes: Sequence[Owned], clock: Clock) -> list[TopicPartition]:
    """Make the epochs of these lanes count, wherever the state has seen a higher one; which lanes that was.

    Raises PartitionLost when the group does not confirm them, or its confirmation has grown too old; Unavailable.
    """
    higher = [(context, epochs) for context in lanes if (epochs := await _higher(context))]
    if not higher:
        return []
    asked_at = clock.monotonic()
    holds_s = await consumer.confirm([Assignment(context.partition, context.lane.epoch) for context, _ in higher])
    begun: list[TopicPartition] = []
    for context, seen in higher:
        if clock.monotonic() - asked_at >= holds_s:
            raise PartitionLost("the group's confirmation has grown too old")
        if await context.state.begin_anew(context.lane, seen):
            begun.append(context.partition)
    return begun


async def _higher(context: Owned) -> dict[int, int]:
    """By tag the epochs that fence this lane."""
    seen = await context.state.epochs(context.lane, context.tags)
    return {tag: epoch for tag, epoch in seen.items() if epoch > context.lane.epoch}
