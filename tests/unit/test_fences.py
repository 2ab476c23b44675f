"""Whether a lane's epoch begins anew: as the group says, and only as long as what it said counts."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from relay.domain.errors import LogUnavailable, PartitionLost
from relay.engine.supervision import begin_anew
from relay.log.port import Assignment, TopicPartition
from relay.state.port import Lane
from relay.state.replies import answered, of
from relay.state.rows import DueRequest, tag_of
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import LoopClock, virtually

TAG = tag_of("r:ci")
HOLDS_S = 15.0
LANE = Lane("to_receiver_ci", 0, 2)
OTHER = Lane("to_receiver_ci", 1, 2)


class _Consumer:
    """A member that its group confirms, after `takes` something."""

    def __init__(self, takes: Callable[[], Awaitable[None]] | None = None, refusal: Exception | None = None) -> None:
        self._takes = takes
        self._refusal = refusal
        self.asked: list[Assignment] = []

    async def confirm(self, assignments: Sequence[Assignment]) -> float:
        self.asked += assignments
        if self._takes is not None:
            await self._takes()
        if self._refusal is not None:
            raise self._refusal
        return HOLDS_S


@dataclass(frozen=True)
class _Owned:
    state: MemoryState
    lane: Lane = LANE
    tags: tuple[int, ...] = (TAG,)

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.lane.topic, self.lane.partition)


async def fenced(*epochs: int) -> MemoryState:
    """A state that has seen these epochs of the lanes with partitions 0, 1, ..."""
    state = MemoryState()
    for partition, epoch in enumerate(epochs):
        await answered(
            state.take_due(of(LANE._replace(partition=partition, epoch=epoch), [DueRequest(TAG, 1)]), lease_s=1)
        )
    return state


async def anew(consumer: _Consumer, *lanes: _Owned) -> list[TopicPartition]:
    taken: Any = consumer
    return await begin_anew(taken, lanes, LoopClock())


@virtually
async def test_a_confirmed_lane_begins_anew_and_others_stay_as_they_are() -> None:
    state, consumer = await fenced(29, 1), _Consumer()
    assert await anew(consumer, _Owned(state), _Owned(state, OTHER)) == [TopicPartition("to_receiver_ci", 0)]
    assert consumer.asked == [Assignment(TopicPartition("to_receiver_ci", 0), 2)]
    assert await state.epochs(LANE, [TAG]) == {TAG: 2}
    assert await state.epochs(OTHER, [TAG]) == {TAG: 1}


@virtually
async def test_where_nothing_is_higher_nobody_is_asked() -> None:
    state, consumer = await fenced(2), _Consumer()
    assert await anew(consumer, _Owned(state)) == []
    assert consumer.asked == []


@pytest.mark.parametrize("refusal", [PartitionLost("not a member"), LogUnavailable("away")])
@virtually
async def test_what_the_group_does_not_confirm_stays_fenced(refusal: Exception) -> None:
    state = await fenced(29)
    with pytest.raises(type(refusal)):
        await anew(_Consumer(refusal=refusal), _Owned(state))
    assert await state.epochs(LANE, [TAG]) == {TAG: 29}


@pytest.mark.parametrize(("slept_s", "counts"), [(HOLDS_S - 0.1, True), (HOLDS_S, False), (3600.0, False)])
@virtually
async def test_a_confirmation_that_was_slept_on_counts_no_more(slept_s: float, counts: bool) -> None:
    """From before the question on: the process may have slept between the answer and its reading."""
    state = await fenced(29)
    consumer = _Consumer(takes=lambda: LoopClock().sleep(slept_s))
    if counts:
        assert await anew(consumer, _Owned(state))
    else:
        with pytest.raises(PartitionLost):
            await anew(consumer, _Owned(state))
    assert await state.epochs(LANE, [TAG]) == {TAG: 2 if counts else 29}


@pytest.mark.parametrize("since", [3, 30])
@virtually
async def test_an_owner_that_came_since_the_epoch_was_read_is_left_alone(since: int) -> None:
    """Whether it began anew itself, or came to a higher epoch than all of before."""
    state = await fenced(29)

    async def other() -> None:
        newer = LANE._replace(epoch=since)
        if since < 29:
            await state.begin_anew(newer, {TAG: 29})
        await answered(state.take_due(of(newer, [DueRequest(TAG, 1)]), lease_s=1))

    assert await anew(_Consumer(takes=other), _Owned(state)) == []
    assert await state.epochs(LANE, [TAG]) == {TAG: since}
