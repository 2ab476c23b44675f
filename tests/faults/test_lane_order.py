"""Order per order key is kept: through retries, parking, restarts; and what has another key passes."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.domain.exchange import Response
from relay.domain.hold import Hold
from relay.domain.hop import Hop, encode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.engine.commands import BATCH
from relay.state.port import Counts
from tests.fakes.surroundings import REFUSED
from tests.fakes.world import Process, World, message, receiver

PARKS: dict[str, Any] = {"base": 90.0, "factor": 1.0, "cap": 90.0}
"""A retry policy whose waits are all longer than a record is held in memory."""


def _stream(source: str, count: int, *receivers: str) -> list[Message]:
    return [message(number, source, *receivers) for number in range(count)]


def _in_order(source: str, count: int) -> list[str]:
    return [f"{source}-{number}" for number in range(count)]


async def test_a_failing_head_holds_its_followers_and_other_sources_pass() -> None:
    world = await World([receiver("r", "/answer")]).create()
    world.outside.troubles["a-0"] = [REFUSED] * 3
    await world.send(*_stream("a", 10, "r"), *_stream("b", 10, "r"))
    process = Process(world)
    await process.ended(5)  # waits of 1, 2 and 4 s
    assert world.outside.arrived("/answer") == _in_order("b", 10)
    await process.stop(after=10)
    assert world.outside.arrived("/answer", "a") == _in_order("a", 10)
    assert world.told.parked_records == 0
    assert not world.uncommitted()


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_a_parked_head_holds_its_followers_and_other_sources_pass(lane: str) -> None:
    world = await World([receiver("r", "/answer", lane=lane, **PARKS)]).create()
    world.outside.troubles["a-0"] = [REFUSED] * 2
    await world.send(*_stream("a", 5, "r"), *_stream("b", 5, "r"))
    process = await Process(world).run(30)
    assert world.outside.arrived("/answer") == _in_order("b", 5)
    assert not world.uncommitted(), "the wait is over for the log"
    await world.send(*[message(number, "a", "r") for number in range(5, 9)])  # newcomers queue up behind
    await process.ended(100)
    await world.send(*[message(number, "a", "r") for number in range(9, 12)])
    await process.ended(100)
    assert world.outside.arrived("/answer", "a") == _in_order("a", 12)
    await world.send(message(12, "a", "r"))  # the way is free again
    await process.stop(after=1)
    assert world.outside.arrived("/answer", "a") == _in_order("a", 13)
    assert await world.parked_references() == 0
    assert world.parked_copies() == []


async def test_followers_go_on_when_the_parked_head_dies() -> None:
    world = await World([receiver("r", "/answer", **PARKS | {"max_attempts": 2})]).create()
    world.outside.troubles["a-0"] = [REFUSED] * 9
    await world.send(*_stream("a", 5, "r"))
    await Process(world).stop(after=120)
    assert world.outside.arrived("/answer", "a") == _in_order("a", 5)[1:]
    assert world.outside.reasons() == {"a-0": "exhausted"}
    assert world.parked_copies() == []


@pytest.mark.parametrize("kill_at", [0.05, 10.0, 89.9, 90.06, 179.98, 180.05])
async def test_a_restart_in_the_middle_keeps_the_order(kill_at: float) -> None:
    world = await World([receiver("r", "/answer", status=True, **PARKS)]).create()
    world.outside.troubles["a-0"] = [REFUSED] * 2
    await world.send(*_stream("a", 8, "r"), *_stream("b", 3, "r"))
    first = await Process(world).run(kill_at)
    await first.kill()
    await world.send(message(8, "a", "r"))
    await Process(world).stop(after=400)
    assert world.outside.arrived("/answer", "a") == _in_order("a", 9)
    assert world.outside.arrived("/answer", "b") == _in_order("b", 3)
    assert world.parked_copies() == []
    assert await world.parked_references() == 0


async def test_what_was_parked_and_came_behind_a_newer_one_in_memory_is_sent_before_it() -> None:
    """A new owner does not know of it until the newer one, which waited for the receiver, is about to begin."""
    world = await World([receiver("r", "/answer", max_in_flight=1, **PARKS)]).create()
    world.outside.troubles |= {"a-0": [REFUSED], "b-0": [REFUSED] * 99}
    await world.send(message(0, "a", "r"))
    first = await Process(world).run(5)
    await first.kill()
    await world.state.hold("r:r", Hold("paused", 1.0))
    await world.send(message(0, "b", "r"))
    second = await Process(world).run(20)
    await world.send(message(1, "a", "r"), message(2, "a", "r"))
    await second.ended(200)
    await world.state.resume("r:r")
    await second.stop(after=200)
    assert world.outside.arrived("/answer") == _in_order("a", 3)


async def test_with_ordering_receiver_a_failing_head_holds_all_sources() -> None:
    world = await World([receiver("r", "/answer", ordering="receiver")]).create()
    world.outside.troubles["a-0"] = [REFUSED] * 2
    process = Process(world)
    await world.send(*_stream("a", 3, "r"))
    await process.ended(0.5)
    await world.send(*_stream("b", 3, "r"))
    await process.ended(1)
    assert world.outside.arrived("/answer") == []
    await process.stop(after=10)
    assert world.outside.arrived("/answer") == _in_order("a", 3) + _in_order("b", 3)


async def test_a_failing_head_holds_up_only_what_has_the_same_value() -> None:
    """One message that its receiver refuses, of a source whose messages are in order by a value of theirs."""
    world = await World([receiver("r", "/answer", ordering="/of", **PARKS)]).create()
    stream = [of_value(number, number % 3) for number in range(12)]
    world.outside.troubles["a-3"] = [REFUSED] * 2
    process = Process(world)
    await world.send(*stream)
    await process.ended(5)
    arrived = world.outside.arrived("/answer", "a")
    assert arrived == [f"a-{number}" for number in range(12) if number % 3 or number < 3]
    await process.stop(after=200)
    assert world.outside.arrived("/answer", "a") == [*arrived, "a-3", "a-6", "a-9"]
    assert world.parked_copies() == []


def of_value(number: int, value: int) -> Message:
    return structs.replace(message(number, "a", "r"), payload=b'{"of": %d}' % value)


@pytest.mark.parametrize(("ordering", "at_once"), [("receiver", 1), ("source", 2), ("none", 6)])
async def test_so_many_requests_at_once(ordering: str, at_once: int) -> None:
    world = await World([receiver("r", "/slow", ordering=ordering)]).create()
    world.outside.slow_s = 1.0
    await world.send(*_stream("a", 3, "r"), *_stream("b", 3, "r"))
    await Process(world).stop(after=10)
    assert len(world.outside.arrived("/slow")) == 6
    assert world.outside.most["/slow"] == at_once


async def test_ordering_none_lets_everything_pass_a_parked_one() -> None:
    world = await World([receiver("r", "/answer", ordering="none", **PARKS)]).create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*_stream("a", 5, "r"))
    process = await Process(world).run(5)
    assert sorted(world.outside.arrived("/answer")) == _in_order("a", 5)[1:]
    assert not world.uncommitted()
    await process.stop(after=100)
    assert world.outside.arrived("/answer")[-1] == "a-0"
    assert world.parked_copies() == []


async def test_a_second_copy_of_a_record_does_not_take_the_place_of_the_first_in_the_parked_line() -> None:
    """A hop record may be appended twice."""
    world = await World([receiver("r", "/answer", **PARKS)]).create()
    world.outside.troubles["a-0"] = [REFUSED]
    for number in (0, 1, 0):
        hop = Hop(DeliveryId("r", "a", f"a-{number}"), accepted_ms=int(world.clock.time() * 1000))
        await world.append(world.topics.to_receiver("r"), b"a", b"{}", encode_hop(hop))
    await Process(world).stop(after=300)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]
    assert world.parked_copies() == []
    assert not world.uncommitted()


async def test_waiting_for_the_receivers_convenience_is_no_attempt() -> None:
    """429 counts neither for the limit nor in the number of the attempt that the receiver gets."""
    world = await World([receiver("r", "/answer", max_attempts=2, base=1.0)]).create()
    world.outside.troubles["a-0"] = [Response(429, {"retry-after": "2"}, b"")] * 5 + [REFUSED]
    await world.send(message(0, "a", "r"))
    await Process(world).stop(after=60)
    assert world.outside.arrived("/answer") == ["a-0"]
    [headers] = [headers for path, headers, _ in world.outside.posts if path == "/answer"]
    assert headers["relay-attempt"] == "2"


@pytest.mark.parametrize("roomy", [4, 6])
async def test_what_found_no_room_in_the_parked_line_is_not_overtaken_by_what_comes_later_and_finds_some(
    monkeypatch: pytest.MonkeyPatch, roomy: int
) -> None:
    """The line is longer than one call can park, and room becomes free between two calls."""
    cap, count = 100, BATCH + 200
    world = await World(
        [receiver("r", "/answer", **PARKS)], settings=Settings(receivers_file="none", parked_per_receiver=cap)
    ).create()
    world.outside.troubles["a-0"] = [REFUSED]
    real, calls = world.state.parked, 0

    async def parked(owners: Sequence[str]) -> Any:
        nonlocal calls
        calls += 1
        counts = await real(owners)
        return [Counts(0, 0)] * len(owners) if calls == roomy else counts

    monkeypatch.setattr(world.state, "parked", parked)
    await world.send(*_stream("a", count, "r"))
    process = await Process(world).run(30)
    assert world.outside.arrived("/answer") == []
    assert calls > roomy
    await process.stop(after=900)
    assert world.outside.arrived("/answer") == _in_order("a", count)
    assert await world.is_at_rest()
