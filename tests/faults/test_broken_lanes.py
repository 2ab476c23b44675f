"""A bug of ours that one record brings out ends its lane, which begins anew; the others go on. The third time by the
same record, that one ends as poison."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from relay.domain.message import Message
from relay.engine.core import HANDLERS
from relay.engine.lane import Lane
from relay.engine.phases import Event, Phase, advance
from relay.engine.quarantine import TIMES
from relay.engine.work import Work
from relay.log.port import TopicPartition
from tests.fakes.surroundings import REFUSED
from tests.fakes.world import Process, World, message, receiver
from workers.to_receiver import ToReceiver

LANE = TopicPartition("to_receiver_r", 0)
COUNT = 6
BAD = 2


async def _world() -> World:
    return await World([receiver("r", "/answer", status=True), receiver("s", "/other", status=True)]).create()


def _plant(monkeypatch: pytest.MonkeyPatch, place: str, fail: Callable[[Work], None], bad: str = f"a-{BAD}") -> None:
    """A bug, that the record of this message brings out in its lane."""

    def with_bug(real: Callable[..., Any]) -> Callable[..., Any]:
        def buggy(lane: Lane[Any], work: Work, *arguments: Any) -> Any:
            if lane.partition == LANE and ("ce_id", bad.encode()) in work.record.headers:
                fail(work)
            return real(lane, work, *arguments)

        return buggy

    _replace(monkeypatch, place, with_bug)


def _replace(
    monkeypatch: pytest.MonkeyPatch, place: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """In its module, in those that import it, and in the table of handlers."""
    module, _, name = place.partition(".")
    real = getattr(sys.modules[f"relay.engine.{module}"], name)
    changed = change(real)
    for each in list(sys.modules.values()):
        if each.__name__.startswith("relay.engine.") and getattr(each, name, None) is real:
            monkeypatch.setattr(each, name, changed)
    for handlers in HANDLERS.values():
        for event, handler in handlers.items():
            if handler is real:
                monkeypatch.setitem(handlers, event, changed)


def _step_out(work: Work) -> None:
    """Not where it is to end as poison: that goes another way."""
    if work.end is None:
        advance(work, Event.FIRST_LEFT, Phase.RUNNING)


def _stream(source: str, name: str) -> list[Message]:
    return [message(number, source, name) for number in range(COUNT)]


def _all(source: str) -> list[str]:
    return [f"{source}-{number}" for number in range(COUNT)]


def _good(messages: list[str]) -> list[str]:
    return [each for each in messages if each != f"a-{BAD}"]


async def _lives_through(world: World, seconds: float) -> None:
    """A process works for so long, and ends properly; nothing is left to do."""
    await Process(world).stop(after=seconds)
    assert await world.is_at_rest()


@pytest.mark.parametrize(
    "place",
    ["admission.take_in", "attempt.taken", "attempt.go", "attempt.run", "settlement.settle", "completion.publish"],
)
async def test_the_third_illegal_transition_of_a_record_is_its_last(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    world = await _world()
    _plant(monkeypatch, place, _step_out)
    await world.send(*_stream("a", "r"), *_stream("b", "r"))
    process = await Process(world).run(0.5)
    assert len(world.told.broken_lanes) == 1
    await world.send(*_stream("c", "s"))
    await process.ended(0.4)
    assert world.outside.arrived("/other") == _all("c"), "the others do not wait"
    await process.stop(after=60)
    assert world.told.wary_lanes == [], "no process has died"

    assert [(lane, times) for lane, _, _, times in world.told.broken_lanes] == [
        (LANE, times) for times in range(1, TIMES + 1)
    ]
    for _, said, offset, _ in world.told.broken_lanes:
        assert f"to_receiver_r/0/{offset}" in said
        assert Event.FIRST_LEFT.value in said
    assert world.outside.reasons() == {f"a-{BAD}": "poison"}
    assert _good(world.outside.arrived("/answer", "a")) == _good(_all("a"))
    assert world.outside.arrived("/answer", "b") == _all("b")
    assert await world.is_at_rest()


@pytest.mark.parametrize("place", ["settlement.outcome_stored", "completion.over"])
async def test_what_is_stored_is_not_lost_by_a_break_and_helps_over_it(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    world = await _world()
    broken: list[Work] = []

    def fail(work: Work) -> None:
        if not broken:
            broken.append(work)
            raise RuntimeError("a bug")

    _plant(monkeypatch, place, fail)
    await world.send(*_stream("a", "r"))
    await _lives_through(world, 60)
    assert len(world.told.broken_lanes) == 1
    assert world.outside.arrived("/answer") == _all("a")
    assert world.outside.results() == {(each, "r"): {"answered"} for each in _all("a")}


async def test_requests_under_way_when_their_lane_breaks_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their outcomes are stored by the lane that made them, also for receivers without a status endpoint."""
    world = await World([receiver("r", "/slow", base=90.0)]).create()
    world.outside.slow_s = 10.0
    _plant(monkeypatch, "attempt.taken", _step_out, "b1-0")
    await world.send(*(message(0, f"a{number}", "r") for number in range(COUNT)))
    process = await Process(world).run(1)
    assert world.outside.under_way["/slow"] == COUNT
    await world.send(*(message(0, f"b{number}", "r") for number in range(2)))
    await process.ended(1)
    assert len(world.told.broken_lanes) == 1
    await process.stop(after=60)
    assert world.outside.reasons() == {"b1-0": "poison"}
    assert sorted(world.outside.arrived("/slow")) == [*(f"a{number}-0" for number in range(COUNT)), "b0-0"]
    assert await world.is_at_rest()


