"""Status endpoints that know every id: after a loss of the state only what can have been sent before is asked about, so
none of the others is taken for delivered."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.exchange import Response
from relay.domain.message import Message
from relay.domain.receiver import StatusMap
from relay.recovery.recovery_pass import Recovery
from relay.state.rows import TAGS
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import Process, World, message, receiver

KNOWS_ALL = Response(200, {"content-type": "application/json"}, b'{"state": "unknown", "built": "never"}')
MAP = StatusMap("/state", frozenset({"done"}), frozenset(), frozenset({"unknown"}))
ENDS = Recovery._ends


class _Rebuilding(Process):
    """One that reads back what was lost, too."""

    rebuilds = True


async def _lived(before: int, *, status_map: StatusMap | None = None) -> World:
    """A relay that has delivered so many, and then lost its state."""
    one = replace(receiver("r", "/answer", status=True), status_map=status_map)
    world = World([one])
    world.outside.never_seen = KNOWS_ALL
    await world.create()
    await world.send(*_messages(0, before))
    await world.run(Fuse(), 20, until=lambda: len(world.outside.results()) == before)
    world.state.lose()
    return world


def _messages(first: int, count: int) -> list[Message]:
    return [message(number, "a", "r") for number in range(first, first + count)]


async def _rebuilt(world: World) -> None:
    while await world.state.gaps(range(TAGS)):
        await world.clock.sleep(0.5)


async def _finish(world: World, process: Process, sent: int) -> None:
    async with asyncio.timeout(1_000):
        while len(world.outside.results()) < sent or not await world.is_at_rest():
            await world.clock.sleep(1)
    await process.stop()


async def _new_ones_after_a_loss(before: int, at_once: int, later: int, again: Sequence[int]) -> None:
    """`at_once`: sent while rows are missing; `later`: when they are back; `again`: of those of before, at once."""
    world = await _lived(before)
    process = _Rebuilding(world)
    assert not await process.ended(1)
    await world.send(*(message(number % before, "a", "r") for number in again), *_messages(before, at_once))
    await _rebuilt(world)
    await world.send(*_messages(before + at_once, later))
    await _finish(world, process, before + at_once + later)
    assert sorted(world.outside.arrived("/answer"), key=_number) == [f"a-{n}" for n in range(before + at_once + later)]


def _number(message_id: str) -> int:
    return int(message_id.rpartition("-")[2])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 4), st.lists(st.integers(0, 4), max_size=2))
def test_each_new_message_is_sent_once_and_none_of_before_again(
    before: int, at_once: int, later: int, again: list[int]
) -> None:
    run_virtually(_new_ones_after_a_loss(before, at_once, later, again))


async def _no_ends(_self: Recovery, _tags: frozenset[int]) -> None:
    return None


PLANTED: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "asked about whatever its offset": lambda: patch.object(Recovery, "_ends", _no_ends),
}


@pytest.mark.parametrize("flaw", PLANTED)
def test_the_flaw_is_found(flaw: str) -> None:
    with PLANTED[flaw](), pytest.raises(AssertionError):
        run_virtually(_new_ones_after_a_loss(3, 2, 2, [0]))


def test_with_a_map_the_new_are_sent_while_rows_are_missing() -> None:
    async def main() -> None:
        world = await _lived(2, status_map=MAP)
        process = Process(world)  # nothing is rebuilt
        await world.send(*_messages(2, 2))
        await _finish(world, process, 4)
        assert world.outside.arrived("/answer") == ["a-0", "a-1", "a-2", "a-3"]
        assert await world.state.gaps(range(TAGS))

    run_virtually(main())
