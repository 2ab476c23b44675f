"""Contract tests of the log port for a broker that returns without the last records of a partition.

The log reports the lost records that were read already, and reads what replaced them. A subclass named Test... provides
the fixture `rig`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from relay.domain.errors import LogUnavailable, OffsetMissing
from relay.log.port import Coordinate, Log, NewRecord, Record, TopicPartition
from tests.contract.log_contract import PATIENCE_S, Member, grouped_topic, settle, started, topic_for, values
from tests.log_reads import lag

Lost = Mapping[tuple[str, int], tuple[int, int]]


class CutRig(Protocol):
    log: Log

    async def cut(self, at: Coordinate) -> None:
        """The broker loses the records of that partition from `at` on, and is available again."""
        ...


async def append(log: Log, topic: str, count: int, name: str) -> None:
    """One batch per record, so that each can be cut off. Repeats an append that fails while the broker is away."""
    for number in range(count):
        while True:
            try:
                await log.append([NewRecord(topic, b"key-%d" % (number % 3), f"{name}{number}".encode())])
                break
            except LogUnavailable:
                continue


@asynccontextmanager
async def reading(log: Log, group: str, topic: str) -> AsyncIterator[Member]:
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


async def committed_and_replaced(rig: CutRig) -> tuple[str, str, TopicPartition]:
    """A group has committed 30 records, of which the log has lost the last 10; 15 others have taken their place."""
    group, topic = await grouped_topic(rig.log)
    at = TopicPartition(topic, 0)
    await append(rig.log, topic, 30, "old ")
    async with reading(rig.log, group, topic) as before:
        await before.take(30)
        await before.consumer.commit({at: 30})
        assert [each.finished for each in await rig.log.backlogs({topic: group})] == [30]

    await rig.cut(Coordinate(topic, 0, 20))
    await append(rig.log, topic, 15, "new ")
    return group, topic, at


class CutContract:
    async def test_a_log_that_has_grown_beyond_what_was_committed_is_read_from_the_cut_on(self, rig: CutRig) -> None:
        group, topic, at = await committed_and_replaced(rig)
        async with reading(rig.log, group, topic) as member:
            error = await missing(member)
            assert error.lost == {at: (20, 30)}
            await member.consumer.restart([at])
            assert values(await member.take(15)) == [b"new %d" % n for n in range(15)]
            await member.consumer.commit({at: 35})
        assert await lag(rig.log, group, topic) == 0

    async def test_a_member_that_reads_on_notices_each_time(self, rig: CutRig) -> None:
        group, topic = await grouped_topic(rig.log)
        at = TopicPartition(topic, 0)
        await append(rig.log, topic, 10, "old ")
        async with reading(rig.log, group, topic) as member:
            await member.take(10)
            for end, grown in ((6, 8), (4, 10)):
                await member.consumer.commit(member.ends([at]))
                await rig.cut(Coordinate(topic, 0, end))
                await append(rig.log, topic, grown, "new ")
                error = await missing(member)
                assert [first for first, _ in error.lost.values()] == [end]
                await member.consumer.restart([at])
                assert values(await member.take(grown)) == [b"new %d" % n for n in range(grown)]

    async def test_what_was_read_before_the_cut_and_not_finished_is_read_again(self, rig: CutRig) -> None:
        group, topic = await grouped_topic(rig.log)
        at = TopicPartition(topic, 0)
        await append(rig.log, topic, 10, "old ")
        async with reading(rig.log, group, topic) as member:
            await member.take(10)
            await member.consumer.commit({at: 3})

            await rig.cut(Coordinate(topic, 0, 5))
            await append(rig.log, topic, 6, "new ")

            assert (await missing(member)).lost == {at: (5, 10)}
            await member.consumer.restart([at])
            assert values(await member.take(8)) == [b"old 3", b"old 4", *(b"new %d" % n for n in range(6))]

    async def test_a_cut_behind_what_was_read_is_none_of_its_business(self, rig: CutRig) -> None:
        group, topic = await grouped_topic(rig.log)
        await append(rig.log, topic, 10, "old ")
        async with reading(rig.log, group, topic) as before:
            await before.consumer.poll(max_records=4, timeout_s=5)
            await before.consumer.commit({TopicPartition(topic, 0): 4})

        await rig.cut(Coordinate(topic, 0, 6))
        await append(rig.log, topic, 2, "new ")

        async with reading(rig.log, group, topic) as member:
            assert values(await member.take(4)) == [b"old 4", b"old 5", b"new 0", b"new 1"]

    async def test_a_scan_ends_though_the_log_has_lost_the_end_that_it_began_with(self, rig: CutRig) -> None:
        topic = await topic_for(rig.log)
        await append(rig.log, topic, 30, "old ")
        scan = rig.log.scan(topic, 0, batch=20)
        assert values(await anext(scan)) == [b"old %d" % n for n in range(20)]

        await rig.cut(Coordinate(topic, 0, 20))

        async with asyncio.timeout(PATIENCE_S):
            with suppress(LogUnavailable):
                async for found in scan:
                    assert found

    async def test_a_follower_is_to_read_anew_what_it_followed(self, rig: CutRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        await append(rig.log, topic, 6, "old ")
        end = (await rig.log.ends([TopicPartition(topic, 0)]))[TopicPartition(topic, 0)]
        follower = rig.log.follow(topic)
        while await anext(follower) is not None:
            pass

        await rig.cut(Coordinate(topic, 0, 4))
        await append(rig.log, topic, 3, "new ")

        async with asyncio.timeout(PATIENCE_S):
            assert await self._diverged(rig.log, topic, follower, end) == {TopicPartition(topic, 0): (4, 6)}

    @staticmethod
    async def _diverged(log: Log, topic: str, follower: AsyncIterator[Record | None], start: int) -> Lost:
        """The range that the log reports as lost, after a restart for each absence of the broker."""
        while True:
            try:
                assert await anext(follower) is None
            except (LogUnavailable, StopAsyncIteration):
                follower = log.follow(topic, start=start)
            except OffsetMissing as error:
                return error.lost


class CommitsOutliveCut:
    """Contract tests of logs that keep the committed offsets of groups when the records are lost."""

    async def test_what_took_the_place_of_committed_records_is_not_counted_as_finished(self, rig: CutRig) -> None:
        group, topic, _ = await committed_and_replaced(rig)
        [backlog] = await rig.log.backlogs({topic: group})
        assert (backlog.committed, backlog.finished, backlog.end) == (30, 20, 35)
