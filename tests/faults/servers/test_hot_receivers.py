"""The process that decided that a hot receiver leaves the shared lane is killed, on Kafka and Redis: between the record
and the end of the move, which another process completes."""

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest

from tests.integration.production import Rig
from tests.integration.test_hot_receivers import HOT, STORY_S, between_two_processes

pytestmark = pytest.mark.kafka


async def test_another_process_completes_the_move(rig: Rig) -> None:
    async with AsyncExitStack() as stack:
        story = await between_two_processes(rig, stack)
        await story.rounds_until(HOT, "receiver_moved")
        [decided] = [one for one in story.processes if any("receiver_moved" in line for line in one.lines)]
        decided.signal(signal.SIGKILL)
        await story.rounds_until(HOT, "move_ended")
        for _ in range(5):
            await story.round(HOT)
        async with asyncio.timeout(STORY_S):
            for name, sink in story.sinks.items():
                expected = {message.message_id for message in story.sent if message.receiver == name}
                while expected - {arrival.message_id for arrival in sink.received}:
                    await sink.wait_for(len(sink.received) + 1)
        story.judge(doubled=True)
