"""Everything was killed: `relay run` and its broker come back, and say what they wait for."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.integration.conftest import production
from tests.integration.production import messages
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka import own_broker as own_broker
from tests.servers.valkey import ValkeyServer

pytestmark = pytest.mark.kafka

KILL = 9


async def test_after_a_kill_of_relay_and_broker_the_next_relay_says_what_it_waits_for_and_serves(
    own_broker: KafkaBroker, redis_server: ValkeyServer, tmp_path: Path, unique_prefix: str
) -> None:
    async with production(own_broker, redis_server, tmp_path, unique_prefix) as rig:
        sent = messages(24)
        async with rig.relay("run", "--processes", "1") as first:
            await rig.produce(sent)
            await rig.until(lambda: len(rig.answered()) >= len(sent))
            first.signal(KILL)
        await asyncio.to_thread(own_broker.restart)
        later = messages(24, start=100)
        async with rig.relay("run", "--processes", "1") as second:
            told = json.loads(await second.line_with('"get partitions assigned"'))
            assert (told["event"], told["level"]) == ("waiting", "warning")
            assert "waits up to 6 s" in told["error"]
            await rig.produce(later)
            await rig.until(lambda: rig.answered() >= {message.message_id for message in later})
