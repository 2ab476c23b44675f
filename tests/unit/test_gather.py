"""Batches of whatever came while the previous batch was under way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from relay.engine.gather import Gather


@asynccontextmanager
async def _running(gather: Gather[int]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(gather.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_what_comes_during_a_batch_is_the_next_batch_in_order() -> None:
    batches: list[list[int]] = []
    go_on = asyncio.Semaphore(0)
    begun, done = asyncio.Event(), asyncio.Event()

    async def handle(batch: list[int]) -> None:
        batches.append(batch)
        begun.set()
        await go_on.acquire()
        if sum(map(len, batches)) == 6:
            done.set()

    gather = Gather(handle)
    async with _running(gather):
        gather.put(0)
        await begun.wait()
        for item in range(1, 6):
            gather.put(item)
        assert len(gather) == 6, "waiting, and being handled"
        go_on.release()
        go_on.release()
        await done.wait()
    assert batches == [[0], [1, 2, 3, 4, 5]]


async def test_a_batch_has_at_most_so_many() -> None:
    batches: list[list[int]] = []
    done = asyncio.Event()

    async def handle(batch: list[int]) -> None:
        batches.append(batch)
        if batch[-1] == 9:
            done.set()

    gather = Gather(handle, limit=4)
    for item in range(10):
        gather.put(item)
    async with _running(gather):
        await done.wait()
        await asyncio.sleep(0)
        assert len(gather) == 0
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_the_handlers_exception_ends_it() -> None:
    async def handle(batch: list[int]) -> None:
        raise RuntimeError(str(batch))

    gather = Gather(handle)
    gather.put(1)
    with pytest.raises(RuntimeError, match="1"):
        await gather.run()
