"""Tests of the fetch loop of a process on real brokers: sessions, limits, codecs, and brokers that fail and return."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.kafka_parts import Unsuitable, free_ports, new_cluster_id
from relay.domain.errors import LogUnavailable, OffsetMissing
from relay.log.kafka.cluster import FETCH_BYTES, KafkaSecurity
from relay.log.kafka.cluster import KafkaCluster as Address
from relay.log.kafka.fetch_loop import FetchLoop
from relay.log.kafka.log import KafkaLog
from relay.log.port import Coordinate, NewRecord, TopicPartition
from tests.contract.log_contract import PATIENCE_S, topic_for
from tests.contract.test_log_kafka import KafkaRig, opened, own_broker, until_appended
from tests.fakes.raw_batches import RawBatch, RawRecord, produce_raw
from tests.servers.kafka import Broker, KafkaBroker, unavailable
from tests.servers.kafka_cluster import KafkaCluster
from tests.unit.test_fetch_loop import Reader

__all__ = ["own_broker"]

pytestmark = pytest.mark.kafka


@asynccontextmanager
async def fetching(log: KafkaLog) -> AsyncIterator[Reader]:
    loop = FetchLoop(log._cluster, log._client.layout, log._client.epoch_ends)
    loop.start()
    try:
        yield Reader(loop)
    finally:
        await loop.close()


def places(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(partitions)]


def numbered(topic: str, numbers: range) -> list[NewRecord]:
    return [NewRecord(topic, b"%d" % (n % 50), b"%d" % n) for n in numbers]


async def test_all_records_of_many_topics_come_once_and_in_order(kafka_broker: Broker) -> None:
    """Also records that arrive later, while all partitions wait."""
    async with opened(kafka_broker.bootstrap) as log, fetching(log) as reader, asyncio.timeout(PATIENCE_S):
        topics = [await topic_for(log, partitions=3) for _ in range(10)]
        for topic in topics:
            await log.append(numbered(topic, range(100)))
        everywhere = [at for topic in topics for at in places(topic, 3)]
        reader.open(*everywhere[:15])
        await reader.until(500, at_a_time=70)
        reader.open(*everywhere[15:])
        await reader.until(500)
        for number, topic in enumerate(topics):
            await log.append(numbered(topic, range(100, 103)))
            reader.loop.pause(everywhere[number : number + 2])
            await asyncio.sleep(0)
            reader.loop.resume(everywhere)
        await reader.until(30)
        for at in everywhere:
            offsets = reader.offsets(at)
            assert offsets == list(range(len(offsets)))
        assert len({(record.topic, record.value) for record in reader.records}) == 1030


@pytest.mark.parametrize("codec", range(5))
async def test_batches_of_every_codec_and_such_as_are_damaged_inside(kafka_broker: Broker, codec: int) -> None:
    async with opened(kafka_broker.bootstrap) as log, fetching(log) as reader, asyncio.timeout(PATIENCE_S):
        topic = await topic_for(log)
        good = RawBatch([RawRecord(value=b"%d" % n) for n in range(3)], codec=codec)
        bad = RawBatch([RawRecord(value=b"3"), RawRecord(headers=[(b"\xff", b"")]), RawRecord(value=b"5")], codec=codec)
        for batch in (good, bad, good):
            await produce_raw(log, topic, batch)
        reader.open(TopicPartition(topic, 0), offset=1)
        values = await reader.until(8, at_a_time=1)
        assert values == [b"1", b"2", b"3", b"value", b"5", b"0", b"1", b"2"]
        assert [record.offset for record in reader.records if record.flaw] == [4]


async def test_a_record_that_is_larger_than_any_limit_of_a_fetch(kafka_broker: Broker) -> None:
    async with opened(kafka_broker.bootstrap, request_timeout_ms=15_000) as log, fetching(log) as reader:
        async with asyncio.timeout(PATIENCE_S):
            topic = await topic_for(log, partitions=2)
            large = os.urandom(8 * FETCH_BYTES)
            await produce_raw(log, topic, RawBatch([RawRecord(value=b"0")]))
            await log.append([NewRecord(topic, b"k", large), NewRecord(topic, b"k", b"after")])
            for at in places(topic, 2):
                await produce_raw(log, topic, RawBatch([RawRecord(value=b"last")]), partition=at.partition)
            reader.open(*places(topic, 2))
            assert sorted(filter(None, await reader.until(5)), key=len) == [b"0", b"last", b"last", b"after", large]


async def test_an_offset_that_retention_has_passed(kafka_broker: Broker) -> None:
    rig = KafkaRig(kafka_broker.bootstrap)
    await rig.log.start()
    log = rig._client
    try:
        async with fetching(log) as reader, asyncio.timeout(PATIENCE_S):
            topic = await topic_for(log)
            at = TopicPartition(topic, 0)
            await log.append([NewRecord(topic, b"k", b"%d" % n) for n in range(9)])
            await rig.drop_before(Coordinate(*at, 5))
            reader.open(at)
            error = await reader.until_raised(OffsetMissing)
            assert isinstance(error, OffsetMissing)
            assert error.partitions == {at}
            reader.open(at, offset=5)
            assert await reader.until(4) == [b"5", b"6", b"7", b"8"]
            reader.open(at, offset=99)
            await reader.until_raised(OffsetMissing)
    finally:
        await log.close()


@pytest.mark.parametrize("failure", ["freeze", "kill"])
async def test_a_broker_that_goes_and_comes_back(own_broker: KafkaBroker, failure: str) -> None:
    async with opened(own_broker.bootstrap) as log, fetching(log) as reader, asyncio.timeout(PATIENCE_S):
        topic = await topic_for(log, partitions=2)
        await log.append(numbered(topic, range(10)))
        reader.open(*places(topic, 2))
        await reader.until(10)
        getattr(own_broker, failure)()
        with pytest.raises(LogUnavailable):
            await log.append(numbered(topic, range(10, 11)))
        assert reader.loop.take(reader.partitions, 10) == {}
        if failure == "freeze":
            own_broker.thaw()
        else:
            await asyncio.to_thread(own_broker.start)
        await until_appended(log, [NewRecord(topic, b"k", b"last")], asyncio.Event())
        while b"last" not in {record.value for record in reader.records}:
            await reader.until(1)
        for at in places(topic, 2):
            offsets = reader.offsets(at)
            assert offsets == list(range(len(offsets)))


_SECURE = """
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},SECURE://127.0.0.1:{secure}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SECURE://127.0.0.1:{secure}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.certificate.chain={chain}
ssl.keystore.key={key}
"""


@pytest.fixture
def secure_broker(certificate: Path) -> Iterator[tuple[KafkaBroker, KafkaSecurity, str]]:
    """A broker with an additional listener for TLS and passwords, its security settings, and its address."""
    if "RELAY_TEST_KAFKA" in os.environ:
        pytest.skip("RELAY_TEST_KAFKA: no other broker is started")
    [port, *ports] = free_ports(3)
    chain, key = ("\\n".join(path.read_text().splitlines()) for path in (certificate, certificate.with_suffix(".key")))
    user = ("-t", new_cluster_id(), "--add-scram", "SCRAM-SHA-512=[name=relay,password=secret]")
    try:
        more = _SECURE.format(secure=port, chain=chain, key=key)
        broker = KafkaBroker(more, ports=(ports[0], ports[1]), fresh=user)
    except Unsuitable as reason:
        unavailable(str(reason))
    security = KafkaSecurity("SASL_SSL", user="relay", password="secret", ca_file=str(certificate))
    try:
        broker.start()
        yield broker, security, f"127.0.0.1:{port}"
    finally:
        broker.stop()


async def test_over_tls_and_with_a_password(secure_broker: tuple[KafkaBroker, KafkaSecurity, str]) -> None:
    _, security, bootstrap = secure_broker
    log = KafkaLog(Address(bootstrap, security=security))
    await log.start()
    try:
        async with fetching(log) as reader, asyncio.timeout(PATIENCE_S):
            topic = await topic_for(log, partitions=2)
            reader.open(*places(topic, 2))
            await log.append(numbered(topic, range(100)))
            await reader.until(100)
    finally:
        await log.close()


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    if "RELAY_TEST_KAFKA" in os.environ:
        pytest.skip("RELAY_TEST_KAFKA: no other broker is started")
    try:
        cluster = KafkaCluster()
    except Unsuitable as reason:
        unavailable(str(reason))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def test_leaders_that_go_and_come_back_cost_no_record_and_double_none(cluster: KafkaCluster) -> None:
    async with opened(cluster.bootstrap, request_timeout_ms=5_000) as log, fetching(log) as reader:
        async with asyncio.timeout(90):
            topic = await topic_for(log, partitions=6)
            reader.open(*places(topic, 6))
            await log.append(numbered(topic, range(100)))
            await reader.until(100)
            assert len({at.leader for at in (await log._client.topics([topic]))[topic]}) == 3
            for number, (node, failure) in enumerate(zip(cluster.nodes, ("freeze", "kill"), strict=False)):
                getattr(node, failure)()
                records = numbered(topic, range(100 * number, 100 * number + 100))
                at = await until_appended(log, records, asyncio.Event())
                ends = {TopicPartition(each.topic, each.partition): each.offset for each in at}
                while any(reader.offsets(place)[-1] < end for place, end in ends.items()):
                    await reader.until(1)
                node.thaw() if failure == "freeze" else await asyncio.to_thread(node.start)
            for place in places(topic, 6):
                offsets = reader.offsets(place)
                assert offsets == list(range(len(offsets)))
