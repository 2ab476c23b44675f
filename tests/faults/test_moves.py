"""A receiver moves to another lane, with every fault of the processes that take part.

A message is sent before the move is announced, during it, and after it; some are parked; the process dies at each of
its calls in turn, freezes, or is one of two. Each message arrives once, in order, and the move ends.
"""

import asyncio
from typing import Any, cast

import pytest
from msgspec import structs

from relay.control.apply import awaited
from relay.domain.control_key import encode_value
from relay.domain.exchange import Response
from relay.domain.receiver import LaneKind
from relay.domain.route import Cut, LaneRoute, Marker
from relay.domain.timing import Timing
from relay.domain.topics import DAY_S
from relay.log.port import TopicPartition
from relay.state.read_model import UNSERVED_S
from relay.watch.lane_migration import MARK_AGAIN_S, LaneMigration
from tests.fakes.log import MemoryLog
from tests.fakes.moving import MovingProcess, MovingWorld
from tests.fakes.state import MemoryState
from tests.fakes.strikes import CRASHES, Frost, Fuse, Loss, Strikes, crash_at_each
from tests.fakes.virtual_time import VirtualLoop, run_virtually, until
from tests.fakes.world import message

SLOW = {"base": 6, "factor": 1, "cap": 6, "max_attempts": 1000}
"""Half of it is waited, in memory: a parked copy that a zombie leaves behind stays until the next pass over them."""
COUNT = 9
BROKEN = Response(501, {}, b"")
LANES = [("dedicated", "shared"), ("shared", "dedicated")]
ASKED: dict[str, Any] = {"status_endpoint": "http://r/answer/{message_id}", "retry": SLOW}
Entry = dict[str, Any]
GROWN: Entry = {"partitions": 3}
"""Where the source's messages take another partition than in a topic with one."""
CALM: Entry = {"lane": "shared"}
HOT: Entry = {"lane": "shared", "hot": True}
MOVES = [
    pytest.param({"lane": "dedicated"}, {"lane": "shared"}, id="to the shared lane"),
    pytest.param({"lane": "shared"}, {"lane": "dedicated"}, id="to its own lane"),
    pytest.param({}, GROWN, id="to more partitions"),
    pytest.param(CALM, HOT, id="to its own lane because it is hot"),
    pytest.param(HOT, CALM, id="back because it is calm"),
]


async def settled(world: MovingWorld) -> bool:
    return not await awaited(await world.client(), world.topics)


async def all_over(world: MovingWorld) -> bool:
    return await world.is_at_rest() and await settled(world)


async def opened(before: Entry) -> MovingWorld:
    return await MovingWorld().create("r", **before, **ASKED)


async def send(world: MovingWorld, *numbers: int) -> None:
    await world.send(*(message(number, "a", "r") for number in numbers))


async def play(world: MovingWorld, after: Entry) -> None:
    """Messages before, during and after the move; for a while nothing listens. Takes 60 s."""
    await send(world, 0, 1)
    await asyncio.sleep(2)
    world.outside.down = {"answer"}
    await send(world, 2, 3)
    await asyncio.sleep(1)
    await world.declare("r", **after, **ASKED)
    await send(world, 4, 5)
    await asyncio.sleep(5)
    await send(world, 6, 7)
    world.outside.down.clear()
    await asyncio.sleep(30)
    await send(world, 8)
    await asyncio.sleep(22)


def judge(world: MovingWorld, place: str) -> None:
    expected = [f"a-{number}" for number in range(COUNT)]
    assert world.outside.arrived("/answer") == expected, place
    assert world.outside.results() == {(one, "r"): {"answered"} for one in expected}, place


async def story(before: Entry, after: Entry, fuse: Fuse) -> MovingWorld:
    """One process, which may die; then another one, until all is over."""
    world = await opened(before)
    first = MovingProcess(world, fuse)
    await play(world, after)
    await first.stop()
    second = MovingProcess(world)
    await until(lambda: all_over(world))
    await second.stop()
    return world


@CRASHES
@pytest.mark.parametrize(("before", "after"), MOVES)
def test_no_crash_at_any_call_loses_doubles_or_overtakes(
    before: Entry, after: Entry, late: bool, strikes: Strikes
) -> None:
    async def judged(fuse: Fuse) -> None:
        judge(await story(before, after, fuse), fuse.place)

    crash_at_each(judged, strikes, late=late)


