"""A newer message of a key takes the place of older ones that were not sent, and within a window only the newest is
sent: whatever befalls processes, the newest arrives, and each older one either arrives or ends as replaced."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.domain.dead_letter import parse_dead_letter
from relay.domain.exchange import Response
from relay.domain.hold import Hold
from relay.domain.message import Message
from relay.domain.timing import Timing
from relay.engine.parked_copy import LIFE_KEY
from tests.fakes.strikes import CRASHES, Fuse, Loss, Strikes, crash_at_each
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

LANES = pytest.mark.parametrize("lane", ["dedicated", "shared"])
HELD = Settings(receivers_file="none", hold_max=2.0)
LONG_S = 900.0


class RebuildingProcess(Process):
    rebuilds = True


def keyed(number: int, source: str = "a", key: str = "k", **timing: float) -> Message:
    return structs.replace(message(number, source, "r"), timing=Timing(key=key, **timing))


async def world_of(settings: Settings | None = None, **how: Any) -> World:
    return await World([receiver("r", "/answer", timeout=2.0, **how)], settings=settings).create()


def ids(numbers: Iterable[int], source: str = "a") -> list[str]:
    return [f"{source}-{number}" for number in numbers]


def replaced(world: World) -> dict[str, str]:
    """Message -> what its dead letter says."""
    found = {}
    for letter in world.broker.records(world.topics.failed_messages):
        dead = parse_dead_letter(letter.headers)
        assert dead.reason == "replaced"
        found[dict(letter.headers)["ce_id"].decode()] = dead.detail
    return found


# supersede


@LANES
async def test_one_that_is_replaced_before_it_was_parked_ends_then_and_not_when_it_is_due(lane: str) -> None:
    """Its window is short, and its delay is long. An attempt to park it finds its end, which is then published."""
    world = await world_of(lane=lane)
    process = await Process(world).run(1)
    due = world.clock.time() + LONG_S
    for one in (keyed(1, window=10.0), keyed(2, window=10.0, deliver_at=due), keyed(3, window=10.0)):
        await world.send(one)
        await process.ended(1)
    await process.ended(30)
    assert replaced(world).keys() == {"a-1", "a-2"}
    written = world.broker.written(world.topics.parked_messages)
    assert sum(record.key != LIFE_KEY for record in written) <= 2
    assert world.outside.arrived("/answer") == ["a-3"]
    await process.stop(after=LONG_S)
    assert world.outside.arrived("/answer") == ["a-3"]
    assert await world.is_at_rest()


@LANES
async def test_of_those_that_wait_only_the_newest_of_a_key_is_sent(lane: str) -> None:
    world = await world_of(lane=lane)
    process = await Process(world).run(1)
    await world.state.hold("r:r", Hold("paused", 1.0))
    await world.send(keyed(1), keyed(2, key="other"), message(3, "a", "r"), keyed(4), keyed(1, "b"))
    await process.ended(5)
    await world.send(keyed(5))
    await process.ended(5)
    await world.state.resume("r:r")
    process.resumed("r:r")
    await process.stop(after=30)
    assert world.outside.arrived("/answer", "a") == ids([2, 3, 5]), "in order, and each once"
    assert world.outside.arrived("/answer", "b") == ["b-1"], "another source's"
    assert replaced(world) == {
        "a-1": 'replaced by the newer message "a-4" of its key',
        "a-4": 'replaced by the newer message "a-5" of its key',
    }
    assert world.outside.reasons() == {"a-1": "replaced", "a-4": "replaced"}
    assert await world.state.failed("r", limit=10) == [], "nobody has to look at it"
    assert await world.is_at_rest()


@LANES
async def test_a_delayed_one_ends_when_a_newer_one_comes(lane: str) -> None:
    world = await world_of(lane=lane)
    await world.send(keyed(1, deliver_at=LONG_S), message(2, "a", "r"))
    process = await Process(world).run(30)
    await world.send(keyed(3, deliver_at=LONG_S))
    await process.ended(45)
    assert list(replaced(world)) == ["a-1"], "it does not wait until it is due"
    await world.send(keyed(4))
    await process.stop(after=45)
    assert world.outside.arrived("/answer") == ids([2, 4])
    assert list(replaced(world)) == ids([1, 3])
    assert await world.is_at_rest()


@LANES
async def test_what_was_tried_is_not_replaced(lane: str) -> None:
    world = await world_of(lane=lane, base=10.0, factor=1.0, cap=10.0, max_attempts=100)
    world.outside.down.add("answer")
    await world.send(keyed(1))
    process = await Process(world).run(5)
    await world.send(keyed(2), keyed(3))
    await process.ended(5)
    world.outside.down.clear()
    await process.stop(after=60)
    assert world.outside.arrived("/answer") == ids([1, 3])
    assert list(replaced(world)) == ["a-2"]
    assert await world.is_at_rest()


async def test_an_older_one_that_is_read_late_is_replaced_by_what_was_sent() -> None:
    """It was delayed, and the state lost what it knew; then a newer one came, and has arrived."""
    world = await world_of()
    await world.send(keyed(1, deliver_at=LONG_S))
    first = await Process(world).run(100)
    await first.kill()
    world.state.lose()
    await world.send(keyed(2))
    await Process(world).stop(after=LONG_S + 100)
    arrived = world.outside.arrived("/answer")
    assert arrived[0] == "a-2", "nothing is lost, and what is parked may be sent once more"
    assert set(arrived) | set(replaced(world)) == {"a-1", "a-2"}
    assert await world.is_at_rest()


@LANES
@pytest.mark.parametrize("window", [0.0, 20.0], ids=["supersede", "coalesce"])
async def test_one_that_is_sent_twice_does_not_replace_itself(lane: str, window: float) -> None:
    """Both records are on their way before the first is known to be."""
    world = await world_of(lane=lane)
    await world.send(*(keyed(number, window=window) for number in (1, 1, 2, 2, 1)))
    process, begun = Process(world), world.clock.monotonic()
    await process.stop(after=60)
    assert world.outside.arrived("/answer") == ["a-2"]
    assert world.outside.starts["/answer"][0] >= begun + window
    assert set(replaced(world)) == {"a-1"}
    assert await world.is_at_rest()


def _crash_story(window: float, delay: float, newest: int) -> Any:
    """Older ones are parked and in memory when newer ones come, and the process dies."""

    async def story(fuse: Fuse) -> None:
        world = await world_of(HELD, status=True)
        world.outside.down.add("answer")
        await world.send(keyed(1, deliver_at=delay, window=window), keyed(2, deliver_at=delay, window=window))
        await world.run(Fuse(), 6)
        world.outside.down.clear()
        newer = [keyed(number, deliver_at=delay, window=window) for number in range(3, newest)]
        await world.send(*newer, keyed(newest, window=window), message(newest + 1, "a", "r"))
        await world.run(fuse, 25)
        await world.run(Fuse(), 100)
        place = fuse.names[-1:]
        arrived = world.outside.arrived("/answer")
        assert sorted(arrived) == ids([newest, newest + 1]), (place, arrived)
        assert sorted(replaced(world)) == ids(range(1, newest)), place
        assert set(ids(range(1, newest))) == set(world.outside.reasons()), place
        assert await world.is_at_rest(), place

    return story


@CRASHES
@pytest.mark.parametrize("newest", [4, 8], ids=["two more", "more than the entry of the key remembers"])
@pytest.mark.parametrize(("window", "delay"), [(0.0, 40.0), (15.0, 0.0)], ids=["supersede", "coalesce"])
def test_a_crash_at_each_step_sends_the_newest_once_and_replaces_the_others(
    window: float, delay: float, newest: int, late: bool, strikes: Strikes
) -> None:
    crash_at_each(_crash_story(window, delay, newest), strikes, late=late)


@pytest.mark.parametrize("window", [0.0, 10.0], ids=["supersede", "coalesce"])
def test_a_loss_of_the_state_at_any_step_loses_no_newest_one(window: float) -> None:
    async def losing(at: int) -> int:
        world = await world_of(HELD, status=True)
        loss = Loss(at, world.state.lose)
        await world.send(keyed(1, window=window), keyed(2, window=window), message(3, "a", "r"))
        await world.run(loss, 5)
        await world.send(keyed(4, window=window))
        await world.run(Fuse(), 120)
        arrived = world.outside.arrived("/answer")
        assert len(arrived) == len(set(arrived)), at
        assert {"a-3", "a-4"} <= set(arrived), at
        assert not set(arrived) & set(replaced(world)), at
        assert set(arrived) | set(replaced(world)) == set(ids([1, 2, 3, 4])), at
        assert await world.is_at_rest(), at
        return loss.calls

    for at in range(1, run_virtually(losing(100_000)), 5):
        run_virtually(losing(at))


# coalesce


@LANES
@pytest.mark.parametrize("window", [20.0, LONG_S], ids=["in memory", "parked"])
async def test_of_those_within_a_window_only_the_newest_is_sent_at_its_end(lane: str, window: float) -> None:
    world = await world_of(lane=lane)
    process = await Process(world).run(1)
    begun = world.clock.monotonic()
    await world.send(keyed(1, window=window), message(2, "a", "r"))
    await process.ended(window / 2)
    await world.send(keyed(3, window=window), keyed(4, key="other", window=window))
    await process.ended(window / 4)
    assert world.outside.arrived("/answer") == ["a-2"], "it is held up by none of them"
    await process.ended(window / 4 + 5)
    assert world.outside.arrived("/answer") == ids([2, 3])
    assert begun + window <= world.outside.starts["/answer"][-1] < begun + window + 5
    await world.send(keyed(5, window=window))
    await process.ended(window / 2)
    assert world.outside.arrived("/answer")[2:] == ["a-4"], "its own window has closed, and that of 5 has not"
    await process.stop(after=window)
    assert world.outside.arrived("/answer") == ids([2, 3, 4, 5])
    assert list(replaced(world)) == ["a-1"]
    assert await world.is_at_rest()


@LANES
@pytest.mark.parametrize("fails", [False, True])
async def test_one_whose_window_closes_before_its_deadline_is_sent(lane: str, fails: bool) -> None:
    """The window was opened before it was accepted, or closes before it is due."""
    world = await world_of(lane=lane, base=2.0, factor=1.0, cap=2.0)
    world.outside.troubles = {id: [Response(503, {}, b"")] for id in ("a-2", "b-3")} if fails else {}
    process = await Process(world).run(1)
    now = world.clock.time()
    await world.send(keyed(1, window=LONG_S))
    await world.send(keyed(3, "b", window=60.0, deliver_at=now + LONG_S, deadline=now + LONG_S + 50))
    await process.ended(LONG_S - 50)
    await world.send(keyed(2, window=LONG_S, deadline=now + LONG_S + 50))
    await process.stop(after=90)
    assert world.outside.arrived("/answer", "a") == ["a-2"]
    assert world.outside.arrived("/answer", "b") == ["b-3"]


@LANES
async def test_one_whose_window_is_open_at_its_deadline_expires_then(lane: str) -> None:
    world = await world_of(lane=lane)
    process = await Process(world).run(1)
    await world.send(keyed(1, window=LONG_S, deadline=world.clock.time() + 95))
    await process.ended(90)
    assert world.outside.reasons() == {}
    await process.stop(after=10)
    assert world.outside.reasons() == {"a-1": "expired"}
    assert await world.is_at_rest()


async def test_what_was_sent_early_in_its_own_window_and_forgotten_is_not_replaced() -> None:
    """The window was opened before it was accepted. It was sent, and before another one came the state was lost."""
    world = await world_of(base=40.0, factor=1.0, cap=40.0)
    process = await RebuildingProcess(world).run(1)
    await world.send(keyed(1, window=LONG_S))
    await process.ended(LONG_S - 50)
    await world.send(keyed(2, window=LONG_S))
    world.outside.lose_response = frozenset({2})  # the first one is that of the notice about a-1
    await process.ended(60)
    assert world.outside.arrived("/answer") == ["a-2"]
    world.state.lose()
    await process.ended(5)
    await world.send(keyed(3, window=2.0))
    await process.ended(5)
    await process.kill()
    await RebuildingProcess(world).stop(after=LONG_S)
    assert world.outside.results()["a-2", "r"] == {"answered"}
    assert await world.is_at_rest()


async def test_what_waits_for_the_receiver_is_not_replaced_by_a_later_window() -> None:
    """Otherwise a stream of messages would keep the newest from ever being sent."""
    world = await world_of(rate_limit=1, window_size=30.0)
    process = await Process(world).run(1)
    for number in range(20):
        await world.send(keyed(number, window=6.0))
        await process.ended(2)
    await process.stop(after=400)
    arrived = world.outside.arrived("/answer")
    assert len(arrived) >= 4
    assert arrived[-1] == "a-19"
    assert set(arrived) | set(replaced(world)) == set(ids(range(20)))
    assert not set(arrived) & set(replaced(world))
    assert await world.is_at_rest()