async def test_what_was_begun_beside_the_one_that_breaks_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their verdicts arrived in the same reply: nothing was sent, so none is in doubt, and none is given up."""
    world = await World([receiver("r", "/answer", on_ambiguous="dead_letter")]).create()
    _plant(monkeypatch, "attempt.go", _step_out, f"a{BAD}-0")
    await world.send(*(message(0, f"a{number}", "r") for number in range(COUNT)))
    await _lives_through(world, 60)
    assert len(world.told.broken_lanes) > 0
    assert set(world.outside.reasons()) == {f"a{BAD}-0"}
    assert sorted(world.outside.arrived("/answer")) == [f"a{number}-0" for number in range(COUNT) if number != BAD]


@pytest.mark.parametrize("method", ["overdue", "resume"])
async def test_what_makes_a_worker_raise_where_it_may_not_becomes_poison(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    world = await _world()
    real = getattr(ToReceiver, method)

    def buggy(self: ToReceiver, work: Any, *rest: Any) -> Any:
        if work.hop.delivery.message_id == f"a-{BAD}":
            raise RuntimeError("a bug")
        return real(self, work, *rest)

    monkeypatch.setattr(ToReceiver, method, buggy)
    await world.send(*_stream("a", "r"), *_stream("c", "s"))
    await _lives_through(world, 60)
    assert [times for *_, times in world.told.broken_lanes] == list(range(1, TIMES + 1))
    assert world.outside.reasons() == {f"a-{BAD}": "poison"}
    assert _good(world.outside.arrived("/answer")) == _good(_all("a"))
    assert world.outside.arrived("/other") == _all("c")


async def test_one_that_breaks_its_lane_whatever_is_done_is_buried_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even its row can be looked up."""
    world = await _world()
    _plant(monkeypatch, "admission.place", lambda work: advance(work, Event.FIRST_LEFT, Phase.RUNNING))
    _plant(monkeypatch, "attempt.taken", _step_out)
    await world.send(*_stream("a", "r"))
    await _lives_through(world, 60)
    assert [times for *_, times in world.told.broken_lanes] == list(range(1, TIMES + 2))
    assert world.outside.reasons() == {f"a-{BAD}": "poison"}
    assert world.outside.arrived("/answer") == _good(_all("a"))


