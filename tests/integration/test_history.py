"""Tests of the history of a real relay on the embedded engine: complete after kills, and the same when it is
rebuilt."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientError

from relay.sink import ReceivedPost, Sink
from tests.browser.dev_relay import DevRelay
from tests.integration.history_rows import Rows, counted, of_file, positions_of, posts, reaches
from tests.servers.asking import until
from tests.servers.http import started

MESSAGES: Final = 80
PATIENCE_S: Final = 200
"""Attempts in flight at the kill settle before they are repeated."""
DELIVERIES: Final = {
    "quick": "response_delivered_to_sender",
    "flaky": "response_delivered_to_sender",
    "later": "response_delivered_to_sender",
    "never": "failed",
}


class Receivers:
    """Two of them for each message: one that answers, with an error first or later; another one, that refuses."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        chance = random.Random(7).random
        self.sinks = {
            "quick": Sink("answer", on_arrival=self._notify),
            "flaky": Sink("answer", fail_rate=0.4, chance=chance, on_arrival=self._notify),
            "later": Sink("later", later_polls=1, on_arrival=self._notify),
            "never": Sink("reject", on_arrival=self._notify),
        }
        self.callback = Sink("answer")

    def _notify(self, _: ReceivedPost) -> None:
        self.changed.set()

    async def register(self, dev: DevRelay) -> None:
        await dev.source("shop", callback={"url": self.callback.url})
        soon = {"retry": {"base": 0.1, "cap": 0.1, "max_attempts": 30}, "poll": {"base": 0.1}}
        for name, sink in self.sinks.items():
            status = {"status_endpoint": sink.status_url_template} if name == "later" else {}
            await dev.receiver(name, sink.url, **soon, **status)

    def arrived(self) -> Counter[tuple[str, str, int]]:
        return Counter((a.message_id, name, a.attempt) for name, sink in self.sinks.items() for a in sink.received)

    async def until_arrived(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self.arrived().total() < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def receivers() -> AsyncIterator[Receivers]:
    made = Receivers()
    every = (*made.sinks.values(), made.callback)
    async with started(*every):
        yield made


def named(number: int) -> tuple[str, str]:
    """The message's two receivers."""
    return ("quick", "flaky", "later")[number % 3], ("never", "quick", "flaky")[number % 3]


async def send(dev: DevRelay, numbers: Iterable[int]) -> None:
    for number in numbers:
        await dev.send("shop", f"m-{number}", b'{"n": %d}' % number, to="&receiver=".join(named(number)))


async def until_complete(dev: DevRelay, count: int) -> None:
    """Wait until all deliveries have ended in the history. The state adds callbacks that a killed process did not
    record."""

    async def is_over() -> bool:
        await asyncio.sleep(0.2)
        page = await dev.call("GET", "/v1/messages?source=shop&limit=200")
        found = [each for item in page["items"] for each in item["deliveries"]]
        at_end = all(each["status"] == DELIVERIES[each["receiver"]] for each in found)
        return at_end and len(found) == 2 * count and page["behind_s"] == 0

    async with asyncio.timeout(PATIENCE_S):
        while not await is_over():
            pass


def delete(data: Path) -> None:
    for file in data.glob("history.db*"):
        file.unlink()


async def rebuilt(tmp_path: Path, data: Path) -> Rows:
    """The history that a relay, which has ended, rebuilds after its history was deleted."""
    before = positions_of(data / "history.db")
    delete(data)
    async with DevRelay(tmp_path, data=data):

        async def is_there() -> bool:
            return reaches(positions_of(data / "history.db"), before)

        await until(is_there)
    return of_shop(data)


def of_shop(data: Path) -> Rows:
    """The rows without those of the message that `relay dev` sends itself at each start."""
    rows = of_file(data / "history.db")
    return {table: [row for row in rows[table] if "shop" in row] for table in rows if table != "positions"}


async def test_what_happened_is_whole_after_a_kill_and_the_same_when_it_is_built_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with receivers() as all_of:
        async with DevRelay(tmp_path, data=data) as dev:
            await all_of.register(dev)
            await send(dev, range(20))
            await all_of.until_arrived(20)
            sending = asyncio.create_task(send(dev, range(20, MESSAGES)))
            await all_of.until_arrived(70)
            dev.process.signal(signal.SIGKILL)
            await dev.process.finish()
            with pytest.raises((ClientError, TimeoutError)):
                await sending
        seen = all_of.arrived()
        async with DevRelay(tmp_path, data=data) as dev:
            await send(dev, range(MESSAGES))  # what the sender does that does not know what came through
            await until_complete(dev, MESSAGES)
            await check_attempts(dev)
        async with DevRelay(tmp_path, data=data) as dev:
            await until_complete(dev, MESSAGES)  # with the attempts that the process before recorded as it ended
    rows = of_shop(data)
    recorded, arrived = posts(rows), all_of.arrived()
    assert not recorded - arrived, "POSTs that no receiver got"
    assert all(key in seen for key in arrived - recorded), "only those before the kill may lack a record"
    assert counted(rows) == (recorded.total(), recorded.total())
    assert len(rows["messages"]) == MESSAGES
    assert len(rows["deliveries"]) == 2 * MESSAGES
    assert await rebuilt(tmp_path, data) == rows


async def check_attempts(dev: DevRelay) -> None:
    """The API has the attempts of a rejected, a retried and a later answered message."""
    rejected = (await of_message(dev, 78, "never"))[-1]
    assert (rejected["kind"], rejected["response"]["status"], rejected["outcome"]) == ("post", 422, "dead")
    failed = (await dev.call("GET", "/v1/receivers/flaky/attempts?failed=true"))["items"]
    assert {(each["response"]["status"], each["outcome"]) for each in failed} == {(500, "retry")}
    kinds = {each["kind"] for each in await of_message(dev, 77, "later")}
    assert kinds == {"post", "status", "callback"}
    numbers = await dev.call("GET", "/v1/stats?by=hour&source=shop&receiver=later")
    assert numbers["totals"]["failed"] == 0


async def of_message(dev: DevRelay, number: int, receiver: str) -> list[Any]:
    found = await dev.call("GET", f"/v1/sources/shop/messages/m-{number}/attempts?receiver={receiver}")
    items: list[Any] = found["items"]
    return items
