"""The response to a POST is lost, for every POST: who gets a message how often is as promised."""

import asyncio
from collections import deque
from typing import Any

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.domain.exchange import NoResponse
from relay.domain.identity import DeliveryId
from relay.domain.timing import Timing
from relay.state.attempts import Change, Settlement
from relay.state.rows import TAGS, Result, delivery_row
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import REFUSED, Surroundings
from tests.fakes.virtual_time import run_virtually, until
from tests.fakes.world import Process, World, message, receiver
from tests.faults.simulation.outside import Mishap, Wire

COUNT = 3


async def _story(lost: int | None, **how: Any) -> Surroundings:
    """`COUNT` messages of one source; the response to POST number `lost` does not come."""
    world = await World([receiver("r", "/answer", timeout=2.0, **how)]).create()
    world.outside.lose_response = frozenset({lost} if lost is not None else ())
    await world.send(*(message(number, "a", "r") for number in range(COUNT)))
    await world.run(Fuse(), 150, until=lambda: len(world.outside.results()) == COUNT)
    assert await world.is_at_rest()
    return world.outside


POSTS = range(1, 2 * COUNT + 1)
"""To the receiver, and to the sender's callback."""


def _lost_at_the_receiver(outside: Surroundings, lost: int) -> str | None:
    path, headers, _ = outside.posts[lost - 1]
    return headers["ce-id"] if path == "/answer" else None


@pytest.mark.parametrize("lost", POSTS)
def test_a_receiver_that_can_be_asked_gets_each_message_once(lost: int) -> None:
    outside = run_virtually(_story(lost, status=True))
    assert outside.arrived("/answer") == ["a-0", "a-1", "a-2"]
    assert set(map(frozenset, outside.results().values())) == {frozenset({"answered"})}


@pytest.mark.parametrize("lost", POSTS)
def test_one_that_cannot_gets_it_again(lost: int) -> None:
    outside = run_virtually(_story(lost))
    twice = _lost_at_the_receiver(outside, lost)
    expected = [each for number in range(COUNT) for each in [f"a-{number}"] * (2 if f"a-{number}" == twice else 1)]
    assert outside.arrived("/answer") == expected
    assert set(map(frozenset, outside.results().values())) == {frozenset({"answered"})}


@pytest.mark.parametrize("lost", POSTS)
def test_or_not_at_all_where_it_wants_each_at_most_once(lost: int) -> None:
    outside = run_virtually(_story(lost, on_ambiguous="dead_letter"))
    dead = _lost_at_the_receiver(outside, lost)
    assert outside.arrived("/answer") == ["a-0", "a-1", "a-2"]
    assert outside.reasons() == ({dead: "ambiguous"} if dead else {})


@pytest.mark.parametrize("lost", POSTS)
def test_the_sender_gets_at_most_one_result_more(lost: int) -> None:
    outside = run_virtually(_story(lost, status=True))
    ids = [headers["webhook-id"] for path, headers, _ in outside.posts if path == "/callback"]
    at_the_sender = _lost_at_the_receiver(outside, lost) is None
    assert len(set(ids)) == COUNT
    assert len(ids) == COUNT + (1 if at_the_sender else 0)


@pytest.mark.parametrize("lost", POSTS)
def test_a_receiver_that_answers_later_gets_each_message_once(lost: int) -> None:
    async def story() -> Surroundings:
        world = await World([receiver("r", "/later", status=True, timeout=2.0)]).create()
        world.outside.lose_response = frozenset({lost})
        await world.send(*(message(number, "a", "r") for number in range(COUNT)))
        await world.run(Fuse(), 150, until=lambda: len(world.outside.results()) == COUNT)
        assert await world.is_at_rest()
        return world.outside

    outside = run_virtually(story())
    assert outside.arrived("/later") == ["a-0", "a-1", "a-2"]
    assert set(map(frozenset, outside.results().values())) == {frozenset({"answered"})}