async def test_a_parked_one_that_breaks_its_lane_is_buried_and_nothing_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await World([receiver("r", "/answer", base=90.0, factor=1.0, cap=90.0)]).create()
    world.outside.troubles[f"a-{BAD}"] = [REFUSED]

    def fail(work: Work) -> None:
        if work.parked_at is not None:
            _step_out(work)

    _plant(monkeypatch, "settlement.settle", fail)
    await world.send(*_stream("a", "r"), *_stream("b", "r"))
    await _lives_through(world, 900)
    assert [times for *_, times in world.told.broken_lanes] == list(range(1, TIMES + 1))
    assert world.outside.reasons() == {f"a-{BAD}": "poison"}
    assert _good(world.outside.arrived("/answer", "a")) == _good(_all("a"))
    assert world.outside.arrived("/answer", "b") == _all("b")


@pytest.mark.parametrize("call", ["intake", "begin", "settle", "mark", "reserve", "intend_to_park", "unpark"])
async def test_a_call_that_fails_says_nothing_of_its_records_and_restarts_its_lane_until_it_goes(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Any of the works in the call may be the cause, so none is poison."""
    world = await World([receiver("r", "/answer", status=True, base=90.0, factor=1.0, cap=90.0)]).create()
    world.outside.troubles["a-0"] = [REFUSED]
    real, failed = getattr(world.state, call), 0

    async def buggy(*arguments: Any) -> Any:
        nonlocal failed
        if failed < 2 * TIMES:
            failed += 1
            raise RuntimeError("a bug")
        return await real(*arguments)

    monkeypatch.setattr(world.state, call, buggy)
    await world.send(*_stream("a", "r"), *_stream("b", "r"))
    await _lives_through(world, 900)
    assert len(world.told.broken_lanes) >= failed > TIMES
    assert world.outside.reasons() == {}
    assert world.outside.arrived("/answer", "a") == _all("a")
    assert world.outside.arrived("/answer", "b") == _all("b")


async def test_a_lane_that_was_made_anew_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its member was put out while the broken one waited for its restart; and the newer one may break, too."""
    world = await _world()
    ends = [2, 1]

    def fail(work: Work) -> None:
        if ends[-1] and work.end is None:
            ends[-1] -= 1
            raise RuntimeError("a bug")

    _replace(monkeypatch, "attempt.run", lambda real: _failing(real, fail))
    taken = world.broker.epochs
    lane = (world.topics.group("to-receiver"), LANE)
    await world.send(*_stream("a", "r"))
    process = await Process(world).run(0.5)
    assert (len(world.told.broken_lanes), taken[lane]) == (1, 1)
    process.log.expel()
    await process.ended(60)
    assert taken[lane] == 2, "what waited was meant for the former one"
    assert world.outside.arrived("/answer") == _all("a")

    ends.pop()
    await world.send(*_stream("b", "r"))
    await process.ended(0.5)
    assert len(world.told.broken_lanes) == 2
    process.log.expel()
    await world.send(*_stream("c", "r"))
    await process.ended(0.5)
    assert (len(world.told.broken_lanes), taken[lane]) == (3, 3)
    await process.stop(after=90)
    assert taken[lane] == 4, "the newer one broke, and was made anew for that"
    for source in ("b", "c"):
        assert world.outside.arrived("/answer", source) == _all(source)
    assert await world.is_at_rest()


def _failing(real: Callable[..., None], fail: Callable[[Work], None]) -> Callable[..., None]:
    def buggy(lane: Lane[Any], work: Work) -> None:
        if lane.partition == LANE:
            fail(work)
        real(lane, work)

    return buggy


@pytest.mark.parametrize("call", ["begin", "settle", "mark", "reserve"])
async def test_a_call_that_is_cancelled_by_whoever_makes_it_breaks_its_lane(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Its reply will never arrive: no work may wait for it forever without a report."""
    world = await _world()
    real, failed = getattr(world.state, call), 0

    async def buggy(*arguments: Any) -> Any:
        nonlocal failed
        if not failed:
            failed += 1
            raise asyncio.CancelledError
        return await real(*arguments)

    monkeypatch.setattr(world.state, call, buggy)
    await world.send(*_stream("a", "r"), *_stream("b", "r"))
    await _lives_through(world, 200)
    assert len(world.told.broken_lanes) == failed == 1
    assert world.outside.arrived("/answer", "a") == _all("a")
    assert world.outside.arrived("/answer", "b") == _all("b")
