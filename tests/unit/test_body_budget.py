"""Memory for bodies: taken in turns, given back whatever happens, and small bodies apart from large ones."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.api.bounds import SMALL, BodyBudget, BodyMemory, BodyReservation

LARGE = SMALL + 1


async def settle() -> None:
    """Run every task until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


def full(memory: BodyMemory, size: int) -> bool:
    """Whether there is no room for a body of that size."""
    room = memory.room()
    try:
        return not room.take_now(size)
    finally:
        room.leave()


async def test_those_who_wait_come_in_turn_and_a_smaller_one_does_not_overtake() -> None:
    pool, came = BodyBudget(10), list[int]()

    async def one(size: int) -> None:
        await pool.take(size)
        came.append(size)

    assert pool.take_now(8)
    tasks = [asyncio.create_task(one(size)) for size in (5, 1, 4)]
    await settle()
    assert came == []
    pool.give_back(8)
    await settle()
    assert came == [5, 1, 4]
    assert not pool.take_now(1)
    await asyncio.gather(*tasks)


async def test_who_holds_the_least_comes_first() -> None:
    pool, came = BodyBudget(10), list[str]()

    async def one(party: str, size: int) -> None:
        await pool.take(size, party)
        came.append(party)

    for _ in range(5):
        assert pool.take_now(2, "slow")
    tasks = [asyncio.create_task(one(party, 2)) for party in ("slow", "slow", "other", "other", "third")]
    await settle()
    pool.give_back(2, "slow")
    await settle()
    assert came == ["other"]
    assert not pool.take_now(0, "slow"), "before those who wait"
    for _ in range(4):
        pool.give_back(2, "slow")
        await settle()
    assert came == ["other", "third", "other", "slow", "slow"]
    await asyncio.gather(*tasks)


async def test_one_that_gives_up_leaves_its_turn_to_the_next() -> None:
    pool = BodyBudget(10)
    assert pool.take_now(5)
    first, second = asyncio.create_task(pool.take(9)), asyncio.create_task(pool.take(3))
    await settle()
    first.cancel()
    await settle()
    assert second.done()
    assert first.cancelled()
    assert not pool.take_now(3)
    assert pool.take_now(2)


async def test_one_that_gives_up_at_the_very_moment_gives_back() -> None:
    pool = BodyBudget(10)
    assert pool.take_now(10)
    waiting = asyncio.create_task(pool.take(10))
    await settle()
    pool.give_back(10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pool.take_now(10)


def test_large_bodies_leave_room_for_small_ones() -> None:
    memory = BodyMemory(8 * SMALL)
    rooms: list[BodyReservation] = []
    while (room := memory.room()).take_now(LARGE):
        rooms.append(room)
    assert 1 <= len(rooms) <= 5
    assert not full(memory, SMALL)
    for room in rooms:
        room.leave()
        room.leave()  # released twice, it is returned once
    assert not full(memory, 6 * SMALL)


def test_what_a_body_turned_out_not_to_need_is_given_back() -> None:
    memory = BodyMemory(8 * SMALL)
    room = memory.room()
    assert room.take_now(6 * SMALL)
    assert full(memory, LARGE)
    room.shrink(10)
    assert not full(memory, LARGE)
    room.leave()
    assert not full(memory, 6 * SMALL)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
async def test_never_more_is_held_than_there_is(steps: list[tuple[bool, int]]) -> None:
    pool, held = BodyBudget(100), list[int]()
    for take, size in steps:
        if take and pool.take_now(size):
            held.append(size)
        elif held and not take:
            pool.give_back(held.pop(size % len(held)))
        assert sum(held) <= 100
        assert pool.take_now(100 - sum(held))
        pool.give_back(100 - sum(held))