async def test_a_doubt_that_is_resolved_waits_for_a_slow_rate() -> None:
    """Others want each slot, too; what was learned about the lost attempt holds until the next one."""
    world = await World(
        [receiver("r", "/answer", status=True, rate_limit=1, window_size=8.0, timeout=2.0, max_age=300.0)]
    ).create()
    world.outside.troubles["a-0"] = [NoResponse("disconnected", "before it was read", sent=True)]
    await world.send(message(0, "a", "r"), *(message(number, "b", "r") for number in range(30)))
    await world.run(Fuse(), 400)
    assert world.outside.reasons() == {}
    assert world.outside.arrived("/answer", "a") == ["a-0"]
    assert world.outside.arrived("/answer").index("a-0") < 10
    assert world.outside.asked["a-0"] == 1


ENDS: dict[str, dict[str, Any]] = {
    "erased": {},
    "discarded": {},
    "expired": {},
    "exhausted": {"retry": {"base": 1, "max_attempts": 1}},
    "refused": {"retry": {"base": 1, "max_attempts": 2}},
    "ambiguous": {"on_ambiguous": "dead_letter"},
}


@pytest.mark.parametrize("dies", [None, 1.0, 4.0], ids=["goes on", "dies in flight", "dies later"])
@pytest.mark.parametrize("end", ENDS)
def test_a_failure_waits_for_an_attempt_that_may_still_arrive(end: str, dies: float | None) -> None:
    """The next message in order would arrive before it."""

    async def story() -> None:
        world = ReplayWorld()
        world.outside = wire = Wire()
        wire.mishaps["a-0"] = deque([Mishap("late", 6.0), Mishap("dropped", response=REFUSED)])
        await world.create("r", timeout=2, **{"retry": {"base": 60, "max_attempts": 9}} | ENDS[end])
        process = ReplayProcess(world)
        await world.send(message(0, "b", "r"))
        await until(world.is_at_rest)
        timing = Timing(0.0, world.clock.time() + 2.0) if end == "expired" else None
        await world.send(structs.replace(message(0, "a", "r"), timing=timing), message(1, "a", "r"))
        await asyncio.sleep(dies or 1.0)
        if dies:
            await process.kill()
            process = await ReplayProcess(world).ready()
        if end == "erased":
            await world.erase(source_id="a", message_id="a-0")
        elif end == "discarded":
            delivery = DeliveryId("r", "a", "a-0")
            assert await process.replay_service.discard_waiting(delivery, await world.row(*delivery))
        await process.finish()
        assert wire.arrived("/answer", "a") == ["a-0", "a-1"]
        assert wire.reasons() == {"a-0": {"erased": "discarded", "refused": "exhausted"}.get(end, end)}

    run_virtually(story())


async def test_a_failure_that_waits_leaves_no_parked_copy() -> None:
    """It waits for attempts that were lost with the state, and is parked with its head at the bound of the lane."""
    bounds = Settings(receivers_file="none", window_records=10, window_offsets=100)
    world = await World([receiver("r", "/answer", base=40.0, cap=40.0)], settings=bounds).create()
    world.outside.troubles["a-0"] = [REFUSED] * 2
    first = Process(world)
    await world.send(message(0, "b", "r"))
    await first.ended(3)
    state = world.state
    state.lose()
    await state.lost()
    await state.set_edition(2**53)
    await state.ready(range(TAGS), in_doubt_s=1000)
    await first.stop()
    await state.close_gaps(await state.gaps(range(TAGS)))
    row, dead = delivery_row(DeliveryId("r", "a", "a-1")), Result("dead", reason="discarded")
    await state.settle([Settlement(row, 0, b"", Change.RESULT, reason="discarded", result=dead, settle_s=30)])
    looked_up_first = structs.replace(message(0, "c", "r"), timing=Timing(key="k"))
    await world.send(looked_up_first, *(message(number, "a", "r") for number in range(30)))
    await world.run(Fuse(), 150)
    assert world.outside.reasons() == {"a-1": "discarded"}
    assert world.outside.arrived("/answer", "a") == [f"a-{number}" for number in range(30) if number != 1]
    assert await world.is_at_rest()
