"""What the client library's producer sends, without a broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataResponse_v0
from aiokafka.protocol.produce import ProduceRequest, ProduceResponse_v3

from relay.log.kafka import producer as kafka_producer
from relay.log.kafka.accumulator import Accumulator
from relay.log.partitioner import partition_of
from relay.log.port import NewRecord

PARTITIONS: Final = 12
NODE: Final = 1
MOST_BYTES: Final = 4_000
"""Of one request: the broker closes the connection at more."""

KEYS: Final = {partition_of(b"%d" % n, PARTITIONS): b"%d" % n for n in range(200)}


class Broker:
    """The leader of all partitions of `t`, in place of a connection. `sizes`: of the requests that it took."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def send(self, _node: int, request: ProduceRequest, **_: object) -> Any:
        sent = request.prepare({ProduceRequest.API_KEY: (0, 3)})
        await asyncio.sleep(0)
        if (size := len(sent.encode())) > MOST_BYTES:
            raise KafkaConnectionError("the connection was lost")
        self.sizes.append(size)
        return ProduceResponse_v3(
            topics=[(topic, [(number, 0, 0, -1) for number, _ in rows]) for topic, rows in sent.topics],
            throttle_time_ms=0,
        )


@pytest.fixture
async def broker() -> Broker:
    return Broker()


@pytest.fixture
async def appending(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Accumulator]:
    monkeypatch.setattr(kafka_producer, "_REQUEST_BYTES", MOST_BYTES - 1_000, raising=False)
    producer = AIOKafkaProducer(acks="all", request_timeout_ms=1_000, max_batch_size=1_000)
    producer.client.cluster.update_metadata(
        MetadataResponse_v0(
            brokers=[(NODE, "127.0.0.1", 9)],
            topics=[(0, "t", [(0, number, NODE, [NODE], [NODE]) for number in range(PARTITIONS)])],
        )
    )
    producer.client.send = broker.send
    accumulator = Accumulator(kafka_producer._LibrarySender(producer, {}), 10_000, 5.0)
    await producer._sender.start()
    yield accumulator
    await producer.stop()


@pytest.mark.timeout(60)
async def test_many_large_records_go_in_several_requests_that_the_broker_takes(
    appending: Accumulator, broker: Broker
) -> None:
    """As after an outage, when every lane appends at once. A request that is too large is sent again as it was."""
    records = [NewRecord("t", key, bytes(900)) for key in KEYS.values()]
    assert not appending.unknown(records)
    assert len(await appending.append(records)) == PARTITIONS
    assert len(broker.sizes) > 1


@pytest.mark.timeout(60)
async def test_small_records_of_all_partitions_share_a_request(appending: Accumulator, broker: Broker) -> None:
    records = [NewRecord("t", key, b"x") for key in KEYS.values()]
    assert not appending.unknown(records)
    await appending.append(records)
    assert len(broker.sizes) == 1
