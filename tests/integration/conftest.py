"""Fixtures of the integration tests: Redis, and relay processes on Kafka with receivers."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from relay.sink import ReceivedPost, Sink
from tests.integration.production import CALLBACK_SECRET, SECRETS, Engine, Rig, receivers_file
from tests.servers.http import started
from tests.servers.kafka import Broker
from tests.servers.process import relay_dev
from tests.servers.valkey import ValkeyServer


@pytest.fixture(scope="module")
def redis_server() -> Iterator[ValkeyServer]:
    with ValkeyServer(fsync="everysec", options=("--maxmemory-policy", "noeviction")) as server:
        yield server


@pytest.fixture
async def rig(
    kafka_broker: Broker, redis_server: ValkeyServer, tmp_path: Path, unique_prefix: str
) -> AsyncIterator[Rig]:
    async with production(kafka_broker, redis_server, tmp_path, unique_prefix) as rig:
        yield rig


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def engine(request: pytest.FixtureRequest, tmp_path: Path, unique_prefix: str) -> Engine:
    """Runs a relay with these receivers and settings on either engine, with a history. Yields the URL of its API."""
    servers = [request.getfixturevalue(name) for name in ("kafka_broker", "redis_server") if request.param == "kafka"]

    @asynccontextmanager
    async def running(receivers: str, **settings: str) -> AsyncIterator[str]:
        if not servers:
            (tmp_path / "receivers.yaml").write_text(receivers)
            async with relay_dev(tmp_path, "--no-demo", environ=settings) as dev:
                yield dev.value_of("API")
            return
        broker, redis_server = servers
        async with production(broker, redis_server, tmp_path, unique_prefix) as rig:
            (tmp_path / "receivers.yaml").write_text(receivers)
            rig.environ |= settings | {"RELAY_HISTORY_URL": f"sqlite://{tmp_path}/history.db"}
            async with rig.relay("run", "--processes", "1") as process:
                yield json.loads(await process.line_with('"started"'))["api"]

    return running


@asynccontextmanager
async def production(
    broker: Broker, redis_server: ValkeyServer, tmp_path: Path, unique_prefix: str
) -> AsyncIterator[Rig]:
    """A rig with receivers, a callback and a producer, on created topics; tests start the relay processes."""
    changed = asyncio.Event()

    def notify(arrival: ReceivedPost) -> None:
        changed.set()

    sinks = {
        "circleci": Sink("answer", secret=SECRETS["circleci"], on_arrival=notify),
        "later": Sink("later", secret=SECRETS["later"], later_polls=1, on_arrival=notify),
        "nostatus": Sink("answer", secret=SECRETS["nostatus"], on_arrival=notify),
    }
    callback = Sink("answer", secret=CALLBACK_SECRET, on_arrival=notify)
    async with started(*sinks.values(), callback):
        (tmp_path / "receivers.yaml").write_text(json.dumps(receivers_file(sinks, callback)))
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", max_request_size=2**21)
        environ = {
            "RELAY_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
            "RELAY_REDIS_URL": redis_server.url,
            "RELAY_TOPIC_PREFIX": unique_prefix,
            "RELAY_KAFKA_SESSION_TIMEOUT": "6s",
            "RELAY_ALLOW_PRIVATE_NETWORKS": "127.0.0.0/8",
            "RELAY_API_PORT": "0",
            "CIRCLECI_SECRET": SECRETS["circleci"],
        }
        rig = Rig(environ, tmp_path, sinks, callback, producer, f"{unique_prefix}from_sender", changed)
        async with rig.relay("topics", "apply") as applying:
            output = await applying.finish()
        assert applying.returncode == 0, output
        await producer.start()
        yield rig
        await producer.stop()
