"""What failed is replayed or discarded, and everything that may happen to who does it.

Each letter's delivery arrives once more, in order, however often the job is begun, by whomever, and wherever it dies.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from relay.control.projections import ReplayJob
from relay.domain.control_key import ControlKey
from relay.domain.errors import LogUnavailable
from relay.domain.exchange import NoResponse, Response
from relay.domain.hold import Hold
from relay.domain.identity import DeliveryId
from relay.domain.replay_job import Action, ReplayProgress, Selection
from relay.domain.timing import Timing
from relay.replay.replay_service import ReplayService
from relay.replay.runner import REMEMBERED_S
from relay.state.rows import Stage
from tests.fakes.replaying import EVERYTHING, ReplayProcess, ReplayWorld
from tests.fakes.strikes import CRASHES, Frost, Fuse, Loss, Strikes, crash_at_each
from tests.fakes.virtual_time import run_virtually, until
from tests.fakes.world import message

COUNT = 6
ASKED = "http://r/answer/{message_id}"
"""The status endpoint is asked for an attempt that a dead process left in doubt, so it arrives once."""


class RebuildingProcess(ReplayProcess):
    rebuilds = True


async def ended(world: ReplayWorld, process: ReplayProcess, job: ReplayJob) -> ReplayJob:
    """The job, once it is over and nothing is left to be done."""

    async def over() -> bool:
        known = process.registry.jobs.get(job.order.id)
        return known is not None and known.is_over and await world.is_at_rest()

    await until(over)
    known = process.registry.jobs.get(job.order.id)
    assert known is not None
    return known


def ids(count: int = COUNT) -> list[str]:
    return [f"{'ab'[n % 2]}-{n}" for n in range(count)]


async def failed(*, lane: str = "dedicated", count: int = COUNT, **entry: Any) -> ReplayWorld:
    """Messages of two sources that their receiver has rejected."""
    world = await ReplayWorld().create("r", lane=lane, status_endpoint=ASKED, **entry)
    world.reject(*ids(count))
    await world.send(*(message(n, "ab"[n % 2], "r") for n in range(count)))
    await ReplayProcess(world).finish()
    assert [letter.reason for letter in world.letters()] == ["rejected"] * count
    return world


async def test_a_job_that_is_on_the_log_is_accepted_even_if_it_cannot_be_read_back() -> None:
    """An error would make the caller begin it a second time."""

    async def away(_offset: int) -> None:
        raise LogUnavailable("away")

    world = await ReplayWorld().create()
    registry, log = await world.registry(), await world.client()
    replay_service = ReplayService(
        log,
        world.state,
        world.topics,
        registry,
        registry,
        registry.jobs,
        world.clock,
        lanes=list,
        known_to=away,
        max_payload_bytes=1_000,
    )
    order, _ = await replay_service.order("replay", EVERYTHING)
    assert (await replay_service.submit(order)).order == order
    [known] = (await world.registry()).jobs.all()
    assert known.order == order


async def test_a_job_in_a_state_of_a_newer_release_is_left_to_that_release() -> None:
    world = await failed()
    process = await ReplayProcess(world).ready()
    order, _ = await process.replay_service.order("replay", EVERYTHING)
    key = ControlKey("replay-progress", order.id).encode()
    newer = b'{"state": "paused", "sent": 2, "counted": 6, "positions": [1]}'
    await world.append(world.topics.receiver_config, key, newer, ())
    job = await process.replay_service.submit(order)
    await asyncio.sleep(60)
    config = world.broker.records(world.topics.receiver_config)
    assert [each.value for each in config if each.key == key] == [newer]
    assert world.generations("/answer") == []
    assert process.registry.jobs.get(job.order.id) == job
    await process.stop()


def in_order(world: ReplayWorld) -> bool:
    return all(
        world.outside.arrived("/answer", source) == [id for id in ids() if id.startswith(source)] for source in "ab"
    )


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
async def test_what_failed_arrives_once_however_often_it_is_asked_for(lane: str) -> None:
    world = await failed(lane=lane)
    process = await ReplayProcess(world).ready()
    jobs = [await process.order(), await process.order()]
    over = [(await ended(world, process, job)).progress for job in jobs]
    assert [(one.state, one.counted) for one in over] == [("done", COUNT)] * 2
    assert sorted((one.sent, one.skipped.get("replayed", 0)) for one in over) == [(0, COUNT), (COUNT, 0)]
    assert in_order(world)
    assert set(world.generations("/answer")) == {(id, 1) for id in ids()}
    third = await ended(world, process, await process.order())
    assert (third.progress.sent, third.progress.skipped) == (0, {"replayed": COUNT})
    assert in_order(world), "nothing came again"
    assert {(id, "r"): {"failed", "answered"} for id in ids()} == world.outside.results()
    assert await world.state.failed("r", limit=100) == []
    await process.stop()


@pytest.mark.parametrize("order", [("replay", "discard"), ("discard", "replay")])
async def test_of_a_replay_beside_a_discard_each_counts_what_it_did(order: tuple[Action, Action]) -> None:
    world = await failed()
    process = await ReplayProcess(world).ready()
    jobs = [await ended(world, process, job) for job in [await process.order(action) for action in order]]
    assert sum(job.progress.sent for job in jobs) == COUNT
    replayed = next(job.progress.sent for job in jobs if job.order.action == "replay")
    assert len(world.outside.arrived("/answer")) == replayed
    await process.stop()


async def test_what_the_log_has_lost_since_is_begun_again() -> None:
    world = await failed()
    process = await ReplayProcess(world).ready()
    await world.state.hold("r:r", Hold("paused", 1.0))

    async def job() -> ReplayProgress:
        over = await process.order()
        await until(lambda: _is_over(process, over), 60)
        known = process.registry.jobs.get(over.order.id)
        assert known is not None
        return known.progress

    assert ((await job()).sent, (await job()).skipped) == (COUNT, {"replayed": COUNT})
    await asyncio.sleep(REMEMBERED_S)
    assert (await job()).sent == COUNT
    await world.state.resume("r:r")
    await until(world.is_at_rest)
    assert set(world.generations("/answer")) == {(id, 1) for id in ids()}
    assert in_order(world)
    await process.stop()


async def _is_over(process: ReplayProcess, job: ReplayJob) -> bool:
    known = process.registry.jobs.get(job.order.id)
    return known is not None and known.is_over


async def test_what_fails_again_is_a_letter_again_and_can_be_replayed_again() -> None:
    world = await failed()
    world.reject("a-0")
    process = await ReplayProcess(world).ready()
    await ended(world, process, await process.order())
    assert sorted(world.outside.arrived("/answer")) == sorted(set(ids()) - {"a-0"})
    (entry,) = await world.state.failed("r", limit=100)
    assert entry.message_id == "a-0"
    again = await ended(world, process, await process.order())
    assert (again.progress.sent, again.progress.skipped) == (1, {"replayed": COUNT})
    assert world.generations("/answer")[-1] == ("a-0", 2)
    await process.stop()


async def _story(action: Action, fuse: Fuse) -> ReplayWorld:
    """A job whose process may die at any call; the next one goes on with it."""
    world = await failed()
    first = await ReplayProcess(world).ready()
    job = await first.order(action)
    await first.kill()
    second = ReplayProcess(world, fuse)
    await asyncio.sleep(60)
    await second.stop()
    third = ReplayProcess(world)
    over = (await ended(world, third, job)).progress
    assert (over.state, over.counted, over.sent, over.skipped) == ("done", COUNT, COUNT, {}), fuse.names[-1:]
    await third.stop()
    return world


def judge(world: ReplayWorld, place: str) -> None:
    assert in_order(world), place
    assert world.outside.results() == {(id, "r"): {"failed", "answered"} for id in ids()}, place


@CRASHES
def test_a_job_that_dies_at_any_call_sends_each_once(late: bool, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        judge(await _story("replay", fuse), fuse.place)

    crash_at_each(story, strikes, late=late)


@CRASHES
def test_a_discard_that_dies_at_any_call_tells_each_sender_once(late: bool, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world, place = await _story("discard", fuse), fuse.place
        assert world.outside.arrived("/answer") == [], place
        assert world.outside.reasons() == dict.fromkeys(ids(), "discarded"), place
        notices = [h["webhook-id"] for at, h, _ in world.outside.posts if at == "/callback"]
        assert len(set(notices)) == 2 * COUNT, place

    crash_at_each(story, strikes, late=late)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_zombie_that_goes_on_with_a_job_sends_nothing_twice(late: bool) -> None:
    async def story(frost: Frost) -> ReplayWorld:
        world = await failed()
        frozen = await ReplayProcess(world, frost).ready()
        job = await frozen.order()
        freezing = asyncio.create_task(frost.frozen.wait())
        await asyncio.wait([freezing], timeout=40)
        freezing.cancel()
        frozen.log.expel()
        other = ReplayProcess(world)
        await asyncio.sleep(40)
        frost.thaw.set()
        await frozen.ended(20)
        await ended(world, other, job)
        await asyncio.gather(frozen.stop(), other.stop())
        return world

    counted = Frost(10_000)
    run_virtually(story(counted))
    calls = [n for n, name in enumerate(counted.names, 1) if name in ("log.append", "state.peek", "state.drop_failed")]
    first = counted.names.index("state.peek")
    for blow_at in [n for n in calls if n >= first][:12]:
        frost = Frost(blow_at, after=late)
        judge(run_virtually(story(frost)), frost.place)


def test_a_state_that_loses_its_memory_while_a_job_runs_costs_no_message() -> None:
    async def story(strike: Callable[[ReplayWorld], Fuse]) -> tuple[ReplayWorld, Fuse]:
        world = await failed()
        fuse = strike(world)
        process = await RebuildingProcess(world, fuse).ready()
        await ended(world, process, await process.order())
        await process.stop()
        return world, fuse

    _, counted = run_virtually(story(lambda world: Loss(10_000, world.state.lose)))
    begun = counted.names.index("state.peek")
    for blow_at in range(begun - 3, min(len(counted.names), begun + 25), 2):
        world, _ = run_virtually(story(lambda world: Loss(blow_at, world.state.lose)))  # noqa: B023 - run at once
        assert set(world.outside.arrived("/answer")) == set(ids()), f"call {blow_at}, {counted.names[blow_at - 1]}"
        assert in_order(world), f"call {blow_at}, {counted.names[blow_at - 1]}"


async def test_a_job_keeps_to_its_rate_and_stops_when_it_is_told_to() -> None:
    world = await failed()
    process = await ReplayProcess(world).ready()
    job = await process.order(rate=0.1)
    await asyncio.sleep(25)
    assert len(world.outside.arrived("/answer")) == 3, "one each 10 s"
    await process.replay_service.stop(job.order.id)
    over = await ended(world, process, job)
    assert (over.progress.state, over.progress.sent) == ("stopped", 3)
    await asyncio.sleep(60)
    assert len(world.outside.arrived("/answer")) == 3
    rest = await ended(world, process, await process.order())
    assert (rest.progress.sent, rest.progress.skipped) == (COUNT - 3, {"replayed": 3})
    assert in_order(world)
    await process.stop()


async def test_a_replay_of_a_numbered_delivery_that_is_lost_and_found_delivered_is_a_gap() -> None:
    """The receiver cannot say which life of the message it has."""
    world = await ReplayWorld().create("r", ordering="receiver", status_endpoint=ASKED, timeout=2)
    await world.send(*(message(n, "a", "r") for n in range(2)))
    process = ReplayProcess(world)
    await until(world.is_at_rest)
    world.outside.troubles["a-0"] = [NoResponse("disconnected", "it never arrived", sent=True)]
    await ended(world, process, await process.order(only_failed=False))
    await process.stop()
    arrived = [headers for path, headers, _ in world.outside.posts if path == "/answer"]
    assert [(h["ce-id"], h["relay-sequence"], h.get("relay-gap")) for h in arrived] == [
        ("a-0", "1", None),
        ("a-1", "2", None),
        ("a-1", "4", "first=3; last=3; reason=delivered"),
    ]


async def test_a_job_that_another_process_goes_on_with_counts_no_delivery_again() -> None:
    """Each has a record of an earlier life on the lane, too."""
    world = await ReplayWorld().create("r", status_endpoint=ASKED)
    await world.send(*(message(n, "a", "r") for n in range(4)))
    process = ReplayProcess(world)
    await until(world.is_at_rest)
    await ended(world, process, await process.order(only_failed=False))
    job = await process.order(only_failed=False, rate=0.1)
    await asyncio.sleep(15)
    await process.kill()
    other = ReplayProcess(world)
    over = (await ended(world, other, job)).progress
    assert (over.counted, over.sent, over.skipped) == (4, 4, {})
    await other.stop()


async def test_a_selection_chooses_and_the_count_says_so_first() -> None:
    world = await failed()
    process = await ReplayProcess(world).ready()
    chosen = Selection(sources=frozenset("a"), ids=frozenset({"a-0", "a-4", "b-1", "nobody"}))
    order, gone = await process.replay_service.order("replay", chosen)
    preview = await process.replay_service.preview(order, seconds=10)
    assert (preview.counted, preview.to_send, preview.not_found) == (2, 2, ("b-1", "nobody"))
    assert gone.before_ms is None
    assert world.outside.arrived("/answer") == [], "counted only"
    await ended(world, process, await process.order("replay", chosen))
    assert world.outside.arrived("/answer") == ["a-0", "a-4"]
    await process.stop()


async def test_what_the_log_does_not_have_any_more_is_told() -> None:
    world = await failed()
    letters = [letter for letter in world.letters() if letter.record.partition == world.letters()[0].record.partition]
    world.broker.drop_before(letters[1].at)
    process = await ReplayProcess(world).ready()
    order, gone = await process.replay_service.order("replay", EVERYTHING)
    assert (gone.records, gone.before_ms) == (1, letters[1].record.timestamp_ms)
    later = Selection(since_ms=letters[1].record.timestamp_ms + 1)
    assert (await process.replay_service.order("replay", later))[1].before_ms is None
    assert (await process.replay_service.preview(order, seconds=10)).counted == COUNT - 1
    await process.stop()


# the stages


async def test_an_answer_that_never_came_is_waited_for_once_more() -> None:
    world = await ReplayWorld().create(
        "r", "/later", status_endpoint="http://r/nowhere/{message_id}", answer_deadline=60
    )
    await world.send(message(1, "a", "r"))
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(90)
    assert [letter.reason for letter in world.letters()] == ["receiver_forgot"]
    await world.declare("r", "/later", status_endpoint="http://r/later/{message_id}", answer_deadline=60)
    await ended(world, process, await process.order())
    assert world.outside.arrived("/later") == ["a-1", "a-1"], "it said that it never saw it: it gets it once more"
    assert world.outside.results()[("a-1", "r")] == {"failed", "answered"}
    await process.stop()


async def test_a_wait_that_timed_out_begins_anew_without_another_post() -> None:
    world = await ReplayWorld().create("r", "/later", answer_deadline=60, answer="required")
    await world.send(message(1, "a", "r"))
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(90)
    assert [letter.reason for letter in world.letters()] == ["answer_timeout"]
    await world.declare("r", "/later", status_endpoint="http://r/later/{message_id}", answer_deadline=60)
    await ended(world, process, await process.order())
    assert world.outside.arrived("/later") == ["a-1"]
    assert world.outside.results()[("a-1", "r")] == {"failed", "answered"}
    assert (await world.row("r", "a", "a-1")).generation == 1
    await process.stop()


async def test_an_answer_whose_callback_was_given_up_is_brought_once_more() -> None:
    world = await ReplayWorld().create("r")
    world.outside.down.add("callback")
    await world.send(message(1, "a", "r"), message(2, "a", "r"))
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    assert [letter.reason for letter in world.letters()] == ["callback_exhausted"] * 2
    world.outside.down.clear()
    jobs = [await process.order(), await process.order()]
    for job in jobs:
        await ended(world, process, job)
    assert world.outside.arrived("/answer") == ["a-1", "a-2"], "its receiver is not asked again"
    calls = [h["webhook-id"] for at, h, _ in world.outside.posts if at == "/callback"]
    assert len(calls) == len(set(calls)) == 2
    assert await world.state.failed("r", limit=10) == []
    assert (await ended(world, process, await process.order())).progress.sent == 0
    await process.stop()


async def test_a_notice_that_was_given_up_is_replayed_beside_its_delivery() -> None:
    world = await ReplayWorld().create("r")
    world.outside.down.add("callback")
    world.reject("a-1")
    await world.send(message(1, "a", "r"))
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    assert sorted(letter.reason for letter in world.letters()) == ["callback_exhausted", "rejected"]
    world.outside.down.clear()
    notices = Selection(reasons=frozenset({"callback_exhausted"}))
    assert (await ended(world, process, await process.order("replay", notices))).progress.sent == 1
    assert world.outside.reasons() == {"a-1": "rejected"}
    assert (await ended(world, process, await process.order("replay", notices))).progress.sent == 0
    assert (await world.row("r", "a", "a-1")).stage is Stage.FAILED
    assert (await ended(world, process, await process.order())).progress.sent == 1, "the delivery itself"
    assert world.outside.results()[("a-1", "r")] == {"failed", "answered"}
    await process.stop()


async def test_who_had_no_receiver_is_routed_anew_when_there_is_one() -> None:
    world = await ReplayWorld().create("r")
    await world.send(message(1, "a", "r", "new"), message(2, "a", "new"), replace(message(3, "a"), receivers=None))
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    assert sorted(letter.reason for letter in world.letters()) == ["unknown_receiver"] * 3
    untouched = await ended(world, process, await process.order())
    assert untouched.progress.skipped == {"unknown_receiver": 3}
    await world.declare("new", "/answer", sources=["a"], event_types=["*"])
    for _ in range(2):
        await ended(world, process, await process.order())
    assert world.generations("/answer") == [("a-1", 0), ("a-1", 1), ("a-2", 1), ("a-3", 1)]
    assert await world.state.failed_receivers() == []
    await process.stop()


async def test_what_may_have_arrived_is_asked_about_before_it_is_sent_again() -> None:
    world = await ReplayWorld().create("r", on_ambiguous="dead_letter")
    world.outside.lose_response = frozenset({1})
    await world.send(message(1, "a", "r"))
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    assert [letter.reason for letter in world.letters()] == ["ambiguous"]
    await world.declare("r", status_endpoint=ASKED)
    await ended(world, process, await process.order())
    assert (world.outside.arrived("/answer"), world.outside.asked["a-1"]) == (["a-1"], 1)
    assert world.outside.results()[("a-1", "r")] == {"failed", "answered"}
    await process.stop()


async def test_what_may_have_arrived_and_did_not_is_asked_about_and_sent() -> None:
    world = await ReplayWorld().create("r", on_ambiguous="dead_letter")
    await world.send(message(1, "a", "r"))
    world.outside.lose_response = frozenset({1})
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    await world.declare("r", "/answer2", status_endpoint="http://r/answer2/{message_id}")
    await ended(world, process, await process.order())
    assert (world.outside.arrived("/answer2"), world.outside.asked["a-1"]) == (["a-1"], 1)
    await process.stop()


# deliveries that did not fail


async def test_what_was_delivered_is_sent_once_more_by_each_job_that_asks_for_it() -> None:
    world = await ReplayWorld().create("r")
    await world.declare("s", "/s", lane="shared")
    world.reject("a-2")
    await world.send(message(1, "a", "r", "s"), message(2, "a", "r"), message(3, "b", "r"))
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    only_r = Selection(receivers=frozenset({"r"}))
    jobs = [await process.order("replay", only_r, only_failed=False) for _ in range(2)]
    for job in jobs:
        await ended(world, process, job)
    assert sorted(world.generations("/answer")) == [("a-1", 0), ("a-1", 1), ("a-2", 1), ("b-3", 0), ("b-3", 1)]
    await ended(world, process, await process.order("replay", only_failed=False))
    assert sorted(world.generations("/answer"))[2:] == [
        ("a-1", 2),
        ("a-2", 1),
        ("a-2", 2),
        ("b-3", 0),
        ("b-3", 1),
        ("b-3", 2),
    ]
    assert world.generations("/s") == [("a-1", 0), ("a-1", 1)]
    await process.stop()


@pytest.mark.parametrize(("retry_s", "crashes"), [(90, False), (40, True)], ids=["parked", "read again"])
async def test_an_answer_that_waits_for_its_callback_is_sent_after_that_of_a_replay(
    retry_s: int, crashes: bool
) -> None:
    world = ReplayWorld()
    retry = {"base": retry_s, "factor": 1, "cap": retry_s}
    world.sources = {"*": {"callback": {"url": "http://sender/callback", "signature": "none", "retry": retry}}}
    await world.create("r")
    world.outside.down.add("callback")
    await world.send(message(1, "a", "r"))
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(10)
    world.outside.down.clear()
    await process.order("replay", only_failed=False)

    async def is_done() -> bool:
        row = await world.row("r", "a", "a-1")
        return (row.stage, row.generation) == (Stage.DONE, 1)

    await until(is_done)
    if crashes:
        await process.kill()
        process = ReplayProcess(world)
    await process.finish()
    called = [headers["webhook-id"] for path, headers, _ in world.outside.posts if path == "/callback"]
    assert [id.rpartition("_")[2] for id in called] == ["1", "0"], "their lives"


@pytest.mark.parametrize("moves", [False, True])
async def test_what_is_parked_and_was_never_sent_is_not_replayed_as_delivered(moves: bool) -> None:
    """If it were, its records of two lives would wait in two lanes, each for the other one to finish first."""
    world = await ReplayWorld().create("r")
    await world.send(replace(message(1, "a", "r"), timing=Timing(world.clock.time() + 300)), message(2, "a", "r"))
    process = ReplayProcess(world)
    await until(_parked(world))
    if moves:
        await world.declare("r", lane="shared")
        await asyncio.sleep(10)
    job = await process.order("replay", only_failed=False)
    over = await ended(world, process, job)
    assert (over.progress.sent, over.progress.skipped) == (1, {"under_way": 1})
    assert sorted(world.generations("/answer")) == [("a-1", 0), ("a-2", 0), ("a-2", 1)]
    await process.stop()


async def test_what_is_replayed_twice_while_its_receiver_moves_is_sent_once_and_the_move_ends() -> None:
    """Both records are parked under one key, each by a lane of its own."""
    world = await ReplayWorld().create("r", retry={"base": 60, "factor": 1, "cap": 60, "max_attempts": 1000})
    sent = ["a-1", "a-2", "a-3"]
    world.reject(*sent)
    await world.send(*(message(number, "a", "r") for number in (1, 2, 3)))
    process = ReplayProcess(world)
    await until(_settled(world, sent))
    world.outside.down.add("answer")
    await process.order()
    await until(_parked(world), 60)
    await world.declare("r", lane="shared", retry={"base": 60, "factor": 1, "cap": 60, "max_attempts": 1000})
    await asyncio.sleep(10)
    await process.order()
    await asyncio.sleep(300)
    world.outside.down.clear()
    await until(world.is_at_rest)
    assert world.generations("/answer") == [(each, 1) for each in sent]
    await asyncio.sleep(30)
    assert not (await world.route("r")).moving
    await process.stop()


def _settled(world: ReplayWorld, ids: Sequence[str]) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return len(world.letters()) == len(ids) and await world.is_at_rest()

    return there


def _parked(world: ReplayWorld) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return bool(world.parked_copies()) and not world.uncommitted()

    return there


# discards


async def test_a_discard_ends_it_and_tells_the_sender_and_can_be_undone() -> None:
    world = await failed()
    process = await ReplayProcess(world).ready()
    over = await ended(world, process, await process.order("discard"))
    assert over.progress.sent == COUNT
    assert world.outside.reasons() == dict.fromkeys(ids(), "discarded")
    assert await world.state.failed("r", limit=100) == []
    again = await ended(world, process, await process.order())
    assert (again.progress.sent, again.progress.skipped) == (0, {"discarded": COUNT}), "what is discarded stays so"
    undone = await ended(world, process, await process.order("replay", Selection(reasons=frozenset({"discarded"}))))
    assert undone.progress.sent == COUNT
    assert in_order(world)
    await process.stop()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_result_that_was_discarded_stays_so_after_a_loss_of_the_state(times: int) -> None:
    """`times`: how often its callback gives up before that."""
    world = await ReplayWorld().create("r")
    world.outside.down.add("callback")
    await world.send(message(1, "a", "r"))
    process = await RebuildingProcess(world).ready()
    await process.ended(60)
    for _ in range(times - 1):
        await ended(world, process, await process.order())
    assert (await ended(world, process, await process.order("discard"))).progress.sent == 1
    before = await world.row("r", "a", "a-1")
    assert (before.stage, before.generation) == (Stage.DONE, times)
    world.state.lose()
    world.outside.down.clear()
    await process.ended(60)
    assert await world.row("r", "a", "a-1") == before
    assert (await ended(world, process, await process.order())).progress.sent == 0
    await process.stop()
    assert await world.row("r", "a", "a-1") == before
    assert world.outside.results() == {}


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("paused", [False, True])
async def test_what_is_parked_can_be_discarded(lane: str, paused: bool) -> None:
    world = await ReplayWorld().create()
    slow = {"base": 500, "factor": 1, "cap": 500, "max_attempts": 1000}
    await world.declare("r", lane=lane, status_endpoint=ASKED, retry=slow)
    world.outside.down.add("answer")
    await world.send(message(1, "a", "r"), message(2, "a", "r"))
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(30)
    delivery = DeliveryId("r", "a", "a-1")
    if paused:
        await world.state.hold("r:r", Hold("paused", 1.0))
    assert await process.replay_service.discard_waiting(delivery, await world.row(*delivery))

    async def discarded() -> bool:
        return [letter.dead.reason for letter in world.letters()] == ["discarded"]

    await until(discarded, 60)
    await world.state.resume("r:r")
    world.outside.down.clear()
    await until(world.is_at_rest, 2000)
    assert world.outside.arrived("/answer") == ["a-2"]
    assert world.outside.reasons() == {"a-1": "discarded"}
    await process.stop()


async def test_what_nobody_has_read_yet_can_be_discarded() -> None:
    world = await ReplayWorld().create("r")
    process = ReplayProcess(world)
    await until(world.is_at_rest)
    await process.replay_service.discard_waiting(DeliveryId("r", "a", "a-1"), await world.row("r", "a", "a-1"))
    await world.send(message(1, "a", "r"), message(2, "a", "r"))
    await until(world.is_at_rest)
    assert world.outside.arrived("/answer") == ["a-2"]
    assert world.outside.reasons() == {"a-1": "discarded"}
    await process.stop()


async def test_what_is_discarded_under_its_number_is_a_gap() -> None:
    world = await ReplayWorld().create(
        "r", ordering="receiver", retry={"base": 30, "factor": 1, "cap": 30, "max_attempts": 4}
    )
    world.outside.troubles["a-1"] = [Response(500, {}, b"")]
    await world.send(message(1, "a", "r"), message(2, "a", "r"))
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(5)
    delivery = DeliveryId("r", "a", "a-1")
    assert await process.replay_service.discard_waiting(delivery, await world.row(*delivery))
    await until(world.is_at_rest)
    [(_, arrived, _)] = [post for post in world.outside.posts if post[0] == "/answer"]
    assert (arrived["relay-sequence"], arrived["relay-gap"]) == ("2", "first=1; last=1; reason=discarded")
    await process.stop()


async def test_a_wait_for_an_answer_can_be_discarded() -> None:
    world = await ReplayWorld().create("r", "/later", answer="required")
    await world.send(message(1, "a", "r"))
    process = await ReplayProcess(world).ready()
    await asyncio.sleep(30)
    delivery = DeliveryId("r", "a", "a-1")
    assert (await world.row(*delivery)).stage is Stage.AWAITING
    assert await process.replay_service.discard_waiting(delivery, await world.row(*delivery))
    await until(world.is_at_rest, 60)
    [letter] = world.letters()
    assert (letter.dead.reason, letter.stage) == ("discarded", "pending")
    assert world.outside.reasons() == {"a-1": "discarded"}
    await process.stop()


async def test_a_message_without_a_receiver_that_was_discarded_stays_so_after_a_loss_of_the_state() -> None:
    world = await ReplayWorld().create()
    await world.send(replace(message(1, "a"), receivers=None))
    process = await RebuildingProcess(world).ready()
    await until(world.is_at_rest)
    assert (await ended(world, process, await process.order("discard"))).progress.sent == 1
    await world.declare("r", sources=["a"], event_types=["push"])
    world.state.lose()
    await process.ended(60)
    again = await ended(world, process, await process.order())
    assert (again.progress.sent, again.progress.skipped) == (0, {"discarded": 1})
    await process.stop()
    assert world.outside.arrived("/answer") == []


async def test_who_had_no_receiver_is_discarded_with_a_notice_each() -> None:
    world = await ReplayWorld().create("r")
    await world.send(message(2, "a", "new"), replace(message(3, "a"), receivers=None))
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    nowhere = Selection(receivers=frozenset({"-"}))
    assert (await ended(world, process, await process.order("discard", nowhere))).progress.sent == 1
    assert world.outside.reasons() == {"a-2": "unknown_receiver", "a-3": "discarded"}
    for sent in (1, 0):
        assert (await ended(world, process, await process.order("discard"))).progress.sent == sent
    assert world.outside.reasons() == {"a-2": "discarded", "a-3": "discarded"}
    assert await world.state.failed_receivers() == []
    await process.stop()


async def test_of_two_messages_with_one_id_only_the_refused_one_is_discarded() -> None:
    world = await ReplayWorld().create("r")
    await world.send(message(1, "a", "r"), replace(message(1, "a", "r"), payload=b'{"other": 1}'))
    process = await ReplayProcess(world).ready()
    await until(world.is_at_rest)
    assert [letter.reason for letter in world.letters()] == ["id_conflict"]
    assert (await ended(world, process, await process.order())).progress.skipped == {"id_conflict": 1}
    assert (await ended(world, process, await process.order("discard"))).progress.sent == 1
    assert world.outside.results() == {("a-1", "r"): {"answered"}, ("a-1", "-"): {"failed"}}
    assert (await world.row("r", "a", "a-1")).generation == 0
    assert await world.state.failed_receivers() == []
    assert (await ended(world, process, await process.order("discard"))).progress.skipped == {"discarded": 1}
    await process.stop()


@pytest.mark.parametrize(("before", "after"), [("dedicated", "shared"), ("shared", "dedicated")])
async def test_a_receiver_that_moves_meanwhile_gets_each_once(before: str, after: str) -> None:
    world = await failed(lane=before)
    process = await ReplayProcess(world).ready()
    job = await process.order(rate=0.5)
    await asyncio.sleep(4)
    await world.declare("r", lane=after, status_endpoint=ASKED)
    await ended(world, process, job)
    assert sorted(world.outside.arrived("/answer")) == sorted(ids())
    assert all([world.lane("r"), world.lane("shared")]), "each went where its receiver was by then"
    await process.stop()


async def test_a_receiver_in_the_shared_lane_gets_no_more_than_may_wait_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.replay.runner.CHECK_ROOM_AFTER", 1)
    monkeypatch.setattr("relay.replay.runner.AT_ONCE", 2)
    monkeypatch.setattr(ReplayProcess, "room", 3)
    world = await failed(lane="shared", retry={"base": 2, "factor": 1, "cap": 2, "max_attempts": 1000})
    world.outside.down.add("answer")
    process = await ReplayProcess(world).ready()
    job = await process.order()
    await asyncio.sleep(5)
    assert len(world.lane("shared")) == COUNT + 4, "two more once it had three"
    world.outside.down.clear()
    assert (await ended(world, process, job)).progress.sent == COUNT
    assert set(world.outside.arrived("/answer")) == set(ids())
    await process.stop()


async def test_a_job_waits_until_it_is_known_again_what_was_replayed() -> None:
    world = await failed()
    process = await RebuildingProcess(world).ready()
    await ended(world, process, await process.order())
    world.state.lose()
    again = await ended(world, process, await process.order())
    assert (again.progress.sent, again.progress.skipped) == (0, {"replayed": COUNT})
    assert in_order(world)
    await process.stop()


async def test_what_failed_longer_ago_than_is_remembered_is_counted_as_such() -> None:
    world = await failed()
    await asyncio.sleep(8 * 86_400)
    process = await ReplayProcess(world).ready()
    order, _ = await process.replay_service.order("replay", EVERYTHING)
    preview = await process.replay_service.preview(order, seconds=10)
    assert (preview.to_send, preview.unremembered) == (COUNT, COUNT)
    await process.stop()
