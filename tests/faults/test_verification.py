"""A receiver whose URL has proved nothing is sent nothing: wherever its lane is, whichever call a process dies at, and
whatever the state forgets. What came for it meanwhile arrives in order, once it has."""

import pytest

from relay.config.settings import Settings
from relay.domain.control_key import encode_value
from relay.domain.receiver import LaneKind, Verification
from relay.domain.verification import HandshakeResult, failed, handshake_of
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import message

SOON_S = 7.0
"""Virtual seconds: what waits for it looks again after 5."""
ALL = ["a-0", "a-1", "a-2"]


async def _world(lane: LaneKind, kind: Verification = "challenge") -> MovingWorld:
    return await MovingWorld().create("r", lane=lane, verification=kind)


async def _prove(world: MovingWorld, url: str = "http://r/answer", kind: Verification = "challenge") -> None:
    now = world.clock.time()
    result = HandshakeResult(handshake_of(kind, url), now, now)
    await world.append(world.topics.receiver_config, b"verification:r", encode_value(result), ())


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_its_backlog_waits_for_the_proof_and_then_arrives_in_order(lane: LaneKind) -> None:
    world = await _world(lane)
    await world.declare("other", path="/neighbour", lane=lane)
    process = MovingProcess(world)
    await world.send(*(message(number, "a", "r") for number in range(3)), message(7, "a", "other"))
    await process.ended(30)
    assert world.outside.arrived("/answer") == []
    assert world.outside.arrived("/neighbour") == ["a-7"]
    of = handshake_of("challenge", "http://r/answer")
    refusal = failed(of, "404", world.clock.time(), None)
    await world.append(world.topics.receiver_config, b"verification:r", encode_value(refusal), ())
    await process.ended(30)
    assert world.outside.arrived("/answer") == []
    await _prove(world)
    await process.ended(SOON_S)
    assert world.outside.arrived("/answer") == ALL
    await process.stop()


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_another_url_has_to_prove_it_anew_and_the_first_one_not(lane: LaneKind) -> None:
    world = await _world(lane)
    await _prove(world)
    process = MovingProcess(world)
    await world.send(message(0, "a", "r"))
    await process.ended(SOON_S)
    await world.declare("r", path="/elsewhere", lane=lane, verification="challenge")
    await world.send(message(1, "a", "r"))
    await process.ended(30)
    assert (world.outside.arrived("/answer"), world.outside.arrived("/elsewhere")) == (["a-0"], [])
    await world.declare("r", lane=lane, verification="hmac", signature="standard", secret="s")
    await process.ended(30)
    assert world.outside.arrived("/answer") == ["a-0"]
    await world.declare("r", lane=lane, verification="challenge")
    await process.ended(SOON_S)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]
    await process.stop()


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
def test_no_crash_and_no_loss_of_the_state_lets_anything_through(lane: LaneKind) -> None:
    async def story(blow_at: int | None) -> int:
        world = await _world(lane)
        await world.send(*(message(number, "a", "r") for number in range(3)))
        crashing = Fuse(blow_at)
        first = await MovingProcess(world, crashing).run(SOON_S)
        await first.kill()
        world.state.lose()
        second = await MovingProcess(world).run(60)
        assert world.outside.arrived("/answer") == [], blow_at
        await _prove(world)
        await second.ended(60)
        assert world.outside.arrived("/answer") == ALL, blow_at
        await second.stop()
        return crashing.calls

    calls = run_virtually(story(None))
    for blow_at in range(1, calls + 1, 3):
        run_virtually(story(blow_at))


async def test_its_neighbours_do_not_wait_with_it_however_much_there_is() -> None:
    """More than the lane may have unfinished: what cannot go makes way, and comes back."""
    world = await MovingWorld(
        settings=Settings(receivers_file="none", hold_max=5.0, window_records=10, window_offsets=20)
    ).create()
    await world.declare("r", lane="shared", verification="challenge")
    neighbours = [f"n-{number}" for number in range(4)]  # one at least has the same partition
    for name in neighbours:
        await world.declare(name, path=f"/{name}", lane="shared")
    process = MovingProcess(world)
    await world.send(*(message(number, "a", "r") for number in range(40)))
    await process.ended(20)
    await world.send(message(99, "a", *neighbours))
    await process.ended(60)
    assert world.outside.arrived("/answer") == []
    assert [world.outside.arrived(f"/{name}") for name in neighbours] == [["a-99"]] * 4
    await _prove(world)
    await process.ended(120)
    assert world.outside.arrived("/answer") == [f"a-{number}" for number in range(40)]
    await process.stop()


async def test_a_namesake_has_proved_nothing() -> None:
    """A receiver that replaces a removed one of the same name starts unverified, although the URL is the same."""
    world = await _world("shared")
    await _prove(world)
    process = MovingProcess(world)
    await world.send(message(0, "a", "r"))
    await process.ended(SOON_S)
    await world.remove("r")
    await process.ended(1)
    await world.declare("r", lane="shared", verification="challenge")
    await world.send(message(1, "a", "r"))
    await process.ended(30)
    assert world.outside.arrived("/answer") == ["a-0"]
    await _prove(world)
    await process.ended(SOON_S)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]
    await world.remove("r")
    await process.ended(60)
    registry = await world.registry()
    assert registry.verifications.newest("r") is None
    await process.stop()
