"""Hostile input of a lane: the same id again, unreadable records, steps that raise, appends that fail."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from relay.domain.dead_letter import parse_dead_letter
from relay.domain.errors import LogUnavailable
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.receiver import Receiver
from relay.log.port import Coordinate, NewRecord
from relay.state.replies import answered
from relay.state.rows import Stage, delivery_row
from tests.fakes.surroundings import REFUSED
from tests.fakes.world import Process, World, message, receiver


async def _world(**how: Any) -> World:
    return await World([receiver("r", "/answer", **how)]).create()


# the same id again


async def test_an_id_that_is_sent_again_is_delivered_once() -> None:
    world = await _world()
    process = Process(world)
    await world.send(message(0, "a", "r"), message(0, "a", "r"))  # in one batch: before the first is enqueued
    await process.ended(0.05)
    await world.send(message(0, "a", "r"))  # about when it is in flight
    await process.ended(5)
    await world.send(message(0, "a", "r"))  # after it is done
    await process.stop(after=5)
    assert world.outside.arrived("/answer") == ["a-0"]
    assert len([path for path, _, _ in world.outside.posts if path == "/callback"]) == 1
    assert await world.is_at_rest()


async def test_an_id_that_is_sent_again_while_the_first_is_parked_is_delivered_once() -> None:
    world = await _world(base=90.0, cap=90.0)
    world.outside.down.add("answer")
    process = Process(world)
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    await process.ended(5)
    hops = world.broker.records(world.topics.to_receiver("r"))
    await world.append(hops[0].topic, hops[0].key, hops[0].value, hops[0].headers)
    await process.ended(5)
    world.outside.down.clear()
    await process.stop(after=100)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]
    assert await world.is_at_rest()


@pytest.mark.parametrize("pause_s", [0.0, 5.0])
async def test_an_id_with_other_bytes_is_a_conflict_and_the_first_counts(pause_s: float) -> None:
    world = await _world()
    first = message(0, "a", "r")
    other = Message("a", "a-0", ("r",), "push", None, "application/json", b'{"other": true}')
    process = Process(world)
    await world.send(first)
    await process.ended(pause_s)
    await world.send(other, message(1, "a", "r"))
    await process.stop(after=10)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]
    assert next(body for path, _, body in world.outside.posts if path == "/answer") == first.payload
    assert world.told.dead_letters == {"id_conflict": 1}
    assert await world.is_at_rest()


# unreadable records


async def test_rubbish_on_a_lanes_topic_becomes_a_dead_letter_and_the_rest_goes_on() -> None:
    world = await _world()
    topic = world.topics.to_receiver("r")
    await world.append(topic, b"a", b"rubbish", ())
    await world.append(topic, None, None, (("ce_id", b"\xff\xfe"),))
    await world.append(world.topics.from_sender, b"a", b"{not json", ())
    await world.send(message(0, "a", "r"))
    await Process(world).stop(after=5)
    assert world.outside.arrived("/answer") == ["a-0"]
    assert world.told.dead_letters["invalid"] == 3
    assert await world.is_at_rest()


async def test_a_record_whose_reading_raises_becomes_poison_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await _world()
    real = world.known.receiver

    def raising(name: str) -> Receiver | None:
        if name == "cursed":
            raise RuntimeError("a bug")
        return real(name)

    monkeypatch.setattr(world.known, "receiver", raising)
    topic = world.topics.to_receiver("r")
    await world.append(topic, b"a", b"{}", _hop_headers("cursed"))
    await world.send(message(0, "a", "r"))
    await Process(world).stop(after=5)
    assert world.outside.arrived("/answer") == ["a-0"]
    assert world.told.dead_letters["poison"] == 1
    assert world.told.crashed_steps == 1


def _hop_headers(name: str) -> tuple[tuple[str, bytes], ...]:
    return (
        ("ce_specversion", b"1.0"),
        ("ce_id", b"x"),
        ("ce_source", b"a"),
        ("relay-receiver", name.encode()),
    )


# steps that raise


async def test_a_step_that_raises_once_is_tried_again() -> None:
    world = await _world(timeout=2.0)
    world.outside.troubles["a-0"] = [RuntimeError("a bug")]
    await world.send(message(0, "a", "r"), message(1, "a", "r"))
    await Process(world).stop(after=60)
    assert world.outside.arrived("/answer") == ["a-0", "a-1"]
    assert world.told.crashed_steps == 1
    assert await world.is_at_rest()


@pytest.mark.parametrize("status", [False, True])
async def test_a_step_that_always_raises_becomes_poison_and_the_stream_behind_it_goes_on(status: bool) -> None:
    world = await _world(timeout=2.0, status=status)
    world.outside.troubles["a-0"] = [RuntimeError("a bug")] * 99
    await world.send(message(0, "a", "r"), message(1, "a", "r"), message(0, "b", "r"))
    process = await Process(world).run(10)
    assert world.outside.arrived("/answer") == ["b-0"], "others pass meanwhile"
    await process.stop(after=120)
    assert world.outside.arrived("/answer") == ["b-0", "a-1"]
    assert world.outside.reasons() == {"a-0": "poison"}
    assert await world.is_at_rest()


async def test_a_step_without_calls_that_raises_does_not_stop_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routing, for one."""
    world = await _world()
    real = world.known.receiver

    def raising(name: str) -> Receiver | None:
        if name == "cursed":
            raise RuntimeError("a bug")
        return real(name)

    monkeypatch.setattr(world.known, "receiver", raising)
    await world.send(message(0, "a", "cursed"), message(1, "a", "r"))
    await Process(world).stop(after=30)
    assert world.outside.arrived("/answer") == ["a-1"]
    assert world.outside.reasons() == {"a-0": "poison"}
    assert await world.is_at_rest()


