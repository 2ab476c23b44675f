"""A receiver that gets one message at a time has them numbered without holes, also after crashes and lost state."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from relay.config.settings import Settings
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.numbering import SKIPPED
from relay.domain.receiver import BatchPolicy, Receiver
from relay.domain.timing import Timing
from relay.state.attempts import Change, Settlement
from relay.state.replies import answered
from relay.state.rows import Result, delivery_row
from tests.fakes.state_numbers import Numbers
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import Surroundings
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver
from tests.faults.numbers import holes, named_gaps, wrong_numbers

REJECTED, BUSY, LATER = Response(400, {}, b""), Response(500, {}, b""), Response(503, {"retry-after": "1"}, b"")
TROUBLES: dict[str, Sequence[Exchange]] = {"a-1": [BUSY], "a-2": [REJECTED], "a-3": [REJECTED], "a-5": [LATER]}
QUICK: dict[str, Any] = {
    "timeout": 2.0,
    "base": 2.0,
    "factor": 1.0,
    "cap": 2.0,
    "failures": 1_000,
    "max_attempts": 1_000,
}
PARKS = Settings(receivers_file="none", hold_max=1.0)
STEPS = frozenset({"log.append", "state.begin", "state.settle", "state.mark", "state.park", "consumer.commit"})


def numbered(*, most: int = 0, **policy: Any) -> Receiver:
    one = receiver("r", "/answer", **({"ordering": "receiver"} | QUICK | policy))
    return replace(one, batch=BatchPolicy(max_events=most, linger=0.05)) if most else one


def stream(count: int, first: int = 0) -> list[Message]:
    return [message(number, "a", "r") for number in range(first, first + count)]


async def world_of(
    one: Receiver, *, parks: bool = False, troubles: Mapping[str, Any] = TROUBLES, count: int = 8
) -> World:
    world = await World([one], settings=PARKS if parks else None).create()
    world.outside.troubles = dict(troubles)
    await world.send(*stream(count))
    return world


def arrived(world: World) -> list[Mapping[str, str]]:
    return [headers for path, headers, _ in world.outside.posts if path == "/answer"]


def numbers(world: World) -> dict[str, int]:
    return {headers["ce-id"]: int(headers["relay-sequence"]) for headers in arrived(world)}


def left(world: World) -> Numbers:
    return world.state._of("r:r").rows.numbers.get("r:r", Numbers())


def check(world: World) -> None:
    assert list(wrong_numbers(arrived(world))) == []
    assert holes(arrived(world), left(world)) == set()


async def finish(world: World, count: int = 8) -> None:
    """A process brings everything to its end."""
    ends = {(f"a-{number}", "r") for number in range(count)}
    await world.run(Fuse(), 900, until=lambda: world.outside.results().keys() == ends)
    assert world.outside.results().keys() == ends
    assert await world.is_at_rest()
    check(world)


@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("parks", [False, True])
async def test_deliveries_have_numbers_without_holes_and_what_was_given_up_is_named(lane: str, parks: bool) -> None:
    world = await world_of(numbered(lane=lane), parks=parks)
    await finish(world)
    assert numbers(world) == {"a-0": 1, "a-1": 2, "a-4": 5, "a-5": 6, "a-6": 7, "a-7": 8}
    gaps = {headers["ce-id"]: headers["relay-gap"] for headers in arrived(world) if "relay-gap" in headers}
    assert gaps == {"a-4": "first=3; last=4; reason=rejected"}
    assert left(world) == Numbers(last=8, newest=2)


async def test_in_a_batch_the_first_message_names_the_gaps() -> None:
    world = await world_of(numbered(most=3))
    await finish(world)
    assert set(numbers(world).values()) == {1, 2, 5, 6, 7, 8}
    assert [headers["ce-id"] for headers in arrived(world) if named_gaps(headers)] != []


async def test_other_orders_have_the_offset_and_name_no_gaps() -> None:
    world = await world_of(numbered(ordering="source"))
    await world.run(Fuse(), 100)
    assert numbers(world) == {f"a-{number}": number for number in (0, 1, 4, 5, 6, 7)}
    assert not any("relay-gap" in headers for headers in arrived(world))
    assert left(world) == Numbers()


async def test_one_that_steps_aside_keeps_its_number() -> None:
    world = await world_of(numbered(patience=5.0), troubles={"a-1": [BUSY] * 20})
    await finish(world)
    assert numbers(world) == {f"a-{number}": number + 1 for number in range(8)}


async def test_what_grows_too_old_before_its_turn_is_a_gap() -> None:
    world = await world_of(numbered(max_age=60.0), troubles={"a-0": [BUSY] * 40})
    process = await Process(world).run(80)
    world.outside.troubles.clear()
    await world.send(*stream(1, first=8))
    await process.stop(after=80)
    assert numbers(world) == {"a-8": 9}
    assert arrived(world)[0]["relay-gap"] == "first=1; last=8; reason=expired"


RIGS: dict[str, dict[str, Any]] = {
    "asked": {"status": True},
    "blind": {},
    "shared": {"lane": "shared"},
    "patient": {"patience": 1.0},
    "batches": {"most": 3},
    "batches that are asked": {"most": 3, "status": True},
}


def _steps(one: Receiver, *, parks: bool) -> list[int]:
    """Port calls of a process that handles all messages: those that change what outlives it."""

    async def learn() -> list[int]:
        learning = Fuse()
        world = await world_of(one, parks=parks, count=4)
        await world.run(learning, 60, until=lambda: len(world.outside.results()) == 4)
        return [number for number, name in enumerate(learning.names, 1) if name in STEPS]

    return run_virtually(learn())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("rig", "lost", "parks"),
    [
        ("asked", False, False),
        ("batches", False, True),
        *((rig, True, False) for rig in RIGS),
        ("blind", True, True),
        ("patient", True, True),
        ("batches", True, True),
    ],
)
def test_a_crash_at_each_step_leaves_no_hole(rig: str, lost: bool, parks: bool) -> None:
    """`lost`: the state is empty afterwards."""
    one = numbered(**RIGS[rig])

    async def crash(blow_at: int) -> None:
        world = await world_of(one, parks=parks, count=4)
        await world.run(Fuse(blow_at), 60)
        if lost:
            world.state.lose()
        await world.send(*stream(2, first=4))
        await finish(world, 6)

    for blow_at in _steps(one, parks=parks):
        try:
            run_virtually(crash(blow_at))
        except AssertionError as error:
            raise AssertionError(f"crashed at call {blow_at}") from error


@pytest.mark.parametrize("rig", RIGS)
async def test_a_loss_of_the_state_under_a_running_process_leaves_no_hole(rig: str) -> None:
    world = await world_of(numbered(**RIGS[rig]))
    process, sent = Process(world), 8
    for pause_s in (0.2, 3.0, 0.05, 40.0):
        await process.ended(pause_s)
        world.state.lose()
        await world.send(*stream(4, first=sent))
        sent += 4
    await process.stop()
    await finish(world, sent)


class _LateReply(Surroundings):
    """The first POST takes a while, and is refused."""

    async def _post(self, path: str, request: Request) -> Exchange:
        if path == "/answer" and not self.tried["a-0"]:
            await asyncio.sleep(5)
        return await super()._post(path, request)


async def test_what_is_parked_after_a_loss_keeps_its_number_in_use() -> None:
    """The loss took the number during the attempt, and its copy was not on the log yet. Others have no number."""
    world = await world_of(numbered(), parks=True, count=0)
    world.outside = _LateReply(troubles={"a-0": [BUSY]})
    later = Timing(world.clock.time() + 20.0)
    await world.send(*stream(1), *(structs.replace(one, timing=later) for one in stream(2, 1)), *stream(1, 3))
    process = await Process(world).run(3)
    world.state.lose()
    await process.stop(after=60)
    await finish(world, 4)


async def test_what_a_loss_took_before_any_number_was_on_the_log_is_a_gap() -> None:
    """The outcome of the first message is known before its POST ends, so the state does not get its number again."""
    world = await world_of(numbered(), count=0)
    world.outside = _LateReply()
    process = Process(world)
    await world.send(*stream(1))
    await process.ended(1)
    world.state.lose()
    await world.send(*stream(1), *stream(1))  # which have places in the lane
    await process.ended(2)
    answer = Result("answered", 200, "application/json", b"{}")
    await answered(
        world.state.settle(
            [Settlement(delivery_row(DeliveryId("r", "a", "a-0")), 0, b"", Change.RESULT, result=answer)]
        )
    )
    await world.send(*stream(2, first=1))
    await process.stop(after=60)
    assert numbers(world)["a-0"] == 1
    assert arrived(world)[1]["relay-gap"] == f"first=1; last={numbers(world)['a-1'] - 1}; reason=renumbered"
    await finish(world, 3)


async def test_after_an_empty_state_the_numbers_go_on_behind_all_that_may_have_been_sent() -> None:
    world = await world_of(numbered())
    await finish(world)
    world.state.lose()
    await world.send(*stream(3, first=8))
    await finish(world, 11)
    assert numbers(world) == {
        "a-0": 1,
        "a-1": 2,
        "a-4": 5,
        "a-5": 6,
        "a-6": 7,
        "a-7": 8,
        "a-8": SKIPPED + 9,
        "a-9": SKIPPED + 10,
        "a-10": SKIPPED + 11,
    }
    gaps = {headers["ce-id"]: headers["relay-gap"] for headers in arrived(world) if "relay-gap" in headers}
    assert gaps == {
        "a-4": "first=3; last=4; reason=rejected",
        "a-8": f"first=9; last={SKIPPED + 8}; reason=renumbered",
    }
