"""A broker that comes back with a shorter log: what was read and is gone is told, and what took its place is read."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from relay.domain.errors import LogUnavailable, OffsetMissing
from relay.log.kafka.consumer import Lost
from relay.log.kafka.log import KafkaLog
from relay.log.kafka.trail import Trail
from relay.log.port import Coordinate, NewRecord, Record, TopicPartition
from tests.contract.log_contract import PATIENCE_S, Member, settle, started, topic_for, unique, values
from tests.contract.test_log_kafka import opened
from tests.servers.kafka import KafkaBroker, own_broker
from tests.servers.kafka_cut import cut_log

__all__ = ["own_broker"]

pytestmark = pytest.mark.kafka


async def append(log: KafkaLog, topic: str, numbers: range, name: str = "") -> None:
    """One batch each, so that any of them can be cut off."""
    for number in numbers:
        await log.append([NewRecord(topic, b"key", f"{name}{number}".encode())])


async def come_back_shorter(broker: KafkaBroker, log: KafkaLog, topic: str, end: int, grown: int) -> None:
    """What was acknowledged from `end` on is lost, and `grown` records follow before anything else is done."""
    broker.kill()
    cut_log(broker, Coordinate(topic, 0, end))
    broker.start()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await log.append([NewRecord(topic, b"key", b"new 0")])
                break
            except LogUnavailable:
                continue
    await append(log, topic, range(1, grown), "new ")


@asynccontextmanager
async def reading(log: KafkaLog, group: str, topic: str) -> AsyncIterator[Member]:
    member = await started(Member(log, group, topic))
    yield member
    await member.consumer.close()


async def missing(member: Member) -> OffsetMissing:
    while True:
        try:
            await settle([member], lambda: False)
        except LogUnavailable:
            continue
        except OffsetMissing as error:
            return error


async def diverged(follower: AsyncGenerator[Record | None, None], log: KafkaLog, topic: str, start: int) -> Lost:
    """What it says was lost, when it was begun anew as often as the broker was away."""
    while True:
        try:
            assert await anext(follower) is None
        except (LogUnavailable, StopAsyncIteration):
            follower = log.follow(topic, start=start)
        except OffsetMissing as error:
            return error.lost


async def test_messages_behind_the_cut_are_read_although_the_log_has_grown_beyond_what_was_committed(
    own_broker: KafkaBroker,
) -> None:
    group = unique("group")
    async with opened(own_broker.bootstrap) as log:
        topic = await topic_for(log, group)
        at = TopicPartition(topic, 0)
        await append(log, topic, range(30))
        async with reading(log, group, topic) as before:
            await before.take(30)
            await before.consumer.commit({at: 30})

        await come_back_shorter(own_broker, log, topic, 20, 15)

        async with reading(log, group, topic) as member:
            error = await missing(member)
            assert error.lost == {at: (20, 30)}
            await member.consumer.restart([at])
            assert values(await member.take(15)) == [b"new %d" % n for n in range(15)]
            await member.consumer.commit({at: 35})
        assert await log.lag(group, topic) == 0


async def test_who_reads_on_while_the_broker_is_away_notices(own_broker: KafkaBroker) -> None:
    """Also where the offset was never committed, and twice in a row."""
    group = unique("group")
    async with opened(own_broker.bootstrap) as log:
        topic = await topic_for(log, group)
        at = TopicPartition(topic, 0)
        await append(log, topic, range(10))
        async with reading(log, group, topic) as member:
            await member.take(10)
            for end, grown in ((6, 8), (4, 10)):
                await come_back_shorter(own_broker, log, topic, end, grown)
                error = await missing(member)
                assert [first for first, _ in error.lost.values()] == [end]
                await member.consumer.restart([at])
                assert values(await member.take(grown)) == [b"new %d" % n for n in range(grown)]


async def test_an_offset_of_the_last_release_beyond_the_end_begins_with_the_first_record(
    own_broker: KafkaBroker,
) -> None:
    """It committed no leader epoch: whether the log has grown again below that offset cannot be known."""
    group = unique("group")
    async with opened(own_broker.bootstrap) as log:
        topic = await topic_for(log, group)
        at = TopicPartition(topic, 0)
        await append(log, topic, range(10))
        async with reading(log, group, topic) as before:
            await before.take(10)
            before.consumer._holdings.get(at).trail = Trail()  # type: ignore[attr-defined]
            await before.consumer.commit({at: 10})

        await come_back_shorter(own_broker, log, topic, 5, 2)

        async with reading(log, group, topic) as member:
            error = await missing(member)
            assert error.lost == {at: (7, 10)}
            await member.consumer.restart([at])
            assert values(await member.take(7)) == [b"0", b"1", b"2", b"3", b"4", b"new 0", b"new 1"]


async def test_a_follower_reads_anew_what_it_followed(own_broker: KafkaBroker) -> None:
    async with opened(own_broker.bootstrap) as log:
        topic = await topic_for(log, cleanup="compact")
        for number in range(6):
            await log.append([NewRecord(topic, b"key-%d" % number, b"old")])
        follower = log.follow(topic)
        assert [await anext(follower) is None for _ in range(7)] == [False] * 6 + [True]

        own_broker.kill()
        cut_log(own_broker, Coordinate(topic, 0, 4))
        own_broker.start()
        async with asyncio.timeout(PATIENCE_S):
            for number in range(3):
                while True:
                    try:
                        await log.append([NewRecord(topic, b"key-%d" % number, b"new")])
                        break
                    except LogUnavailable:
                        continue
            assert await diverged(follower, log, topic, 6) == {TopicPartition(topic, 0): (4, 6)}
