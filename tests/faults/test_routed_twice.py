"""A message is routed twice, because a process froze or died while it routed it, and its receivers change in between:
each delivery has one end."""

import asyncio

import pytest

from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import CRASHES, Frost, Fuse, Strikes
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import message

_ROUTING = {"state.arrive", "state.settle", "log.append", "state.mark", "state.enqueued"}


class _Process(ReplayProcess):
    rebuilds = True


async def _world(change: str) -> ReplayWorld:
    """Before the change."""
    world = await ReplayWorld().create("other")
    if change != "registered":
        await world.declare("r")
    return world


async def _change(world: ReplayWorld, process: _Process, change: str) -> None:
    if change == "registered":
        await world.declare("r")
    elif change == "removed":
        await world.remove("r")
    else:
        await world.erase(source_id="a", message_id="a-0")
    await process.ended(1)


async def _with_a_zombie(frost: Frost, change: str) -> ReplayWorld:
    """The process that has the message first freezes; another one routes it before and after its receiver changes."""
    world = await _world(change)
    zombie = _Process(world, frost)
    await world.send(message(0, "a", "r", "other"))
    await zombie.ended(1)
    zombie.log.expel()
    process = await _Process(world).run(20)
    await _change(world, process, change)
    frost.thaw.set()
    await asyncio.sleep(5)
    await zombie.finish()
    await process.stop()
    return world


async def _with_a_crash(fuse: Fuse, change: str) -> ReplayWorld:
    """The process that routes the message dies, and its receiver changes before the next one does."""
    world = await _world(change)
    first = _Process(world, fuse)
    await world.send(message(0, "a", "r", "other"))
    await first.stop(after=20)
    second = _Process(world)
    await _change(world, second, change)
    await second.finish()
    return world


def _judge(world: ReplayWorld, place: str) -> None:
    results = world.outside.results()
    assert {name: len(ends) for (_, name), ends in results.items()} == {"r": 1, "other": 1}, (place, results)
    assert ("a-0" in world.outside.arrived("/answer")) or results["a-0", "r"] == {"failed"}, place


def _places(strikes: Strikes, change: str) -> list[int]:
    """Calls with which a message is routed."""
    counted = Fuse()
    run_virtually(_with_a_crash(counted, change))
    return [at for at in strikes(counted) if counted.names[at - 1] in _ROUTING]


CHANGES = pytest.mark.parametrize("change", ["removed", "registered", "erased"])


@CRASHES
@CHANGES
def test_a_process_that_was_frozen_ends_nothing_that_has_ended(change: str, strikes: Strikes, late: bool) -> None:
    for at in _places(strikes, change):
        _judge(run_virtually(_with_a_zombie(Frost(at, after=late), change)), f"call {at}")


@CRASHES
@CHANGES
def test_after_a_crash_nothing_ends_twice(change: str, strikes: Strikes, late: bool) -> None:
    for at in _places(strikes, change):
        _judge(run_virtually(_with_a_crash(Fuse(at, after=late), change)), f"call {at}")
