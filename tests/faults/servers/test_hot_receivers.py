"""The process that decided that a hot receiver leaves the shared lane is killed, on Kafka and Redis: between the record
and the end of the move, which another process completes."""

import asyncio
import json
import signal
from contextlib import AsyncExitStack

import pytest

from tests.integration.production import Rig
from tests.integration.test_hot_receivers import HOT, HURRIED, STORY_S, Story, entries, started
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.kafka


async def test_another_process_completes_the_move(rig: Rig) -> None:
    async with AsyncExitStack() as stack:
        sinks = await started(stack)
        (rig.cwd / "receivers.yaml").write_text(json.dumps({"receivers": entries(sinks)}))
        rig.environ["RELAY_HOT_RECEIVERS"] = "move"
        start = ("run", "--processes", "1")
        processes = [RelayProcess(*start, cwd=rig.cwd, environ=rig.environ, module=HURRIED) for _ in range(2)]
        for process in processes:
            await stack.enter_async_context(process)
            await process.line_with('"started"')
        story = Story(sinks, processes, rig.produce)
        await story.rounds_until(HOT, "receiver_moved")
        [decided] = [one for one in processes if any("receiver_moved" in line for line in one.lines)]
        decided.signal(signal.SIGKILL)
        await story.rounds_until(HOT, "move_ended")
        for _ in range(5):
            await story.round(HOT)
        async with asyncio.timeout(STORY_S):
            for name, sink in sinks.items():
                expected = {message.message_id for message in story.sent if message.receiver == name}
                while expected - {arrival.message_id for arrival in sink.received}:
                    await sink.wait_for(len(sink.received) + 1)
        story.judge(doubled=True)
