"""Kafka or Redis not there: a clear line, waiting, and recovery without anybody's help."""

import json
import signal
from pathlib import Path

import pytest

from tests.integration.conftest import production
from tests.integration.production import Rig, messages
from tests.servers.kafka import KafkaBroker, own_broker  # noqa: F401 - a fixture
from tests.servers.process import RelayProcess
from tests.servers.valkey import ValkeyServer

pytestmark = pytest.mark.kafka


async def test_nothing_is_there_at_start(tmp_path: Path) -> None:
    environ = {"RELAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "RELAY_REDIS_URL": "redis://127.0.0.1:9/0"}
    async with RelayProcess(
        "run", "--processes", "1", cwd=tmp_path, environ=environ | {"RELAY_API_PORT": "0"}
    ) as running:
        waiting = json.loads(await running.line_with('"waiting"'))
        assert waiting["to"] == "connect to the log"
        assert "127.0.0.1:9" in waiting["error"]
        running.signal(signal.SIGTERM)
        output = await running.finish()
        assert running.returncode == 0, output
        assert "Traceback" not in output


async def test_topics_are_not_there(rig: Rig) -> None:
    rig.environ["RELAY_TOPIC_PREFIX"] = "nothing-has-this-prefix."
    async with rig.relay("run", "--processes", "1") as running:
        output = await running.finish()
    assert running.returncode == 2
    assert "relay topics apply" in output
    assert "Traceback" not in output


async def test_the_broker_dies_and_comes_back(
    own_broker: KafkaBroker,  # noqa: F811
    redis_server: ValkeyServer,
    tmp_path: Path,
    unique_prefix: str,
) -> None:
    sent = messages(200)
    async with (
        production(own_broker, redis_server, tmp_path, unique_prefix) as rig,
        rig.relay("run", "--processes", "1") as running,
    ):
        await running.line_with('"started"')
        await rig.produce(sent[:100])
        await rig.until(lambda: len(rig.arrivals()) >= 50)
        own_broker.kill()
        await running.line_with('"waiting"')
        own_broker.start()
        await rig.produce(sent[100:])
        await rig.until(lambda: rig.answered() >= {message.message_id for message in sent})
        assert set(rig.arrivals().values()) == {1}
        assert running.returncode is None


async def test_redis_goes_away_and_comes_back_empty(rig: Rig, redis_server: ValkeyServer) -> None:
    sent = messages(200)
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        await rig.produce(sent[:100])
        await rig.until(lambda: len(rig.answered()) >= 100)
        redis_server.wipe()
        await rig.produce(sent[100:])
        await rig.until(lambda: rig.answered() >= {message.message_id for message in sent})
        recovered = [json.loads(line) for line in running.lines if "state_recovered" in line]
        assert recovered[-1]["after_loss"] is True
        doubled = {message_id for message_id, count in rig.arrivals().items() if count > 1}
        asked = {a.message_id for name in ("circleci", "later") for a in rig.sinks[name].received}
        assert not doubled & asked
