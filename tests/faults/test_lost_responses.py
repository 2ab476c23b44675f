"""The response to a POST is lost, for every POST: who gets a message how often is as promised."""

from typing import Any

import pytest

from relay.domain.exchange import NoResponse
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import Surroundings
from tests.fakes.virtual_time import run_virtually, virtually
from tests.fakes.world import World, message, receiver

COUNT = 3


async def _story(lost: int | None, **how: Any) -> Surroundings:
    """`COUNT` messages of one source; the response to POST number `lost` does not come."""
    world = World([receiver("r", "/answer", timeout=2.0, **how)])
    await world.create()
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
        world = World([receiver("r", "/later", status=True, timeout=2.0)])
        await world.create()
        world.outside.lose_response = frozenset({lost})
        await world.send(*(message(number, "a", "r") for number in range(COUNT)))
        await world.run(Fuse(), 150, until=lambda: len(world.outside.results()) == COUNT)
        assert await world.is_at_rest()
        return world.outside

    outside = run_virtually(story())
    assert outside.arrived("/later") == ["a-0", "a-1", "a-2"]
    assert set(map(frozenset, outside.results().values())) == {frozenset({"answered"})}


@virtually
async def test_a_doubt_that_is_resolved_waits_for_a_slow_rate() -> None:
    """Others want each slot, too; what was learned about the lost attempt holds until the next one."""
    world = World([receiver("r", "/answer", status=True, rate_limit=1, window_size=8.0, timeout=2.0, max_age=300.0)])
    await world.create()
    world.outside.troubles["a-0"] = [NoResponse("disconnected", "before it was read", sent=True)]
    await world.send(message(0, "a", "r"), *(message(number, "b", "r") for number in range(30)))
    await world.run(Fuse(), 400)
    assert world.outside.reasons() == {}
    assert world.outside.arrived("/answer", "a") == ["a-0"]
    assert world.outside.arrived("/answer").index("a-0") < 10
    assert world.outside.asked["a-0"] == 1
