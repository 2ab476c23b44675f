"""A message that fails again and again holds up others of its order key for its receiver's patience, and no longer."""

from collections import deque
from typing import Any

import pytest

from relay.config.settings import Settings
from relay.domain.exchange import Response
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from tests.fakes.surroundings import REFUSED
from tests.fakes.world import Process, World, message, receiver
from tests.faults.simulation.outside import Mishap, Wire

BROKEN = Response(501, {}, b"")
SHORT: dict[str, Any] = {"base": 5.0, "factor": 1.0, "cap": 5.0}
LONG: dict[str, Any] = {"base": 400.0, "factor": 1.0, "cap": 400.0}
"""Every wait is longer than a record is held in memory."""
MOST: dict[str, Any] = {"max_attempts": 1_000, "failures": 10_000}


def stream(count: int, first: int = 0) -> list[Message]:
    return [message(number, "a", "r") for number in range(first, first + count)]


def ids(*numbers: int) -> list[str]:
    return [f"a-{number}" for number in numbers]


async def world_of(**policy: Any) -> World:
    return await World([receiver("r", "/answer", **policy, **MOST)]).create()


def marked(world: World) -> set[str]:
    """Messages that came with the mark of being out of order."""
    return {headers["ce-id"] for _, headers, _ in world.outside.posts if headers.get("relay-out-of-order") == "true"}


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("waits", [SHORT, LONG], ids=["in memory", "parked"])
async def test_it_steps_aside_and_is_delivered_later(lane: str, waits: dict[str, Any]) -> None:
    world = await world_of(lane=lane, patience=600.0, **waits)
    world.outside.troubles["a-1"] = [BROKEN] * 150
    await world.send(*stream(5))
    process = await Process(world).run(590)
    assert world.outside.arrived("/answer") == ids(0)
    await process.ended(20)
    assert world.outside.arrived("/answer") == ids(0, 2, 3, 4)
    await world.send(*stream(2, first=5))
    await process.ended(5)
    assert world.outside.arrived("/answer") == ids(0, 2, 3, 4, 5, 6)
    world.outside.troubles.clear()
    await process.stop(after=400)
    assert world.outside.arrived("/answer") == ids(0, 2, 3, 4, 5, 6, 1)
    assert marked(world) == {"a-1"}
    sequences = [int(headers["relay-sequence"]) for path, headers, _ in world.outside.posts if path == "/answer"]
    assert sequences == [0, 2, 3, 4, 5, 6, 1]
    assert await world.is_at_rest()


@pytest.mark.parametrize("waits", [SHORT, LONG], ids=["in memory", "parked"])
async def test_without_patience_it_holds_up_the_others_until_it_ends(waits: dict[str, Any]) -> None:
    world = await world_of(**waits)
    world.outside.troubles["a-0"] = [BROKEN] * 150
    await world.send(*stream(3))
    await Process(world).stop(after=700)
    assert world.outside.arrived("/answer") == []


async def test_one_that_gets_through_in_time_keeps_the_order() -> None:
    world = await world_of(patience=600.0, **LONG)
    world.outside.troubles["a-0"] = [BROKEN]
    await world.send(*stream(3))
    await Process(world).stop(after=410)
    assert world.outside.arrived("/answer") == ids(0, 1, 2)
    assert marked(world) == set()


@pytest.mark.parametrize("at", [100.0, 599.9, 600.01, 700.0, 1_000.0])
async def test_a_killed_process_loses_nothing_and_repeats_only_in_order(at: float) -> None:
    """Its successor knows from the parked copy for how long the message has failed."""
    world = await World(
        [receiver("r", "/answer", status=True, patience=600.0, **LONG, **MOST)], settings=_held(5.0)
    ).create()
    world.outside.troubles["a-0"] = [BROKEN] * 4
    await world.send(*stream(4))
    first = await Process(world).run(at)
    await first.kill()
    await Process(world).stop(after=4_000)
    assert world.outside.arrived("/answer") == ids(1, 2, 3, 0)
    assert await world.is_at_rest()


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("killed", [False, True])
async def test_one_that_has_stepped_aside_keeps_its_mark_in_another_process(lane: str, killed: bool) -> None:
    """Its number falls, so that without the mark it looks like a repetition."""
    world = await world_of(lane=lane, patience=20.0, **SHORT)
    world.outside.troubles["a-0"] = [BROKEN] * 9
    await world.send(*stream(3))
    first = await Process(world).run(30)
    assert world.outside.arrived("/answer") == ids(1, 2)
    await (first.kill() if killed else first.stop())
    await Process(world).stop(after=60)
    assert world.outside.arrived("/answer") == ids(1, 2, 0)
    assert marked(world) == {"a-0"}
    assert await world.is_at_rest()


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("hold_s", [60.0, 0.1], ids=["in memory", "parked"])
@pytest.mark.parametrize("killed_at", [None, 1.0, 2.5, 6.9, 7.1, 9.0, 11.9, 12.1])
async def test_it_does_not_step_aside_while_a_request_may_arrive(
    lane: str, hold_s: float, killed_at: float | None
) -> None:
    """That one would come after the next message of its key, without a mark."""
    policy: dict[str, Any] = {"base": 1.0, "factor": 1.0, "cap": 1.0, "timeout": 2.0, **MOST}
    world = World([receiver("r", "/answer", lane=lane, patience=5.0, **policy)], settings=_held(hold_s))
    world.outside = wire = Wire()
    wire.mishaps["a-0"] = deque([Mishap("late", 9.5), *[Mishap("dropped", response=REFUSED)] * 40])
    await world.create()
    await world.send(*stream(3))
    process = Process(world)
    if killed_at is not None:
        await process.ended(killed_at)
        await process.kill()
        process = Process(world)
    await process.ended(25)
    assert world.outside.arrived("/answer") == ids(0, 1, 2), "the others do not wait for its last attempt"
    await process.stop(after=60)
    assert world.outside.arrived("/answer") == ids(0, 1, 2, 0)
    assert marked(world) == {"a-0"}
    assert await world.is_at_rest()


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("hold_s", [60.0, 0.1], ids=["in memory", "parked"])
async def test_it_steps_aside_although_each_of_its_requests_might_have_arrived(lane: str, hold_s: float) -> None:
    policy: dict[str, Any] = {"base": 1.0, "factor": 1.0, "cap": 1.0, "timeout": 2.0, **MOST}
    world = World([receiver("r", "/answer", lane=lane, patience=5.0, **policy)], settings=_held(hold_s))
    world.outside = wire = Wire()
    wire.mishaps["a-0"] = deque([Mishap("dropped")] * 1_000)
    await world.create()
    await world.send(*stream(3))
    await Process(world).stop(after=25)
    assert world.outside.arrived("/answer") == ids(1, 2)


async def test_an_operator_hears_after_three_attempts_what_waits_behind_it() -> None:
    world = await world_of(**SHORT)
    world.outside.troubles["a-0"] = [BROKEN] * 4
    await world.send(*stream(6))
    await Process(world).stop(after=30)
    failing = DeliveryId("r", "a", "a-0")
    assert world.told.held_up_by == [(failing, 3, 5), (failing, 4, 5)]
    assert world.outside.arrived("/answer") == ids(0, 1, 2, 3, 4, 5)


def _held(seconds: float) -> Settings:
    return Settings(receivers_file="none", hold_max=seconds)
