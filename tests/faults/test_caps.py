"""Never more requests at a time than `max_in_flight`, nor more starts than `rate_limit` in any window, whatever happens
to the processes that send them."""

import asyncio
from collections import Counter
from typing import cast

from relay.domain.exchange import NoResponse
from relay.log.partitioner import partition_of
from tests.fakes.surroundings import most_in
from tests.fakes.virtual_time import VirtualLoop
from tests.fakes.world import Process, World, message, receiver

SOURCES = [f"s{number}" for number in range(40)]
PARTITIONS = 8


def _partition(source: str) -> int:
    return partition_of(source.encode(), PARTITIONS)


async def test_fewer_requests_than_partitions_over_two_processes_and_each_partition_has_its_turn() -> None:
    world = World([receiver("r", "/slow", partitions=PARTITIONS, max_in_flight=2)])
    world.outside.slow_s = 0.5
    await world.create()
    await world.send(*[message(number, source, "r") for number in range(6) for source in SOURCES])
    processes = [Process(world), Process(world)]
    await processes[0].ended(20)
    turns = Counter(_partition(source) for source in SOURCES for _ in world.outside.arrived("/slow", source))
    assert world.outside.most["/slow"] == 2
    assert len(turns) == PARTITIONS
    assert min(turns.values()) * 3 >= max(turns.values())
    await processes[0].ended(60)
    await asyncio.gather(*[process.stop() for process in processes])
    assert len(world.outside.arrived("/slow")) == 6 * len(SOURCES), "no slot stays unused for long"
    assert world.outside.most["/slow"] == 2


async def test_what_a_former_owner_has_in_flight_counts_while_a_process_joins() -> None:
    world = await World([receiver("r", "/slow", partitions=4, max_in_flight=4)]).create()
    await world.send(*[message(number, source, "r") for number in range(2) for source in SOURCES])
    first = await Process(world).run(1)
    assert world.outside.under_way["/slow"] == 4
    second = await Process(world).run(500)
    await asyncio.gather(first.stop(), second.stop())
    assert world.outside.most["/slow"] == 4
    assert len(world.outside.arrived("/slow")) == 2 * len(SOURCES)


async def test_what_was_in_flight_counts_although_the_state_has_lost_its_memory() -> None:
    world = await World([receiver("r", "/slow", partitions=4, max_in_flight=2, timeout=15.0)]).create()
    await world.send(*[message(0, source, "r") for source in SOURCES])
    process = await Process(world).run(1)
    world.state.lose()
    await process.stop(after=300)
    assert world.outside.most["/slow"] == 2
    assert len(world.outside.arrived("/slow")) == len(SOURCES)


async def test_slots_of_the_rate_count_although_the_state_has_lost_its_memory() -> None:
    """Slots are taken up to a second ahead: those of before the loss are still used after it."""
    for loss_s in (0.02, 0.6, 1.0, 1.3):
        world = await World([receiver("r", "/answer", ordering="none", rate_limit=4, window_size=2.0)]).create()
        process = Process(world)
        await process.ended(60)  # so that it knows all that may be in flight
        await world.send(*[message(number, "a", "r") for number in range(20)])
        await process.ended(loss_s)
        world.state.lose()
        await process.stop(after=20)
        assert len(world.outside.starts["/answer"]) == 20
        assert most_in(world.outside.starts["/answer"], 2.0) <= 4, loss_s


async def test_a_lost_memory_holds_up_no_lane_that_knows_what_it_has_in_flight() -> None:
    world = await World([receiver("r", "/answer")]).create()
    await world.send(message(0, "a", "r"))
    process = await Process(world).run(60)
    world.state.lose()
    await process.ended(2)
    await world.send(message(1, "a", "r"))
    await process.stop(after=2)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]


async def test_starts_that_were_missed_are_not_made_up_for() -> None:
    """The process stands still for 2 s, with slots of the rate in hand."""
    loop = cast(VirtualLoop, asyncio.get_running_loop())
    world = await World([receiver("r", "/answer", ordering="none", rate_limit=20)]).create()
    await world.send(*[message(number, "a", "r") for number in range(200)])
    process = Process(world)
    for stalled_s in (2.0, 0.3, 0.1):
        await process.ended(1.5)
        loop.stand_still(stalled_s)
    await process.stop(after=20)
    starts = world.outside.starts["/answer"]
    assert len(starts) == 200
    assert most_in(starts, 1.0) <= 20


async def test_what_waited_too_long_for_a_connection_begins_anew_and_is_paced() -> None:
    """All that had to wait for the same connection, name or token would start together, when there is one."""
    world = await World([receiver("r", "/answer", ordering="none", rate_limit=20)]).create()
    await world.send(*[message(number, "a", "r") for number in range(60)])
    world.outside.unsent["answer"] = NoResponse("late", "it had to wait", sent=False)
    process = await Process(world).run(2)
    assert world.outside.not_made["/answer"] > 10
    world.outside.unsent.clear()
    await process.stop(after=10)
    assert sorted(world.outside.tried.values()) == [1] * 60
    assert most_in(world.outside.starts["/answer"], 1.0) <= 20


async def test_two_processes_that_stand_still_together_keep_to_one_rate() -> None:
    loop = cast(VirtualLoop, asyncio.get_running_loop())
    world = await World([receiver("r", "/answer", ordering="none", rate_limit=20, partitions=4)]).create()
    await world.send(*[message(number, source, "r") for number in range(10) for source in SOURCES])
    processes = [Process(world), Process(world)]
    for _ in range(3):
        await processes[0].ended(1.5)
        loop.stand_still(0.7)
    await processes[0].ended(30)
    await asyncio.gather(*[process.stop() for process in processes])
    starts = world.outside.starts["/answer"]
    assert len(starts) == 400
    assert most_in(starts, 1.0) <= 20
