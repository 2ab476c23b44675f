"""A receiver is removed while messages are in flight: each ends with a result for the sender, nothing of it stays
behind, and the receiver may be added again at any time."""

import asyncio
from functools import partial
from typing import Any

import pytest

from relay.control.records import EntryRecord
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.hold import hold
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Life
from relay.domain.replay_job import Selection
from relay.domain.route import LaneRoute
from relay.domain.topics import SHARED
from relay.engine.holding import Holding
from relay.recovery.unfinished import unfinished
from relay.state.port import EndpointHealth
from relay.state.replies import answered
from relay.state.rows import Stage, delivery_row
from relay.watch.lane_migration import LaneMigration
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.fakes.replaying import ReplayProcess, ReplayWorld
from tests.fakes.state import MemoryState
from tests.fakes.strikes import STRIKES, Fuse, Fused, Strikes, crash_at_each
from tests.fakes.surroundings import Surroundings
from tests.fakes.virtual_time import run_virtually, until
from tests.fakes.world import message
from tests.faults.test_replays import ended
from tests.log_reads import newest

SLOW = {"base": 60, "factor": 1, "cap": 60, "max_attempts": 1000}
LATER: dict[str, Any] = {
    "status_endpoint": "http://r/later/{message_id}",
    "poll": {"base": 20, "cap": 20},
    "retry": SLOW,
}


async def _gone(world: MovingWorld) -> bool:
    registry = await world.registry()
    return await world.is_at_rest() and not registry.gone() and not registry.left_lanes()


async def _story(fuse: Fuse, lane: str) -> MovingWorld:
    """One message waits for its answer and one is parked when the receiver goes; one comes too late.

    The process that goes on then may die.
    """
    world = await MovingWorld().create("r", "/later", lane=lane, **LATER)
    await world.declare("other", lane=lane)
    first = MovingProcess(world)
    await world.send(message(0, "a", "r"), message(0, "b", "other"))
    await first.ended(3)
    world.outside.down = {"later"}
    await world.send(message(1, "a", "r"))
    await first.stop(after=5)
    await world.remove("r")
    await world.send(message(2, "a", "r"), message(1, "b", "other"))
    world.outside.down.clear()
    await MovingProcess(world, fuse).stop(after=90)
    third = MovingProcess(world)
    await until(lambda: _gone(world))
    await third.stop()
    return world


def _judge(world: MovingWorld, place: str) -> None:
    expected = {("a-0", "r"): {"answered"}, ("a-1", "r"): {"failed"}, ("a-2", "r"): {"failed"}}
    others = {(f"b-{number}", "other"): {"answered"} for number in range(2)}
    assert world.outside.results() == expected | others, place
    assert world.outside.reasons() == {"a-1": "unknown_receiver", "a-2": "unknown_receiver"}, place
    assert world.outside.arrived("/later") == ["a-0"], place


@pytest.mark.parametrize("lane", ["dedicated", SHARED])
def test_what_was_posted_keeps_its_wait_and_the_rest_ends_as_unknown(lane: str) -> None:
    async def story() -> None:
        world = await _story(Fuse(), lane)
        _judge(world, "no fault")
        assert await world.state.endpoints(["r:r"]) == [EndpointHealth("closed", 0.0, 0)]
        [row] = await answered(world.state.peek([delivery_row(DeliveryId("r", "a", "a-0"))]))
        assert row.stage is Stage.DONE
        assert (await world.route("r")).lane is None

    run_virtually(story())


