"""Who freezes while a message fails, and wakes up when that lives again and is parked, removes nothing of it."""

import asyncio
from typing import Any

from relay.config.settings import Settings
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import CRASHES, Frost, Fuse, Fused, Strikes
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import run_virtually, until
from tests.fakes.world import message, recovery_of
from tests.faults.test_replays import RebuildingProcess

PARKS: dict[str, Any] = {"base": 20, "factor": 1, "cap": 20, "max_attempts": 2}


class FirstLife(Fuse):
    """The calls of a process that nothing befalls."""

    @property
    def removals(self) -> list[int]:
        """Those that remove what was parked: the tombstone, and the reference."""
        unpark = self.names.index("state.unpark")
        return [unpark - self.names[unpark::-1].index("log.append") + 1, unpark + 1]


async def _world() -> ReplayWorld:
    """Its one message is refused, parked, and refused for the last time."""
    world = await ReplayWorld(settings=Settings(receivers_file="none", hold_max=5.0)).create("r", retry=PARKS)
    world.outside.troubles["a-0"] = [REFUSED] * 2
    await world.send(message(0, "a", "r"))
    return world


async def calls_of_the_first_life() -> FirstLife:
    world, fuse = await _world(), FirstLife()
    await ReplayProcess(world, fuse).finish()
    return fuse


async def _is_parked_in_its_second_life(world: ReplayWorld, process: ReplayProcess) -> None:
    await until(world.is_at_rest)
    world.outside.troubles["a-0"] = [REFUSED]
    await process.registry.ready.wait()
    await process.order()

    async def is_parked() -> bool:
        return await world.parked_references() == 1

    await until(is_parked)


async def _ends_in_its_second_life(world: ReplayWorld, place: str) -> None:
    await until(world.is_at_rest)
    assert world.generations("/answer") == [("a-0", 1)], place
    assert world.outside.results() == {("a-0", "r"): {"failed", "answered"}}, place


async def no_life_is_lost(freeze_at: int, *, after: bool = False) -> None:
    world, frost = await _world(), Frost(freeze_at, after=after)
    first = ReplayProcess(world, frost)
    freezing = asyncio.create_task(frost.frozen.wait())
    await asyncio.wait([freezing], timeout=100)
    freezing.cancel()
    place = f"call {freeze_at}, {frost.names[-1]}"
    first.log.expel()
    second = RebuildingProcess(world)
    await _is_parked_in_its_second_life(world, second)
    frost.thaw.set()
    await first.ended(1)
    await _ends_in_its_second_life(world, place)
    await asyncio.gather(first.stop(), second.stop())


@CRASHES
def test_who_wakes_up_too_late_leaves_the_next_life_alone(late: bool, strikes: Strikes) -> None:
    calls = run_virtually(calls_of_the_first_life())
    for freeze_at in {*strikes(calls), *calls.removals}:
        run_virtually(no_life_is_lost(freeze_at, after=late))


async def test_so_does_a_recovery_that_wakes_up_before_its_tombstone() -> None:
    """What it has found finished was left by a process that died before it removed it."""
    world = await _world()
    await ReplayProcess(world, Fuse((await calls_of_the_first_life()).removals[0])).ended(100)
    frost = _BeforeAppending(0)
    frozen = asyncio.create_task(_check(world, frost))
    await frost.frozen.wait()
    process = ReplayProcess(world)
    await _is_parked_in_its_second_life(world, process)
    frost.thaw.set()
    await frozen
    await _ends_in_its_second_life(world, "recovery")
    await process.stop()


class _BeforeAppending(Frost):
    async def before(self, name: str) -> None:
        self.names.append(name)
        if name == "log.append":
            await self.strike()


async def _check(world: ReplayWorld, frost: Frost) -> None:
    recovery = recovery_of(world, "test", Fused(await world.client(), frost, "log"), in_doubt_s=60.0)
    assert await recovery.check() is not None
