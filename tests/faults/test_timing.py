"""Messages with a time of their own: none is sent before it is due, nor after its deadline, and each once, whatever
befalls the processes and the state meanwhile."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.domain.dead_letter import parse_dead_letter
from relay.domain.exchange import Request, Response
from relay.domain.hold import Hold
from relay.domain.message import Message
from relay.domain.receiver import BatchPolicy
from relay.domain.timing import Timing
from relay.engine.policy import Bounds
from tests.fakes.strikes import CRASHES, Fuse, Loss, Strikes, crash_at_each
from tests.fakes.surroundings import most_in
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

LANES = pytest.mark.parametrize("lane", ["dedicated", "shared"])
SHORT_S, LONG_S = 20.0, 900.0
"""A delay that is waited for in memory, and one for which a message is parked."""
DAY_S = 86_400.0


def timed(number: int, source: str = "a", *, delay: float = 0.0, deadline: float = 0.0) -> Message:
    return structs.replace(message(number, source, "r"), timing=Timing(delay, deadline))


async def world_of(settings: Settings | None = None, **how: Any) -> World:
    return await World([receiver("r", "/answer", timeout=2.0, **how)], settings=settings).create()


def starts(world: World) -> list[float]:
    return world.outside.starts["/answer"]


def marked(world: World) -> set[str]:
    return {headers["ce-id"] for _, headers, _ in world.outside.posts if headers.get("relay-out-of-order") == "true"}


# delayed


@LANES
@pytest.mark.parametrize("delay", [SHORT_S, LONG_S], ids=["in memory", "parked"])
async def test_it_is_sent_when_it_is_due_and_holds_nothing_up(lane: str, delay: float) -> None:
    world = await world_of(lane=lane)
    await world.send(message(0, "a", "r"), timed(1, delay=delay), message(2, "a", "r"))
    begun = world.clock.monotonic()
    process = await Process(world).run(delay - 1)
    assert world.outside.arrived("/answer") == ["a-0", "a-2"]
    await world.send(message(3, "a", "r"))
    await process.stop(after=6)
    assert sorted(world.outside.arrived("/answer")) == ["a-0", "a-1", "a-2", "a-3"]
    assert starts(world)[-1] >= begun + delay
    assert marked(world) == {"a-1"}
    assert await world.is_at_rest()


@LANES
async def test_it_is_parked_also_if_its_receiver_was_down_when_it_came(lane: str) -> None:
    """In memory, its record would hold the commit back until it is due, and its topic may delete it before."""
    world = await world_of(lane=lane, failures=2, max_attempts=100)
    world.outside.down = {"answer"}
    process = Process(world)
    await world.send(*(message(number, "b", "r") for number in range(5)))
    await process.ended(20)
    await world.send(timed(1, delay=LONG_S))
    await process.ended(100)
    world.outside.down.clear()
    await process.ended(100)
    assert world.outside.arrived("/answer") == [f"b-{number}" for number in range(5)]
    assert len(world.parked_copies()) == 1
    assert not world.uncommitted()
    await process.stop(after=LONG_S)
    assert world.outside.arrived("/answer", "a") == ["a-1"]
    assert await world.is_at_rest()


@LANES
async def test_its_retries_and_its_age_count_from_when_it_is_due(lane: str) -> None:
    world = await world_of(lane=lane, max_age=600.0, base=100.0, factor=1.0, cap=100.0, max_attempts=100)
    await world.send(timed(1, delay=30 * DAY_S))
    await world.run(Fuse(), 60)
    await _wait(world, 30 * DAY_S - 120)
    process = await Process(world).run(50)
    assert not world.outside.tried
    world.outside.down.add("answer")
    await process.ended(400)
    assert world.outside.tried["a-1"]
    world.outside.down.clear()
    await process.stop(after=400)
    assert world.outside.arrived("/answer") == ["a-1"]
    assert await world.is_at_rest()


@pytest.mark.parametrize("delay", [SHORT_S, LONG_S], ids=["in memory", "parked"])
async def test_it_survives_processes_and_the_state(delay: float) -> None:
    world = await world_of(status=True)
    await world.send(*(timed(number, delay=delay) for number in range(5)))
    begun = world.clock.monotonic()
    for share in (0.1, 0.4):
        process = await Process(world).run(delay * share)
        world.state.lose()
        await process.ended(1)
        await process.kill()
    assert not world.outside.posts
    await world.run(Fuse(), delay + 120)
    assert sorted(world.outside.arrived("/answer")) == [f"a-{number}" for number in range(5)]
    assert min(starts(world)) >= begun + delay
    assert await world.is_at_rest()


def _at_crash(delay: float, deadline: float) -> Callable[[Fuse], Coroutine[Any, Any, None]]:
    async def story(fuse: Fuse) -> None:
        world = await world_of(Settings(receivers_file="none", hold_max=2.0), status=True)
        messages = [message(0, "a", "r"), timed(1, delay=delay), message(2, "a", "r"), timed(3, deadline=deadline)]
        await world.send(*messages)
        begun = world.clock.monotonic()
        await world.run(fuse, delay + 10)
        await world.run(Fuse(), delay + 60)
        arrived = sorted(world.outside.arrived("/answer"))
        assert arrived == ["a-0", "a-1", "a-2", "a-3"], fuse.names[-1:]
        due = [at for at, headers in zip(starts(world), _of_posts(world), strict=True) if headers["ce-id"] == "a-1"]
        assert due[0] >= begun + delay, fuse.names[-1:]
        assert await world.is_at_rest(), fuse.names[-1:]

    return story


def _of_posts(world: World) -> list[Any]:
    return [headers for path, headers, _ in world.outside.posts if path == "/answer"]


@CRASHES
@pytest.mark.parametrize("delay", [1.0, 10.0], ids=["in memory", "parked"])
def test_a_crash_at_each_step_loses_none_and_sends_none_early(delay: float, late: bool, strikes: Strikes) -> None:
    crash_at_each(_at_crash(delay, 600.0), strikes, late=late)


@pytest.mark.parametrize("delay", [1.0, 10.0], ids=["in memory", "parked"])
def test_a_loss_of_the_state_at_each_step_loses_none_and_sends_none_early(delay: float) -> None:
    async def counted() -> int:
        fuse = Fuse()
        await _at_crash(delay, 600.0)(fuse)
        return fuse.calls

    async def losing(at: int) -> None:
        world = await world_of(Settings(receivers_file="none", hold_max=2.0), status=True)
        await world.send(message(0, "a", "r"), timed(1, delay=delay), message(2, "a", "r"))
        begun = world.clock.monotonic()
        await world.run(Loss(at, world.state.lose), delay + 60)
        await world.run(Fuse(), 60)
        assert sorted(world.outside.arrived("/answer")) == ["a-0", "a-1", "a-2"], at
        due = [at for at, headers in zip(starts(world), _of_posts(world), strict=True) if headers["ce-id"] == "a-1"]
        assert due[0] >= begun + delay
        assert await world.is_at_rest(), at

    for at in range(1, run_virtually(counted()), 7):
        run_virtually(losing(at))


@LANES
async def test_many_that_are_due_together_keep_to_rate_and_cap(lane: str) -> None:
    world = await world_of(lane=lane, rate_limit=20, max_in_flight=4)
    await world.send(*(timed(number, delay=LONG_S) for number in range(300)))
    process = await Process(world).run(LONG_S + 1)
    await world.send(message(1_000, "b", "r"))
    await process.stop(after=60)
    assert len(world.outside.arrived("/answer")) == len(set(world.outside.arrived("/answer"))) == 301
    assert world.outside.most["/answer"] <= 4
    assert most_in(starts(world), 1.0) <= 20
    assert await world.is_at_rest()


async def test_a_due_time_of_which_only_the_log_knows_is_kept() -> None:
    """A retry of a delayed message, and the message itself after its first attempt, are not delayed again."""
    world = await world_of(base=100.0, factor=1.0, cap=100.0)
    world.outside.troubles["a-1"] = [world.outside.never_seen]
    await world.send(timed(1, delay=LONG_S))
    first = await Process(world).run(LONG_S + 5)
    await first.kill()
    world.state.lose()
    await world.run(Fuse(), 200)
    assert world.outside.arrived("/answer") == ["a-1"]
    assert await world.is_at_rest()


# a deadline


@LANES
async def test_after_its_deadline_it_is_a_dead_letter_and_never_sent(lane: str) -> None:
    world = await world_of(lane=lane, base=10.0, factor=1.0, cap=10.0, max_attempts=1_000, failures=10_000)
    world.outside.down.add("answer")
    await world.send(timed(1, deadline=95.0), message(2, "a", "r"))
    process = await Process(world).run(94)
    assert world.outside.reasons() == {}
    await process.ended(10)
    assert world.outside.reasons() == {"a-1": "expired"}
    world.outside.down.clear()
    await process.stop(after=30)
    assert world.outside.arrived("/answer") == ["a-2"]
    assert await world.is_at_rest()


@LANES
@pytest.mark.parametrize("restarted", [False, True])
async def test_its_dead_letter_has_the_status_of_its_last_attempt(lane: str, restarted: bool) -> None:
    """Although it ends without a request: the status says what to do about it."""
    world = await world_of(lane=lane, base=200.0, factor=1.0, cap=200.0, max_attempts=1_000, failures=10_000)
    world.outside.troubles["a-1"] = [Response(403, {}, b"")] * 1_000
    await world.send(timed(1, deadline=95.0))
    process = await Process(world).run(50)
    if restarted:
        await process.stop()
        process = Process(world)
    await process.stop(after=150)
    (letter,) = world.broker.records(world.topics.failed_messages)
    end = parse_dead_letter(letter.headers)
    assert (end.reason, end.last_status) == ("expired", 403)


@LANES
async def test_its_dead_letter_denies_no_attempt_of_a_process_that_died(lane: str) -> None:
    """Its text is written before the row, and with that the attempt, is read."""
    world = await World([receiver("r", "/slow", lane=lane)]).create()
    await world.send(timed(1, deadline=2.0))
    process = await Process(world).run(3)
    await process.kill()
    await Process(world).stop(after=60)
    (letter,) = world.broker.records(world.topics.failed_messages)
    end = parse_dead_letter(letter.headers)
    assert (end.reason, end.attempts, end.detail) == ("expired", 1, "not delivered before its deadline")


@LANES
async def test_its_last_attempt_is_made_right_before_its_deadline(lane: str) -> None:
    """A wait that reaches beyond it is cut, as for `max_age`."""
    world = await world_of(lane=lane, base=3000.0, factor=1.0, cap=3000.0, max_attempts=5)
    world.outside.down.add("answer")
    await world.send(timed(1, deadline=600.0))
    await Process(world).stop(after=620)
    assert (world.outside.tried["a-1"], world.outside.reasons()) == (1, {"a-1": "expired"})
    assert await world.is_at_rest()


@LANES
@pytest.mark.parametrize("batch", [None, BatchPolicy(max_events=2, linger=0.0)], ids=["single", "batch"])
async def test_it_passes_while_the_next_slot_of_a_rate_is_awaited(lane: str, batch: BatchPolicy | None) -> None:
    """Slots are reserved up to a second before."""
    one = receiver("r", "/answer", lane=lane, rate_limit=1, window_size=10.0)
    world = await World([replace(one, batch=batch)]).create()
    process = await Process(world).run(1)
    await world.send(message(0, "b", "r"))
    await process.ended(1)
    deadline = world.outside.starts["/answer"][0] - world.clock.monotonic() + world.clock.time() + 10.0
    await world.send(timed(1, deadline=deadline))
    await process.stop(after=30)
    assert world.outside.arrived("/answer") == ["b-0"]
    assert world.outside.reasons() == {"a-1": "expired"}
    assert await world.is_at_rest()


@pytest.mark.parametrize("batch", [None, BatchPolicy(max_events=1)], ids=["single", "batch"])
async def test_its_request_waits_for_no_connection_beyond_it(
    batch: BatchPolicy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await World([replace(receiver("r", "/answer"), batch=batch)]).create()
    waits: list[float] = []
    send = world.outside.send

    def noting(request: Request, done: Any) -> None:
        if request.url.endswith("/answer"):
            waits.append(request.start_within_s)
        send(request, done)

    monkeypatch.setattr(world.outside, "send", noting)
    await world.send(timed(1, deadline=20.0), timed(2))
    await world.run(Fuse(), 30)
    assert 0.0 < waits[0] < 20.0
    assert waits[1:] == [inf]


@LANES
async def test_it_passes_while_nothing_can_be_sent(lane: str) -> None:
    """The receiver is down altogether: its breaker is open."""
    world = await world_of(lane=lane, failures=1, max_attempts=1_000)
    world.outside.down.add("answer")
    await world.send(message(0, "b", "r"), *(timed(number, deadline=45.0) for number in range(1, 4)))
    await Process(world).stop(after=75)
    assert world.outside.reasons() == {f"a-{number}": "expired" for number in range(1, 4)}


@pytest.mark.parametrize("deadline_s", [77.0, 91.0])
async def test_it_passes_for_one_that_is_parked_while_others_wait_for_the_same_receiver(deadline_s: float) -> None:
    """In the shared lane they ask each few seconds whether they may be sent, so it is always known to be closed."""
    world = await World([receiver("r", "/answer", lane="shared", max_attempts=1_000)]).create()
    process = Process(world)
    until = world.clock.time() + deadline_s
    world.outside.troubles["a-0"] = [Response(503, {"retry-after": "3600"}, b"")]
    await world.send(structs.replace(message(0, "a", "r"), timing=Timing(0.0, until)))
    await process.ended(2)
    await world.send(*(message(number, "b", "r") for number in range(3)))
    await process.ended(deadline_s + 30)
    assert world.outside.reasons() == {"a-0": "expired"}
    await process.stop()


@LANES
async def test_it_passes_for_one_that_is_parked_behind_more_than_may_be_in_memory(lane: str) -> None:
    """All are due, and their receiver is paused."""
    most = Bounds().max_leased + 100
    world = await World([receiver("r", "/answer", lane=lane, ordering="none")]).create()
    due = world.clock.time() + 70.0
    await world.send(*(structs.replace(message(number, "a", "r"), timing=Timing(due)) for number in range(most)))
    await world.send(structs.replace(message(0, "b", "r"), timing=Timing(due + 5.0, due + 30.0)))
    process = await Process(world).run(20)
    await world.state.hold("r:r", Hold("paused", 1.0))
    for _ in range(60):
        await process.ended(20)
        if world.outside.reasons():
            break
    await process.stop()
    assert world.told.parked_records > most
    assert world.outside.reasons() == {"b-0": "expired"}


async def test_a_deadline_that_has_passed_before_it_was_read_ends_it_without_a_request() -> None:
    world = await world_of()
    await world.send(timed(1, deadline=30.0), timed(2))
    await _wait(world, 60)
    await world.run(Fuse(), 30)
    assert world.outside.arrived("/answer") == ["a-2"]
    assert world.outside.reasons() == {"a-1": "expired"}


async def _wait(world: World, seconds: float) -> None:
    """No process runs."""
    await world.clock.sleep(seconds)


# what a sender cannot have


async def test_impossible_times_are_dead_letters_that_name_the_field() -> None:
    world = await world_of()
    await world.send(timed(1, delay=40 * DAY_S), timed(2, delay=60.0, deadline=30.0), timed(3))
    await world.run(Fuse(), 30)
    assert world.outside.reasons() == {"a-1": "invalid", "a-2": "invalid"}
    assert world.outside.arrived("/answer") == ["a-3"]