@pytest.mark.parametrize(("before", "after"), MOVES)
async def test_what_could_be_sent_at_once_waits_for_what_is_parked(before: Entry, after: Entry) -> None:
    world = await MovingWorld().create()
    parking = {**ASKED, "retry": {**SLOW, "base": 60, "cap": 60}}
    await world.declare("r", **before, **parking)
    process = MovingProcess(world)
    world.outside.down = {"answer"}
    await send(world, 0, 1)
    await process.ended(20)
    assert world.parked_copies()
    await world.declare("r", **after, **parking)
    world.outside.down.clear()
    for number in range(2, COUNT):  # in new lanes, with none before them
        await send(world, number)
        await process.ended(0.5)
    await until(lambda: all_over(world))
    await process.stop()
    judge(world, "no fault")


@pytest.mark.parametrize("kind", ["delayed", "stepped aside"])
@pytest.mark.parametrize(("before", "after"), MOVES)
async def test_what_has_left_the_order_does_not_hold_up_a_move(before: Entry, after: Entry, kind: str) -> None:
    """It may be due in a month, and later messages would expire."""
    world = await opened({**before, "ordering": {"by": "source", "patience": 10}})
    process = MovingProcess(world)
    if kind == "delayed":
        await world.send(structs.replace(message(0, "a", "r"), timing=Timing(deliver_at=DAY_S)))
        await process.ended(10)
    else:
        world.outside.troubles["a-0"] = [BROKEN] * 10
        slow = {**SLOW, "base": 2 * DAY_S, "cap": 2 * DAY_S}
        await world.declare("r", **before, **{**ASKED, "retry": slow}, ordering={"by": "source", "patience": 10})
        await send(world, 0)
        await process.ended(30)
        world.outside.troubles.clear()
    assert len(world.parked_copies()) == 1
    await world.declare("r", **after, **ASKED, ordering={"by": "source", "patience": 10})
    await process.ended(20)
    await send(world, *range(1, 4))
    await process.ended(40)
    assert world.outside.arrived("/answer") == ["a-1", "a-2", "a-3"]
    assert len(world.parked_copies()) == 1
    await process.stop()
    cast("VirtualLoop", asyncio.get_running_loop()).stand_still(DAY_S)
    process = MovingProcess(world)
    await until(lambda: all_over(world))
    await process.stop()
    assert world.outside.arrived("/answer") == ["a-1", "a-2", "a-3", "a-0"]


# others have a part in it


async def frozen(before: Entry, after: Entry, freeze_at: int, *, late: bool) -> tuple[MovingWorld, str]:
    """The first process freezes, is put out of its groups, and goes on when the second has gone on without it."""
    world = await opened(before)
    frost = Frost(freeze_at, after=late)
    first = MovingProcess(world, frost)
    playing = asyncio.create_task(play(world, after))
    freezing = asyncio.create_task(frost.frozen.wait())
    await asyncio.wait([freezing, playing], return_when=asyncio.FIRST_COMPLETED)
    freezing.cancel()
    first.log.expel()
    second = MovingProcess(world)
    await asyncio.wait([playing], timeout=25)
    frost.thaw.set()
    await playing
    await first.ended(20)
    await until(lambda: all_over(world))
    await asyncio.gather(first.stop(), second.stop())
    return world, f"call {freeze_at}, {frost.names[min(freeze_at, len(frost.names)) - 1]}"


@pytest.mark.parametrize("late", [False, True], ids=["call", "reply"])
@pytest.mark.parametrize(("before", "after"), MOVES)
def test_a_zombie_neither_overtakes_nor_doubles(before: Entry, after: Entry, late: bool) -> None:
    counted = Fuse()
    run_virtually(story(before, after, counted))
    for freeze_at in range(1 + 2 * late, counted.calls + 1, 5):
        world, place = run_virtually(frozen(before, after, freeze_at, late=late))
        judge(world, place)


@pytest.mark.parametrize(("before", "after"), MOVES)
def test_a_state_that_is_lost_on_the_way_costs_nothing(before: Entry, after: Entry) -> None:
    async def lossy(lose_at: int) -> MovingWorld:
        world = await opened(before)
        process = MovingProcess(world, Loss(lose_at, world.state.lose))
        await play(world, after)
        await until(lambda: all_over(world))
        await process.stop()
        return world

    counted = Fuse()
    run_virtually(story(before, after, counted))
    for lose_at in range(1, counted.calls + 1, 5):
        judge(run_virtually(lossy(lose_at)), f"call {lose_at}")


# who has not heard of it


async def finish(world: MovingWorld, *processes: MovingProcess) -> None:
    await until(lambda: all_over(world))
    await asyncio.gather(*(process.stop() for process in processes))