# records that are too large


@pytest.mark.parametrize("limit", [50, 100, 400, 700, 1_000, 1_800, 3_000, 10_000, 2**21])
async def test_a_record_that_fits_no_dead_letter_leaves_one_all_the_same(limit: int) -> None:
    """However small the limit of `failed_messages` is. Only where it is next to nothing, the lane waits for an
    operator."""
    world = await _world()
    topic = world.topics.from_sender
    world.broker.limits = {topic: 2**23, world.topics.failed_messages: limit}
    headers = (("ce_id", b"huge"), ("ce_source", b"a"), ("ce_receiver", b"r"), ("x-more", b"x" * 5_000))
    await world.append(topic, b"a", b"x" * 2**22, headers)
    await world.send(message(0, "a", "r"))
    process = await Process(world).run(10)
    if limit < 100:
        assert world.broker.records(world.topics.failed_messages) == []
        assert world.uncommitted(), "nothing is skipped"
        world.broker.limits = {}
        await process.ended(10)
    await process.stop()
    assert world.outside.arrived("/answer") == ["a-0"]
    [letter] = world.broker.records(world.topics.failed_messages)
    told = parse_dead_letter(letter.headers)
    assert told.reason == "too_large"
    assert told.origin is not None
    assert told.origin.topic == topic
    assert (letter.value, (told.omitted or "").split(",")[0]) == (None, f"value={2**22}")
    if limit >= 1_000:
        assert world.outside.reasons() == {"huge": "too_large"}, "its sender is told"
    assert await world.is_at_rest()


async def test_one_record_that_fits_nowhere_costs_neither_its_neighbours_nor_their_order() -> None:
    world = await _world()
    world.broker.limits = {world.topics.to_receiver("r"): 1_000, world.topics.failed_messages: 1_500}
    large = Message("a", "a-1", ("r",), "push", None, "application/json", b"x" * 2_000)
    await world.send(message(0, "a", "r"), large, message(2, "a", "r"), message(0, "b", "r", "nobody"))
    await Process(world).stop(after=10)
    assert sorted(world.outside.arrived("/answer")) == ["a-0", "a-2", "b-0"]
    assert world.outside.reasons() == {"a-1": "too_large", "b-0": "unknown_receiver"}
    assert await world.is_at_rest()


