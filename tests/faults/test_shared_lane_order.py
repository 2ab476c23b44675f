"""A shared lane at its bounds keeps every source in order, with slow receivers and nothing else wrong, and as drawn."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from relay.config.settings import Settings
from relay.domain.exchange import Exchange, Response
from relay.domain.hold import Hold
from relay.domain.hop import decode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.timing import Timing
from relay.domain.topics import lane_of
from relay.engine import core, parking
from relay.engine.commands import CallQueue, Command
from relay.engine.lane import Lane as LaneCore
from relay.engine.parked_copy import wrap
from relay.engine.policy import shared
from relay.engine.quarantine import ReservationResult
from relay.engine.work import LookupResult, Work
from relay.log.port import TopicPartition
from relay.state.attempts import Wait
from relay.state.port import IntakeRequest, Lane
from relay.state.replies import Refusal, answered, of
from relay.state.rows import Parked, Row, delivery_row
from tests.fakes.log import MemoryLog
from tests.fakes.state import MemoryState
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver
from tests.faults.model.here import Cast
from tests.faults.model.world import SEATS, Faults, beginning
from workers.delivery import order_key

TROUBLES: tuple[Exchange, ...] = (
    REFUSED,
    Response(500, {}, b""),
    *(Response(503, {"retry-after": seconds}, b"") for seconds in ("1", "30", "100")),
)
ENDS_S = 20_000.0
"""In virtual time: the longest waits of all attempts of a source, one after the other."""
LOOK_S = 60.0


@dataclass(frozen=True)
class Story:
    """`windows`: records, and offsets, that the lane may have unfinished. `ill`: share of messages that meet trouble.
    `restarts`: a process is killed, or stopped, half way."""

    seed: int
    receivers: int = 2
    sources: int = 6
    each: int = 200
    windows: tuple[int, int] = (120, 1000)
    slow_s: float = 0.3
    max_in_flight: int = 4
    rate_limit: int | None = None
    base: float = 1.0
    hold_max: float = 60.0
    failures: int = 10
    ill: float = 0.0
    restarts: bool = False


def drawn(seed: int) -> Story:
    draw = random.Random(seed).choice
    return Story(
        seed,
        receivers=draw([1, 2, 3]),
        sources=draw([2, 4, 6]),
        each=draw([30, 60]),
        windows=(draw([20, 50, 120]), draw([200, 1000])),
        slow_s=draw([0.05, 0.3, 1.5, 4.0]),
        max_in_flight=draw([1, 4, 32]),
        rate_limit=draw([None, None, 5, 50]),
        base=draw([0.5, 5.0, 70.0]),
        hold_max=draw([1.0, 5.0, 60.0]),
        failures=draw([3, 10, 1000]),
        ill=draw([0.0, 0.02, 0.1]),
        restarts=draw([False, True]),
    )


async def _lived(story: Story) -> dict[tuple[str, str], str]:
    """What was out of order, or missing, of each source at each receiver."""
    chance = random.Random(story.seed)
    names, sources = [f"r{n}" for n in range(story.receivers)], [f"s{n}" for n in range(story.sources)]
    window, span = story.windows
    bounds = {"window_records": window, "window_offsets": span, "hold_max": story.hold_max}
    world = World(
        [
            receiver(
                name,
                f"/slow/{name}",
                lane="shared",
                max_in_flight=story.max_in_flight,
                rate_limit=story.rate_limit,
                timeout=30.0,
                failures=story.failures,
                base=story.base,
                cap=90.0,
                max_attempts=1000,
            )
            for name in names
        ],
        settings=Settings.model_validate({"receivers_file": "none"} | bounds),
    )
    world.outside.slow_s = story.slow_s
    await world.create()
    sent = [message(number, source, *names) for number in range(story.each) for source in sources]
    for one in sent:
        if chance.random() < story.ill:
            world.outside.troubles[one.message_id] = chance.choices(TROUBLES, k=chance.choice([1, 2, 3]))
    await _run(world, sent, chance, restarts=story.restarts)
    assert not world.uncommitted()
    arrived = {(name, source): world.outside.arrived(f"/slow/{name}", source) for name in names for source in sources}
    return {of: why for of, found in arrived.items() if (why := _wrong(found, of[1], story.each))}


async def _run(world: World, sent: list[Message], chance: random.Random, *, restarts: bool) -> None:
    cut = chance.randrange(len(sent)) if restarts else len(sent)
    await world.send(*sent[:cut])
    process = Process(world)
    if restarts:
        await process.ended(chance.choice([1, 20, 100]))
        await (process.kill() if chance.random() < 0.5 else process.stop())
        process = Process(world)
        await world.send(*sent[cut:])
    for _ in range(round(ENDS_S / LOOK_S)):
        await process.ended(LOOK_S)
        if len(world.outside.posts) >= len(sent) and not world.uncommitted() and not world.parked_copies():
            break
    await process.stop()


def _wrong(arrived: list[str], source: str, each: int) -> str:
    """First arrivals have to come in their order, and all of them."""
    highest = -1
    for one in dict.fromkeys(arrived):
        number = int(one.removeprefix(f"{source}-"))
        if number < highest:
            return f"{one} after {source}-{highest}"
        highest = number
    return "" if len(set(arrived)) == each else f"{len(set(arrived))} of {each}"


@pytest.mark.parametrize("slow_s", [0.3, 4.0])
def test_slow_receivers_at_the_bound_get_every_source_in_order(slow_s: float) -> None:
    assert run_virtually(_lived(Story(0, slow_s=slow_s))) == {}


@pytest.mark.parametrize("seed", [3, 8, 47])
def test_so_they_do_whatever_is_drawn(seed: int) -> None:
    assert run_virtually(_lived(drawn(seed))) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_so_they_do_in_many_more(seed: int) -> None:
    assert run_virtually(_lived(drawn(seed))) == {}


@pytest.mark.parametrize("seed", [27, 5])
def test_so_they_do_while_look_ups_are_slow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parked record is looked up, and one before it is parked before the reply arrives."""
    prompt = MemoryState.intake

    async def intake(self: MemoryState, asks: Sequence[tuple[Lane, IntakeRequest]]) -> list[Row | Refusal]:
        await asyncio.sleep(1.5)
        return await prompt(self, asks)

    monkeypatch.setattr(MemoryState, "intake", intake)
    assert run_virtually(_lived(replace(drawn(seed), restarts=False))) == {}


