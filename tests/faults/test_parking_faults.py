"""Parked messages, when the process dies at any port call, or the state loses its memory before any of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.domain.exchange import Response
from relay.domain.hop import decode_hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.engine.parked_reader import adopt_cluster
from relay.log.port import Coordinate, NewRecord
from relay.state.port import Lane
from relay.state.replies import answered, of
from relay.state.rows import ParkedLife, delivery_row
from tests.fakes.log import MemoryBroker
from tests.fakes.strikes import CRASHES, STRIKES, Frost, Fuse, Loss, Strikes, crash_at_each
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver, recovery_of

HELD = Settings(receivers_file="none", hold_max=5.0)
"""Records that wait for longer than 5 s are parked: these stories are repeated hundreds of times."""
PARKS: dict[str, Any] = {"base": 8.0, "factor": 1.0, "cap": 8.0, "timeout": 2.0}
SENT = ["a-0", "a-1", "a-2"]


async def _world() -> World:
    """One failure, then success: the head is parked, its followers queue up behind it, another source passes."""
    world = await World([receiver("r", "/answer", status=True, **PARKS)], settings=HELD).create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*(message(number, "a", "r") for number in range(3)), message(0, "b", "r"))
    return world


def _complete(world: World) -> Callable[[], bool]:
    everything = {(each, "r"): {"answered"} for each in (*SENT, "b-0")}
    return lambda: world.outside.results() == everything


async def _nothing_is_wrong(world: World, place: str) -> None:
    assert _complete(world)(), place
    assert world.outside.arrived("/answer", "a") == SENT, place
    assert world.outside.arrived("/answer", "b") == ["b-0"], place
    assert world.parked_copies() == [], place
    assert await world.parked_references() == 0, place
    assert world.state.intents() == 0, place
    assert not world.uncommitted(), place


async def _counted() -> Fuse:
    world, fuse = await _world(), Fuse()
    await world.run(fuse, 40, until=_complete(world))
    await _nothing_is_wrong(world, "without a fault")
    return fuse


def test_without_a_fault() -> None:
    assert run_virtually(_counted()).calls > 50


@CRASHES
def test_no_crash_at_any_call_loses_a_parked_message_or_its_place(late: bool, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world = await _world()
        await world.run(fuse, 40, until=_complete(world))
        await world.run(Fuse(), 200, until=_complete(world))
        await _nothing_is_wrong(world, fuse.place)

    crash_at_each(story, strikes, late=late)


@STRIKES
def test_no_loss_of_state_before_any_call_loses_a_message_or_its_place(strikes: Strikes) -> None:
    """And a receiver with a status endpoint gets nothing twice."""

    async def story(lose_at: int) -> None:
        world = await _world()
        losing = Loss(lose_at, world.state.lose)
        await world.run(losing, 200, until=_complete(world))
        await _nothing_is_wrong(world, losing.place)

    for lose_at in strikes(run_virtually(_counted())):
        run_virtually(story(lose_at))


@STRIKES
def test_no_crash_together_with_a_loss_of_state_loses_a_message(strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world = await _world()
        await world.run(fuse, 40, until=_complete(world))
        world.state.lose()
        await world.run(Fuse(), 200, until=_complete(world))
        await _nothing_is_wrong(world, fuse.place)

    crash_at_each(story, strikes, late=True)


@pytest.mark.parametrize("after", [False, True], ids=["call_fails", "reply_is_lost"])
def test_no_crash_during_the_recovery_of_a_lost_state_loses_a_parked_message_or_its_place(after: bool) -> None:
    """The state is lost while the line is parked; the process that restores it dies at any call."""

    async def story(blow_at: int) -> Fuse:
        world = await _world()
        await world.run(Fuse(), 4)
        assert len(world.parked_copies()) == len(SENT)
        world.state.lose()
        crashing = Fuse(blow_at, after=after)
        await world.run(crashing, 1)
        await world.run(Fuse(), 200, until=_complete(world))
        await _nothing_is_wrong(world, crashing.place)
        return crashing

    blow_at = 0
    while run_virtually(story(blow_at := blow_at + 1)).blown:
        pass
    assert blow_at > 15, "the whole recovery"


async def test_a_second_loss_during_the_recovery_of_the_first() -> None:
    world = await _world()
    process = await Process(world).run(4)
    world.state.lose()
    await asyncio.sleep(0.002)
    world.state.lose()
    await process.stop(after=120)
    await _nothing_is_wrong(world, "two losses")


async def test_what_a_killed_process_had_in_hand_is_taken_up_by_the_next_at_once() -> None:
    world = await World([receiver("r", "/slow", **PARKS)], settings=HELD).create()
    world.outside.slow_s = 14.0
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(message(0, "a", "r"))
    first = Process(world)
    while not world.outside.under_way["/slow"]:
        await first.ended(0.5)
    await first.kill()
    assert len(world.parked_copies()) == 1
    second = await Process(world).run(world.known.receivers()["r"].post.settle_s + 20.0)
    assert world.outside.results() == {("a-0", "r"): {"answered"}}
    await second.stop()


async def test_a_parked_message_remembers_its_attempts_through_a_loss_of_state() -> None:
    world = await World([receiver("r", "/answer", **PARKS | {"max_attempts": 3})], settings=HELD).create()
    world.outside.troubles["a-0"] = [REFUSED] * 9
    await world.send(message(0, "a", "r"))
    process = Process(world)
    for _ in range(3):
        await process.ended(6)
        world.state.lose()
    await process.stop(after=60)
    assert world.outside.reasons() == {"a-0": "exhausted"}
    assert world.outside.tried["a-0"] == 3
    assert world.parked_copies() == []


async def test_the_regular_check_puts_back_what_no_reference_knows_of() -> None:
    """And changes nothing where nothing is wrong."""
    world = await _world()
    process = await Process(world).run(4)
    assert await world.parked_references() == 3
    recovery = recovery_of(world, "test", await world.client(), in_doubt_s=60.0)
    await recovery.check()
    assert await world.parked_references() == 3
    lane = Lane(world.topics.to_receiver("r"), 0, 99)
    await answered(
        world.state.unpark(of(lane, [ParkedLife(delivery_row(DeliveryId("r", "a", each)), 0) for each in SENT]))
    )
    assert await world.parked_references() == 0
    await recovery.check()
    assert await world.parked_references() == 3
    await process.stop(after=90)
    await _nothing_is_wrong(world, "references removed")


async def test_a_copy_that_a_fenced_lane_has_sent_is_removed_if_it_comes_behind_the_tombstone() -> None:
    """The log appends it after the lane was given up: its call is not cancelled, as that does not call it back."""
    world = await _world()
    first, lands = Process(world), asyncio.Event()
    append = first.log.append

    async def late(records: Sequence[NewRecord]) -> list[Coordinate]:
        if not (records[0].key or b"").startswith(b"to_receiver:"):
            return await append(records)

        async def land() -> list[Coordinate]:
            await lands.wait()
            return await append(records)

        return await asyncio.shield(asyncio.create_task(land()))

    first.log.append = late  # type: ignore[method-assign]
    await first.ended(4)
    first.log.expel()
    second = await Process(world).run(20)
    assert _complete(world)()
    lands.set()
    await first.ended(20)
    await asyncio.gather(first.stop(), second.stop())
    await _nothing_is_wrong(world, "the copy lands late")


async def test_on_another_cluster_parked_messages_wait_and_on_their_own_they_are_sent() -> None:
    """An operator has mistaken its address; the state is that of the first."""
    world = await _world()
    await world.run(Fuse(), 4)
    own, copies = world.broker, world.parked_copies()
    assert copies
    world.broker = MemoryBroker(now_ms=own.now_ms, cluster="another")
    await world.create()
    await world.run(Fuse(), 60)
    assert world.told.dead_letters == {}
    world.broker = own
    await world.run(Fuse(), 60, until=_complete(world))
    await _nothing_is_wrong(world, "back on its own")


async def test_on_a_cluster_that_an_operator_confirms_parked_messages_that_it_lacks_are_lost() -> None:
    world = await _world()
    await world.run(Fuse(), 4)
    own = world.broker
    world.broker = MemoryBroker(now_ms=own.now_ms, cluster="another")
    await world.create()
    await adopt_cluster(await world.client(), world.state)
    await world.run(Fuse(), 60)
    assert world.told.dead_letters == {"lost": 3}


async def _replayed() -> World:
    """Two that were rejected are in their next lives: one is to be parked, and the other one behind it."""
    world = await World([receiver("r", "/answer", status=True, **PARKS)], settings=HELD).create()
    world.outside.troubles |= {id: [Response(422, {}, b"")] for id in SENT[:2]}
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    await world.run(Fuse(), 5)
    world.outside.troubles["a-0"] = [REFUSED]
    lane = world.topics.to_receiver("r")
    for record in world.broker.records(lane):
        again = structs.replace(decode_hop(record.headers), generation=1)
        await world.append(lane, record.key, record.value, encode_hop(again))
    return world


async def test_a_zombie_removes_no_copy_of_a_life_for_the_end_of_the_one_before() -> None:
    learning = Fuse()
    await (await _replayed()).run(learning, 5)
    parks = [number for number, name in enumerate(learning.names, 1) if name == "state.park"]
    world, frost = await _replayed(), Frost(parks[-1])
    first = await Process(world, frost).run(3)
    first.log.expel()
    second = await Process(world).run(4)
    frost.thaw.set()
    await second.ended(60)
    await asyncio.gather(first.stop(), second.stop())
    assert world.outside.results() == {(id, "r"): {"failed", "answered"} for id in SENT[:2]}
    assert set(world.told.dead_letters) == {"rejected"}
    assert await world.is_at_rest()


@CRASHES
def test_a_zombie_leaves_no_copy_of_a_delivery_that_its_successor_has_finished(late: bool, strikes: Strikes) -> None:
    """It froze while it parked, and its copy is appended behind the tombstone."""

    async def story(freeze_at: int) -> None:
        world, frost = await _world(), Frost(freeze_at, after=late)
        first = await Process(world, frost).run(4)
        first.log.expel()
        second = await Process(world).run(60)
        frost.thaw.set()
        await first.ended(20)
        await asyncio.gather(first.stop(), second.stop())
        await _nothing_is_wrong(world, frost.place)

    for freeze_at in strikes(run_virtually(_counted())):
        run_virtually(story(freeze_at))
