"""Logs that lose their end: in memory, and on a real broker that is killed and loses the end of a segment."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from relay.log.kafka.leader_epochs import Trail
from relay.log.kafka.log import KafkaLog
from relay.log.port import Coordinate, TopicPartition
from tests.contract.cut_contract import CutContract, append, missing, reading
from tests.contract.log_contract import topic_for, unique, values
from tests.contract.test_log_kafka import opened
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.servers.kafka import KafkaBroker, own_broker
from tests.servers.kafka_cut import cut_log

__all__ = ["own_broker"]


class MemoryRig:
    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self.log = MemoryLog(self._broker)

    async def cut(self, at: Coordinate) -> None:
        self._broker.cut(at)


class TestMemoryLogCut(CutContract):
    @pytest_asyncio.fixture
    async def rig(self) -> AsyncIterator[MemoryRig]:
        rig = MemoryRig()
        await rig.log.start()
        yield rig
        await rig.log.close()


class KafkaRig:
    def __init__(self, broker: KafkaBroker, log: KafkaLog) -> None:
        self._broker = broker
        self.log = log

    async def cut(self, at: Coordinate) -> None:
        self._broker.kill()
        cut_log(self._broker, at)
        self._broker.start()


@pytest.mark.kafka
class TestKafkaLogCut(CutContract):
    @pytest_asyncio.fixture
    async def rig(self, own_broker: KafkaBroker) -> AsyncIterator[KafkaRig]:
        async with opened(own_broker.bootstrap) as log:
            yield KafkaRig(own_broker, log)

    async def test_an_offset_of_the_last_release_beyond_the_end_begins_with_the_first_record(
        self, rig: KafkaRig
    ) -> None:
        """It committed no leader epoch: whether the log has grown again below that offset cannot be known."""
        group = unique("group")
        topic = await topic_for(rig.log, group)
        at = TopicPartition(topic, 0)
        await append(rig.log, topic, 10, "old ")
        async with reading(rig.log, group, topic) as before:
            await before.take(10)
            before.consumer._holdings.get(at).trail = Trail()  # type: ignore[attr-defined]
            await before.consumer.commit({at: 10})

        await rig.cut(Coordinate(topic, 0, 5))
        await append(rig.log, topic, 2, "new ")

        async with reading(rig.log, group, topic) as member:
            assert (await missing(member)).lost == {at: (7, 10)}
            await member.consumer.restart([at])
            assert values(await member.take(7)) == [*(b"old %d" % n for n in range(5)), b"new 0", b"new 1"]
