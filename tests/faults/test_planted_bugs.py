"""Each planted bug is caught by a small experiment, which passes where it is not planted: so the experiments see."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from relay.config.settings import Settings
from relay.domain.dead_letter import parse_dead_letter
from relay.domain.exchange import Response
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.receiver import BreakerPolicy, OfflinePolicy, Receiver
from relay.log.port import Coordinate
from relay.state.replies import answered
from relay.state.rows import Stage, delivery_row
from tests.fakes.strikes import Frost, Fuse
from tests.fakes.surroundings import REFUSED, most_in
from tests.fakes.virtual_time import VirtualLoop, run_virtually
from tests.fakes.world import Process, World, message, receiver
from tests.faults import times
from tests.faults.harness.planted import PLANTED
from tests.faults.numbers import a_loss_of_numbers_in_the_shared_lane
from tests.faults.routes import (
    a_key_that_is_used_for_another_source,
    a_message_for_many_receivers,
    a_process_that_lacks_a_secret,
    a_source_that_names_a_receiver_of_another,
    two_sources_with_a_callback_each,
)
from tests.faults.simulation.fates import CutOff
from tests.faults.simulation.outside import Mishap, Wire
from tests.faults.test_frozen_removals import calls_of_the_first_life, no_life_is_lost

Experiment = Callable[[], Awaitable[None]]

QUICK: dict[str, Any] = {"timeout": 2.0}
PARKS: dict[str, Any] = QUICK | {"base": 8.0, "factor": 1.0, "cap": 8.0}
HELD = Settings(receivers_file="none", hold_max=5.0)


async def _world(receivers: Sequence[Receiver], messages: Iterable[Message], *, parks: bool = False) -> World:
    world = await World(receivers, settings=HELD if parks else None).create()
    if parks:
        world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*messages)
    return world


async def _ends_as(world: World, expected: dict[tuple[str, str], set[str]], seconds: float = 60) -> None:
    """A fresh process brings everything to this end, with nothing left over; all arrived once, and in order."""
    await world.run(Fuse(), seconds, until=lambda: world.outside.results() == expected)
    assert world.outside.results() == expected
    assert await world.is_at_rest()
    arrived = world.outside.arrived("/answer")
    assert arrived == sorted(set(arrived))


async def _calls_of(method: str, make: Callable[[], Awaitable[World]]) -> list[int]:
    """Which port calls of a process are calls of `method`."""
    learning = Fuse()
    await (await make()).run(learning, 25)
    calls = [number for number, name in enumerate(learning.names, 1) if name == method]
    if not calls:
        raise ValueError(f"{method} is never called")
    return calls


async def _crash_at_each(
    method: str, make: Callable[[], Awaitable[World]], expected: dict[tuple[str, str], set[str]]
) -> None:
    """A crash right before the effect of each call of `method`."""
    for blow_at in await _calls_of(method, make):
        world = await make()
        await world.run(Fuse(blow_at), 25)
        await _ends_as(world, expected)


# the experiments


async def a_crash_at_each_append() -> None:
    """Of hop records and dead letters."""
    receivers = [receiver("r", "/answer", status=True, **QUICK), receiver("x", "/fail", max_attempts=1, **QUICK)]
    expected = {("a-0", "r"): {"answered"}, ("a-0", "x"): {"failed"}}
    await _crash_at_each("log.append", lambda: _world(receivers, [message(0, "a", "r", "x")]), expected)


async def a_crash_at_each_append_of_a_parked_message() -> None:
    receivers = [receiver("r", "/answer", status=True, **PARKS)]
    expected = {("a-0", "r"): {"answered"}}
    await _crash_at_each("log.append", lambda: _world(receivers, [message(0, "a", "r")], parks=True), expected)


async def an_id_sent_again_after_its_end() -> None:
    world = await _world([receiver("r", "/answer")], [message(0, "a", "r")])
    await world.run(Fuse(), 5)
    await world.send(message(0, "a", "r"))
    await _ends_as(world, {("a-0", "r"): {"answered"}})


async def a_kill_during_a_request() -> None:
    world = await _world([receiver("r", "/slow", status=True)], [message(0, "a", "r"), message(1, "a", "r")])
    first = await Process(world).run(3)
    await first.kill()
    await _ends_as(world, {("a-0", "r"): {"answered"}, ("a-1", "r"): {"answered"}})


async def a_request_that_outlives_its_process() -> None:
    """It is still on its way when the next process asks whether it arrived."""
    world = World([receiver("r", "/answer", status=True, **QUICK)])
    world.outside = wire = Wire()
    wire.mishaps["a-0"] = deque([Mishap("late", late_s=5.0)])
    await world.create()
    await world.send(message(0, "a", "r"))
    first = await Process(world).run(1)
    await first.kill()
    await world.run(Fuse(), 10)
    await _ends_as(world, {("a-0", "r"): {"answered"}})


async def an_owner_cut_off_from_the_log() -> None:
    """Both owners have the same doubt to resolve: the former one learns that it is no longer the owner."""
    world = World([receiver("r", "/answer", status=True, **QUICK)])
    world.outside = wire = Wire()
    wire.mishaps["a-0"] = deque([Mishap("dropped"), Mishap("response_lost")])
    await world.create()
    await world.send(message(0, "a", "r"))
    cable = CutOff()
    former = await Process(world, cable).run(1)
    cable.cut()
    former.log.expel()
    owner = await Process(world).run(40)
    cable.mend()
    await former.ended(10)
    await asyncio.gather(former.stop(), owner.stop())
    await _ends_as(world, {("a-0", "r"): {"answered"}})
    assert world.told.fenced_lanes


async def a_mark_that_comes_late() -> None:
    """A process freezes on a mark of rows; meanwhile another brings the message to its end."""

    async def make() -> World:
        return await _world([receiver("r", "/answer", status=True, **QUICK)], [message(0, "a", "r")])

    for freeze_at in await _calls_of("state.mark", make):
        world, frost = await make(), Frost(freeze_at)
        former = await Process(world, frost).run(5)
        former.log.expel()
        owner = await Process(world).run(20)
        frost.thaw.set()
        await former.ended(5)
        await asyncio.gather(former.stop(), owner.stop())
        await _ends_as(world, {("a-0", "r"): {"answered"}})
        [row] = await answered(world.state.peek([delivery_row(DeliveryId("r", "a", "a-0"))]))
        assert row.stage is Stage.DONE


async def a_crash_while_a_lost_state_is_recovered() -> None:
    """With one message parked, and its follower in line behind it."""

    async def lost() -> World:
        messages = [message(0, "a", "r"), message(1, "a", "r")]
        world = await _world([receiver("r", "/answer", status=True, **PARKS)], messages, parks=True)
        await world.run(Fuse(), 4)
        world.state.lose()
        return world

    expected = {("a-0", "r"): {"answered"}, ("a-1", "r"): {"answered"}}
    for method in ("state.restore", "state.ready"):
        await _crash_at_each(method, lost, expected)


async def a_kill_at_a_receiver_that_wants_each_at_most_once() -> None:
    """Only the request in flight is in doubt."""
    world = await _world(
        [receiver("r", "/slow", on_ambiguous="dead_letter", **QUICK)], [message(n, "a", "r") for n in range(3)]
    )
    first = await Process(world).run(3)
    await first.kill()
    await _ends_as(world, {("a-0", "r"): {"failed"}, ("a-1", "r"): {"answered"}, ("a-2", "r"): {"answered"}})


async def a_response_that_comes_after_the_owner_has_changed() -> None:
    world = await _world([receiver("r", "/slow")], [message(0, "a", "r")])
    former = await Process(world).run(1)
    former.log.expel()
    owner = await Process(world).run(60)
    await asyncio.gather(former.stop(), owner.stop())
    await _ends_as(world, {("a-0", "r"): {"answered"}})
    assert world.outside.arrived("/slow") == ["a-0"]


async def a_removal_while_the_next_life_is_parked() -> None:
    for freeze_at in (await calls_of_the_first_life()).removals:
        await no_life_is_lost(freeze_at)


async def a_receiver_with_fewer_places_than_partitions() -> None:
    world = await World([receiver("r", "/answer", partitions=8, max_in_flight=1)]).create()
    sources = [f"s{number}" for number in range(20)]
    await world.send(*[message(0, source, "r") for source in sources])
    await world.run(Fuse(), 20)
    assert len(world.outside.arrived("/answer")) == len(sources)
    assert world.outside.most["/answer"] == 1


async def a_machine_that_stands_still_with_slots_in_hand() -> None:
    world = await World([receiver("r", "/answer", ordering="none", rate_limit=10)]).create()
    await world.send(*[message(number, "a", "r") for number in range(50)])
    process = await Process(world).run(1.5)
    cast(VirtualLoop, asyncio.get_running_loop()).stand_still(2.0)
    await process.stop(after=10)
    assert len(world.outside.arrived("/answer")) == 50
    assert most_in(world.outside.starts["/answer"], 1.0) <= 10


async def _cut(world: World, topic: str, end: int) -> None:
    for at in world.broker.partitions_of(topic):
        if world.broker[at].end > end:
            world.broker.cut(Coordinate(*at, end))


async def a_log_that_lost_its_end_and_grew() -> None:
    world = await _world([receiver("r", "/answer", status=True, **QUICK)], [message(n, "a", "r") for n in range(6)])
    await world.run(Fuse(), 10)
    await _cut(world, world.topics.from_sender, 4)
    await world.send(*(message(n, "a", "r") for n in range(6, 9)))
    await _ends_as(world, {(f"a-{n}", "r"): {"answered"} for n in range(9)})


async def a_log_that_lost_its_end_behind_what_is_unfinished() -> None:
    """The first message still fails when the log behind the second one is lost."""
    receivers = [receiver("r", "/answer", base=1.0, factor=1.0, cap=1.0, max_attempts=100, timeout=2.0)]
    world = await _world(receivers, [message(n, "a", "r") for n in range(3)])
    world.outside.troubles["a-0"] = [REFUSED] * 8
    process = await Process(world).run(4)
    await _cut(world, world.topics.to_receiver("r"), 2)
    await world.send(message(3, "a", "r"))
    await process.stop(after=40)
    assert world.outside.results().keys() >= {("a-0", "r"), ("a-1", "r"), ("a-3", "r")}


async def a_senders_transaction_that_is_aborted() -> None:
    world = await _world([receiver("r", "/answer", **QUICK)], [])
    aborted = world.transaction()
    await aborted.append(world.records(message(0, "a", "r")))
    await aborted.abort()
    await world.send(message(1, "a", "r"))
    await _ends_as(world, {("a-1", "r"): {"answered"}})


async def a_parked_copy_that_the_log_lost() -> None:
    world = await _world([receiver("r", "/answer", **PARKS)], [message(0, "a", "r")], parks=True)
    await world.run(Fuse(), 4)
    await _cut(world, world.topics.parked_messages, 0)
    await world.run(Fuse(), 60)
    letters = world.broker.records(world.topics.failed_messages)
    assert [parse_dead_letter(letter.headers).reason for letter in letters] == ["lost"]
    assert await world.is_at_rest()


async def a_shared_lane_at_its_bound() -> None:
    """Messages of `b` wait in memory behind those of `a`. A second wave comes and is looked up before its begin, as
    records of `a` are first in it."""
    settings = Settings(receivers_file="none", window_records=8, window_offsets=50)
    world = World([receiver("r", "/slow", lane="shared", max_in_flight=1, timeout=30.0)], settings=settings)
    world.outside.slow_s = 0.3
    await world.create()
    process = Process(world)
    await world.send(*[message(n, "a", "r") for n in range(5)], *[message(n, "b", "r") for n in range(10)])
    await process.ended(0.1)
    await world.send(*[message(n, "a", "r") for n in range(5, 8)], *[message(n, "b", "r") for n in range(10, 16)])
    await process.stop(after=200)
    assert world.outside.arrived("/slow", "a") == [f"a-{n}" for n in range(8)]
    assert world.outside.arrived("/slow", "b") == [f"b-{n}" for n in range(16)]


async def receivers_that_refuse_more_than_may_be_parked() -> None:
    settings = Settings(receivers_file="none", hold_max=5.0, parked_per_receiver=3, parked_total=3)
    world = await World([receiver("r", "/answer", **(PARKS | {"max_attempts": 50}))], settings=settings).create()
    world.outside.down.add("answer")
    await world.send(*[message(0, f"s{source}", "r") for source in range(8)])
    process = await Process(world).run(60)
    assert await world.parked_references() <= 3
    world.outside.down.clear()
    await process.stop(after=100)
    assert await world.is_at_rest()


async def a_message_that_fails_for_longer_than_its_receivers_patience() -> None:
    policy: dict[str, Any] = {"base": 5.0, "factor": 1.0, "cap": 5.0, "max_attempts": 1_000, "failures": 10_000}
    world = await _world([receiver("r", "/answer", patience=60.0, **policy)], [message(n, "a", "r") for n in range(3)])
    world.outside.troubles["a-0"] = [Response(501, {}, b"")] * 100
    await Process(world).stop(after=90)
    assert world.outside.arrived("/answer") == ["a-1", "a-2"]


async def a_restart_when_an_offline_receiver_is_back() -> None:
    declared = receiver("r", "/answer", **QUICK)
    offline = BreakerPolicy(failures=3, offline=OfflinePolicy(after=60.0, ping_every=3600.0))
    world = await _world(
        [replace(declared, post=replace(declared.post, breaker=offline))], [message(0, f"s{n}", "r") for n in range(9)]
    )
    world.outside.down.add("answer")
    process = Process(world)
    while not world.outside.pings:
        assert not await process.ended(10)
    await process.stop()
    world.outside.down.clear()
    before, process = len(world.outside.pings), Process(world)
    await process.stop(after=20)
    assert len(world.outside.pings) == before + 1


CAUGHT_BY: dict[str, Experiment] = {
    "mark_before_produce": a_crash_at_each_append,
    "delete_at_done": an_id_sent_again_after_its_end,
    "commit_before_produce": a_kill_during_a_request,
    "skip_on_delivered": a_crash_at_each_append,
    "no_settle": a_request_that_outlives_its_process,
    "no_life_in_removals": a_removal_while_the_next_life_is_parked,
    "no_life_in_tombstones": a_removal_while_the_next_life_is_parked,
    "no_fence": an_owner_cut_off_from_the_log,
    "non_monotone_stage": a_mark_that_comes_late,
    "dlq_not_acked": a_crash_at_each_append,
    "index_before_park": a_crash_at_each_append_of_a_parked_message,
    "tombstone_before_hop": a_crash_at_each_append_of_a_parked_message,
    "ready_before_recovery": a_crash_while_a_lost_state_is_recovered,
    "begin_at_intake": a_kill_at_a_receiver_that_wants_each_at_most_once,
    "truncation_ignored": a_log_that_lost_its_end_and_grew,
    "unfinished_skipped": a_log_that_lost_its_end_behind_what_is_unfinished,
    "aborted_delivered": a_senders_transaction_that_is_aborted,
    "lost_copy_forgotten": a_parked_copy_that_the_log_lost,
    "numbers_in_state_only": a_loss_of_numbers_in_the_shared_lane,
    "fenced_outcome_dropped": a_response_that_comes_after_the_owner_has_changed,
    "places_not_kept": a_receiver_with_fewer_places_than_partitions,
    "missed_slots_made_up_for": a_machine_that_stands_still_with_slots_in_hand,
    "seen_parked_before_unseen": a_shared_lane_at_its_bound,
    "parked_without_bounds": receivers_that_refuse_more_than_may_be_parked,
    "patience_forgotten": a_message_that_fails_for_longer_than_its_receivers_patience,
    "offline_until_the_next_ping": a_restart_when_an_offline_receiver_is_back,
    "wide_fan_out_cut": a_message_for_many_receivers,
    "senders_not_asked": a_source_that_names_a_receiver_of_another,
    "unusable_is_unknown": a_process_that_lacks_a_secret,
    "keys_without_limits": a_key_that_is_used_for_another_source,
    "callbacks_mixed_up": two_sources_with_a_callback_each,
    "sent_before_due": times.a_message_that_is_not_due,
    "deadline_forgotten": times.a_receiver_that_is_down_until_after_a_deadline,
    "replaced_though_sent": times.a_newer_message_while_an_older_one_is_sent,
    "older_ones_kept": times.messages_of_a_key_that_wait_together,
}


def test_every_planted_bug_has_its_experiment() -> None:
    assert CAUGHT_BY.keys() == PLANTED.keys()


@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_the_bug_is_caught(bug: str) -> None:
    with PLANTED[bug](), pytest.raises(AssertionError):
        run_virtually(_told(CAUGHT_BY[bug]))


@pytest.mark.parametrize("experiment", dict.fromkeys(CAUGHT_BY.values()), ids=lambda each: each.__name__)
def test_the_experiment_passes_without_a_bug(experiment: Experiment) -> None:
    run_virtually(_told(experiment))


async def _told(experiment: Experiment) -> None:
    await experiment()
