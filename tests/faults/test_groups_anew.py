"""Consumer groups count anew, or have lost their offsets, while the state remembers: deleted, expired, rebuilt."""

import asyncio

import pytest

from relay.engine.runner import FENCED_S
from tests.fakes.strikes import STRIKES, Frost, Fuse, Strikes, crash_at_each
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

LONG_AGO = 29
AGAIN_S = FENCED_S + 30
"""A fenced lane waits, its consumer is made anew, and then it goes on; the answers take the same once more."""


async def _served(world: World, *numbers: int) -> None:
    """A process that delivers these, and stops."""
    await world.send(*(message(number, "a", "r") for number in numbers))
    process = Process(world)
    assert not await process.ended(20)
    await process.stop()


def _count_anew(world: World, *, offsets: bool) -> None:
    if not offsets:
        for read in world.broker.epochs:
            world.broker.offsets.pop(read, None)
    world.broker.epochs.clear()


async def _world(path: str, *, lane: str = "dedicated") -> World:
    world = await World(
        [receiver("r", path, status=True, lane=lane, partitions=2 if lane == "dedicated" else 1)]
    ).create()
    await _served(world, 0)
    for key in list(world.broker.epochs):
        world.broker.epochs[key] = LONG_AGO
    await _served(world, 1, 2)
    return world


async def _goes_on(path: str, *, lane: str, offsets: bool) -> World:
    world = await _world(path, lane=lane)
    _count_anew(world, offsets=offsets)
    await world.send(*(message(number, "a", "r") for number in (3, 4)))
    process = Process(world)
    assert not await process.ended(4 * AGAIN_S), "it must not end on that account"
    await process.stop()
    return world


@pytest.mark.parametrize("offsets", [True, False], ids=["offsets kept", "offsets lost"])
@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("path", ["/answer", "/later"])
def test_lanes_go_on_in_the_running_process_and_nothing_comes_twice(path: str, lane: str, offsets: bool) -> None:
    world = run_virtually(_goes_on(path, lane=lane, offsets=offsets))
    assert world.told.fenced_lanes, "else this tests nothing"
    assert world.outside.arrived(path) == [f"a-{number}" for number in range(5)]
    assert len(world.outside.results()) == 5
    assert not world.uncommitted()


async def _parked_line() -> World:
    """A head that is parked, in the hand of an owner who dies with it; then the group counts anew."""
    world = await World([receiver("r", "/slow", base=90.0, cap=90.0)]).create()
    await _served(world, 100)
    for key in list(world.broker.epochs):
        world.broker.epochs[key] = LONG_AGO
    world.outside.down.add("slow")
    await world.send(*(message(number, "a", "r") for number in range(3)))
    first = await Process(world).run(5)
    world.outside.down.clear()
    await first.ended(95)
    await first.kill()
    _count_anew(world, offsets=True)
    second = Process(world)
    assert not await second.ended(300)
    await second.stop()
    return world


def test_parked_records_go_on_too() -> None:
    world = run_virtually(_parked_line())
    delivered = list(dict.fromkeys(world.outside.arrived("/slow")))
    assert delivered == ["a-100", "a-0", "a-1", "a-2"]
    assert set(world.outside.results()) == {(f"a-{number}", "r") for number in (100, 0, 1, 2)}


class _Asleep(Frost):
    """A process that freezes at a begin when the test wants it, before the state gets the call."""

    def __init__(self) -> None:
        super().__init__(blow_at=10**9)
        self.tired = False

    async def before(self, name: str) -> None:
        if self.tired and name == "state.begin":
            self.frozen.set()
        await super().before(name)


async def _thawed() -> tuple[World, list[str]]:
    """An owner of before is frozen, the group counts anew, another goes on, and then the first one thaws."""
    world, asleep = await _world("/answer"), _Asleep()
    former = Process(world, asleep)
    await world.send(message(3, "a", "r"))
    assert not await former.ended(20)
    asleep.tired = True
    await world.send(message(4, "a", "r"))
    await asyncio.wait_for(asleep.frozen.wait(), 20)
    former.log.expel()
    _count_anew(world, offsets=True)
    owner = Process(world)
    assert not await owner.ended(2 * AGAIN_S)
    assert world.outside.arrived("/answer") == [f"a-{number}" for number in range(5)]
    asleep.thaw.set()
    await former.ended(0.5)
    await world.send(message(5, "a", "r"))
    await owner.ended(FENCED_S / 2)
    arrived = world.outside.arrived("/answer")
    await asyncio.gather(former.stop(), owner.stop())
    return world, arrived


def test_an_owner_of_before_that_thaws_fences_nobody() -> None:
    world, arrived = run_virtually(_thawed())
    assert arrived == [f"a-{number}" for number in range(6)], "at once, not when a fenced lane was made anew"
    assert not world.uncommitted()


async def _crashing(fuse: Fuse) -> None:
    world = await _world("/answer")
    _count_anew(world, offsets=True)
    await world.send(*(message(number, "a", "r") for number in (3, 4)))
    await world.run(fuse, 2 * AGAIN_S, until=lambda: len(world.outside.results()) == 5)
    if fuse.blown:
        await world.run(Fuse(), 8 * AGAIN_S, until=lambda: len(world.outside.results()) == 5)
    assert world.outside.arrived("/answer") == [f"a-{number}" for number in range(5)], fuse.place
    assert not world.uncommitted(), fuse.place


@STRIKES
def test_a_crash_on_the_way_loses_and_doubles_nothing(strikes: Strikes) -> None:
    (passed, _), *_ = crash_at_each(_crashing, strikes)
    assert {"state.epochs", "consumer.confirm", "state.begin_anew"} <= set(passed.names)
