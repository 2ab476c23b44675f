"""Processes of the last release are replaced one by one by this one's, and back, under load and with messages in every
state: nothing is lost, nothing comes twice, and order is kept."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.faults.rolling import ENTRIES, Pool, Rolling, out_of_order, processed, rolling
from tests.integration.history_rows import of_server
from tests.servers.asking import until
from tests.servers.kafka import Broker
from tests.servers.postgres import PostgresServer
from tests.servers.release import Release
from tests.servers.release import last_release as last_release
from tests.servers.valkey import ValkeyServer

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

THIS: dict[str, str] = {}
PROCESSES = 2
OVER = 3
"""As the history has it: the answer is back at the sender."""


@pytest.fixture
def redis_server() -> Iterator[ValkeyServer]:
    server = ValkeyServer(fsync="everysec", options=("--maxmemory-policy", "noeviction"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.stop()


async def roll(rig: Rolling, pool: Pool, release: dict[str, str]) -> None:
    """To `release`, with messages in every state on the way; those that were sent before are over at the end."""
    rig.break_down()
    async with rig.loaded():
        for _ in range(20):
            await rig.send("limited")
        await rig.until_in_every_state()
        begun = set(rig.sent)
        for _ in range(PROCESSES):
            await pool.replace_oldest(release)
            await whoever_is_asked_answers(rig)
    rig.heal()
    await rig.until(lambda: not rig.waiting("byhand"))
    await rig.answer_by_hand()
    await rig.until_answered(begun)


async def whoever_is_asked_answers(rig: Rolling) -> None:
    """What a release tells those who only look, the other one can read. A connection for each: the system picks who."""
    message_id = next(each for each, receiver in rig.sent.items() if receiver == "down")
    source = message_id.rpartition("-")[0]
    paths = ["/v1/lanes", "/v1/overview", f"/v1/sources/{source}/messages/{message_id}", "/v1/receivers/down"]
    async with aiohttp.ClientSession(rig.api, connector=aiohttp.TCPConnector(force_close=True)) as session:
        for path in paths * 5:
            async with session.get(path) as response:
                assert response.status == 200, f"{path}: {await response.text()}"


async def dead_letters(api: str) -> list[object]:
    async with aiohttp.ClientSession(api) as session, session.get("/v1/failed?limit=1000") as response:
        found: list[object] = (await response.json())["items"]
    return found


async def test_one_by_one_to_this_release_and_back(
    kafka_broker: Broker,
    redis_server: ValkeyServer,
    database: PostgresServer,
    last_release: Release,
    tmp_path: Path,
    unique_prefix: str,
) -> None:
    more = {"RELAY_HISTORY_URL": database.url}
    async with (
        rolling(kafka_broker.bootstrap, redis_server.url, tmp_path, unique_prefix, more) as rig,
        Pool(rig) as pool,
    ):
        for release in (last_release.environ, THIS):
            async with rig.relay("topics", "apply", release=release) as applying:
                output = await applying.finish()
            assert applying.returncode == 0, output
            if release is not THIS:
                for _ in range(PROCESSES):
                    await pool.start(release)
        await roll(rig, pool, THIS)
        await roll(rig, pool, last_release.environ)
        await rig.until_answered(rig.sent)

        assert await dead_letters(rig.api) == []
        once = Counter(dict.fromkeys(rig.sent, 1))
        assert rig.answered() - once == Counter(), "an answer was taken twice"
        arrived = Counter(each.message_id for name in ENTRIES for each in processed(rig.sinks[name]))
        assert arrived - once == Counter(), "a receiver did its work twice"
        assert arrived.keys() == rig.sent.keys()
        assert {name: out_of_order(processed(rig.sinks[name])) for name in ENTRIES} == {name: [] for name in ENTRIES}

        async def all_is_told() -> bool:
            rows = (await of_server(database.url))["deliveries"]
            return Counter(row[1] for row in rows if row[4] == OVER) == once

        await until(all_is_told)
