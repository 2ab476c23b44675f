"""The contract for transactions of other producers, in memory and on a real broker."""

import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer

from relay.log.kafka.cluster import Isolation, KafkaCluster
from relay.log.kafka.log import KafkaLog
from relay.log.port import Coordinate, NewRecord
from tests.contract.log_contract import Member, started, topic_for, values
from tests.contract.transaction_contract import GROUP, TransactionContract, named
from tests.fakes.log import MemoryBroker, MemoryLog, MemoryTransaction
from tests.log_reads import lag
from tests.servers.kafka import Broker


class MemoryRig:
    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self.log = MemoryLog(self._broker)

    async def transaction(self) -> MemoryTransaction:
        return self._broker.transaction()


class TestMemoryTransactions(TransactionContract):
    @pytest_asyncio.fixture
    async def rig(self) -> AsyncIterator[MemoryRig]:
        rig = MemoryRig()
        await rig.log.start()
        yield rig
        await rig.log.close()


class KafkaTransaction:
    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._is_open = False

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        if not self._is_open:
            await self._producer.begin_transaction()
            self._is_open = True
        told = [await self._producer.send_and_wait(each.topic, each.value, key=each.key) for each in records]
        return [Coordinate(each.topic, each.partition, each.offset) for each in told]

    async def commit(self) -> None:
        await self._producer.commit_transaction()
        self._is_open = False

    async def abort(self) -> None:
        await self._producer.abort_transaction()
        self._is_open = False


class KafkaRig:
    def __init__(self, bootstrap: str, isolation: Isolation = Isolation.READ_COMMITTED) -> None:
        self._bootstrap = bootstrap
        self._producers: list[AIOKafkaProducer] = []
        self.log = KafkaLog(
            KafkaCluster(bootstrap, isolation=isolation), session_timeout_ms=10_000, heartbeat_interval_ms=100
        )

    async def transaction(self) -> KafkaTransaction:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=uuid.uuid4().hex)
        await producer.start()
        self._producers.append(producer)
        return KafkaTransaction(producer)

    async def close(self) -> None:
        for producer in self._producers:
            await producer.stop()
        await self.log.close()


@pytest.mark.kafka
class TestKafkaTransactions(TransactionContract):
    @pytest_asyncio.fixture
    async def rig(self, kafka_broker: Broker) -> AsyncIterator[KafkaRig]:
        rig = KafkaRig(kafka_broker.bootstrap)
        await rig.log.start()
        yield rig
        await rig.close()


@pytest.mark.kafka
async def test_who_asks_for_it_reads_what_is_not_committed(kafka_broker: Broker) -> None:
    rig = KafkaRig(kafka_broker.bootstrap, Isolation.READ_UNCOMMITTED)
    await rig.log.start()
    try:
        topic = await topic_for(rig.log, GROUP)
        producer = await rig.transaction()
        await producer.append(named(topic, "open"))
        member = await started(Member(rig.log, GROUP, topic))
        assert values(await member.take(1)) == [b"open"]
        assert await lag(rig.log, GROUP, topic) == 1
    finally:
        await rig.close()
