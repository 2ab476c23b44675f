"""Clocks of processes that are off, and one of the state that is set back: nothing dies early, and nothing waits for as
long as the clock is off."""

import asyncio
from contextlib import nullcontext, suppress
from dataclasses import replace
from unittest.mock import patch

import pytest

from relay.domain.receiver import Receiver
from relay.engine.observer import Observer
from relay.engine.request_limiter import RequestLimiter, attend
from relay.state.rows import TAGS
from tests.fakes.state import MemoryState
from tests.fakes.state_memory import Memory
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import OffClock, run_virtually
from tests.fakes.world import Process, World, message, receiver
from tests.faults.simulation.scene import Scene

HOUR_S, DAY_S = 3_600.0, 86_400.0
LONGEST_S = 1_800.0
"""Less than the clocks are off: age and answer may take so long."""
AWAY_S = 90.0
"""Beyond what a lane holds in memory: it is parked."""


def _asked() -> Receiver:
    return replace(receiver("asked", "/later", status=True), answer_deadline=LONGEST_S)


def _retried() -> Receiver:
    return receiver("retried", "/flaky", base=AWAY_S, cap=AWAY_S, max_age=LONGEST_S)


async def _world() -> World:
    world = World([_asked(), _retried()])
    world.state = MemoryState(clock=world.clock.time, ready=False)
    await world.create()
    await world.send(*[message(number, "s", "asked", "retried") for number in range(4)])
    return world


def _all_answered(world: World) -> bool:
    results = world.outside.results()
    return len(results) == 8 and set().union(*results.values()) == {"answered"}


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S, DAY_S, -DAY_S])
def test_one_process_alone(off_s: float) -> None:
    async def main() -> None:
        world = await _world()
        process = Process(world, clock=OffClock(off_s))
        assert not await process.ended(3 * AWAY_S)
        await process.stop()
        assert world.told.dead_letters == {}
        assert _all_answered(world)
        assert await world.is_at_rest()

    run_virtually(main())


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S, DAY_S, -DAY_S])
@pytest.mark.parametrize("blow_at", range(20, 60, 4))
def test_another_takes_over_what_it_has_begun(off_s: float, blow_at: int) -> None:
    async def main() -> None:
        world = await _world()
        wrong = await Process(world, Fuse(blow_at), clock=OffClock(off_s)).run(10)
        await wrong.kill()
        right = Process(world, clock=OffClock(0.0))
        assert not await right.ended(3 * AWAY_S)
        await right.stop()
        assert world.told.dead_letters == {}
        assert _all_answered(world)
        assert await world.is_at_rest()

    run_virtually(main())


async def test_the_clock_of_the_state_is_set_back_while_retries_wait() -> None:
    world = await _world()
    process = Process(world)
    assert not await process.ended(AWAY_S / 2)
    world.state.advance(-HOUR_S)
    assert not await process.ended(3 * AWAY_S)
    await process.kill()
    world.state.lose()  # parked records are put back by the due times of their copies
    process = Process(world, clock=OffClock(0.0))
    assert not await process.ended(3 * AWAY_S)
    await process.stop()
    assert world.told.dead_letters == {}
    assert _all_answered(world)
    assert await world.is_at_rest()


async def test_a_state_whose_time_goes_back_is_found_by_the_simulation() -> None:
    """Planted: moments are compared with the clock of the server as it is."""
    for planted in (False, True):
        with patch.object(Memory, "now", Memory.server_now) if planted else nullcontext():
            scene = await Scene.opened()
            await scene.produce("a", ["fail", "later"], 2)
            await scene.run(5)
            await scene.turn_clock(-HOUR_S)
            stuck = [wrong for wrong in await scene.wrongs_at_end() if "stuck" in wrong]
        assert bool(stuck) is planted


async def test_that_it_was_set_back_is_reported_once() -> None:
    state, told = MemoryState(clock=lambda: 1e9), list[float]()

    class Noting(Observer):
        def state_clock_set_back(self, seconds: float) -> None:
            told.append(seconds)

    class Stepping(OffClock):
        async def sleep(self, seconds: float) -> None:
            state.advance(-HOUR_S if len(steps) == 1 else seconds)
            steps.append(seconds)
            if len(steps) == 5:
                raise asyncio.CancelledError

    steps: list[float] = []
    with suppress(asyncio.CancelledError):
        await attend(state, Stepping(0.0), RequestLimiter(Stepping(0.0)), range(TAGS), Noting())
    assert told == [HOUR_S]
