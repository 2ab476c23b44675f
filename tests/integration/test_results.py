"""Tests of the results that a sender gets, read by its own Kafka consumer and a standard verifier."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest
from aiokafka import AIOKafkaConsumer
from standardwebhooks import Webhook

from relay.domain.identity import DeliveryId, callback_id, webhook_id
from tests.integration.production import CALLBACK_SECRET, TIMEOUT_S, Rig, Sent

pytestmark = pytest.mark.kafka

CONSUMER = "consumer"
"""A source that reads its results from the topic."""


@dataclass(frozen=True)
class Result:
    headers: Mapping[str, str]
    body: bytes


@pytest.fixture
async def results(rig: Rig) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of the topic `to_sender`, from its beginning."""
    consumer = AIOKafkaConsumer(
        f"{rig.environ['RELAY_TOPIC_PREFIX']}to_sender",
        bootstrap_servers=rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"],
        auto_offset_reset="earliest",
    )
    await consumer.start()
    yield consumer
    await consumer.stop()


async def read(consumer: AIOKafkaConsumer, count: int) -> dict[str, Result]:
    """The next `count` results, by message id."""
    found: dict[str, Result] = {}
    while len(found) < count:
        record = await consumer.getone()
        headers = {name: value.decode() for name, value in record.headers}
        found[headers["relay-message-id"]] = Result(headers, record.value)
    return found


def consumed_by_the_sender(rig: Rig) -> None:
    """Let the source CONSUMER read its results itself."""
    file = rig.cwd / "receivers.yaml"
    declared = json.loads(file.read_text())
    declared["sources"][CONSUMER] = {"callback": "kafka"}
    file.write_text(json.dumps(declared))


async def test_a_consumer_finds_the_headers_of_a_callback_on_every_record(rig: Rig, results: AIOKafkaConsumer) -> None:
    consumed_by_the_sender(rig)
    good, bad = Sent(1, CONSUMER, "circleci", b"{}"), Sent(3, CONSUMER, "nobody", b"{}")
    async with rig.relay("run", "--processes", "1"):
        await rig.produce([good, bad])
        async with asyncio.timeout(TIMEOUT_S):
            found = await read(results, 2)

    answer, notice = found[good.message_id], found[bad.message_id]
    ids = DeliveryId("circleci", CONSUMER, good.message_id)
    assert answer.headers["webhook-id"] == callback_id(ids, 0, failed=False)
    assert (answer.headers["relay-source"], answer.headers["relay-receiver"]) == (CONSUMER, "circleci")
    assert (answer.headers["relay-outcome"], answer.headers["relay-answer-status"]) == ("answered", "200")
    assert answer.headers["relay-callback"] == "kafka"

    ids = DeliveryId("nobody", CONSUMER, bad.message_id)
    assert notice.headers["webhook-id"] == callback_id(ids, 0, failed=True)
    assert (notice.headers["relay-source"], notice.headers["relay-receiver"]) == (CONSUMER, "nobody")
    assert (notice.headers["relay-outcome"], notice.headers["relay-reason"]) == ("failed", "unknown_receiver")
    assert "relay-callback" not in notice.headers
    assert notice.headers["content-type"] == "application/problem+json"
    assert json.loads(notice.body)["reason"] == "unknown_receiver"


async def test_a_failure_notice_passes_a_standard_verifier(rig: Rig) -> None:
    sent = Sent(1, "source-1", "nobody", b"{}")
    async with rig.relay("run", "--processes", "1"):
        await rig.produce([sent])
        await rig.until(lambda: bool(rig.callback.received))
    [notice] = rig.callback.received
    told = Webhook(CALLBACK_SECRET).verify(notice.body, dict(notice.headers))
    assert notice.headers["content-type"] == "application/problem+json"
    assert (told["type"], told["reason"]) == ("/problems/unknown-receiver", "unknown_receiver")
    assert (told["source_id"], told["message_id"], told["receiver"]) == ("source-1", sent.message_id, "nobody")
    assert told["webhook_id"] == webhook_id("source-1", sent.message_id)
    assert "nobody" in told["detail"]
