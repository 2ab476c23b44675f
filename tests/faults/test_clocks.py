"""Processes whose own clocks are off: nothing dies early, and nothing waits for as long as the clock is off."""

from dataclasses import replace

import pytest

from relay.domain.receiver import Receiver
from tests.fakes.state import MemoryState
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import OffClock, run_virtually
from tests.fakes.world import Process, World, message, receiver

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
        wrong = Process(world, Fuse(blow_at), clock=OffClock(off_s))
        await wrong.ended(10)
        await wrong.kill()
        right = Process(world, clock=OffClock(0.0))
        assert not await right.ended(3 * AWAY_S)
        await right.stop()
        assert world.told.dead_letters == {}
        assert _all_answered(world)
        assert await world.is_at_rest()

    run_virtually(main())