# --- a new owner -------------------------------------------------------------------------------------------------


RECEIVER = receiver("r", "/answer", lane="shared")


async def _taken_over(fetch_s: float) -> list[str]:
    """A process died while the first message waited for a place in flight; it had parked the one behind it."""
    world = await World([RECEIVER]).create()
    await world.state.hold("r:r", Hold("paused", 1.0))
    await world.send(*(message(number, "a", "r") for number in range(3)))
    former = await Process(world).run(5)
    await former.kill()
    await _park(world, DeliveryId("r", "a", "a-1"))
    await world.state.resume("r:r")
    world.broker.fetch_s = fetch_s
    await Process(world).stop(after=120)
    assert not world.parked_copies()
    return world.outside.arrived("/answer")


async def _park(world: World, delivery: DeliveryId) -> None:
    places = world.broker.partitions_of(world.topics.to_receiver("shared"))
    records = [record for at in places for record in world.broker[at].read(0, world.broker[at].end)]
    (record,) = (each for each in records if decode_hop(each.headers).delivery == delivery)
    at = TopicPartition(record.topic, record.partition)
    row, queue = delivery_row(delivery), order_key(RECEIVER, delivery, None)
    work = Work(record, row, 0, queue, "r:r")
    log = MemoryLog(world.broker)
    await log.start()
    copy = wrap(world.topics.parked_messages, "to_receiver", work, row, due_ms=0, poll=False)
    (place,) = await log.append([copy])
    lane = Lane(*at, world.broker.epochs["relay.to-receiver", at])
    assert await answered(world.state.park(of(lane, [Parked(row, 0, place, 0.0, queue, record.offset)]))) == [True]


