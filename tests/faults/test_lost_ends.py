"""A log that loses its end, acknowledged as it was: what takes the place of the lost records is worked at, and what was
parked there does not vanish. And transactions of senders."""

import copy
from typing import Any

import pytest

from relay.config.settings import Settings
from relay.domain.dead_letter import parse_dead_letter
from relay.log.port import Coordinate, Record
from tests.fakes.strikes import CRASHES, Fuse, Strikes, crash_at_each
from tests.fakes.surroundings import REFUSED
from tests.fakes.world import Process, World, message, receiver

HELD = Settings(receivers_file="none", hold_max=5.0)
PARKS: dict[str, Any] = {"base": 60.0, "factor": 1.0, "cap": 60.0, "timeout": 2.0}
SLOT: dict[str, Any] = {"timeout": 2.0}


def answered(*names: str) -> dict[tuple[str, str], set[str]]:
    return {(name, "r"): {"answered"} for name in names}


def cut(world: World, topic: str, end: int) -> None:
    """Remove the records behind `end` from each partition."""
    for at in world.broker.partitions_of(topic):
        if world.broker[at].end > end:
            world.broker.cut(Coordinate(*at, end))


@pytest.mark.parametrize("running", [False, True], ids=["while it is down", "while it runs"])
async def test_what_took_the_place_of_lost_records_is_delivered(running: bool) -> None:
    world = await World([receiver("r", "/answer", status=True, **SLOT)]).create()
    await world.send(*(message(number, "a", "r") for number in range(30)))
    process = Process(world)
    while len(world.outside.results()) < 30 or not await world.is_at_rest():
        await process.ended(1.0)
    if not running:
        await process.stop()

    cut(world, world.topics.from_sender, 20)
    await world.send(*(message(number, "a", "r") for number in range(30, 45)))

    if not running:
        process = Process(world)
    everything = answered(*(f"a-{number}" for number in range(45)))
    for _ in range(60):
        if world.outside.results() == everything and await world.is_at_rest():
            break
        await process.ended(1.0)
    await process.stop()
    assert world.outside.results() == everything
    arrived = world.outside.arrived("/answer")
    assert arrived == [f"a-{number}" for number in range(45)], "each once, in order"
    assert [(topic, first, end) for topic, _, first, end in world.told.lost_ends] == [
        (world.topics.from_sender, 20, 30)
    ]


def lost_letters(world: World) -> list[Record]:
    letters = world.broker.records(world.topics.failed_messages)
    return [each for each in letters if parse_dead_letter(each.headers).reason == "lost"]


async def with_one_parked(messages: int = 2) -> World:
    """`a-0` failed and is parked, the others of its key wait behind it."""
    world = await World([receiver("r", "/answer", status=True, **PARKS)], settings=HELD).create()
    world.outside.troubles["a-0"] = [REFUSED]
    await world.send(*(message(number, "a", "r") for number in range(messages)))
    await world.run(Fuse(), 10)
    assert len(world.parked_copies()) == messages
    return world


async def test_a_parked_copy_that_the_log_lost_becomes_a_dead_letter_with_what_its_row_knows() -> None:
    world = await with_one_parked()
    lost = world.parked_copies()[0]
    cut(world, world.topics.parked_messages, 0)

    await world.run(Fuse(), 300, until=lambda: len(lost_letters(world)) == 2)

    assert await world.is_at_rest()
    letters = lost_letters(world)
    first = parse_dead_letter(letters[0].headers)
    assert dict(letters[0].headers)["relay-receiver"] == b"r"
    assert first.omitted is not None, "there is nothing to replay"
    assert f"parked_messages/{lost.partition}/{lost.offset}" in first.detail
    assert "1 attempt," in first.detail
    assert world.told.dead_letters["lost"] == 2


async def test_an_offset_of_a_parked_copy_that_another_has_now_is_not_taken_for_it() -> None:
    world = await with_one_parked(messages=1)
    cut(world, world.topics.parked_messages, 0)
    world.outside.troubles["b-0"] = [REFUSED]
    await world.send(message(0, "b", "r"))

    await world.run(Fuse(), 300, until=lambda: bool(lost_letters(world)))

    assert [parse_dead_letter(each.headers).attempts for each in lost_letters(world)] == [0]
    assert world.outside.results()["b-0", "r"] == {"answered"}
    assert await world.is_at_rest()


async def test_what_a_failed_over_state_still_has_parked_is_over_if_its_copy_was_removed() -> None:
    """The state lost its last second, in which the message ended: its row and reference are those of before."""
    world = await with_one_parked(1)
    former = copy.deepcopy(world.state)
    await world.run(Fuse(), 120, until=lambda: world.outside.results() == answered("a-0"))
    assert await world.is_at_rest()

    world.state = former
    await world.run(Fuse(), 120)
    assert lost_letters(world) == []
    assert world.outside.arrived("/answer") == ["a-0"]
    assert await world.is_at_rest()


@CRASHES
def test_no_crash_makes_a_lost_copy_vanish(late: bool, strikes: Strikes) -> None:
    async def story(fuse: Fuse) -> None:
        world = await with_one_parked()
        cut(world, world.topics.parked_messages, 0)
        await world.run(fuse, 300, until=lambda: len(lost_letters(world)) == 2)
        await world.run(Fuse(), 300, until=lambda: len(lost_letters(world)) >= 2)
        assert len({parse_dead_letter(each.headers).detail for each in lost_letters(world)}) == 2, fuse.place
        assert await world.is_at_rest(), fuse.place

    crash_at_each(story, strikes, late=late)


async def test_a_senders_transaction_counts_once_it_is_committed() -> None:
    world = await World([receiver("r", "/answer", status=True, **SLOT)]).create()
    aborted, committed = world.transaction(), world.transaction()
    await aborted.append(world.records(message(0, "a", "r")))
    await committed.append(world.records(message(1, "a", "r")))
    await world.send(message(2, "a", "r"))
    await world.run(Fuse(), 10)
    assert world.outside.results() == {}, "nothing behind an open transaction is read"
    await aborted.abort()
    await committed.commit()
    await world.run(Fuse(), 30, until=lambda: world.outside.results() == answered("a-1", "a-2"))
    assert world.outside.results() == answered("a-1", "a-2")
    assert world.outside.arrived("/answer") == ["a-1", "a-2"]
    assert await world.is_at_rest()
