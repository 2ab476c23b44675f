"""Refreshing of a live part of a page: while events arrive, and each second where the API cannot stream them."""

import asyncio
from collections.abc import AsyncIterator

from relay.client import RelayUnreachable
from relay.client.sse import ServerSentEvent
from relay.pages.live import IDLE_S, LINGER_S, Wakes
from tests.fakes.virtual_time import virtually


class Scripted:
    """Yields the events that a test puts there; `refuses`: no client gets a place. `asked`: number of requests."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.refuses = refuses
        self.asked = 0

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        self.asked += 1
        if self.refuses:
            raise RelayUnreachable("all places are taken")
        while True:
            yield ServerSentEvent(await self.told.get(), {})


async def looks(wakes: Wakes, seconds: float) -> int:
    """How often a look was due in that time (virtual)."""
    count, until = 0, asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        await wakes.wait(asyncio.Event())
        count += 1
    return count


@virtually
async def test_while_nothing_happens_there_is_hardly_a_look() -> None:
    api = Scripted()
    wakes = Wakes(api.events, 1.0)
    running = asyncio.create_task(wakes.run())
    assert await looks(wakes, 10) == 10  # no client has said yet that it listens
    api.told.put_nowait("listening")
    await looks(wakes, LINGER_S + 2)
    assert await looks(wakes, 10 * IDLE_S) == 10
    waiting = asyncio.create_task(wakes.wait(asyncio.Event()))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    api.told.put_nowait("attempt")
    await asyncio.sleep(0.1)
    assert waiting.done()
    assert await looks(wakes, LINGER_S - 1) == LINGER_S - 1  # the history is a moment behind
    api.told.put_nowait("away")
    await looks(wakes, IDLE_S)
    assert await looks(wakes, 10) == 10
    assert api.asked == 1
    running.cancel()


@virtually
async def test_where_nobody_can_listen_it_is_looked_at_again_and_again() -> None:
    api = Scripted(refuses=True)
    wakes = Wakes(api.events, 1.0)
    running = asyncio.create_task(wakes.run())
    assert await looks(wakes, 100) == 100
    assert 2 <= api.asked <= 5
    running.cancel()


@virtually
async def test_who_has_to_end_waits_for_nothing() -> None:
    api, ended = Scripted(), asyncio.Event()
    wakes = Wakes(api.events, 1.0)
    running = asyncio.create_task(wakes.run())
    api.told.put_nowait("listening")
    await looks(wakes, LINGER_S + 2)
    waiting = asyncio.create_task(wakes.wait(ended))
    await asyncio.sleep(0.1)
    ended.set()
    await asyncio.sleep(0.1)
    assert waiting.done()
    running.cancel()