def in_order(world: MovingWorld, count: int) -> bool:
    return world.outside.arrived("/answer") == [f"a-{number}" for number in range(count)]


@pytest.mark.parametrize(("before", "after"), LANES)
async def test_a_writer_that_has_not_heard_of_the_move_learns_of_it_at_the_marker(before: str, after: str) -> None:
    world = await opened({"lane": before})
    deaf = MovingProcess(world, deaf=await world.registry(), moves=False)
    await send(world, 0, 1)
    await deaf.ended(5)
    await world.declare("r", lane=after, **ASKED)
    mover = await MovingProcess(world).run(1)
    for number in range(2, 8):
        await send(world, number)
        await deaf.ended(2)
    await until(lambda: settled(world))
    await send(world, 8)
    await deaf.ended(5)
    deaf.hear.set()
    await finish(world, deaf, mover)
    assert in_order(world, 9)


@pytest.mark.parametrize(("before", "after"), LANES)
async def test_who_knows_of_the_move_before_the_marker_still_keeps_to_the_old_lane(before: str, after: str) -> None:
    """Its successor may not know of the move yet, and appends to the old lane: new messages must not overtake those."""
    world = await opened({"lane": before})
    world.outside.down = {"answer"}
    before_it = await world.registry()
    await world.declare("r", lane=after, **ASKED)
    left = before == "dedicated"
    await world.announce("r", LaneRoute(1, cast("LaneKind", after), moving=True, token="t", left=left))
    knowing = await MovingProcess(world, moves=False).run(5)
    await send(world, 0, 1, 2, 3)
    await knowing.ended(3)
    await knowing.kill()
    successor = MovingProcess(world, deaf=before_it, moves=False)
    await send(world, 4, 5)
    await successor.ended(3)
    world.outside.down.clear()
    mover = await MovingProcess(world).run(3)
    await send(world, 6)
    successor.hear.set()
    await finish(world, successor, mover)
    assert in_order(world, 7)


@pytest.mark.parametrize(("before", "after"), LANES)
async def test_who_takes_over_behind_the_marker_knows_of_it_before_the_first_message(before: str, after: str) -> None:
    world = await opened({"lane": before})
    world.outside.down = {"answer"}
    before_it = await world.registry()
    await world.declare("r", lane=after, **ASKED)
    former = MovingProcess(world)
    await send(world, 0, 1, 2)
    await former.ended(10)
    assert (await world.route("r")).moving
    await former.kill()
    deaf = MovingProcess(world, deaf=before_it, moves=False)
    await send(world, 3, 4)
    await deaf.ended(10)
    last = await MovingProcess(world).run(5)
    world.outside.down.clear()
    await send(world, 5)
    deaf.hear.set()
    await finish(world, deaf, last)
    assert in_order(world, 6)


# moves that are changed half way


@pytest.mark.parametrize(("before", "after"), LANES)
async def test_a_move_that_is_reversed_half_way_is_two_moves(before: str, after: str) -> None:
    world = await opened({"lane": before})
    process = MovingProcess(world)
    world.outside.down = {"answer"}
    await send(world, 0, 1)
    await process.ended(3)
    await world.declare("r", lane=after, **ASKED)
    await process.ended(5)
    await send(world, 2, 3)
    await world.declare("r", lane=before, **ASKED)
    await process.ended(5)
    await send(world, 4, 5)
    world.outside.down.clear()
    await until(lambda: settled(world))
    await send(world, 6)
    await finish(world, process)
    assert in_order(world, 7)
    assert (await world.route("r")).version == 2


async def test_answers_that_come_later_are_taken_from_both_lanes() -> None:
    world = await MovingWorld().create()
    entry: dict[str, Any] = {"status_endpoint": "http://r/later/{message_id}", "poll": {"base": 20, "cap": 20}}
    await world.declare("r", "/later", lane="dedicated", **entry)
    process = MovingProcess(world)
    await send(world, 0, 1)
    await process.ended(5)
    await world.declare("r", "/later", lane="shared", **entry)
    await until(lambda: settled(world))
    assert (await world.route("r")).left
    await send(world, 2)
    await finish(world, process)
    assert world.outside.arrived("/later") == ["a-0", "a-1", "a-2"]
    assert world.outside.results() == {(f"a-{number}", "r"): {"answered"} for number in range(3)}


# neighbours


