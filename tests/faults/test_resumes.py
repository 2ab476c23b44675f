"""A resume is in force at once: lanes that have closed their way to the endpoint hear of it, and ask anew."""

from typing import Any

import pytest

from relay.domain.hold import hold
from relay.domain.receiver import LaneKind
from relay.engine.holding import Holding
from relay.engine.settlement import LONGEST_CLOSE_S
from relay.state.port import State
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.fakes.world import message

SOON_S = 1.0
"""Virtual seconds."""


async def _world(lane: LaneKind, **entry: Any) -> tuple[MovingWorld, Holding]:
    world = await MovingWorld().create("r", lane=lane, **entry)
    return world, Holding(await world.client(), world.state, world.topics.receiver_config)


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("owner", ["r:r", "s:a"])
@pytest.mark.parametrize("waited_s", [0.5, LONGEST_CLOSE_S / 2, LONGEST_CLOSE_S + 1])
async def test_what_waits_goes_on_at_once(lane: LaneKind, owner: str, waited_s: float) -> None:
    world, holding = await _world(lane)
    process = await MovingProcess(world).run(5)
    await holding.hold(owner, hold("paused", world.clock.time(), ""))
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    await process.ended(SOON_S + waited_s)
    seen = world.outside.arrived("/answer") if owner == "r:r" else list(world.outside.results())
    assert seen == []
    await holding.resume(owner)
    await process.ended(SOON_S)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]
    assert set(world.outside.results()) == {("a-0", "r"), ("a-1", "r")}
    await process.stop()


async def test_one_that_was_down_is_tried_at_once() -> None:
    """A resume closes its breaker, too."""
    breaker = {"failures": 2, "window": 60, "open_for": 300}
    world, holding = await _world(
        "dedicated", breaker=breaker, retry={"base": 1, "factor": 1, "cap": 1, "max_attempts": 99}
    )
    world.outside.down.add("answer")
    await world.send(message(0, "a", "r"))
    process = await MovingProcess(world).run(30)
    world.outside.down.clear()
    await process.ended(30)
    assert world.outside.arrived("/answer") == []
    await holding.resume("r:r")
    await process.ended(SOON_S)
    assert world.outside.arrived("/answer") == ["a-0"]
    await process.stop()


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_one_that_is_offline_and_has_another_url_is_pinged_at_once(lane: LaneKind) -> None:
    rare: dict[str, Any] = {
        "lane": lane,
        "breaker": {"failures": 2, "window": 60, "open_for": 5},
        "offline": {"after": 60, "ping_every": 3600},
        "retry": {"base": 1, "factor": 1, "cap": 1, "max_attempts": 99},
    }
    world, _ = await _world(lane, **{name: each for name, each in rare.items() if name != "lane"})
    world.outside.down.add("answer")
    await world.send(message(0, "a", "r"))
    process = await MovingProcess(world).run(300)
    pinged = len(world.outside.pings)
    assert pinged > 0
    await world.declare("r", "/blind", **rare)
    await process.ended(SOON_S)
    assert world.outside.arrived("/blind") == ["a-0"]
    assert len(world.outside.pings) == pinged + 1
    await process.stop()


async def test_a_hold_that_follows_a_resume_holds() -> None:
    world, holding = await _world("dedicated")
    process = await MovingProcess(world).run(5)
    held = hold("paused", world.clock.time(), "")
    await holding.hold("r:r", held)
    await world.send(message(0, "a", "r"))
    await process.ended(2)
    await world.state.hold("r:r", held)
    log = await world.client()
    stubborn: Any = _Stubborn(world.state)
    await Holding(log, stubborn, world.topics.receiver_config).resume("r:r")  # it is on the log, and another one holds
    await process.ended(60)
    assert world.outside.arrived("/answer") == []
    await process.stop()


class _Stubborn:
    """A state in which no resume takes effect."""

    def __init__(self, state: State) -> None:
        self.endpoints = state.endpoints

    async def resume(self, _owner: str) -> None:
        return
