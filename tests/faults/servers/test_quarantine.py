"""A record that takes the process with it ends as poison on real Kafka and Redis; kill -9 at random poisons nothing.

`RELAY_KILLS_S`: for how long processes are killed; an hour is what the guarantees speak of, the suite takes seconds.
"""

import asyncio
import json
import os
import random
import signal
from itertools import count

import aiohttp
import pytest

from relay.engine.quarantine import TIMES
from tests.integration.deadly_relay import DEADLY
from tests.integration.production import Rig, Sent, messages
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.kafka

KILLS_S = float(os.environ.get("RELAY_KILLS_S", "15"))
LONGEST_LIFE_S = 60.0


def process(rig: Rig, module: str = "relay") -> RelayProcess:
    environ = rig.environ | {"RELAY_LOG_FORMAT": "json"}
    return RelayProcess("run", "--processes", "1", cwd=rig.cwd, environ=environ, module=module)


async def _reasons(api: str) -> dict[str, str]:
    async with aiohttp.ClientSession(api) as session, session.get("/v1/failed", params={"limit": "1000"}) as response:
        return {item["message_id"]: item["reason"] for item in (await response.json())["items"]}


async def test_a_record_that_kills_each_process_ends_as_poison_and_its_neighbours_arrive(rig: Rig) -> None:
    good = messages(40)
    headers = {"ce_id": DEADLY.encode(), "ce_source": b"source-0", "ce_receiver": b"circleci"}
    await rig.produce(good[:20])
    await rig.producer.send_and_wait(rig.topic, b"{}", key=b"source-0", headers=list(headers.items()))
    await rig.produce(good[20:])
    expected = {message.message_id for message in good}
    deaths = 0
    while True:
        async with process(rig, "tests.integration.deadly_relay") as running:
            ending = asyncio.create_task(running.finish())
            done = asyncio.create_task(_all_told(rig, expected))
            await asyncio.wait({ending, done}, return_when=asyncio.FIRST_COMPLETED, timeout=LONGEST_LIFE_S)
            ended = done.done()
            running.signal(signal.SIGKILL)
            done.cancel()
            await asyncio.wait({ending, done})
        if ended:
            break
        deaths += 1
        assert deaths <= TIMES + 2, "it is found in a few lives"
    assert deaths == TIMES + 1
    failures = {
        a.headers["relay-message-id"]: a.headers["relay-reason"]
        for a in rig.callback.received
        if a.headers["relay-outcome"] == "failed"
    }
    assert failures == {DEADLY: "poison"}


async def _all_told(rig: Rig, expected: set[str]) -> None:
    while not (
        rig.answered() >= expected and any(a.headers["relay-outcome"] == "failed" for a in rig.callback.received)
    ):
        rig.changed.clear()
        await rig.changed.wait()


@pytest.mark.slow
@pytest.mark.timeout(KILLS_S + 2 * LONGEST_LIFE_S)
async def test_kill_9_at_random_makes_no_poison(rig: Rig) -> None:
    """One process after the other, under load, each killed after up to a few seconds of work."""
    draw, numbers = random.Random(13), count()
    end, kills = asyncio.get_running_loop().time() + KILLS_S, 0
    sent: list[Sent] = []
    while asyncio.get_running_loop().time() < end:
        async with process(rig) as running:
            more = messages(40, start=40 * next(numbers))
            sent += more
            await rig.produce(more)
            if draw.random() < 0.8:  # also while it starts
                await running.line_with('"started"')
            await asyncio.sleep(draw.uniform(0.0, 4.0))
            running.signal(signal.SIGKILL)
            kills += 1
    async with process(rig) as running:
        api = json.loads(await running.line_with('"started"'))["api"]
        await rig.until(lambda: rig.answered() >= {message.message_id for message in sent})
        assert await _reasons(api) == {}
    print(f"{kills} kills, {len(sent)} messages, no poison")  # noqa: T201  the figures of a longer run