async def test_a_topic_that_does_not_take_a_message_costs_only_the_delivery_of_its_receiver() -> None:
    """Which has failed, as any other that was given up; the letter of another one is small enough after all."""
    names = ("r", "q", "s")
    world = await World([receiver(name, f"/{name}") for name in names]).create()
    world.broker.limits = {world.topics.to_receiver("q"): 1_000, world.topics.failed_messages: 2_500}
    large = Message("a", "a-0", (*names, "nobody"), "push", None, "application/json", b"x" * 2_000)
    await world.send(large, message(1, "a", *names))
    await Process(world).stop(after=10)
    assert [world.outside.arrived(f"/{name}") for name in names] == [["a-0", "a-1"], ["a-1"], ["a-0", "a-1"]]
    letters = world.broker.records(world.topics.failed_messages)
    told = [(dict(each.headers)["relay-receiver"], parse_dead_letter(each.headers)) for each in letters]
    assert [(name, dead.reason) for name, dead in told] == [(b"nobody", "unknown_receiver"), (b"q", "too_large")]
    assert told[1][1].detail.startswith(world.topics.to_receiver("q"))
    for name, letter in zip(("nobody", "q"), letters, strict=True):
        [row] = await answered(world.state.peek([delivery_row(DeliveryId(name, "a", "a-0"))]))
        assert (row.stage, row.at) == (Stage.FAILED, (letter.partition, letter.offset))
    assert await world.is_at_rest()


async def test_a_dead_letter_beside_good_hops_gets_smaller_instead_of_taking_them_along() -> None:
    """A message to one that is known and one that is not: the letter of the second carries all the sender's headers."""
    world = await _world()
    world.broker.limits = {world.topics.failed_messages: 1_500}
    headers = (("ce_id", b"a-0"), ("ce_source", b"a"), ("ce_receiver", b"r,nobody"), ("x-more", b"x" * 5_000))
    await world.append(world.topics.from_sender, b"a", b'{"n": 0}', headers)
    await Process(world).stop(after=10)
    assert world.outside.arrived("/answer") == ["a-0"]
    assert world.outside.reasons() == {"a-0": "unknown_receiver"}
    assert await world.is_at_rest()


async def test_a_record_whose_parked_copy_fits_nowhere_ends_as_too_large() -> None:
    world = await _world(base=90.0, cap=90.0, max_attempts=50)
    world.outside.troubles["a-0"] = [REFUSED] * 3
    large = Message("a", "a-0", ("r",), "push", None, "application/json", b"x" * 2_000)
    world.broker.limits = {world.topics.parked_messages: 2_200}
    await world.send(large, message(1, "a", "r"))
    await Process(world).stop(after=300)
    assert world.outside.arrived("/answer") == ["a-1"]
    assert world.outside.reasons() == {"a-0": "too_large"}
    assert await world.is_at_rest()


# appends that fail


@pytest.mark.parametrize("every", [2, 3, 5])
async def test_order_per_source_is_kept_into_the_lanes_when_appends_fail_in_the_middle(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await _world()
    process = Process(world)
    topic, real, calls = world.topics.to_receiver("r"), process.log.append, 0

    async def stumbling(records: Sequence[NewRecord]) -> list[Coordinate]:
        nonlocal calls
        if len(records) > 1 and records[0].topic == topic:
            calls += 1
            if calls % every:
                await real(records[: len(records) // 2])
                raise LogUnavailable("some of them are there, perhaps")
        return await real(records)

    monkeypatch.setattr(process.log, "append", stumbling)
    for start in range(0, 40, 10):
        await world.send(*[message(n, source, "r") for n in range(start, start + 10) for source in ("a", "b")])
        await process.ended(0.5)
    await process.stop(after=30)
    assert calls > 3
    for source in ("a", "b"):
        routed = [
            json.loads(record.value or b"")["n"]
            for record in world.broker.records(topic)
            if record.key == source.encode()
        ]
        assert list(dict.fromkeys(routed)) == list(range(40)), "repeated, never skipped"
        assert world.outside.arrived("/answer", source) == [f"{source}-{number}" for number in range(40)]
    assert await world.is_at_rest()
