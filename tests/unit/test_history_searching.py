"""What a search in bodies costs the process that it runs in: bounded, in bytes for a page and between two turns."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from relay.history.port import MessageQuery
from relay.history.searching import (
    BYTES_AT_MOST,
    BYTES_AT_ONCE,
    LOOKED_AT_FIRST,
    LOOKED_AT_MOST,
    LOOKED_AT_ONCE,
    Row,
    Searching,
)
from relay.history.select import Select
from relay.history.sqlite import DIALECT

NOWHERE = MessageQuery(payload=("/a", "17"))


class Stored:
    """As many messages as there are numbers, the newest first, all with one body; and how they were fetched."""

    def __init__(self, count: int, body: bytes | None) -> None:
        self.runs = list[int]()
        self._count = count
        self._body = body

    async def fetch(self, selects: Sequence[Select]) -> list[list[Row]]:
        if not selects or "FROM wanted" in selects[0].text:
            return [[] for _ in selects]
        [select] = selects
        run, start = int(select.text.rpartition("LIMIT ")[2]), sum(self.runs)
        self.runs.append(run)
        return [[self._row(n) for n in range(start, min(start + run, self._count))]]

    def _row(self, number: int) -> Row:
        name = f"m-{self._count - number:07}"
        return ("s", name, "t", 0, number, float(self._count - number), None, None, 1, None, self._body)


async def no_change(_statement: Select) -> int:
    return 0


def body(size: int, a: int = 1) -> bytes:
    return json.dumps({"a": a, "b": "x" * (size - 20)}).encode()


@pytest.mark.parametrize("size", [64 * 1024, 4 * 1024 * 1024])
async def test_a_page_ends_after_so_many_bytes_and_can_be_gone_on_with(size: int) -> None:
    stored = Stored(2_000, body(size))
    page = await Searching(DIALECT, stored.fetch, no_change).messages(NOWHERE, limit=50)
    assert (page.items, page.cursor is None) == ([], False)
    assert sum(stored.runs) <= max(BYTES_AT_MOST // size + LOOKED_AT_FIRST, LOOKED_AT_FIRST)


async def test_others_have_their_turns_while_bodies_are_read() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await Searching(DIALECT, Stored(200, body(65 * 1024)).fetch, no_change).messages(NOWHERE, limit=50)
    task.cancel()
    assert turns >= 190


async def test_runs_grow_where_little_has_to_be_read() -> None:
    stored = Stored(2 * LOOKED_AT_MOST, None)
    page = await Searching(DIALECT, stored.fetch, no_change).messages(NOWHERE, limit=50)
    assert page.cursor is not None
    assert stored.runs[:4] == [LOOKED_AT_FIRST, 2 * LOOKED_AT_FIRST, LOOKED_AT_ONCE, LOOKED_AT_ONCE]
    assert LOOKED_AT_MOST <= sum(stored.runs) < LOOKED_AT_MOST + LOOKED_AT_ONCE
    large = Stored(2_000, body(2 * BYTES_AT_ONCE // LOOKED_AT_FIRST))
    await Searching(DIALECT, large.fetch, no_change).messages(NOWHERE, limit=50)
    assert set(large.runs) == {LOOKED_AT_FIRST}


async def test_what_is_found_is_on_the_page() -> None:
    stored = Stored(300, body(1_000, 17))
    page = await Searching(DIALECT, stored.fetch, no_change).messages(NOWHERE, limit=50)
    assert [found.arrival.message.message_id for found in page.items] == [f"m-{n:07}" for n in range(300, 250, -1)]
    page = await Searching(DIALECT, Stored(300, body(1_000)).fetch, no_change).messages(NOWHERE, limit=50)
    assert (page.items, page.cursor) == ([], None)
