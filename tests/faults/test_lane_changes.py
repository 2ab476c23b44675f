"""A receiver changes its lane while messages are in flight: its old lane finishes them."""

from collections.abc import Awaitable, Callable

import pytest

from relay.config.settings import Settings
from relay.log.partitioner import partition_of
from relay.recovery.unfinished import unfinished
from tests.fakes.log import MemoryLog
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.fakes.strikes import Fuse
from tests.fakes.world import Process, World, message, receiver

HELD = Settings(receivers_file="none", hold_max=5.0)
"""Every longer wait is parked."""
SHARED_PARTITIONS = 32
SLOW = {"base": 60, "factor": 1, "cap": 60, "max_attempts": 1000}


async def _left(world: World, name: str, lane: str) -> int:
    log = MemoryLog(world.broker)
    await log.start()
    return await unfinished(log, world.state, world.topics, name, lane)


def _neighbour_of(name: str) -> str:
    """A name whose records share the partition of `name` in the shared lane."""
    place = partition_of(name.encode(), SHARED_PARTITIONS)
    names = (f"n{number}" for number in range(10_000))
    return next(one for one in names if partition_of(one.encode(), SHARED_PARTITIONS) == place)


async def test_what_is_parked_counts_although_its_offset_is_committed() -> None:
    world = await World([receiver("r", "/down", base=600.0, cap=600.0)], settings=HELD).create()
    world.outside.down = {"down"}
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    await world.run(Fuse(), 20)
    assert not world.uncommitted()
    assert await _left(world, "r", "r") == 2
    world.outside.down.clear()
    await world.run(Fuse(), 1300)
    assert await _left(world, "r", "r") == 0


async def test_in_the_shared_lane_only_the_receivers_own_messages_count() -> None:
    """The neighbour's one hangs at the head of the same partition, and no offset behind it is committed."""
    slow = _neighbour_of("r")
    world = await World(
        [receiver("r", "/answer", lane="shared"), receiver(slow, "/slow", lane="shared", timeout=300.0)]
    ).create()
    world.outside.slow_s = 200.0
    await world.send(message(0, "a", slow), message(1, "a", "r"), message(2, "a", "r"))
    process = await Process(world).run(20)
    assert world.outside.arrived("/answer") == ["a-1", "a-2"]
    assert any("shared" in at.topic for at in world.uncommitted())
    assert await _left(world, "r", "shared") == 0
    assert await _left(world, slow, "shared") == 1
    await process.kill()


async def test_what_nobody_has_read_yet_counts() -> None:
    world = await World([receiver("r", "/slow", lane="shared", timeout=300.0)]).create()
    world.outside.slow_s = 200.0
    await world.send(*(message(number, "a", "r") for number in range(3)))
    process = await Process(world).run(20)
    assert await _left(world, "r", "shared") == 3  # one is in flight, two wait behind it
    await process.kill()


# moves


def _first_arrivals(world: World, path: str, source: str) -> list[str]:
    return list(dict.fromkeys(world.outside.arrived(path, source)))


def _ids(source: str, *numbers: int) -> list[str]:
    return [f"{source}-{number}" for number in numbers]


async def _until(process: Process, seen: Callable[[], Awaitable[bool]], seconds: float = 600.0) -> None:
    for _ in range(int(seconds)):
        if await seen():
            return
        assert not await process.ended(1)
    raise AssertionError("it never came")


@pytest.mark.parametrize(("before", "after"), [("dedicated", "shared"), ("shared", "dedicated")])
async def test_what_is_parked_in_the_old_lane_comes_before_what_the_new_one_gets(before: str, after: str) -> None:
    world = await MovingWorld().create("r", status_endpoint="http://r/answer/{message_id}", lane=before, retry=SLOW)
    process = MovingProcess(world)
    world.outside.down = {"answer"}
    await world.send(*(message(number, "a", "r") for number in range(3)))
    await process.ended(20)
    assert world.parked_copies()
    await world.declare("r", status_endpoint="http://r/answer/{message_id}", lane=after, retry=SLOW)
    await process.ended(20)
    assert (await world.route("r")).moving
    await world.send(*(message(number, "a", "r") for number in range(3, 6)))
    await process.ended(20)
    assert not world.outside.arrived("/answer")
    world.outside.down.clear()
    await _until(process, world.is_at_rest)
    assert world.outside.arrived("/answer") == _ids("a", *range(6))
    route = await world.route("r")
    assert (route.version, route.lane, route.moving) == (1, after, False)
    await process.stop()