@STRIKES
@pytest.mark.parametrize("lane", ["dedicated", SHARED])
def test_a_crash_on_the_way_leaves_nothing_behind(lane: str, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        _judge(await _story(fuse, lane), fuse.place)

    crash_at_each(story, strikes)


@pytest.mark.parametrize(
    "entry",
    [{"signature": "standard", "secret": "${NAME}"}, {"post_endpoint": "https://${HOST}/answer"}],
    ids=["secret", "URL"],
)
async def test_one_whose_settings_nobody_knows_any_more_leaves_nothing_behind(entry: dict[str, Any]) -> None:
    world = await MovingWorld().create("r", **entry)
    await world.declare("other")
    process = MovingProcess(world)
    await world.send(message(0, "a", "r"))
    await process.ended(5)
    assert world.outside.results() == {}
    await world.remove("r")
    await until(lambda: _gone(world))
    await process.stop()
    assert world.outside.reasons() == {"a-0": "unknown_receiver"}


@pytest.mark.parametrize("wait", [True, False], ids=["after it has left", "while something is left"])
async def test_removed_and_added_again_it_gets_what_comes_then(wait: bool) -> None:
    world = await MovingWorld().create("r", "/answer", retry=SLOW)
    await world.declare("other")
    process = MovingProcess(world)
    world.outside.down = {"answer"}
    await world.send(message(0, "a", "r"))
    await process.ended(20)
    await world.remove("r")
    if wait:
        await until(lambda: _gone(world))
    world.outside.down.clear()
    await world.declare("r", "/answer", lane="shared", retry=SLOW)
    await process.ended(2)
    await world.send(message(1, "a", "r"))
    await until(lambda: _settled(world))
    await process.stop()
    assert world.outside.results()["a-1", "r"] == {"answered"}
    assert world.outside.results()["a-0", "r"] == ({"failed"} if wait else {"answered"})
    assert (await world.registry()).left_lanes() == frozenset()


async def _settled(world: MovingWorld) -> bool:
    registry = await world.registry()
    receiver = registry.receivers()["r"]
    return await world.is_at_rest() and receiver.lane == SHARED and not receiver.moving and not registry.left_lanes()


async def test_removed_while_it_moves_it_leaves_all_the_same() -> None:
    world = await MovingWorld().create("r", retry=SLOW)
    process = MovingProcess(world)
    world.outside.down = {"answer"}
    await world.send(message(0, "a", "r"))
    await process.ended(10)
    await world.declare("r", lane="shared", retry=SLOW)
    await process.ended(10)
    await world.send(message(1, "a", "r"))
    await process.ended(10)
    assert (await world.route("r")).moving
    await world.declare("other")
    await world.remove("r")
    await until(lambda: _gone(world))
    await process.stop()
    assert world.outside.reasons() == {"a-0": "unknown_receiver", "a-1": "unknown_receiver"}
    config = await newest((await world.client()), world.topics.receiver_config, 0)
    assert [record.key for record in config if (record.key or b"").startswith(b"cut:")] == []


async def test_what_a_late_writer_put_into_a_lane_that_was_left_is_taken_up() -> None:
    world = await MovingWorld().create("r")
    await world.declare("other")
    process = MovingProcess(world)
    await world.send(message(0, "a", "r"))
    await process.ended(5)
    topic = world.topics.to_receiver("r")
    [late] = world.broker.records(topic)
    await world.remove("r")
    await until(lambda: _gone(world))
    again = tuple((name, b"a-1" if name == "ce_id" else value) for name, value in late.headers)
    await world.append(topic, late.key, late.value, again)
    await until(lambda: _gone(world))
    await process.stop()
    assert world.outside.reasons() == {"a-1": "unknown_receiver"}


@pytest.mark.parametrize("lane", ["shared", "dedicated"])
async def test_a_hold_outlives_the_receiver_and_all_that_is_cleared_up_behind_it(lane: str) -> None:
    world = await MovingWorld().create("r", "/answer", lane=lane)
    await world.declare("other", lane=lane)
    process = await MovingProcess(world).run(3)
    holding = Holding(await world.client(), world.state, world.topics.receiver_config)
    await holding.hold("r:r", hold("paused", world.clock.time(), "by hand"))
    await world.remove("r")
    await process.ended(700)  # finished, and swept for late arrivals
    await world.declare("r", "/answer", lane=lane)
    await process.ended(5)
    await world.send(message(1, "a", "r"))
    await process.stop(after=20)
    assert world.outside.arrived("/answer") == []


@pytest.mark.parametrize("late", [False, True], ids=["before it is checked", "before it is said"])
async def test_who_comes_back_while_it_is_seen_off_keeps_its_order(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """Its lane is another one now, and the old one has a message of it by then."""
    world = await MovingWorld().create("r", lane="dedicated")
    await world.declare("other")
    raced = asyncio.Event()
    original = LaneMigration._publish if late else LaneMigration._is_held

    async def racing(mover: LaneMigration, name: str, *more: Any) -> Any:
        if name == "r" and "r" not in world.entries:
            raced.set()
            world.outside.down = {"answer"}
            await world.declare("r", lane="shared", retry=SLOW)
            await world.send(message(1, "a", "r"))
            await asyncio.sleep(20)  # it is routed, and parked
        return await original(mover, name, *more)

    monkeypatch.setattr(LaneMigration, original.__name__, racing)
    process = MovingProcess(world)
    await world.remove("r")
    await raced.wait()
    await process.ended(25)
    await world.send(message(2, "a", "r"))
    world.outside.down.clear()
    await until(lambda: _settled(world))
    await process.stop()
    assert world.outside.arrived("/answer") == ["a-1", "a-2"]


async def test_lanes_that_were_left_cost_less_and_less() -> None:
    world = MovingWorld()
    world.state = MemoryState()
    await world.create()
    for name in ("r", "s"):
        await world.declare(name, lane="shared")
        await world.announce(name, LaneRoute(1, "shared"))
    counted = Fuse()
    log: Any = Fused(await world.client(), counted, "log")
    registry = await world.registry()
    looks: list[str] = []
    wanted = registry.wanted_lane
    registry.wanted_lane = lambda name: looks.append(name) or wanted(name)  # type: ignore[method-assign, func-returns-value]
    moving = asyncio.create_task(
        LaneMigration(log, world.state, world.topics, registry, world.clock, owner="test").run()
    )
    spent = []
    for _ in range(3):
        before = len(counted.names), len(looks)
        await asyncio.sleep(86_400)
        spent.append((len(counted.names) - before[0], len(looks) - before[1]))
    moving.cancel()
    assert spent[0][0] < 100
    assert spent[0][1] < 200
    assert spent[2][0] < 20


async def test_what_is_parked_while_it_comes_back_elsewhere_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is declared again, for another lane, after the mover has seen that nothing is left, and before it says so."""
    world = await MovingWorld().create("r", "/answer", lane="dedicated")
    await world.declare("other", lane="dedicated")
    process = await MovingProcess(world).run(3)
    raced: list[int] = []

    async def racing(*arguments: Any) -> int:
        left = await unfinished(*arguments)
        if not raced and arguments[3] == "r" and left == 0:
            raced.append(left)
            world.outside.down = {"answer"}
            await world.declare("r", "/answer", lane="shared", retry=SLOW)
            await world.send(message(1, "a", "r"))
            await asyncio.sleep(3)  # it is routed, and parked
        return left

    monkeypatch.setattr("relay.watch.lane_migration.unfinished", racing)
    await world.remove("r")
    await process.ended(30)
    world.outside.down = set()
    await world.send(message(2, "a", "r"))
    await process.stop(after=700)
    assert raced
    assert sorted(world.outside.arrived("/answer")) == ["a-1", "a-2"]


async def test_what_was_under_way_when_it_was_removed_is_asked_about_when_it_is_replayed() -> None:
    world = await ReplayWorld().create()
    slow: dict[str, Any] = {"status_endpoint": "http://r/slow/{message_id}", "retry": SLOW}
    await world.declare("r", "/slow", **slow)
    await world.declare("other")
    first = ReplayProcess(world)
    await world.send(message(0, "a", "r"))
    await first.ended(3)
    assert world.outside.arrived("/slow") == ["a-0"]
    await first.kill()
    await world.remove("r")
    second = ReplayProcess(world)
    await until(lambda: _gone(world))
    assert world.outside.reasons() == {"a-0": "unknown_receiver"}
    await world.declare("r", "/slow", **slow)
    await second.order()
    await second.stop(after=90)
    assert world.outside.arrived("/slow") == ["a-0"]
    assert world.outside.results()["a-0", "r"] == {"failed", "answered"}


# --- a name that is another's now -----------------------------------------------------------------------------------


async def _inherit(world: MovingWorld) -> None:
    topics, log = world.topics, await world.client()
    ends = await log.ends(world.broker.partitions_of(topics.from_sender))
    [config_end] = (await log.ends(world.broker.partitions_of(topics.receiver_config))).values()
    entry: dict[str, object] = {
        "post_endpoint": "http://heir/answer",
        "signature": "none",
        "lane": SHARED,
        "owner": "heir",
    }
    life = Life(f"{config_end}-9", topics.from_sender, tuple(ends.values()), await log.topic_id(topics.from_sender))
    declared = EntryRecord("api", entry, life)
    await world.append(topics.receiver_config, b"r", declared.encode(), ())


async def _inherited(fuse: Fuse) -> None:
    """One message waits for its answer and one is parked when another owner gets the name; one comes after that. The
    process that goes on then may die."""
    world = await MovingWorld().create("r", "/later", lane=SHARED, **LATER)
    first = MovingProcess(world)
    await world.send(message(0, "a", "r"))
    await first.ended(3)
    world.outside.down = {"later"}
    await world.send(message(1, "b", "r"))
    await first.stop(after=5)
    await _inherit(world)
    await world.send(message(2, "a", "r"))
    await MovingProcess(world, fuse).stop(after=90)
    await MovingProcess(world).finish()
    assert world.outside.arrived("/answer") in (["a-2"], ["a-2"] * 2), fuse.place
    assert world.outside.arrived("/later") == ["a-0"], fuse.place
    assert world.outside.reasons() == {"a-0": "unknown_receiver", "b-1": "unknown_receiver"}, fuse.place
    assert world.outside.results()["a-2", "r"] == {"answered"}, fuse.place


@STRIKES
def test_what_was_for_the_former_owner_of_a_name_is_not_sent_to_the_next_one_whenever_a_process_dies(
    strikes: Strikes,
) -> None:
    crash_at_each(_inherited, strikes)


async def _inherited_on_another_topic(again: bool, fuse: Fuse) -> None:
    """Messages arrive before and after `from_sender` is created again; the process that goes on then may die. `again`:
    then one arrives before and one after the name gets another owner once more."""
    world = await MovingWorld().create("r", "/former", lane=SHARED)
    await world.declare("other", "/other")
    first = MovingProcess(world)
    await world.send(*(message(number, "a", "other") for number in range(5)))
    await first.finish()
    await world.send(message(5, "a", "r"))  # unread when the next owner comes
    await _inherit(world)
    second = await MovingProcess(world, fuse).run(3)
    world.broker.create_again(world.topics.from_sender)
    await world.send(message(6, "a", "r"))
    await second.stop(after=60)
    await _at_rest(world)
    if again:
        await world.send(message(7, "a", "r"))
        await _inherit(world)
        await world.send(message(8, "a", "r"))
        await _at_rest(world)
    expected, refused = (["a-6", "a-8"], {"a-7"}) if again else (["a-6"], set[str]())
    arrived = dict.fromkeys(world.outside.arrived("/answer"))  # one twice, if the process died
    assert list(arrived) == expected, fuse.place
    assert world.outside.reasons().keys() - {"a-5"} == refused, fuse.place  # which was lost, or refused
    assert world.outside.arrived("/former") == [], fuse.place


async def _at_rest(world: MovingWorld) -> None:
    await MovingProcess(world).finish()


@STRIKES
@pytest.mark.parametrize("again", [False, True])
def test_after_the_topic_was_created_again_each_owner_gets_what_came_to_it(strikes: Strikes, *, again: bool) -> None:
    crash_at_each(partial(_inherited_on_another_topic, again), strikes)


async def test_a_late_410_of_a_receiver_of_the_file_does_not_pause_that_of_the_next_owner() -> None:
    asked, now = asyncio.Event(), asyncio.Event()

    class Outside(Surroundings):
        async def _post(self, path: str, request: Request) -> Exchange:
            if path == "/former":
                asked.set()
                await now.wait()
            return await super()._post(path, request)

    world = MovingWorld()
    world.outside = Outside(troubles={"a-0": [Response(410, {}, b"")]})
    await world.create("r", "/former", lane=SHARED)
    process = MovingProcess(world)
    await world.send(message(0, "a", "r"))
    await asked.wait()
    await _inherit(world)
    await world.send(message(1, "a", "r"))
    await process.ended(1)
    now.set()
    await process.finish()
    assert world.outside.arrived("/answer") == ["a-1"]
    assert world.outside.reasons() == {"a-0": "gone"}


@pytest.mark.parametrize("only_failed", [True, False])
async def test_a_job_of_the_former_owner_sends_nothing_to_the_next_one(only_failed: bool) -> None:
    """The name gets another owner after the job was ordered, and before it is done."""
    world = await ReplayWorld().create("r", "/former", lane=SHARED)
    world.reject(*(["a-0"] if only_failed else []))
    process = ReplayProcess(world)
    await world.send(message(0, "a", "r"))
    await until(world.is_at_rest)
    own = Selection(frozenset({"r"}), only_own=True)
    order, _ = await process.replay_service.order("replay", own, only_failed=only_failed)
    await _inherit(world)
    job = await process.replay_service.submit(order)
    over = (await ended(world, process, job)).progress
    await process.stop()
    assert world.outside.arrived("/answer") == []
    assert (over.sent, over.skipped) == (0, {"unknown_receiver": 1})
