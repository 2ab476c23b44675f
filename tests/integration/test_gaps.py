"""Tests of numbers and gaps over real HTTP, on both engines. Numbers have no holes, even after Redis was emptied.

Gaps are named, listed, and replayed with their numbers. The messages after a number can be fetched.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from redis.asyncio import Redis

from relay.cli.receivers import gaps_between
from relay.client import AsyncRelay
from relay.domain.numbering import SKIPPED
from relay.schema.receivers import GapPage, GapView
from tests.integration.production import Rig as Production
from tests.servers.http import serving
from tests.servers.process import RelayProcess, relay_dev


@dataclass
class Picky:
    """A receiver that rejects some messages at first. `got`: id, number, generation and gaps of the others."""

    rejects: set[str] = field(default_factory=lambda: {"m-2", "m-3", "m-6"})
    got: list[tuple[str, int, int, str | None]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def hooks(self, request: web.Request) -> web.Response:
        message, headers = request.headers["ce-id"], request.headers
        if message in self.rejects:
            return web.Response(status=422)
        numbers = int(headers["relay-sequence"]), int(headers["relay-generation"])
        self.got.append((message, *numbers, headers.get("relay-gap")))
        self.changed.set()
        return web.Response(status=204)

    async def until(self, count: int) -> None:
        while len(self.got) < count:
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def picky() -> AsyncIterator[tuple[Picky, str]]:
    receiver, app = Picky(), web.Application()
    app.router.add_post("/hooks", receiver.hooks)
    async with serving(app) as url:
        entry = {"post_endpoint": f"{url}/hooks", "ordering": "receiver", "max_in_flight": 1}
        yield receiver, json.dumps({"receivers": {"ci": entry, "other": {**entry, "ordering": "source"}}})


async def send(relay: AsyncRelay, first: int, end: int) -> None:
    for number in range(first, end):
        await relay.send("app", {"n": number}, receivers=["ci"], id=f"m-{number}")


async def gaps(relay: AsyncRelay, count: int) -> list[dict[str, Any]]:
    """The gaps, once so many are listed."""
    while True:
        found = [gap async for gap in relay.receivers.gaps("ci", limit=1)]
        if sum(gap["last"] - gap["first"] + 1 for gap in found) == count:
            return [{name: gap[name] for name in ("first", "last", "reason")} for gap in found]
        await asyncio.sleep(0.1)  # the index has no event to wait for


async def caught_up(relay: AsyncRelay, after: int, count: int) -> list[tuple[int, str]]:
    """Numbers with their messages, or with the reason why there is none; once the history has so many delivered."""
    while True:
        lines = [line async for line in relay.receivers.catch_up("ci", after=after)]
        found = [(one["sequence"], one["message_id"]) if "sequence" in one else (one["first"], one["reason"])
                 for one in lines]  # fmt: skip
        if sum("sequence" in one for one in lines) == count:
            return found
        await asyncio.sleep(0.1)  # the history has no event to wait for


async def check(api: str, receiver: Picky) -> None:
    async with AsyncRelay(api) as relay:
        for number in range(8):  # each is on the log before the next
            await send(relay, number, number + 1)
        await receiver.until(5)
        assert receiver.got == [
            ("m-0", 1, 0, None),
            ("m-1", 2, 0, None),
            ("m-4", 5, 0, "first=3; last=4; reason=rejected"),
            ("m-5", 6, 0, None),
            ("m-7", 8, 0, "first=7; last=7; reason=rejected"),
        ]
        first, second = {"first": 3, "last": 4, "reason": "rejected"}, {"first": 7, "last": 7, "reason": "rejected"}
        assert await gaps(relay, 3) == [first, second]
        assert [gap["first"] async for gap in relay.receivers.gaps("ci", after=3)] == [4, 7]
        assert await relay.receivers.gaps_page("other") == {"numbered": False, "items": [], "cursor": None}

        receiver.rejects.clear()
        counted = await relay.receivers.preview_replay_gaps("ci", first=3, last=4)
        assert (counted["to_send"], counted["request"]["first"], counted["request"]["last"]) == (2, 3, 4)
        job = await relay.receivers.replay_gaps("ci", first=3, last=4)
        await receiver.until(7)
        assert sorted(receiver.got[5:]) == [("m-2", 3, 1, None), ("m-3", 4, 1, None)]
        assert (await relay.replays.get(job["id"]))["action"] == "replay"
        assert await gaps(relay, 1) == [second]
        assert (await relay.receivers.preview_replay_gaps("ci"))["to_send"] == 1
        follows = [(2, "m-1"), (3, "m-2"), (4, "m-3"), (5, "m-4"), (6, "m-5"), (7, "rejected"), (8, "m-7")]
        assert await caught_up(relay, 1, 6) == follows
        assert await caught_up(relay, 5, 2) == follows[4:]


async def test_on_the_embedded_engine(tmp_path: Path) -> None:
    async with picky() as (receiver, file):
        (tmp_path / "receivers.yaml").write_text(file)
        async with relay_dev(tmp_path) as dev:
            await asyncio.wait_for(check(dev.value_of("API"), receiver), 250)


async def test_a_sink_fetches_the_messages_that_it_misses(tmp_path: Path) -> None:
    async with picky() as (receiver, file):
        (tmp_path / "receivers.yaml").write_text(file)
        receiver.rejects.clear()
        async with relay_dev(tmp_path) as dev:
            api = dev.value_of("API")
            async with AsyncRelay(api) as relay:
                await send(relay, 0, 3)
                await receiver.until(3)
            options = ("--port", "0", "--numbered", "--catch-up", "ci", "--api", api)
            async with RelayProcess("sink", *options, cwd=tmp_path) as sink, aiohttp.ClientSession() as session:
                await sink.line_with("post_endpoint")
                for number in (1, 3):
                    headers = {"relay-sequence": str(number), "ce-id": f"m-{number - 1}", "ce-source": "app"}
                    async with session.post(sink.value_of("post_endpoint"), headers=headers) as response:
                        assert response.status == 200
                await sink.line_with("MISSING: 2 to 2")
                await sink.line_with("fetched 2: app m-1, 7 bytes")


@pytest.mark.kafka
async def test_on_kafka_and_after_redis_was_emptied(rig: Production) -> None:
    rig.environ["RELAY_HISTORY_URL"] = f"sqlite://{rig.cwd}/history.db"
    async with picky() as (receiver, file):
        (rig.cwd / "receivers.yaml").write_text(file)
        async with rig.relay("run", "--processes", "1") as running:
            started = json.loads(await running.line_with('"started"'))
            await asyncio.wait_for(check(started["api"], receiver), 250)
            async with Redis.from_url(rig.environ["RELAY_REDIS_URL"]) as client:
                await client.flushall()
            async with AsyncRelay(started["api"]) as relay:
                await asyncio.wait_for(send(relay, 8, 11), 90)
                await asyncio.wait_for(receiver.until(10), 90)
                assert await asyncio.wait_for(caught_up(relay, 8, 3), 60) == [
                    (9, "renumbered"),
                    *((SKIPPED + number + 1, f"m-{number}") for number in (8, 9, 10)),
                ]
        after = receiver.got[7:]
        assert [(message, number - SKIPPED) for message, number, _, _ in after] == [
            ("m-8", 9),
            ("m-9", 10),
            ("m-10", 11),
        ]
        assert f"first=9; last={SKIPPED + 8}; reason=renumbered" in (after[0][3] or "")


async def test_the_command_lists_a_gap_up_to_the_last_number_that_was_asked_for() -> None:
    class Receivers:
        async def gaps_page(self, name: str, *, after: int) -> GapPage:
            assert (name, after) == ("ci", 0)
            gaps = [
                GapView(first=first, last=last, reason="rejected", failed_at=None) for first, last in ((3, 9), (12, 12))
            ]
            return GapPage(numbered=True, items=gaps, cursor=None)

    client: Any = SimpleNamespace(receivers=Receivers())
    for last, listed in ((5, [(3, 5)]), (12, [(3, 9), (12, 12)]), (None, [(3, 9), (12, 12)]), (2, [])):
        found = await gaps_between(client, "ci", None, last)
        assert [(gap["first"], gap["last"]) for gap in found["items"]] == listed
