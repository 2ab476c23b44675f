"""Fixtures of the integration tests: Redis, and relay processes on Kafka with receivers."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from relay.sink import ReceivedPost, Sink
from tests.integration.production import CALLBACK_SECRET, SECRETS, Rig, receivers_file
from tests.servers.kafka import Broker
from tests.servers.valkey import ValkeyServer


@pytest.fixture(scope="module")
def redis_server() -> Iterator[ValkeyServer]:
    server = ValkeyServer(fsync="everysec", options=("--maxmemory-policy", "noeviction"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def rig(
    kafka_broker: Broker, redis_server: ValkeyServer, tmp_path: Path, unique_prefix: str
) -> AsyncIterator[Rig]:
    async with production(kafka_broker, redis_server, tmp_path, unique_prefix) as rig:
        yield rig


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
    for sink in (*sinks.values(), callback):
        await sink.start()
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
    for sink in (*sinks.values(), callback):
        await sink.stop()
