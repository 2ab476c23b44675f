"""Batches: which messages share a POST, what its response means for each, and what a crash at any call leaves."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.domain.exchange import NoResponse, Response
from relay.domain.hold import Hold
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.one_off import OneOff
from relay.domain.receiver import BatchPolicy, Receiver
from relay.domain.timing import Timing
from relay.log.port import Record
from relay.state.rows import TAGS
from tests.fakes.strikes import CRASHES, Fuse, Strikes, crash_at_each
from tests.fakes.surroundings import REFUSED, most_in
from tests.fakes.world import Process, World, message, receiver
from workers.delivery import Delivery

LOST = NoResponse("disconnected", "the response was lost", sent=True)
SERVER_ERROR = Response(503, {}, b"")


def batched(name: str = "r", path: str = "/answer", *, most: int = 10, linger: float = 0.2, **others: Any) -> Receiver:
    unit = others.pop("unit", "posts")
    form = others.pop("form", "cloudevents")
    policy = BatchPolicy(most, 100_000, linger, form)
    return replace(receiver(name, path, **others), batch=policy, rate_limit_unit=unit)


def stream(source: str, count: int, start: int = 0) -> list[Message]:
    return [message(number, source, "r") for number in range(start, count)]


def in_order(source: str, count: int) -> list[str]:
    return [f"{source}-{number}" for number in range(count)]


async def sent(world: World, *messages: Message, seconds: float = 30.0) -> None:
    await world.create()
    await world.send(*messages)
    await Process(world).stop(after=seconds)
    assert not world.uncommitted()
    assert world.parked_copies() == []


@pytest.mark.parametrize("form", ["cloudevents", "list"])
async def test_messages_of_one_source_share_a_post(form: str) -> None:
    world = World([batched(form=form)])
    await sent(world, *stream("a", 25))
    assert [len(batch) for batch in world.outside.batches] == [10, 10, 5]
    assert world.outside.arrived("/answer") == in_order("a", 25)
    assert world.outside.results() == {(each, "r"): {"answered"} for each in in_order("a", 25)}


async def test_a_batch_that_is_not_full_waits_for_more_and_no_longer() -> None:
    world = await World([batched(linger=5.0)]).create()
    process = Process(world)
    await world.send(*stream("a", 3))
    await process.ended(2.0)
    await world.send(*stream("b", 3))
    await process.ended(2.0)
    assert world.outside.batches == []
    await process.stop(after=2.0)
    assert [sorted(batch) for batch in world.outside.batches] == [in_order("a", 3) + in_order("b", 3)]


async def test_the_next_messages_of_a_source_wait_for_those_in_flight() -> None:
    world = World([batched(path="/slow", most=4)])
    world.outside.slow_s = 1.0
    await sent(world, *stream("a", 12), *stream("b", 2))
    place = {each: n for n, batch in enumerate(world.outside.batches) for each in batch}
    assert [place[each] for each in in_order("a", 12)] == sorted(place[each] for each in in_order("a", 12))
    assert world.outside.arrived("/slow", "a") == in_order("a", 12)
    assert world.outside.most["/slow"] <= 2, "one batch has messages of a, another one may have those of b"


@pytest.mark.parametrize("trouble", [REFUSED, SERVER_ERROR, Response(500, {}, b""), LOST])
@pytest.mark.parametrize("status", [False, True])
async def test_order_is_kept_when_one_of_a_batch_is_sent_again(trouble: Any, status: bool) -> None:
    world = World([batched(status=status)])
    world.outside.troubles["a-4"] = [trouble] * 2
    await sent(world, *stream("a", 20), *stream("b", 5), seconds=90)
    arrived = Counter(world.outside.arrived("/answer"))
    if status or trouble is not LOST:  # a receiver that cannot be asked gets again what may have arrived
        assert set(arrived.values()) == {1}
    firsts = list(dict.fromkeys(world.outside.arrived("/answer", "a")))
    assert firsts == in_order("a", 20)
    assert set(arrived) == {*in_order("a", 20), *in_order("b", 5)}


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_order_is_kept_when_all_of_a_batch_are_parked(lane: str) -> None:
    waits: dict[str, Any] = {"base": 90.0, "factor": 1.0, "cap": 90.0, "failures": 100}
    world = await World([batched(lane=lane, **waits)]).create()
    world.outside.troubles["a-2"] = [Response(500, {}, b"")]
    process = Process(world)
    await world.send(*stream("a", 25))
    await process.ended(30.0)
    assert world.outside.arrived("/answer") == in_order("a", 2)
    await world.send(*stream("a", 30, 25))
    await process.stop(after=400.0)
    assert world.outside.arrived("/answer") == in_order("a", 30)
    assert world.parked_copies() == []
    assert not world.uncommitted()


async def test_one_that_is_parked_is_not_overtaken_by_later_ones_of_its_batch() -> None:
    """Whatever its receiver says of these."""
    world = World([batched(base=1.0, cap=1.0)], settings=Settings(receivers_file="none", hold_max=20.0))
    verdicts = [{"id": "a-0", "status": 503, "retry_after": 60}, {"id": "a-1", "status": 500}]
    answer, refused = world.outside._batch, iter([verdicts])

    async def once(path: str, request: Any) -> Any:
        if (listed := next(refused, None)) is None:
            return await answer(path, request)
        last = {"id": "a-2", "status": 425, "retry_after": 1}
        return Response(207, {}, json.dumps([*listed, last]).encode())

    world.outside._batch = once  # type: ignore[method-assign]
    await world.create()
    process = Process(world)
    await world.send(*stream("a", 3))
    await process.ended(10.0)
    await world.send(*stream("a", 6, 3))
    await process.ended(30.0)
    assert world.outside.arrived("/answer") == []
    await process.stop(after=120.0)
    assert world.outside.arrived("/answer") == in_order("a", 6)
    assert world.parked_copies() == []


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_order_is_kept_when_only_some_of_a_batch_find_room_to_be_parked(lane: str) -> None:
    waits: dict[str, Any] = {"base": 8.0, "factor": 1.0, "cap": 8.0, "failures": 100, "max_attempts": 100}
    settings = Settings(receivers_file="none", hold_max=5.0, parked_per_receiver=3)
    world = World([batched(most=6, lane=lane, **waits)], settings=settings)
    world.outside.one_for_all.add("/answer")
    world.outside.troubles["a-0"] = [SERVER_ERROR] * 3
    await world.create()
    process = Process(world)
    await world.send(*stream("a", 14))
    await process.stop(after=200.0)
    arrived = world.outside.arrived("/answer")
    assert arrived == [each for each in in_order("a", 14) if each in arrived], "what got no room may die, in its order"
    assert len(arrived) >= 3
    assert world.parked_copies() == []


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_a_rejected_batch_of_parked_messages_is_halved_too(lane: str) -> None:
    """Half of it goes on at once: parked again, it would forget that it is half of one."""
    world = await World(
        [batched(lane=lane, status=True)], settings=Settings(receivers_file="none", hold_max=0.1)
    ).create()
    world.outside.down = {"answer"}
    await world.send(*(message(number, source, "r") for number, source in enumerate("abcd")))
    process = await Process(world).run(1.8)
    assert len(world.parked_copies()) == 4
    world.outside.down.clear()
    world.outside.one_for_all.add("/answer")
    world.outside.troubles["b-1"] = [Response(422, {}, b"")] * 100
    await process.stop(after=60)
    assert sorted(world.outside.arrived("/answer")) == ["a-0", "c-2", "d-3"]
    assert world.outside.reasons() == {"b-1": "rejected"}
    assert len(world.outside.batches) <= 8
    assert await world.is_at_rest()


async def test_a_rejected_batch_is_halved_until_the_culprit_is_alone() -> None:
    world = World([batched(most=16)])
    world.outside.one_for_all.add("/answer")
    world.outside.troubles["a-6"] = [Response(422, {}, b"")] * 9
    await sent(world, *stream("a", 16))
    assert world.outside.arrived("/answer") == [each for each in in_order("a", 16) if each != "a-6"]
    assert world.outside.reasons() == {"a-6": "rejected"}
    assert ["a-6"] in world.outside.batches
    assert len(world.outside.batches) <= 10


async def test_each_message_has_its_own_verdict() -> None:
    world = World([batched(ordering="none", status=True)])
    troubles = {"a-1": Response(422, {}, b""), "a-2": Response(503, {}, b"")}
    world.outside.troubles |= {each: [trouble] for each, trouble in troubles.items()}
    await world.create()
    await world.send(*stream("a", 6))
    process = await Process(world).run(0.5)
    assert len(world.outside.batches) == 1
    await process.stop(after=60.0)
    results = world.outside.results()
    assert results.pop(("a-1", "r")) == {"failed"}
    assert set(map(frozenset, results.values())) == {frozenset({"answered"})}
    assert Counter(world.outside.tried)["a-2"] == 2


async def test_a_batch_that_is_accepted_is_asked_about_message_by_message() -> None:
    world = World([batched(path="/later", status=True)])
    await sent(world, *stream("a", 5))
    assert world.outside.arrived("/later") == in_order("a", 5)
    assert set(world.outside.asked) == set(in_order("a", 5))
    assert world.outside.results() == {(each, "r"): {"answered"} for each in in_order("a", 5)}


@pytest.mark.parametrize(
    "body",
    [
        b"[",
        b"[]",
        b'[{"id": "a-0", "status": 200}, {"id": "a-0", "status": 200}]',
        b'[{"id": "nobody", "status": 200}]',
        b'[{"id": "a-0"}]',
        b'[{"id": "a-0", "status": 99}]',
        b'["ok"]',
        b"[" * 10_000,
    ],
)
async def test_a_list_that_says_nothing_makes_the_batch_ambiguous(body: bytes) -> None:
    world = World([batched(status=True)])
    answer = world.outside._batch

    async def nonsense(path: str, request: Any) -> Any:
        await answer(path, request)
        return Response(200, {}, body)

    world.outside._batch = nonsense  # type: ignore[method-assign]
    await sent(world, *stream("a", 5), seconds=120)
    assert world.outside.arrived("/answer") == in_order("a", 5), "each was asked about, and none sent again"
    assert set(world.outside.asked) == set(in_order("a", 5))
    assert world.outside.results() == {(each, "r"): {"answered"} for each in in_order("a", 5)}


async def test_a_batch_is_one_post_for_the_rate_and_for_what_may_be_in_flight() -> None:
    world = World([batched(rate_limit=2, ordering="none", path="/slow", max_in_flight=1)])
    world.outside.slow_s = 0.1
    await sent(world, *stream("a", 60))
    assert world.outside.most["/slow"] == 1
    starts = world.outside.starts["/slow"]
    assert len(starts) == len(world.outside.batches) < 12
    assert most_in(starts, 1.0) <= 2


async def test_a_rate_of_events_counts_each() -> None:
    world = World([batched(rate_limit=20, unit="events", ordering="none")])
    await sent(world, *stream("a", 100))
    starts = [
        start
        for start, batch in zip(world.outside.starts["/answer"], world.outside.batches, strict=True)
        for _ in batch
    ]
    assert max(map(len, world.outside.batches)) > 1
    assert most_in(starts, 1.0) <= 20
    assert starts[-1] - starts[0] < 8


async def test_an_open_breaker_is_probed_with_one_message() -> None:
    world = World([batched(failures=2)])
    world.outside.down.add("answer")
    await world.create()
    process = Process(world)
    await world.send(*stream("a", 30))
    await process.ended(20.0)
    world.outside.down.clear()
    before = len(world.outside.batches)
    await process.stop(after=120.0)
    assert len(world.outside.batches[before]) == 1
    assert world.outside.arrived("/answer") == in_order("a", 30)


@pytest.mark.parametrize("hop", [{"ask_first": True}, {"one_off": OneOff("http://r/other")}, {}])
def test_a_message_with_an_endpoint_of_its_own_or_that_is_asked_about_first_shares_no_post(hop: Any) -> None:
    record = Record("t", 0, 1, None, b"{}", (), 0)
    work = Delivery(record, Hop(DeliveryId("r", "a", "a-1"), **hop), batched())
    assert work.shares == (not hop)


async def _world(receivers: Sequence[Receiver]) -> World:
    world = World(receivers)
    world.outside.troubles["a-1"] = [Response(500, {}, b"")]
    await world.create()
    await world.send(*stream("a", 4), *stream("b", 2))
    return world


EXPECTED = {(each, "r"): {"answered"} for each in in_order("a", 4) + in_order("b", 2)}
RECEIVERS = [batched(status=True)]


@pytest.mark.timeout(600)
@CRASHES
def test_no_crash_at_any_call_loses_doubles_or_reorders_a_message(late: bool, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world = await _world(RECEIVERS)
        await world.run(fuse, 40)
        await world.run(Fuse(), 120, until=lambda: world.outside.results() == EXPECTED)
        place = fuse.place
        assert world.outside.results() == EXPECTED, place
        assert world.outside.arrived("/answer", "a") == in_order("a", 4), place
        assert world.outside.arrived("/answer", "b") == in_order("b", 2), place
        assert world.parked_copies() == [], place

    crash_at_each(story, strikes, late=late)


async def test_one_behind_a_message_that_is_parked_while_its_batch_begins_follows_it() -> None:
    """The first has expired, and is parked until rows are restored, while the second asks to begin."""
    world = await World([batched(linger=0.0)], settings=Settings(receivers_file="none", hold_max=5.0)).create()
    state = world.state
    state.lose()
    await state.lost()
    await state.ready(range(TAGS), in_doubt_s=1000)
    await state.hold("r:r", Hold("paused", 1.0))
    process = Process(world)
    first, *others = stream("a", 3)
    await world.send(structs.replace(first, timing=Timing(0.0, world.clock.time() + 1.0)), *others)
    await process.ended(20)
    await state.resume("r:r")
    await process.ended(30)
    await state.close_gaps(await state.gaps(range(TAGS)))
    await process.stop(after=60)
    assert world.told.broken_lanes == []
    assert world.outside.reasons() == {"a-0": "expired"}
    assert world.outside.arrived("/answer") == ["a-1", "a-2"]
