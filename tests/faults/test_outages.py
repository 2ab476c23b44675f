"""Log or state are away for a while: nothing is sent that could not be recorded, and all continues without help."""

import pytest

from relay.log.port import TopicPartition
from tests.fakes.surroundings import REFUSED
from tests.fakes.world import Process, World, message, receiver

COUNT = 30


async def _world(path: str = "/answer") -> World:
    return await World([receiver("r", path, status=True, ordering="source")]).create()


def _complete(world: World, path: str = "/answer") -> bool:
    arrived = sorted(world.outside.arrived(path), key=lambda each: int(each.split("-")[1]))
    return arrived == [f"a-{number}" for number in range(COUNT)] and len(world.outside.results()) == COUNT


@pytest.mark.parametrize("away_at", [0.0, 0.03, 0.05, 0.06, 0.07, 0.08, 0.1, 0.2])
@pytest.mark.parametrize("what", ["log", "state", "both"])
async def test_a_minute_without(what: str, away_at: float) -> None:
    world = await _world()
    process = await Process(world).run(1)
    await world.send(*(message(number, "a", "r") for number in range(COUNT)))
    await process.ended(away_at)
    world.broker.available = what == "state"
    world.state_available = what == "log"
    await process.ended(1.1)  # a begin whose verdict came right before may still lead to its POST
    sent = len(world.outside.posts)
    await process.ended(60)
    if what != "log":
        assert len(world.outside.posts) == sent, "nothing is sent that cannot be remembered"
    world.broker.available = world.state_available = True
    await process.stop(after=60)
    assert _complete(world)
    assert world.outside.arrived("/answer") == [f"a-{number}" for number in range(COUNT)]
    assert await world.is_at_rest()


async def test_an_outcome_waits_for_the_state_to_come_back() -> None:
    world = await _world("/slow")
    await world.send(message(0, "a", "r"))
    process = await Process(world).run(5)
    world.state_available = False
    await process.ended(60)  # the response came meanwhile
    world.state_available = True
    await process.stop(after=10)
    assert world.outside.arrived("/slow") == ["a-0"]
    assert world.outside.gets == {}, "there is no doubt"
    assert world.outside.results() == {("a-0", "r"): {"answered"}}


async def test_parking_waits_for_the_log_to_come_back() -> None:
    world = await World([receiver("r", "/answer", base=90.0, cap=90.0)]).create()
    world.outside.troubles["a-0"] = [REFUSED]
    process = await Process(world).run(1)
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    while not world.outside.tried["a-0"]:
        await process.ended(0.001)
    world.broker.available = False
    await process.ended(60)
    world.broker.available = True
    lane = TopicPartition(world.topics.to_receiver("r"), 0)
    assert lane in world.uncommitted()
    await process.ended(15)
    assert lane not in world.uncommitted()
    await process.stop(after=25)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]
    assert await world.is_at_rest()


async def test_a_start_while_both_are_away() -> None:
    world = await _world()
    await world.send(*(message(number, "a", "r") for number in range(COUNT)))
    world.state_available = False
    process = await Process(world).run(0.01)
    world.broker.available = False
    await process.ended(100)
    world.broker.available = world.state_available = True
    await process.stop(after=60)
    assert _complete(world)
