"""Processes of the last release are replaced one by one by this one's, and back, under load and with messages in every
state: nothing is lost, nothing comes twice, and order is kept. Where some are killed on the way, what was in flight may
come twice to those who cannot be asked."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.faults.servers.rolling import (
    ASKED,
    ENTRIES,
    SOURCES,
    Pool,
    Rolling,
    first_of_each,
    out_of_order,
    processed,
    rolling,
)
from tests.integration.history_rows import of_server
from tests.servers.asking import until
from tests.servers.kafka import Broker
from tests.servers.postgres import PostgresServer
from tests.servers.release import Release
from tests.servers.release import last_release as last_release
from tests.servers.valkey import ValkeyServer

pytestmark = pytest.mark.kafka

THIS: dict[str, str] = {"RELAY_API_SHARED_PORT": "any"}
"""The last release does not say whose its port is."""
PROCESSES = 2
OVER = 3
"""As the history has it: the answer is back at the sender."""


@pytest.fixture
def redis_server() -> Iterator[ValkeyServer]:
    server = ValkeyServer(fsync="everysec", options=("--maxmemory-policy", "noeviction"))
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
    await finish(rig, begun)


async def roll_with_kills(rig: Rolling, pool: Pool, release: dict[str, str]) -> None:
    """Likewise. An old process is killed while its successor starts, and that one as soon as it has joined; their
    partitions go to the old process that remains. That one stops in order."""
    rig.break_down()
    async with rig.loaded():
        for _ in range(60):
            await rig.send("limited")
        await rig.until_in_every_state()
        before = await rig.members(lambda found: len(found) == PROCESSES)
        await pool.launch(release)
        await pool.kill(0)
        await pool.newest_serves()
        await rig.members(lambda found: bool(found - before))
        await pool.kill(-1)
        begun = set(rig.sent)
        await pool.start(release)
        await pool.replace_oldest(release)
    await finish(rig, begun)


async def finish(rig: Rolling, begun: set[str]) -> None:
    """Those that were `begun` are over at the end."""
    rig.heal()
    await rig.until(lambda: not rig.waiting("byhand"))
    await rig.answer_by_hand()
    await rig.until_answered(begun)


async def start_last(rig: Rolling, pool: Pool, last: dict[str, str]) -> None:
    """All processes are of the last release; this one's topics are there already."""
    await apply_topics(rig, last)
    for _ in range(PROCESSES):
        await pool.start(last)
    await apply_topics(rig, THIS)


async def apply_topics(rig: Rolling, release: dict[str, str]) -> None:
    async with rig.relay("topics", "apply", release=release) as applying:
        output = await applying.finish()
    assert applying.returncode == 0, output


async def whoever_is_asked_answers(rig: Rolling) -> None:
    """Each release can read the state of the other. One connection for each request: the system picks the process."""
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
        await start_last(rig, pool, last_release.environ)
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


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["there", "and-back"])
async def test_processes_are_killed_on_the_way(
    back: bool,
    kafka_broker: Broker,
    redis_server: ValkeyServer,
    last_release: Release,
    tmp_path: Path,
    unique_prefix: str,
) -> None:
    kills = 4 if back else 2
    async with rolling(kafka_broker.bootstrap, redis_server.url, tmp_path, unique_prefix, {}) as rig, Pool(rig) as pool:
        await start_last(rig, pool, last_release.environ)
        await roll_with_kills(rig, pool, THIS)
        if back:
            await roll_with_kills(rig, pool, last_release.environ)
        await rig.until_answered(rig.sent)

        assert await dead_letters(rig.api) == []
        assert rig.answered().keys() == rig.sent.keys()
        assert len({each.webhook_id for each in rig.answers()}) == len(rig.sent), "a repeated answer has another id"
        arrived = {name: processed(rig.sinks[name]) for name in ENTRIES}
        firsts = {name: first_of_each(arrivals) for name, arrivals in arrived.items()}
        assert {each.message_id for arrivals in firsts.values() for each in arrivals} == rig.sent.keys()
        assert {name: out_of_order(arrivals) for name, arrivals in firsts.items()} == {name: [] for name in ENTRIES}
        copies = {name: len(arrived[name]) - len(firsts[name]) for name in ENTRIES}
        assert {name: copies[name] for name in ASKED} == dict.fromkeys(ASKED, 0)
        # Order holds per source, so of each one message at most is in flight at a receiver when a process dies.
        assert max(copies.values()) <= kills * (SOURCES + 1), copies
