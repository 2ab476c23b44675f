"""A shortage of the process itself counts as no endpoint's attempt: it pauses and continues. And no endpoint can cause
such a pause."""

from typing import Any

import pytest

from relay.domain.exchange import NoResponse
from relay.domain.message import Message
from relay.domain.receiver import Receiver, Source
from tests.fakes.world import Process, World, message, receiver

NO_DESCRIPTORS = NoResponse("no_resources", "[Errno 24] Too many open files", sent=False)
NO_PORTS = NoResponse("no_local_address", "[Errno 99] Cannot assign requested address", sent=False)
NO_PROXY = NoResponse("no_proxy", "the egress proxy refused the connection", sent=False)
NO_ROUTE = NoResponse("unreachable", "[Errno 113] No route to host", sent=False)
SILENT_DNS = NoResponse("dns_silent", "no name server answers", sent=False)
QUICK: dict[str, Any] = {"base": 1.0, "factor": 1.0, "max_attempts": 4}


def _receivers(*names: str, **given: Any) -> list[Receiver]:
    return [receiver(name, f"/{name}", **(QUICK | given)) for name in names]


def _stream(count: int, *names: str, start: int = 0) -> list[Message]:
    return [message(number, f"to-{name}", name) for number in range(start, start + count) for name in names]


async def _world(*receivers: Receiver) -> World:
    return await World(receivers, sources=[Source(f"to-{one.name}") for one in receivers]).create()


def _in_order(world: World, name: str, count: int) -> bool:
    return world.outside.arrived(f"/{name}") == [f"to-{name}-{number}" for number in range(count)]


@pytest.mark.parametrize("shortage", [NO_DESCRIPTORS, NO_PORTS, NO_PROXY, NO_ROUTE, SILENT_DNS], ids=lambda it: it.kind)
async def test_ten_minutes_of_it_cost_nobody_an_attempt(shortage: NoResponse) -> None:
    names = ("a", "b", "c")
    world = await _world(*_receivers(*names))
    process = Process(world)
    await world.send(*_stream(5, *names))
    await process.ended(20)
    world.outside.unsent["*"] = shortage
    await world.send(*_stream(40, *names, start=5))
    await process.ended(600)
    assert world.told.dead_letters == {}
    assert world.told.shortages.keys() == {shortage.kind}
    assert world.outside.not_made.total() < 1_500, "the process goes on trying, but not all the time"
    assert world.told.parked_records == 0, "the backlog stays where it is"
    world.outside.unsent.clear()
    await process.ended(30)
    assert all(_in_order(world, name, 45) for name in names)
    assert await process.stop() < 10
    assert await world.is_at_rest()


@pytest.mark.parametrize("trouble", [NO_ROUTE, SILENT_DNS], ids=lambda it: it.kind)
async def test_one_that_cannot_be_reached_is_at_fault_itself_and_holds_up_nobody(trouble: NoResponse) -> None:
    world = await _world(*_receivers("fine", "off"))
    world.outside.unsent["off"] = trouble
    process = Process(world)
    await world.send(*_stream(1, "off"))  # at first it is all that there is to send
    await process.ended(3)
    await world.send(*_stream(50, "fine"))
    await process.ended(1)
    assert _in_order(world, "fine", 50)
    await process.ended(20)
    assert world.outside.reasons() == {}
    assert world.told.dead_letters == {"exhausted": 1}
    assert world.told.shortages == {}
    await process.stop()


async def test_a_receiver_and_its_status_endpoint_cannot_pause_the_process_either() -> None:
    away = receiver("away", "/away", status=True, **QUICK)
    world = await _world(away)
    world.outside.unsent["away"] = NO_ROUTE
    process = Process(world)
    await world.send(*_stream(3, "away"))
    await process.ended(120)
    assert world.told.shortages == {}
    assert world.told.dead_letters == {"exhausted": 3}
    await process.stop()


@pytest.mark.parametrize("shortage", [NO_PORTS, NO_PROXY], ids=lambda it: it.kind)
async def test_what_is_missing_for_one_alone_is_not_its_fault_and_holds_up_nobody(shortage: NoResponse) -> None:
    world = await _world(*_receivers("fine", "other"))
    world.outside.unsent["other"] = shortage
    process = Process(world)
    await world.send(*_stream(5, "other"))
    for number in range(60):
        await world.send(*_stream(1, "fine", start=number))
        await process.ended(1)
    assert _in_order(world, "fine", 60)
    assert world.told.dead_letters == {}
    assert world.outside.not_made.total() < 400, "it is not tried all the time"
    world.outside.unsent.clear()
    await process.ended(10)
    assert _in_order(world, "other", 5)
    await process.stop()


async def test_pings_and_status_requests_are_nobodys_attempts_either() -> None:
    later = receiver("later", "/later", status=True, **QUICK)
    world = await _world(later)
    process = Process(world)
    await world.send(*_stream(3, "later"))
    await process.ended(1)
    world.outside.unsent["*"] = NO_DESCRIPTORS
    await process.ended(300)
    world.outside.unsent.clear()
    await process.ended(120)
    assert world.told.dead_letters == {}
    assert len(world.outside.arrived("/later")) == 3
    assert await world.is_at_rest()
    await process.stop()


async def test_receivers_that_hang_leave_seats_for_the_others() -> None:
    hanging, healthy = [f"h{number}" for number in range(30)], [f"w{number}" for number in range(5)]
    slow = [receiver(name, "/slow", timeout=15.0, **QUICK) for name in hanging]
    world = await _world(*slow, *_receivers(*healthy))
    world.outside.slow_s = 15.0
    world.seats = 60
    process = Process(world)
    every = [message(number, f"from-{name}-{number}", name) for number in range(40) for name in hanging]
    await world.send(*every)
    await process.ended(2)
    await world.send(*_stream(100, *healthy))
    await process.ended(8)
    assert all(_in_order(world, name, 100) for name in healthy), "although nothing of the others has ended yet"
    assert world.outside.most["/slow"] <= 60
    assert world.told.dead_letters == {}
    await process.stop()


async def test_who_waits_for_a_seat_is_no_obstacle_to_a_stop_and_grows_old() -> None:
    world = await _world(*_receivers("slow", max_in_flight=8), receiver("b", "/b", max_age=30.0, **QUICK))
    world.seats = 2
    world.outside.slow_s = 40.0
    process = Process(world)
    await world.send(*[message(number, f"s{number}", "slow") for number in range(4)])
    await process.ended(1)
    await world.send(*_stream(1, "b"))
    assert await process.ended(45) is False
    await world.send(*[message(number, f"t{number}", "slow") for number in range(4)])
    await process.ended(1)
    assert await process.stop() <= world.settings.shutdown_grace + 1
    assert world.told.stalled_at == []
