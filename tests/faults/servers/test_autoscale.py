"""The number of processes follows the backlog: nothing is lost when one is added, removed, or dies on its way out."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from bench.kafka_parts import free_ports
from tests.faults.servers.test_processes import Group
from tests.integration.production import Rig, Sent, messages
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.kafka

UNFINISHED = 200
"""Messages that are kept on their way, to have a backlog."""


class Load:
    """Messages that have been sent so far, and the event that they have all been answered."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.sent: list[Sent] = []

    async def send(self, count: int) -> None:
        fresh = messages(count, len(self.sent))
        self.sent += fresh
        await self._rig.produce(fresh)

    async def until_answered(self) -> None:
        await self._rig.until(lambda: self._rig.answered() >= {message.message_id for message in self.sent})

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Sends as fast as messages are answered."""
        sending = asyncio.create_task(self._send_on())
        try:
            yield
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending

    async def _send_on(self) -> None:
        while True:
            await self.send(UNFINISHED // 2)
            await self._rig.until(lambda: len(self._rig.answered()) >= len(self.sent) - UNFINISHED)


@asynccontextmanager
async def grown(rig: Rig) -> AsyncIterator[tuple[RelayProcess, Group, Load]]:
    """A relay to which a backlog has added a second process."""
    (port,) = free_ports(1)
    environ = rig.environ | {"RELAY_API_PORT": str(port)}
    module = "tests.faults.servers.scaling_relay"
    async with (
        RelayProcess("run", cwd=rig.cwd, environ=environ, module=module) as parent,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        await parent.line_with('"started"')
        load = Load(rig)
        async with load.going_on():
            await parent.lines_with('"started"', 2)
        yield parent, Group(parent, port, session), load


async def test_a_backlog_adds_a_process_and_its_end_removes_it(rig: Rig) -> None:
    async with grown(rig) as (parent, group, load):
        await parent.line_with('"process_dismissed"')
        await load.send(UNFINISHED)  # while it hands over its lanes
        stopped = json.loads(await parent.line_with('"stopped"'))
        assert stopped["process"] == 1
        await load.until_answered()
        assert set(rig.arrivals().values()) == {1}
        found = await group.metrics()
        assert sum(value for _, value in found["relay_answers_total"]) == len(load.sent)


async def test_one_that_dies_while_it_hands_over_loses_nothing(rig: Rig) -> None:
    async with grown(rig) as (parent, _, load):
        second = next(one for line in parent.lines if '"started"' in line and (one := json.loads(line))["process"] == 1)
        await parent.line_with('"process_dismissed"')
        await load.send(UNFINISHED)
        os.kill(second["pid"], signal.SIGKILL)
        await load.until_answered()
        assert rig.arrivals().keys() == {message.message_id for message in load.sent}
        assert not any('"process_ended"' in line for line in parent.lines)
