"""Coalesced calls: which requests share a call, which result belongs to which, and the effect of a cancelled one on the
others."""

import asyncio
from collections.abc import Sequence

import pytest

from relay.api.coalesce import LIMIT, Coalescer
from relay.domain.errors import LogUnavailable, Unavailable


class Calls:
    """Doubles numbers; each call waits for `go`. An item in `faulty` makes its call fail."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.go = asyncio.Semaphore(0)
        self.begun = asyncio.Semaphore(0)
        self.faulty: set[int] = set()
        self.shared = Coalescer(self._double)

    async def _double(self, items: Sequence[int]) -> list[int]:
        self.seen.append(list(items))
        self.begun.release()
        await self.go.acquire()
        if self.faulty & set(items):
            raise LogUnavailable("away")
        return [2 * item for item in items]

    def ask(self, *items: int) -> asyncio.Task[Sequence[int]]:
        return asyncio.ensure_future(self.shared(items))


@pytest.fixture
async def calls() -> Calls:
    return Calls()


async def begin(calls: Calls, *items: int) -> asyncio.Task[Sequence[int]]:
    """A call in flight."""
    asked = calls.ask(*items)
    await calls.begun.acquire()
    return asked


async def test_those_of_one_turn_of_the_loop_share_a_call(calls: Calls) -> None:
    calls.go.release()
    asked = [calls.ask(1), calls.ask(2, 3), calls.ask(4)]
    assert await asyncio.gather(*asked) == [[2], [4, 6], [8]]
    assert calls.seen == [[1, 2, 3, 4]]
    assert calls.shared.idle


async def test_those_that_come_during_a_call_share_the_next(calls: Calls) -> None:
    first = await begin(calls, 1)
    later = [calls.ask(2), calls.ask(3)]
    assert not calls.shared.idle
    for _ in range(2):
        calls.go.release()
    assert await asyncio.gather(first, *later) == [[2], [4], [6]]
    assert calls.seen == [[1], [2, 3]]


async def test_a_full_group_is_followed_by_another(calls: Calls) -> None:
    first = await begin(calls, 0)
    later = [calls.ask(*range(LIMIT)), calls.ask(1), calls.ask(2)]
    for _ in range(3):
        calls.go.release()
    await asyncio.gather(first, *later)
    assert [len(items) for items in calls.seen] == [1, LIMIT, 2]


async def test_a_failure_is_everybodys_in_that_group_only(calls: Calls) -> None:
    calls.faulty = {2}
    first = await begin(calls, 1)
    later = [calls.ask(2), calls.ask(3)]
    for _ in range(3):
        calls.go.release()
    assert await first == [2]
    for asked in later:
        with pytest.raises(LogUnavailable):
            await asked
    assert await calls.ask(4) == [8]


async def test_one_that_is_cut_off_does_not_take_the_call_along(calls: Calls) -> None:
    first = await begin(calls, 1)
    leader, follower, other = calls.ask(2), calls.ask(3), calls.ask(4)
    await asyncio.sleep(0)
    follower.cancel()
    for _ in range(2):
        calls.go.release()
    assert [list(await one) for one in (first, leader, other)] == [[2], [4], [8]]


@pytest.mark.parametrize("waits", [True, False])
async def test_one_that_calls_for_others_and_is_cut_off_tells_them(calls: Calls, waits: bool) -> None:
    first = await begin(calls, 1) if waits else None
    leader, follower = calls.ask(2), calls.ask(3)
    if not waits:
        await calls.begun.acquire()
    await asyncio.sleep(0)
    leader.cancel()
    with pytest.raises(Unavailable):
        await follower
    calls.go.release()
    if first is not None:
        assert await first == [2]
        calls.go.release()
    assert await calls.ask(4) == [8]
    assert calls.shared.idle
