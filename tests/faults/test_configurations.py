"""Processes whose configuration differs: what one of them cannot use waits for one that can, and nothing is buried."""

from functools import partial
from typing import Any

import pytest
import yaml

from relay.config.receivers_file import parse_receivers_file
from relay.domain.identity import DeliveryId
from relay.domain.topics import SHARED
from relay.log.partitioner import partition_of
from tests.fakes.moving import FEW, SOURCES, MovingProcess, MovingWorld
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import CRASHES, STRIKES, Fuse, Strikes, crash_at_each
from tests.fakes.virtual_time import run_virtually, until
from tests.fakes.world import message
from tests.faults.test_replays import RebuildingProcess

LANES = pytest.mark.parametrize("lane", ["dedicated", SHARED])
SECRET = {"NAME": "a secret that is long enough"}
SIGNED: dict[str, Any] = {"signature": "standard", "secret": "${NAME}"}
MANY = 40


async def _send(world: MovingWorld, first: int, count: int = MANY) -> None:
    await world.send(*(message(first + number, "a", "r") for number in range(count)))


def _judge(world: MovingWorld, count: int, place: str = "") -> None:
    assert world.told.dead_letters == {}, place
    assert world.outside.results() == {(f"a-{n}", "r"): {"answered"} for n in range(count)}, place
    arrived = list(dict.fromkeys(world.outside.arrived("/answer")))
    assert arrived == [f"a-{number}" for number in range(count)], place


@LANES
def test_without_the_secret_messages_wait_unparked_until_the_file_is_read_and_then_go_on_in_order(lane: str) -> None:
    """As between `relay receivers apply` and the moment when a process has read the file again."""

    async def story() -> None:
        world = await MovingWorld().create("r", lane=lane, **SIGNED | {"secret": SECRET["NAME"]})
        process = MovingProcess(world)
        await _send(world, 0)
        await process.ended(60)
        assert world.outside.arrived("/answer") == []
        assert world.told.dead_letters == {}
        assert world.parked_copies() == []
        entries = {"sources": world.sources, "receivers": world.entries}
        process.registry.learn(parse_receivers_file(yaml.safe_dump(entries), "test"))
        await process.ended(2)  # at once, not at the next look
        assert len(world.outside.arrived("/answer")) == MANY
        await process.finish()
        _judge(world, MANY)

    run_virtually(story())


@LANES
@pytest.mark.parametrize("able_first", [True, False])
def test_a_lane_is_served_by_the_process_that_can(able_first: bool, lane: str) -> None:
    async def story() -> None:
        world = await MovingWorld().create("r", lane=lane, **SIGNED)
        environs = [SECRET, {}] if able_first else [{}, SECRET]
        processes = []
        for environ in environs:
            processes.append(MovingProcess(world, environ=environ))
            await processes[-1].ended(10)
        await _send(world, 0)
        await until(world.is_at_rest)
        for process in processes:
            await process.stop()
        _judge(world, MANY)

    run_virtually(story())


def test_a_partition_of_the_shared_lane_is_left_to_a_process_that_can_as_soon_as_it_matters() -> None:
    """Only the one that has the receiver's messages; and each process has as many as before."""

    async def story() -> None:
        world = await MovingWorld().create("other", lane=SHARED)
        processes = {True: MovingProcess(world, environ=SECRET), False: MovingProcess(world)}
        await processes[True].ended(10)
        await world.declare("r", lane=SHARED, **SIGNED)
        await _send(world, 0)
        await until(world.is_at_rest)
        topic, own = world.topics.to_receiver(SHARED), partition_of(b"r", FEW)
        assert _served(processes[True]) & {(topic, 0), (topic, 1)} == {(topic, own)}
        assert _served(processes[False]) & {(topic, 0), (topic, 1)} == {(topic, 1 - own)}
        for process in processes.values():
            await process.stop()
        _judge(world, MANY)

    run_virtually(story())


def _served(process: MovingProcess) -> set[tuple[str, int]]:
    assert process.lanes is not None
    return {(lane.partition.topic, lane.partition.partition) for lane in process.lanes.pump.lanes()}


