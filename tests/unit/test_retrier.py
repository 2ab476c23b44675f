"""Waiting for our own infrastructure."""

import asyncio

import pytest

from relay.domain.errors import LogUnavailable, PartitionLost, StateRecovering, StateUnavailable, Unavailable
from relay.engine.observer import Observer
from relay.engine.supervision import FIRST_REPEAT_S, LONGEST_REPEAT_S, Retrier
from tests.fakes.virtual_time import LoopClock, virtually


class _Told(Observer):
    def __init__(self) -> None:
        self.waits: list[tuple[str, Unavailable]] = []
        self.recovering: list[frozenset[int]] = []

    def waiting(self, what: str, error: Unavailable) -> None:
        self.waits.append((what, error))

    def state_recovering(self, tags: frozenset[int]) -> None:
        self.recovering.append(tags)


class _Failing:
    """Raises these, one a call; then answers. Remembers when it was called."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.at: list[float] = []

    async def __call__(self) -> str:
        self.at.append(asyncio.get_running_loop().time())
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


@virtually
async def test_it_repeats_until_the_call_succeeds_and_pauses_longer_and_longer() -> None:
    told, call = _Told(), _Failing(*[LogUnavailable("away")] * 12)
    assert await Retrier(LoopClock(), told).until_done("ask", lambda: call()) == "answer"
    pauses = [round(later - earlier, 6) for earlier, later in zip(call.at, call.at[1:], strict=False)]
    assert pauses[0] == FIRST_REPEAT_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_REPEAT_S
    assert [what for what, _ in told.waits] == ["ask"] * 12


@virtually
async def test_lost_memory_is_told_so_that_somebody_recovers_it() -> None:
    told, call = _Told(), _Failing(StateRecovering(frozenset({3})), StateUnavailable("away"))
    await Retrier(LoopClock(), told).until_done("ask", call)
    assert told.recovering == [frozenset({3})]
    assert len(told.waits) == 2


@virtually
async def test_other_errors_pass_through_at_once() -> None:
    call = _Failing(PartitionLost("a newer owner"))
    with pytest.raises(PartitionLost):
        await Retrier(LoopClock(), Observer()).until_done("ask", call)
    assert len(call.at) == 1
