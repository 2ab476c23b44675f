"""A delivery that an API request waits for: its end is published at once, and no other delivery ends sooner for
that."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from msgspec import structs

from relay.domain.dead_letter import parse_dead_letter
from relay.domain.exchange import Response
from relay.domain.identity import DeliveryId
from relay.domain.message import Message
from relay.domain.receiver import PollPolicy
from relay.engine.completion import MARK_EVERY_S
from relay.state.replies import Refusal
from relay.state.rows import Mark, Stage, delivery_row
from tests.fakes.strikes import Fuse
from tests.fakes.surroundings import REFUSED
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

ROUND_S = 0.05
"""All that a delivery takes here: a request is 0.01 s, and the calls take none."""


class Marks:
    """When each row was marked, of all that a world's processes mark."""

    def __init__(self, world: World) -> None:
        self.at: dict[tuple[bytes, Stage], float] = {}
        self.awaited: list[tuple[bytes, Stage]] = []
        self._mark, self._clock = world.state.mark, world.clock
        world.state.mark = self._noted  # type: ignore[method-assign]

    async def _noted(self, marks: Sequence[Mark]) -> list[Refusal | None]:
        for mark in marks:
            self.at.setdefault((mark.row.digest, mark.stage), self._clock.monotonic())
            self.awaited += [(mark.row.digest, mark.stage)] if mark.awaited else []
        return await self._mark(marks)


def digest(sent: Message) -> bytes:
    return delivery_row(DeliveryId("r", *sent.id)).digest


@asynccontextmanager
async def marking(path: str, *, status: bool = False) -> AsyncIterator[tuple[World, Marks]]:
    """A relay that has marked something right now, so that the next mark may wait for others."""
    world = await World([receiver("r", path, status=status)]).create()
    marks, process = Marks(world), Process(world)
    await process.ended(1.01)  # just behind a time at which all mark
    await world.send(message(0, "a", "r"))
    await process.ended(ROUND_S)
    yield world, marks
    await process.ended(60)
    assert not world.uncommitted()
    await process.stop()


async def test_it_is_marked_at_once_and_tells_whoever_listens() -> None:
    async with marking("/answer") as (world, marks):
        waited = structs.replace(message(1, "b", "r"), wait_s=10)
        async with world.state.hints() as hints:
            await world.send(waited)
            begun = world.clock.monotonic()
            assert await anext(hints) == digest(waited)
        assert world.clock.monotonic() - begun < ROUND_S < MARK_EVERY_S / 2
        assert marks.awaited == [(digest(waited), Stage.PUBLISHED)]


async def test_what_nobody_waits_for_is_marked_with_the_others() -> None:
    async with marking("/answer") as (world, marks):
        alone = message(1, "b", "r")
        await world.send(alone)
        begun = world.clock.monotonic()
    assert marks.at[digest(alone), Stage.PUBLISHED] - begun > ROUND_S
    assert marks.awaited == []


@pytest.mark.parametrize("path", ["/later", "/reject"])
async def test_an_answer_that_comes_later_and_a_failure_are_told_but_not_that_it_was_accepted(path: str) -> None:
    async with marking(path, status=path == "/later") as (world, marks):
        waited = structs.replace(message(1, "b", "r"), wait_s=10)
        if path == "/reject":
            world.outside.troubles["b-1"] = [Response(422, {}, b"no")]
        await world.send(waited)
    stage = Stage.FAILED if path == "/reject" else Stage.PUBLISHED
    assert marks.awaited == [(digest(waited), stage)]


async def _timed_out(fuse: Fuse, lane: str, *, status: bool) -> list[str]:
    """The topics of the dead letters of an answer that never comes. An earlier message, which cannot be sent yet, keeps
    the record of its POST from being committed: a process that takes over reads that again, too."""
    late = receiver("r", "/later", status=status, lane=lane, base=50.0, cap=50.0)
    world = await World([replace(late, answer="required", answer_deadline=3.0)]).create()
    world.outside.troubles["a-0"] = [REFUSED]
    process = Process(world, fuse)
    await world.send(message(0, "a", "r"))
    await process.ended(1)
    await world.send(message(1, "b", "r"))
    await process.stop(after=9)
    await world.run(Fuse(), 20)
    letters = world.broker.records(world.topics.failed_messages)
    return [parse_dead_letter(letter.headers).stage for letter in letters]


@pytest.mark.parametrize("status", [True, False])
@pytest.mark.parametrize("lane", ["dedicated", "shared"])
def test_a_wait_for_an_answer_ends_once_if_the_process_dies_meanwhile(lane: str, status: bool) -> None:
    """The step that made the POST would write a second dead letter, listed and replayed beside the first."""
    counted = Fuse()
    [stage] = run_virtually(_timed_out(counted, lane, status=status))
    until_listed = counted.names[: counted.names.index("state.index_failed")]
    settled = len(until_listed) - until_listed[::-1].index("state.settle")
    assert run_virtually(_timed_out(Fuse(settled, after=True), lane, status=status)) == [stage]


@pytest.mark.parametrize(("polls", "end"), [(1, "answered"), (0, "failed")])
@pytest.mark.parametrize("lane", ["dedicated", "shared"])
@pytest.mark.parametrize("base_s", [40.0, 100.0], ids=["in memory", "parked"])
async def test_an_answer_that_no_process_could_ask_for_before_its_deadline_is_asked_for_once(
    base_s: float, lane: str, polls: int, end: str
) -> None:
    """The receiver has it at the second GET."""
    one = receiver("r", "/later", status=True, lane=lane)
    world = World([replace(one, answer_deadline=600.0, poll=PollPolicy(base=base_s, factor=1.0, cap=base_s))])
    await world.create()
    process = Process(world)
    await world.send(message(0, "a", "r"))
    await process.ended(base_s * (polls + 0.5))
    await process.stop()
    assert world.outside.asked["a-0"] == polls
    await world.clock.sleep(3_600)
    await world.run(Fuse(), 30)
    assert world.outside.results() == {("a-0", "r"): {end}}
    assert world.outside.asked["a-0"] == polls + 1
    assert await world.is_at_rest()
