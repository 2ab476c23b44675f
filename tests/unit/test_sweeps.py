"""Lanes without a reader are looked at less and less often, a few at a time."""

import asyncio

from relay.watch.lane_migration import FIRST_SWEEP_S, SWEEPS_AT_ONCE, Sweeps
from tests.fakes.virtual_time import LoopClock, virtually


def looked_at(sweeps: Sweeps, *names: str, what: int = 1) -> list[str]:
    """Those of `names` that are taken in a round. Nothing is found there."""
    sweeps.begin()
    taken = [name for name in names if sweeps.takes(name, what)]
    for name in taken:
        sweeps.found_nothing(name, what)
    return taken


@virtually
async def test_each_wait_is_twice_as_long_as_the_one_before() -> None:
    sweeps = Sweeps(LoopClock())
    assert sweeps.is_due()
    for wait_s in (FIRST_SWEEP_S, 2 * FIRST_SWEEP_S, 4 * FIRST_SWEEP_S):
        assert looked_at(sweeps, "a") == ["a"]
        assert looked_at(sweeps, "a") == []
        await asyncio.sleep(wait_s - 1)
        assert not sweeps.is_due()
        await asyncio.sleep(1)
        assert sweeps.is_due()


@virtually
async def test_what_has_changed_begins_anew() -> None:
    sweeps = Sweeps(LoopClock())
    looked_at(sweeps, "a")
    await asyncio.sleep(FIRST_SWEEP_S)
    looked_at(sweeps, "a")
    assert looked_at(sweeps, "a", what=2) == ["a"]
    await asyncio.sleep(FIRST_SWEEP_S)
    assert looked_at(sweeps, "a", what=2) == ["a"]
    sweeps.forget("a")
    assert looked_at(sweeps, "a", what=2) == ["a"]


@virtually
async def test_what_failed_is_due_again_and_what_is_over_never() -> None:
    sweeps = Sweeps(LoopClock())
    sweeps.begin()
    assert sweeps.takes("a", 1)  # and then the log was away
    assert sweeps.is_due()
    sweeps.begin()
    assert sweeps.takes("a", 1)
    sweeps.never_again("a", 1)
    assert not sweeps.is_due()
    await asyncio.sleep(100 * FIRST_SWEEP_S)
    assert not sweeps.is_due()
    assert looked_at(sweeps, "a") == []


@virtually
async def test_a_round_is_bounded_and_the_next_one_goes_on() -> None:
    names = [f"r{number}" for number in range(SWEEPS_AT_ONCE + 5)]
    sweeps = Sweeps(LoopClock())
    first = looked_at(sweeps, *names)
    assert len(first) == SWEEPS_AT_ONCE
    assert sweeps.is_due()
    assert {*first, *looked_at(sweeps, *names)} == set(names)
    assert not sweeps.is_due()
