"""A record that kills the process ends as poison, and no other does: neither its neighbours, nor records that were
being handled when a process was killed."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from relay.domain.receiver import Receiver
from relay.engine.quarantine import TIMES
from tests.fakes.strikes import Fuse
from tests.fakes.world import Process, World, message, receiver


async def _world(**how: Any) -> World:
    return await World([receiver("r", "/answer", **how)]).create()


class Killer:
    """A name whose look-up kills the process. `alive`: the process that handles it now."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, is_deadly: Callable[[str], bool]) -> None:
        self.deaths = 0
        self.process: Process | None = None
        real = world.known.receiver

        def deadly(name: str) -> Receiver | None:
            if is_deadly(name) and self.process is not None and not self.process.fuse.blown:
                self.deaths += 1
                self.process.fuse.blow()
            return real(name)

        monkeypatch.setattr(world.known, "receiver", deadly)

    async def lives(self, world: World, seconds: float) -> bool:
        """One process; whether it lived so long."""
        self.process = Process(world)
        if await self.process.ended(seconds):
            self.process.log.crash()
            return False
        await self.process.stop()
        return True


async def test_what_kills_the_process_each_time_it_is_routed_becomes_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await _world(status=True)
    killer = Killer(world, monkeypatch, lambda name: name == "deadly")
    for number in range(20):
        await world.send(message(number, "a", "deadly" if number == 10 else "r"))
    lives = 0
    while not await killer.lives(world, 30) and lives < 20:
        lives += 1
    assert killer.deaths == TIMES + 1, "once by surprise, and then alone"
    assert world.outside.reasons() == {"a-10": "poison"}
    assert world.outside.arrived("/answer") == [f"a-{number}" for number in range(20) if number != 10]
    assert await world.is_at_rest()


async def test_several_that_kill_are_found_one_by_one_in_all_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await _world(status=True)
    killer = Killer(world, monkeypatch, lambda name: name == "deadly")
    sources = ["a", "b", "c"]
    for number in range(8):
        await world.send(*[message(number, source, "deadly" if number == 4 else "r") for source in sources])
    lives = 0
    while not await killer.lives(world, 30) and lives < 40:
        lives += 1
    assert killer.deaths <= len(sources) * TIMES + 1
    assert world.outside.reasons() == {f"{source}-4": "poison" for source in sources}
    assert len(world.outside.arrived("/answer")) == 7 * len(sources)
    assert await world.is_at_rest()


async def test_what_kills_when_its_request_is_built_becomes_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it has been begun, and others of its source wait behind it."""
    world = await _world()
    killer = Killer(world, monkeypatch, lambda name: False)
    send = world.outside.send

    def deadly(request: Any, done: Any) -> None:
        if b'"n": 2,' not in request.body:
            send(request, done)
        elif killer.process is not None and not killer.process.fuse.blown:
            killer.deaths += 1
            killer.process.fuse.blow()

    monkeypatch.setattr(world.outside, "send", deadly)
    await world.send(*[message(number, "a", "r") for number in range(5)])
    lives = 0
    while not await killer.lives(world, 300) and lives < 20:
        lives += 1
    assert world.outside.reasons() == {"a-2": "poison"}
    assert TIMES <= killer.deaths <= TIMES + 1
    assert [each for each in world.outside.arrived("/answer") if each != "a-2"] == ["a-0", "a-1", "a-3", "a-4"]
    assert await world.is_at_rest()


@pytest.mark.parametrize("seed", range(6))
async def test_processes_that_die_at_any_call_make_no_poison(seed: int) -> None:
    """Also while marks are put up and taken off: it takes the same record three times, one after the other."""
    world = await _world(status=True)
    world.outside.troubles["a-3"] = []
    draw = random.Random(seed)
    for number in range(60):
        await world.send(message(number, "a", "r"), message(number, "b", "r"))
        if number % 2:
            process = await Process(world, Fuse(draw.randrange(1, 120), after=draw.random() < 0.5)).run(
                draw.uniform(0.1, 30)
            )
            await process.kill()
    await world.run(Fuse(), 600, until=lambda: len(world.outside.arrived("/answer")) == 120)
    for source in ("a", "b"):
        firsts = list(dict.fromkeys(each for each in world.outside.arrived("/answer") if each.startswith(source)))
        assert firsts == [f"{source}-{number}" for number in range(60)], "suspects keep their turns"
    assert world.outside.reasons() == {}
    assert world.told.dead_letters == {}
    assert set(world.outside.arrived("/answer")) == {f"{source}-{n}" for source in "ab" for n in range(60)}


async def test_nothing_is_marked_while_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await _world()
    marks: list[int] = []
    suspect = world.state.suspect

    async def noted(lane: Any, offset: int, times: int) -> None:
        marks.append(offset)
        await suspect(lane, offset, times)

    monkeypatch.setattr(world.state, "suspect", noted)
    for _ in range(2):
        process = Process(world)
        await world.send(*[message(number, "a", "r") for number in range(50)])
        await process.stop(after=5)
    assert marks == []

    process = Process(world)
    await world.send(*[message(number, "b", "r") for number in range(20)])
    await process.ended(0.01)
    await process.kill()
    process = await Process(world).run(5)
    in_hand = len(marks)
    assert 0 < in_hand <= 20 * 8
    await world.send(*[message(number, "c", "r") for number in range(50)])
    await process.ended(5)
    assert len(marks) == in_hand, "what came after its end nobody suspects"
    await process.stop(after=60)
    assert await world.is_at_rest()


async def test_a_lane_that_stops_while_it_reserves_leaves_nobody_to_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state has noted it, and the reply is still to come."""
    world = await _world()
    reserve = world.state.reserve

    async def slow(lane: Any, before: int) -> Any:
        found = await reserve(lane, before)
        await asyncio.sleep(0.5)
        return found

    process = await Process(world).run(1)
    monkeypatch.setattr(world.state, "reserve", slow)
    await world.send(*[message(number, "a", "r") for number in range(5)])
    await process.ended(0.1)
    assert world.outside.arrived("/answer") == []
    assert await process.stop() < 2
    monkeypatch.undo()
    await world.run(Fuse(), 60, until=lambda: len(world.outside.arrived("/answer")) == 5)
    assert world.told.wary_lanes == []
    assert await world.is_at_rest()
