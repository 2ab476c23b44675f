"""The log contract on the in-memory log, and its simulated crashes and outages."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from relay.domain.errors import ConsumerClosed, LogUnavailable, OffsetMissing, PartitionLost
from relay.log.port import Coordinate, Log, NewRecord, TopicPartition
from tests.contract.log_contract import LogContract, Member, keyed, settle, started, topic_for, values
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.log_reads import lag


class MemoryRig:
    max_message_bytes = 200_000

    def __init__(self) -> None:
        self.broker = MemoryBroker(max_message_bytes=self.max_message_bytes)
        self._client = MemoryLog(self.broker)
        self.log: Log = self._client

    async def reopen(self) -> Log:
        self._client.crash()
        self._client = MemoryLog(self.broker)
        self.log = self._client
        await self.log.start()
        return self.log

    def another(self) -> Log:
        return MemoryLog(self.broker)

    async def drop_before(self, at: Coordinate) -> None:
        self.broker.drop_before(at)

    async def spoil(self, topic: str) -> None:
        self.broker.spoil(topic)

    async def expel(self, consumer: Any) -> None:
        await consumer.store.take(consumer.group.name, dict.fromkeys(consumer._owned))


class TestMemoryLog(LogContract):
    @pytest_asyncio.fixture
    async def rig(self) -> AsyncIterator[MemoryRig]:
        rig = MemoryRig()
        await rig.log.start()
        yield rig
        await rig.log.close()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


async def client(broker: MemoryBroker) -> MemoryLog:
    log = MemoryLog(broker)
    await log.start()
    return log


async def test_members_of_another_process_take_over_from_one_that_crashed(broker: MemoryBroker) -> None:
    one, two = await client(broker), await client(broker)
    topic = await topic_for(one, "group", partitions=2)
    first, second = await started(Member(one, "group", topic)), await started(Member(two, "group", topic))
    await settle([first, second], lambda: len(first.owned) == len(second.owned) == 1)

    told = list(first.revocations)

    one.crash()
    with pytest.raises(ConsumerClosed):
        await first.poll()
    await settle([second], lambda: len(second.owned) == 2)

    assert first.revocations == told
    with pytest.raises(LogUnavailable):
        await one.append([NewRecord(topic, b"k", b"v")])


async def test_a_member_that_was_put_out_is_told_and_comes_back(broker: MemoryBroker) -> None:
    log = await client(broker)
    topic = await topic_for(log, "group")
    member = await started(Member(log, "group", topic))
    at = TopicPartition(topic, 0)
    epoch = member.owned[at]

    log.expel()

    with pytest.raises(PartitionLost):
        await member.consumer.commit({at: 0})
    await settle([member], lambda: member.owned.get(at, 0) > epoch)
    assert member.revocations == [at]


@pytest.mark.parametrize("when", ["fetch", "first"])
async def test_a_partition_that_is_restarted_while_its_offset_is_found_missing_begins_again(
    broker: MemoryBroker, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await client(broker)
    topic = await topic_for(log, "group")
    at = TopicPartition(topic, 0)
    await log.append(keyed(topic, 3))
    member = await started(Member(log, "group", topic))
    await settle([member], lambda: at in member.owned)
    broker.drop_before(Coordinate(topic, 0, 2))
    begun, go_on, call = asyncio.Event(), asyncio.Event(), getattr(log, when)

    async def slow(*arguments: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await call(*arguments)

    monkeypatch.setattr(log, when, slow)
    polling = asyncio.create_task(member.poll())
    await begun.wait()
    await member.consumer.restart([at])
    go_on.set()
    with pytest.raises(OffsetMissing):
        await polling

    with pytest.raises(OffsetMissing):
        await settle([member], lambda: False)
    await member.consumer.restart([at])
    assert values(await member.take(1)) == [b"2"]


async def test_while_the_broker_is_away_every_call_says_so(broker: MemoryBroker) -> None:
    log = await client(broker)
    topic = await topic_for(log, "group")
    member = await started(Member(log, "group", topic))

    broker.available = False
    for call in (log.append(keyed(topic, 1)), lag(log, "group", topic), member.poll()):
        with pytest.raises(LogUnavailable):
            await call

    broker.available = True
    await log.append(keyed(topic, 1))
    assert values(await member.take(1)) == [b"0"]
