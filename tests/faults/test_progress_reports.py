"""Progress that a sender hears of before the result: in order, never after the result, and without costing it."""

from collections import defaultdict
from dataclasses import replace

from relay.config.settings import Settings
from relay.domain.exchange import NoResponse
from relay.domain.receiver import BreakerPolicy, Endpoint, Source
from tests.fakes.strikes import CRASHES, Fuse, Strikes, crash_at_each
from tests.fakes.world import Process, World, message, receiver

CALLBACK = Endpoint("http://sender/callback")
EXPECTED = {("a-1", "answers"): "answered", ("a-2", "later"): "answered", ("a-3", "fails"): "failed"}
ORDER = ("accepted", "running", "answered")


async def _world(settings: Settings | None = None, **more: object) -> World:
    receivers = [
        receiver("answers", "/answer", status=True),
        receiver("later", "/later", status=True),
        receiver("fails", "/fail", max_attempts=2),
    ]
    source = Source("a", replace(CALLBACK, **more), progress=frozenset({"accepted", "running"}))  # type: ignore[arg-type]
    world = await World(receivers, settings=settings, sources=[source]).create()
    await world.send(message(1, "a", "answers"), message(2, "a", "later"), message(3, "a", "fails"))
    return world


def heard(world: World) -> dict[tuple[str, str], list[str]]:
    """The outcomes that came to the sender, in order, by delivery; a request that is sent again counts once."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for path, headers, _ in world.outside.posts:
        if path == "/callback":
            delivery = headers["relay-message-id"], headers["relay-receiver"]
            found[delivery].setdefault(headers["webhook-id"], headers["relay-outcome"])
    return {delivery: list(outcomes.values()) for delivery, outcomes in found.items()}


def last(world: World) -> dict[tuple[str, str], str]:
    """The outcome of the last request for each delivery, repeats included."""
    return {
        (headers["relay-message-id"], headers["relay-receiver"]): headers["relay-outcome"]
        for path, headers, _ in world.outside.posts
        if path == "/callback"
    }


async def test_a_sender_hears_of_progress_before_the_result() -> None:
    world = await _world()
    await world.run(Fuse(), 120)
    assert heard(world) == {
        ("a-1", "answers"): ["answered"],
        ("a-2", "later"): ["accepted", "running", "answered"],
        ("a-3", "fails"): ["failed"],
    }
    assert world.told.dead_letters == {"exhausted": 1}
    assert await world.is_at_rest()


async def test_a_result_waits_for_its_progress_in_flight_and_for_one_without_a_response() -> None:
    """The third POST is the report that it was accepted, whose response is lost."""
    world = await _world()
    world.outside.lose_response = frozenset(range(1, 40)) - {1, 2}
    process = await Process(world).run(30)
    world.outside.lose_response = frozenset()
    await process.stop(after=200)
    assert last(world) == EXPECTED
    order = [ORDER.index(outcome) for outcome in heard(world)["a-2", "later"]]
    assert order == sorted(order)


async def test_progress_is_dropped_while_the_callback_is_down_and_the_result_is_not() -> None:
    world = await _world()
    world.outside.down.add("callback")
    process = await Process(world).run(300)
    world.outside.down.clear()
    await process.stop(after=4_000)
    assert heard(world) == {delivery: [outcome] for delivery, outcome in EXPECTED.items()}
    assert await world.is_at_rest()


async def test_progress_without_room_to_be_parked_is_dropped() -> None:
    """Its callback is down, and so much waits for it that results are given up, which can be replayed."""
    parked = {"parked_per_receiver": 10, "parked_total": 10}
    given = {"receivers_file": "none", "window_records": 10, "window_offsets": 100, **parked}
    breaker = BreakerPolicy(failures=1, open_for=3_600)
    world = await _world(settings=Settings.model_validate(given), breaker=breaker)
    world.outside.down.add("callback")
    await world.send(*(message(number, "a", "later") for number in range(10, 60)))
    await Process(world).stop(after=50)
    letters = [dict(letter.headers) for letter in world.broker.records(world.topics.failed_messages)]
    given_up = {letter["relay-outcome"] for letter in letters if letter["relay-reason"] == b"callback_exhausted"}
    assert given_up == {b"answered", b"failed"}


async def test_a_callback_that_refuses_progress_gets_the_result() -> None:
    world = await _world()
    world.outside.unsent["callback"] = NoResponse("refused", "nobody listens", sent=False)
    process = await Process(world).run(2)
    del world.outside.unsent["callback"]
    await process.stop(after=200)
    assert last(world) == EXPECTED


SLOW = "/slow/callback"


async def _reported(fuse: Fuse) -> tuple[World, Process]:
    """Until progress is on its way, to a callback that takes its time."""
    source = Source("a", replace(CALLBACK, url=f"http://sender{SLOW}"), progress=frozenset({"accepted"}))
    world = await World([receiver("later", "/later", status=True)], sources=[source]).create()
    await world.send(message(2, "a", "later"))
    process = Process(world, fuse)
    while not world.outside.under_way[SLOW]:
        await process.ended(0.1)
    world.known.replace_source(replace(source, progress=frozenset()))
    return world, process


async def test_a_result_waits_for_progress_in_flight_that_is_not_wanted_any_more() -> None:
    world, process = await _reported(Fuse())
    await process.stop(after=120)
    assert (len(world.outside.starts[SLOW]), world.outside.most[SLOW]) == (2, 1)
    assert await world.is_at_rest()


async def test_so_it_does_after_a_crash_until_the_progress_cannot_arrive_any_more() -> None:
    world, process = await _reported(Fuse())
    await process.kill()
    await world.run(Fuse(), 120)
    progress, result = world.outside.starts[SLOW]
    assert result - progress >= CALLBACK.settle_s
    assert await world.is_at_rest()


@CRASHES
def test_no_crash_at_any_call_puts_progress_behind_the_result(late: bool, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world = await _world()
        await world.run(fuse, 40)
        await world.run(Fuse(), 120, until=lambda: last(world) == EXPECTED)
        place = fuse.place
        assert last(world) == EXPECTED, place
        order = [ORDER.index(outcome) for outcome in heard(world)["a-2", "later"]]
        assert order == sorted(order), place
        assert sorted(world.outside.arrived("/answer")) == ["a-1"], place
        assert world.outside.arrived("/later") == ["a-2"], place

    crash_at_each(story, strikes, late=late)
