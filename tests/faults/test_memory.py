"""Memory is bounded in bytes: what a process holds of large records stays within its budget, the rest in the log."""

import asyncio
import sys
from dataclasses import replace
from typing import Any

import pytest

from relay.config.limits import lanes_budget
from relay.config.settings import Settings
from relay.domain.message import Message
from relay.domain.receiver import PollPolicy
from relay.engine.policy import BudgetShare
from relay.engine.runner import Runner
from relay.log.port import TopicPartition
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import REFUSED
from tests.fakes.world import Process, World, message, receiver
from tests.faults.test_status_chains import CI, STEPS

LARGE = 100_000
BUDGET = 20 * LARGE
SETTINGS = Settings.model_validate({"receivers_file": "none", "memory_budget": BUDGET, "hold_max": 60})
DOWN: dict[str, Any] = {"base": 30.0, "factor": 1.0, "cap": 30.0, "max_attempts": 1_000}


def _large(source: str, count: int, *names: str) -> list[Message]:
    payload = bytes(LARGE)
    return [Message(source, f"{source}-{n}", names, "push", None, "text/plain", payload) for n in range(count)]


def _within(budget: int, held: dict[TopicPartition, list[int]]) -> bool:
    """The budget, and of each lane one record, and a parked one."""
    return sum(map(sum, held.values())) <= budget + sum(2 * max(sizes) for sizes in held.values())


async def _most_held(process: Process, seconds: float) -> int:
    most = 0
    for _ in range(int(seconds / 0.05)):
        await process.ended(0.05)
        held = process.held()
        assert _within(lanes_budget(SETTINGS), held)
        most = max(most, sum(map(sum, held.values())))
    return most


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_large_messages_for_a_receiver_that_is_down(lane: str) -> None:
    world = await World([receiver("r", "/answer", lane=lane, **DOWN)], settings=SETTINGS).create()
    for number in range(100):
        world.outside.troubles[f"a-{number}"] = [REFUSED] * 3
    await world.send(*_large("a", 100, "r"))
    process = Process(world)
    assert await _most_held(process, 60) >= BUDGET // 4, "it takes what there is"
    await process.stop()
    for number in range(100):
        world.outside.troubles.pop(f"a-{number}", None)
    await world.run(Fuse(), 3_000, until=lambda: len(world.outside.results()) == 100)
    assert world.outside.arrived("/answer") == [f"a-{number}" for number in range(100)]
    assert await world.is_at_rest()


async def test_one_lane_does_not_take_what_another_needs() -> None:
    """A receiver that is down has filled its share before messages for another one come."""
    world = await World([receiver("down", "/down", **DOWN), receiver("well", "/answer")], settings=SETTINGS).create()
    for number in range(100):
        world.outside.troubles[f"a-{number}"] = [REFUSED] * 1_000
    await world.send(*_large("a", 100, "down"))
    process = await Process(world).run(20)
    await world.send(*_large("b", 50, "well"))
    most = await _most_held(process, 20)
    await process.stop()
    assert world.outside.arrived("/answer") == [f"b-{number}" for number in range(50)]
    assert most <= lanes_budget(SETTINGS) + 2 * LARGE


async def test_memory_without_a_budget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BudgetShare, "full", False)
    monkeypatch.setattr(Runner, "_room", lambda _: sys.maxsize)
    with pytest.raises(AssertionError):
        await test_large_messages_for_a_receiver_that_is_down("dedicated")


async def test_parked_records_come_back_within_the_budget() -> None:
    """They are due all at once."""
    parks = DOWN | {"base": 90.0, "cap": 90.0}
    world = await World(
        [receiver("r", "/answer", ordering="none", failures=1_000, **parks)], settings=SETTINGS
    ).create()
    for number in range(60):
        world.outside.troubles[f"a-{number}"] = [REFUSED]
    await world.send(*_large("a", 60, "r"))
    process = Process(world)
    await _most_held(process, 300)
    await process.stop()
    await world.run(Fuse(), 3_000, until=lambda: len(world.outside.results()) == 60)
    assert sorted(world.outside.arrived("/answer")) == sorted(f"a-{number}" for number in range(60))
    assert await world.is_at_rest()


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_what_is_due_and_finds_no_room_does_not_wait_for_the_end_of_its_lease(lane: str) -> None:
    """No process ran while they became due. Only a few of them have room at a time."""
    parks = DOWN | {"base": 90.0, "cap": 90.0}
    world = await World(
        [receiver("r", "/answer", lane=lane, ordering="none", failures=1_000, **parks)], settings=SETTINGS
    ).create()
    for number in range(60):
        world.outside.troubles[f"a-{number}"] = [REFUSED]
    await world.send(*_large("a", 60, "r"))
    await world.run(Fuse(), 60)
    assert len(world.parked_copies()) == 60
    await asyncio.sleep(90)
    process = Process(world)
    await _most_held(process, 10)
    await process.stop()
    assert sorted(world.outside.arrived("/answer")) == sorted(f"a-{number}" for number in range(60))
    assert await world.is_at_rest()


async def test_a_message_larger_than_the_budget_goes_its_way() -> None:
    settings = Settings.model_validate({"receivers_file": "none", "memory_budget": 1_000})
    world = await World([receiver("r", "/answer")], settings=settings).create()
    await world.send(*_large("a", 10, "r"))
    await world.run(Fuse(), 300, until=lambda: len(world.outside.results()) == 10)
    assert world.outside.arrived("/answer") == [f"a-{number}" for number in range(10)]
    assert await world.is_at_rest()


async def test_nothing_is_counted_when_nothing_is_held() -> None:
    world = await World(
        [receiver("r", "/answer"), receiver("x", "/fail", max_attempts=2, failures=1_000)], settings=SETTINGS
    ).create()
    await world.send(*_large("a", 40, "r", "x", "unknown"))
    process = await Process(world).run(120)
    assert not world.uncommitted()
    assert process.lanes is not None
    assert process.lanes.memory.used == 0
    await process.stop()


async def test_nothing_is_counted_of_a_parked_record_that_a_step_has_changed() -> None:
    """The position in a chain of status steps is kept in its headers."""
    ci = replace(receiver("ci", "/queue"), status_steps=STEPS, status_endpoint=None, poll=PollPolicy(90.0, 1.0, 90.0))
    world = World([ci], settings=SETTINGS)
    world.outside = CI()
    await world.create()
    await world.send(*(message(n, "a", "ci") for n in range(5)))
    process = await Process(world).run(600)
    assert len(world.outside.results()) == 5
    assert process.lanes is not None
    assert process.lanes.memory.used == 0
    await process.stop()