@LANES
def test_what_waits_for_an_answer_is_asked_about_by_a_process_that_can(lane: str) -> None:
    async def story() -> None:
        world = await MovingWorld().create()
        later: dict[str, Any] = {"status_endpoint": "http://r/later/{message_id}", "poll": {"base": 20, "cap": 20}}
        await world.declare("r", "/later", lane=lane, **SIGNED, **later)
        first = MovingProcess(world, environ=SECRET)
        await _send(world, 0, 1)
        await first.stop(after=5)
        assert world.outside.arrived("/later") == ["a-0"]
        await MovingProcess(world).stop(after=2 * 3600)
        await MovingProcess(world, environ=SECRET).finish()
        assert world.told.dead_letters.keys() <= {"answer_timeout"}  # its deadline is its own business
        assert world.outside.arrived("/later") == ["a-0"]

    run_virtually(story())


def test_a_result_waits_for_a_process_that_can_use_the_callback_s_settings() -> None:
    async def story() -> None:
        world = await MovingWorld().create()
        world.sources = {"a": {"callback": {"url": "http://sender/callback", "secret": "${NAME}"}}}
        await world.declare("r")
        without = MovingProcess(world)
        await _send(world, 0)
        await without.ended(60)
        assert len(world.outside.arrived("/answer")) == MANY
        assert world.outside.results() == {}
        await without.stop()
        await MovingProcess(world, environ=SECRET).finish()
        _judge(world, MANY)

    run_virtually(story())


def test_a_result_that_waits_for_a_seat_ends_if_its_callback_is_removed() -> None:
    async def story() -> None:
        world = MovingWorld()
        world.seats = 1
        await world.create("r")
        await world.declare("s", "/slow")
        process = MovingProcess(world)
        await world.send(message(0, "a", "r"), message(1, "b", "s"))
        await process.ended(world.outside.slow_s / 2)
        assert process.lanes is not None
        assert sum(lane.seating for lane in process.lanes.pump.lanes()) == 1
        world.sources = {"a": {}, "b": SOURCES["*"]}
        await world.apply()
        await process.finish()
        assert world.told.broken_lanes == []
        assert world.outside.results() == {("b-1", "s"): {"answered"}}

    run_virtually(story())


async def _struck(lane: str, fuse: Fuse) -> None:
    world = await MovingWorld().create("r", lane=lane, **SIGNED)
    await _send(world, 0, 3)
    await MovingProcess(world, fuse).stop(after=12)
    await MovingProcess(world, environ=SECRET).finish()
    _judge(world, 3, fuse.place)


@STRIKES
@LANES
def test_a_crash_while_it_waits_loses_nothing(lane: str, strikes: Strikes) -> None:
    crash_at_each(partial(_struck, lane), strikes)


async def _discarded(fuse: Fuse) -> None:
    """While no process can use the settings."""
    world = await ReplayWorld().create("r", lane=SHARED, **SIGNED)
    await _send(world, 0, 3)
    without = await RebuildingProcess(world, fuse).run(12)
    if fuse.blown:
        without = await RebuildingProcess(world).run(60)
    service, delivery = without.service(await world.client(), world.state), DeliveryId("r", "a", "a-0")
    assert await service.discard_waiting(delivery, await world.row(*delivery))
    await without.ended(12)
    if fuse.blown:
        without = await RebuildingProcess(world).run(60)
    assert {letter.dead.reason for letter in world.letters()} == {"discarded"}, fuse.names[-1:]
    await without.stop()
    await ReplayProcess(world, environ=SECRET).finish()
    assert world.outside.arrived("/answer") == ["a-1", "a-2"], fuse.place
    assert world.outside.reasons() == {"a-0": "discarded"}, fuse.place


@CRASHES
def test_a_discard_of_what_waits_for_settings_takes_effect_at_once(late: bool, strikes: Strikes) -> None:
    crash_at_each(_discarded, strikes, late=late)


async def _handed_over(fuse: Fuse) -> None:
    """One that has the partition, and cannot serve the receiver, leaves it to one that can."""
    world = await MovingWorld().create("other", lane=SHARED)
    process = await MovingProcess(world, environ=SECRET).run(3)
    without = await MovingProcess(world, fuse).run(5)
    await world.declare("r", lane=SHARED, **SIGNED)
    await _send(world, 0, 3)
    await until(world.is_at_rest)
    for each in (without, process):
        await each.stop()
    _judge(world, 3, fuse.place)


@STRIKES
def test_a_crash_while_a_shared_partition_is_left_to_another_process_loses_nothing(strikes: Strikes) -> None:
    crash_at_each(_handed_over, strikes)
