"""A receiver gets more partitions: when that begins, how it goes on after a refusal, and who is not concerned."""

import asyncio
from typing import Any

from relay.checks.topics import unused_topics
from relay.config.settings import Settings
from relay.control.apply import awaited
from relay.domain.errors import UserError
from relay.log.partitioner import partition_of
from relay.watch.lane_migration import LaneMigration
from tests.fakes.log import MemoryLog
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.fakes.state import MemoryState
from tests.fakes.virtual_time import until
from tests.fakes.world import message
from tests.faults.test_moves import ASKED, all_over

ROOM = 3
FEW = Settings(receivers_file="none", hold_max=5.0, parked_per_receiver=4 * ROOM)


async def test_its_messages_are_spread_over_all_partitions_in_the_end() -> None:
    world = await MovingWorld().create("r", **ASKED)
    process = MovingProcess(world)
    await world.send(message(0, "a", "r"))
    await process.ended(5)
    await world.declare("r", partitions=3, **ASKED)
    await until(lambda: all_over(world))
    sources = [f"s{number}" for number in range(12)]
    await world.send(*(message(0, source, "r") for source in sources))
    await until(lambda: all_over(world))
    await process.stop()
    topic = world.topics.to_receiver("r")
    taken = {record.key: record.partition for record in world.broker.records(topic)[1:]}
    assert taken == {source.encode(): partition_of(source.encode(), 3) for source in sources}
    assert world.broker.specs[world.topics.pending("r")].partitions == 3
    assert set(taken.values()) == {0, 1, 2}


async def test_a_backlog_that_would_not_fit_elsewhere_is_worked_off_first() -> None:
    """What gathers in the shared lane would end as `backlog_full` there; a lane of its own keeps it in the log."""
    world = await MovingWorld(settings=FEW).create("r", **ASKED)
    process = MovingProcess(world)
    world.outside.down = {"answer"}
    count = 8 * ROOM
    await world.send(*(message(number, "a", "r") for number in range(count)))
    await process.ended(20)
    await world.declare("r", partitions=3, **ASKED)
    await process.ended(60)
    assert "waits until" in (await awaited(await world.client(), world.topics))["r"]
    assert (await world.route("r")).version == 0
    await world.send(*(message(number, "a", "r") for number in range(count, 2 * count)))
    await process.ended(20)
    world.outside.down.clear()
    await until(lambda: all_over(world))
    await process.stop()
    assert world.outside.arrived("/answer") == [f"a-{number}" for number in range(2 * count)]
    assert world.told.dead_letters == {}
    assert (await world.route("r")).partitions == 3


async def test_answers_that_are_owed_keep_their_topic_until_they_have_come() -> None:
    """No consumer reads the topics when they grow, so that every later one knows all partitions."""
    later: dict[str, Any] = {"status_endpoint": "http://r/later/{message_id}", "poll": {"base": 60, "cap": 60}}
    world = await MovingWorld().create("r", "/later", **later)
    process = MovingProcess(world)
    await world.send(message(0, "a", "r"))
    await process.ended(5)
    await world.declare("r", "/later", partitions=3, **later)
    await process.ended(20)
    assert world.broker.specs[world.topics.pending("r")].partitions == 1
    assert (await world.route("r")).lane == "shared"
    assert await unused_topics(await world.client(), world.topics) == []
    assert "once the pending answers" in (await awaited(await world.client(), world.topics))["r"]
    await world.send(message(1, "a", "r"))
    await until(lambda: all_over(world))
    await process.stop()
    assert world.broker.specs[world.topics.pending("r")].partitions == 3
    assert world.outside.arrived("/later") == ["a-0", "a-1"]
    assert world.outside.results() == {(f"a-{number}", "r"): {"answered"} for number in range(2)}


class _Refusing(MemoryLog):
    """A cluster that gives no more partitions to the topics of `r`."""

    async def grow(self, topic: str, partitions: int) -> None:
        if topic.endswith("_r"):
            raise UserError("Kafka refuses it")
        await super().grow(topic, partitions)


async def test_a_topic_that_may_not_grow_is_in_nobody_elses_way() -> None:
    world = await MovingWorld().create()
    world.state = MemoryState()
    for one in ("r", "s"):
        await world.declare(one)
    for one in ("r", "s"):
        await world.declare(one, partitions=2)
    process = MovingProcess(world, moves=False)
    log = _Refusing(world.broker)
    await log.start()
    registry = await world.registry()
    mover = LaneMigration(log, world.state, world.topics, registry, world.clock, owner="test")
    moving = asyncio.create_task(mover.run())
    await until(lambda: _has(world, "s", "dedicated", 2))
    assert await _has(world, "r", "shared", 1)
    await world.send(message(0, "a", "r"), message(0, "b", "s"))
    await process.ended(10)
    assert world.outside.results() == {("a-0", "r"): {"answered"}, ("b-0", "s"): {"answered"}}
    moving.cancel()
    await process.stop()


async def _has(world: MovingWorld, name: str, lane: str, partitions: int) -> bool:
    route = await world.route(name)
    return (route.lane, route.partitions, route.moving) == (lane, partitions, False)