@pytest.mark.parametrize("fetch_s", [0.0, 0.5, 5.0])
def test_a_new_owner_sends_what_was_parked_behind_the_messages_before_it(fetch_s: float) -> None:
    assert run_virtually(_taken_over(fetch_s)) == ["a-0", "a-1", "a-2"]


# --- look-ups ----------------------------------------------------------------------------------------------------


def test_a_record_that_is_looked_up_does_not_overtake_one_that_leaves_its_order_key_meanwhile() -> None:
    """The first waits for an endpoint that is closed, unseen; at the bound it is looked up, to be parked."""
    world = beginning(Cast(parks=True, timings={1: Timing(key="k")}), Faults(), to_receiver=(0, 1))
    owner = world.owners["to_receiver"]
    setup = replace(owner.core.setup, policy=shared(60.0))
    lane = LaneCore(setup, owner.core.worker, SEATS)
    first, second = world.records("to_receiver")
    core.offer(lane, [first], world.now)
    _answer(lane, CallQueue.RESERVE, ReservationResult(None, 0), world.now)
    _answer(lane, CallQueue.BEGIN, [Wait(2.0, "breaker")], world.now)
    core.offer(lane, [second], world.now)
    [looked_up] = _calls(lane, CallQueue.LOOK_UP, world.now)
    parking.relieve(lane, world.now, paused=False)
    core.carried_out(lane, looked_up, [LookupResult.READY], world.now)
    while CallQueue.LOOK_UP in lane.calls.busy:
        [looked_up] = _calls(lane, CallQueue.LOOK_UP, world.now)
        core.carried_out(lane, looked_up, [LookupResult.READY for _ in looked_up.items], world.now)
    [parked] = _calls(lane, CallQueue.PARK, world.now)
    assert [work.record.offset for work in parked.items] == [first.offset, second.offset]


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
def test_a_record_that_is_looked_up_again_keeps_its_place_before_another_of_its_delivery(
    lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state has lost that the second message was routed, so it is routed again. Its first record is looked up while
    one before it is parked, so that the reply does not count; meanwhile its second record is read."""
    look_up, park = MemoryState.intake, MemoryState.park

    async def intake(self: MemoryState, asks: Sequence[tuple[Lane, IntakeRequest]]) -> list[Row | Refusal]:
        await asyncio.sleep(1.5)
        return await look_up(self, asks)

    async def slow_park(self: MemoryState, asks: Sequence[tuple[Lane, Parked]]) -> list[bool | Refusal]:
        await asyncio.sleep(1.0)
        return await park(self, asks)

    monkeypatch.setattr(MemoryState, "intake", intake)
    monkeypatch.setattr(MemoryState, "park", slow_park)
    assert run_virtually(_routed_again(lane)) == ["a-0", "a-1", "a-2"]


async def _routed_again(lane: str) -> list[str]:
    settings = Settings(receivers_file="none", hold_max=5.0)
    refusing = receiver("r", "/answer", lane=lane, status=True, base=8.0, factor=1.0)
    world = await World([refusing], settings=settings).create()
    world.outside.troubles["a-0"] = [REFUSED]
    process = await Process(world).run(1)
    await world.send(message(0, "a", "r"))
    await process.ended(0.5)
    await world.send(message(1, "a", "r"), message(2, "a", "r"))
    await process.ended(0.7)
    second = world.broker.records(world.topics.to_receiver(lane_of(refusing)))[1]
    await world.append(second.topic, second.key, second.value, second.headers)
    await process.stop(after=60)
    assert await world.is_at_rest()
    return world.outside.arrived("/answer")


def _calls(lane: LaneCore[Any], ask: CallQueue, now: float) -> list[Command]:
    core.take_turn(lane, now)
    return [command for command in lane.calls.commands() if command.ask is ask]


def _answer(lane: LaneCore[Any], ask: CallQueue, reply: Any, now: float) -> None:
    [command] = _calls(lane, ask, now)
    core.carried_out(lane, command, reply, now)
