"""Logging of attempts never delays or loses a message: not if the log refuses these records, nor if it hangs, nor at a
stop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from relay.domain.attempt import Attempt, decode_attempt
from relay.log.port import Coordinate, NewRecord
from relay.watch.attempt_log import LAST_S
from tests.fakes.log import MemoryLog
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import virtually
from tests.fakes.world import Process, World, message, receiver

COUNT = 12
SECONDS = 120
Spoil = Callable[[World], None]


async def opened(attempt_log: float = 1.0) -> World:
    world = World(
        [receiver("answers", "/answer"), receiver("later", "/later", status=True), receiver("flaky", "/flaky")]
    )
    world.attempt_log = attempt_log
    await world.create()
    names = ("answers", "later", "flaky")
    await world.send(*(message(number, "a", names[number % 3]) for number in range(COUNT)))
    return world


def told(world: World) -> list[Attempt]:
    return [decode_attempt(record.value) for record in world.broker.records(world.topics.delivery_attempts)]


def ends(world: World) -> dict[str, list[str]]:
    """What each endpoint saw, in its order. (Which of two sees something first at the same moment is chance.)"""
    seen: dict[str, list[str]] = {}
    for path, headers, _ in world.outside.posts:
        seen.setdefault(path, []).append(headers.get("ce-id", headers.get("webhook-id", "")))
    return seen


async def test_every_request_is_told() -> None:
    world = await opened()
    await world.run(Fuse(), SECONDS)
    assert Counter((each.kind, each.receiver, each.outcome) for each in told(world)) == {
        ("post", "answers", "done"): 4,
        ("post", "later", "done"): 4,
        ("post", "flaky", "retry"): 4,
        ("post", "flaky", "done"): 4,
        ("status", "later", "working"): 4,
        ("status", "later", "done"): 4,
        ("callback", "answers", "done"): 4,
        ("callback", "later", "done"): 4,
        ("callback", "flaky", "done"): 4,
    }
    for one in {each.message_id for each in told(world)}:
        places = {
            record.partition
            for record in world.broker.records(world.topics.delivery_attempts)
            if decode_attempt(record.value).message_id == one
        }
        assert len(places) == 1
    again = next(each for each in told(world) if each.outcome == "retry")
    second = next(each for each in told(world) if (each.message_id, each.attempt) == (again.message_id, 2))
    assert again.next_attempt_at is not None
    assert second.started_at >= again.next_attempt_at


async def test_off_nothing_is_told() -> None:
    world = await opened(attempt_log=0.0)
    await world.run(Fuse(), SECONDS)
    assert told(world) == []
    assert await world.is_at_rest()


def missing(world: World) -> None:
    del world.broker.specs[world.topics.delivery_attempts]


def too_small(world: World) -> None:
    world.broker.limits[world.topics.delivery_attempts] = 10


class _Hanging(MemoryLog):
    """Never answers to an append of attempts."""

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        if any(record.topic.endswith("delivery_attempts") for record in records):
            await asyncio.Event().wait()
        return await super().append(records)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    return lambda _world: monkeypatch.setattr("tests.fakes.world.MemoryLog", _Hanging)


@pytest.mark.parametrize("spoilt", ["missing", "too_small", "hanging"])
def test_where_the_log_takes_none_of_it_all_goes_as_without(spoilt: str, hanging: Spoil) -> None:
    spoil: Spoil = {"missing": missing, "too_small": too_small, "hanging": hanging}[spoilt]

    @virtually
    async def story() -> None:
        world, other = await opened(), await opened(attempt_log=0.0)
        spoil(world)
        stops = []
        for each in (world, other):
            process = await Process(each).run(SECONDS)
            stops.append(await process.stop())
        assert stops[0] <= stops[1] + LAST_S
        assert await world.is_at_rest()
        assert ends(world) == ends(other)
        assert len(world.outside.results()) == COUNT

    story()


async def test_what_was_told_right_before_a_stop_is_on_the_log() -> None:
    world = await opened()
    process: Any = Process(world)
    while not world.outside.posts:
        await process.ended(0.01)
    await process.stop()
    posted = {headers["ce-id"] for path, headers, _ in world.outside.posts if path != "/callback"}
    assert posted <= {each.message_id for each in told(world)}
