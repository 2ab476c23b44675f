"""Test of a broker that answers but cannot serve groups yet: commands wait for it, up to a limit, and log it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.kafka_parts import Unsuitable
from tests.servers.kafka import KafkaBroker, unavailable
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.kafka

TOO_FEW_BROKERS = "\noffsets.topic.replication.factor=2\n"


@pytest.fixture
def young_broker() -> Iterator[KafkaBroker]:
    """A broker that cannot create its offsets topic, because that needs more brokers."""
    if "RELAY_TEST_KAFKA" in os.environ:
        pytest.skip("RELAY_TEST_KAFKA: no other broker is started")
    try:
        broker = KafkaBroker(TOO_FEW_BROKERS)
    except Unsuitable as reason:
        unavailable(str(reason))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def applying(broker: KafkaBroker, cwd: Path, wait: str) -> RelayProcess:
    environ = {"RELAY_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap, "RELAY_KAFKA_WAIT": wait}
    return RelayProcess("topics", "apply", cwd=cwd, environ=environ)


async def test_topics_apply_waits_for_the_first_group_coordinator(young_broker: KafkaBroker, tmp_path: Path) -> None:
    async with applying(young_broker, tmp_path, "3s") as gives_up:
        output = await gives_up.finish()
    assert gives_up.returncode == 1
    assert "Traceback" not in output
    [waiting, error] = output.splitlines()
    assert waiting.startswith("waiting, for up to 3s (RELAY_KAFKA_WAIT): Kafka: ")
    assert error.startswith("error: Kafka: ")
    assert "offsets.topic.replication.factor" in error
    assert error.endswith("waited 3s for it (RELAY_KAFKA_WAIT)")

    async with applying(young_broker, tmp_path, "2m") as waits:
        await waits.line_with("waiting, for up to 2m")
        grown = young_broker.properties.read_text().replace(TOO_FEW_BROKERS, "\n")
        young_broker.properties.write_text(grown)
        await asyncio.to_thread(young_broker.restart)
        output = await waits.finish()
    assert waits.returncode == 0, output
    assert output.splitlines()[-1].startswith("0 created"), "the first call made the topics, and no offsets"
