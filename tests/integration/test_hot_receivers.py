"""Tests of a receiver with nine tenths of the shared lane's messages: it gets a lane of its own, and returns when the
load falls. Messages stay in order, and none is lost or doubled."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relay.sink import Sink
from tests.integration.production import Rig, Sent
from tests.integration.test_demo import relay
from tests.servers.http import started
from tests.servers.process import RelayProcess, relay_dev

HURRIED = "tests.integration.hurried_relay"
HOT = ("r",) * 9 + ("n",)
CALM = ("n", "m", "k")
RECEIVERS = ("r", *CALM)
STORY_S = 240.0

Send = Callable[[Sequence[Sent]], Awaitable[object]]


class Story:
    """Messages to three receivers of the shared lane, round by round: each begins when the one before has arrived."""

    def __init__(self, sinks: dict[str, Sink], processes: Sequence[RelayProcess], send: Send) -> None:
        self.sinks = sinks
        self.processes = processes
        self._send = send
        self.sent: list[Sent] = []

    async def round(self, receivers: Sequence[str]) -> None:
        some = [Sent(len(self.sent) + at, f"s{at % 2}", name, b"{}") for at, name in enumerate(receivers)]
        self.sent += some
        await self._send(some)
        counts = Counter(message.receiver for message in self.sent)
        for name, count in counts.items():
            await self.sinks[name].wait_for(count)

    async def rounds_until(self, receivers: Sequence[str], event: str, count: int = 1) -> None:
        async with asyncio.timeout(STORY_S):
            while self.logged(event) < count:
                await self.round(receivers)

    def logged(self, event: str) -> int:
        return sum(event in line for process in self.processes for line in process.lines)

    async def leave(self) -> None:
        await self.rounds_until(HOT, "receiver_moved")
        await self.rounds_until(HOT, "move_ended")
        for _ in range(5):
            await self.round(HOT)

    async def come_back(self) -> None:
        await self.rounds_until(CALM, "receiver_returned")
        await self.rounds_until(RECEIVERS, "move_ended", 2)
        for _ in range(5):
            await self.round(RECEIVERS)

    def judge(self, *, doubled: bool = False) -> None:
        """`doubled`: a killed process may have sent some, which its successor sends again."""
        for name, sink in self.sinks.items():
            for source in ("s0", "s1"):
                taken = [arrival for arrival in sink.received if arrival.source_id == source]
                if doubled:
                    first = {arrival.message_id: arrival for arrival in reversed(taken)}
                    taken = [arrival for arrival in taken if first[arrival.message_id] is arrival]
                expected = [m.message_id for m in self.sent if (m.receiver, m.source) == (name, source)]
                assert [arrival.message_id for arrival in taken] == expected, (name, source)
                numbers = [int(arrival.headers["relay-sequence"]) for arrival in taken]
                assert numbers == sorted(numbers), (name, source)


def entries(sinks: dict[str, Sink]) -> dict[str, Any]:
    return {name: {"post_endpoint": sink.url, "lane": "shared"} for name, sink in sinks.items()}


async def sinks_on(stack: AsyncExitStack) -> dict[str, Sink]:
    sinks = {name: Sink("answer") for name in RECEIVERS}
    await stack.enter_async_context(started(*sinks.values()))
    return sinks


@pytest.mark.slow
async def test_it_moves_and_returns_on_the_embedded_engine(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        sinks = await sinks_on(stack)
        (tmp_path / "receivers.yaml").write_text(json.dumps({"receivers": entries(sinks)}))
        environ = {"RELAY_HOT_RECEIVERS": "move"}
        dev = await stack.enter_async_context(relay_dev(tmp_path, "--no-demo", environ=environ, module=HURRIED))
        client = await stack.enter_async_context(aiohttp.ClientSession(dev.value_of("API")))

        async def send(some: Sequence[Sent]) -> None:
            for message in some:
                path, id = f"/v1/sources/{message.source}/messages", {"ce-id": message.message_id}
                async with client.post(path, params={"receiver": message.receiver}, headers=id, json={}) as response:
                    assert response.status == 202, await response.text()

        story = Story(sinks, [dev], send)
        await story.leave()
        _, shown = await relay(dev, "receivers", "show", "r")
        assert "own lane, because it is hot, since: 2" in shown
        async with client.get("/ui/receivers/r") as response:
            assert "has a lane of its own since" in await response.text()
        await story.come_back()
        story.judge()
        async with client.get("/v1/audit", params={"what": "receiver."}) as response:
            lines = [(line["who"], line["what"], line["whom"]) for line in (await response.json())["items"]]
        assert lines[:2] == [("relay", "receiver.returned", "r"), ("relay", "receiver.moved", "r")]


async def between_two_processes(rig: Rig, stack: AsyncExitStack) -> Story:
    sinks = await sinks_on(stack)
    (rig.cwd / "receivers.yaml").write_text(json.dumps({"receivers": entries(sinks)}))
    rig.environ["RELAY_HOT_RECEIVERS"] = "move"
    start = ("run", "--processes", "1")
    processes = [RelayProcess(*start, cwd=rig.cwd, environ=rig.environ, module=HURRIED) for _ in range(2)]
    for process in processes:
        await stack.enter_async_context(process)
        await process.line_with('"started"')
    return Story(sinks, processes, rig.produce)


@pytest.mark.kafka
async def test_it_moves_and_returns_on_kafka_between_two_processes(rig: Rig) -> None:
    async with AsyncExitStack() as stack:
        story = await between_two_processes(rig, stack)
        await story.leave()
        await story.come_back()
        story.judge()
        partitions = await rig.producer.partitions_for(f"{rig.environ['RELAY_TOPIC_PREFIX']}to_receiver_r")
        assert partitions == {0}  # made on demand