async def test_a_hot_receiver_leaves_the_shared_lane_past_a_neighbour_that_stands_still() -> None:
    world = await opened({"lane": "shared"})
    await world.declare("n", "/down", lane="shared", retry=SLOW)
    await world.declare("m", "/down", lane="shared", retry=SLOW)  # one of them is in the same partition
    process = MovingProcess(world)
    world.outside.down = {"down"}
    await world.send(message(0, "b", "n", "m"))
    await send(world, 0, 1)
    await process.ended(5)
    await world.declare("r", lane="dedicated", **ASKED)
    await until(lambda: settled(world), 30)
    await send(world, 2)
    await process.ended(5)
    assert in_order(world, 3)
    await process.kill()


async def test_a_route_to_a_lane_of_a_newer_release_is_left_to_that_release() -> None:
    world = await opened(CALM)
    newer = b'{"version": 3, "lane": "regional", "moving": true, "token": "t", "newer": 1}'
    await world.append(world.topics.receiver_config, b"route:r", newer, ())
    process = await MovingProcess(world).ready()
    await world.declare("r", lane="dedicated", hot=True, **ASKED)
    await send(world, *range(COUNT))
    await until(world.is_at_rest)
    judge(world, "the lane of its entry")
    assert "regional" in process.registry.problems["route:r"]
    config = world.broker.records(world.topics.receiver_config)
    assert [each.value for each in config if each.key == b"route:r"] == [newer]
    await process.stop()


async def test_a_marker_that_nobody_announced_is_a_dead_letter() -> None:
    world = await opened({"lane": "shared"})
    process = MovingProcess(world)
    await world.append(world.topics.from_sender, b"a", b"", Marker("r", 1, "guessed").headers())
    await send(world, 0)
    await process.ended(10)
    assert world.told.dead_letters == {"invalid": 1}
    assert in_order(world, 1)
    await process.stop()


async def test_nothing_begins_before_what_came_before_the_markers_is_on_the_log() -> None:
    """A marker is announced on another topic than the old lane's, and may be read before earlier messages of that
    lane."""
    world = await opened({"lane": "dedicated"})
    world.state = MemoryState()
    await world.declare("r", lane="shared", **ASKED)
    await world.announce("r", LaneRoute(1, "shared", moving=True, token="t", left=True))
    for partition in world.broker.partitions_of(world.topics.from_sender):
        cut = Cut("r", 1, partition.partition, 0)
        await world.append(world.topics.receiver_config, cut.key.encode(), encode_value(cut), ())
        world.broker.offsets[world.topics.group("from-sender"), partition] = 0
    log = MemoryLog(world.broker)
    await log.start()
    mover = LaneMigration(log, world.state, world.topics, await world.registry(), world.clock, owner="test")
    await mover.look()
    assert (await world.route("r")).moving
    for partition in world.broker.partitions_of(world.topics.from_sender):
        world.broker.offsets[world.topics.group("from-sender"), partition] = 1
    await mover.look()
    assert not (await world.route("r")).moving


async def test_a_marker_that_said_nothing_to_whoever_read_it_is_put_there_again() -> None:
    world = await opened({"lane": "dedicated"})
    world.state = MemoryState()
    await world.declare("r", lane="shared", **ASKED)
    await world.announce("r", LaneRoute(1, "shared", moving=True, token="t", left=True))
    log = MemoryLog(world.broker)
    await log.start()
    mover = LaneMigration(log, world.state, world.topics, await world.registry(), world.clock, owner="test")
    marked = []
    for _ in range(3):
        await mover.look()
        marked.append(len(world.broker.records(world.topics.from_sender)))
        await asyncio.sleep(MARK_AGAIN_S / 2)
    partitions = len(world.broker.partitions_of(world.topics.from_sender))
    assert marked == [partitions, partitions, 2 * partitions]


async def test_a_lane_of_its_own_that_still_has_to_wait_counts_as_served() -> None:
    """No consumer reads it before the shared lane has finished; operators need not start anything."""
    world = await MovingWorld().create(
        "r", lane="shared", retry={"base": 60, "factor": 1, "cap": 60, "max_attempts": 1000}
    )
    world.outside.down.add("answer")
    await world.send(message(0, "a", "r"))
    process = await MovingProcess(world).run(10)
    assert process.lanes is not None
    beating = asyncio.create_task(process.lanes.heartbeats.run(world.state, world.clock))
    await world.declare("r", lane="dedicated", retry={"base": 60, "factor": 1, "cap": 60, "max_attempts": 1000})
    await process.ended(60)
    assert (await world.route("r")).moving
    signs = await world.state.heartbeats([TopicPartition(topic, 0) for topic in world.topics.lane_groups("r")])
    assert all(sign is not None and sign.ago_s <= UNSERVED_S for sign in signs), signs
    beating.cancel()
    await process.stop()
