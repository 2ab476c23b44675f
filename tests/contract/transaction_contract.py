"""Contract tests of the log port: transactions of other producers. A subclass named Test... provides the fixture
`rig`."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from relay.log.port import Coordinate, Log, NewRecord, TopicPartition
from tests.contract.log_contract import PATIENCE_S, Member, keyed, settle, started, topic_for, values
from tests.log_reads import lag

GROUP = "group-of-transactions"


class Transaction(Protocol):
    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]: ...

    async def commit(self) -> None: ...

    async def abort(self) -> None: ...


class TransactionRig(Protocol):
    log: Log

    async def transaction(self) -> Transaction:
        """One more transactional producer, whose transaction begins with its first append."""
        ...


def named(topic: str, *names: str) -> list[NewRecord]:
    return [NewRecord(topic, b"key", name.encode()) for name in names]


class TransactionContract:
    async def test_only_what_was_committed_is_delivered(self, rig: TransactionRig) -> None:
        topic = await topic_for(rig.log, GROUP)
        member = await started(Member(rig.log, GROUP, topic))
        aborted, committed = await rig.transaction(), await rig.transaction()
        await rig.log.append(named(topic, "before"))
        await aborted.append(named(topic, "aborted-1", "aborted-2"))
        await committed.append(named(topic, "committed-1"))
        await rig.log.append(named(topic, "between"))
        await aborted.append(named(topic, "aborted-3"))
        await aborted.abort()
        await committed.append(named(topic, "committed-2"))
        await committed.commit()
        await rig.log.append(named(topic, "behind"))

        read = values(await member.take(5))

        assert read == [b"before", b"committed-1", b"between", b"committed-2", b"behind"]

    async def test_a_producer_that_aborts_and_then_commits_is_judged_by_each_transaction(
        self, rig: TransactionRig
    ) -> None:
        topic = await topic_for(rig.log, GROUP)
        member, producer = await started(Member(rig.log, GROUP, topic)), await rig.transaction()
        for name in ("one", "two"):
            await producer.append(named(topic, f"aborted-{name}"))
            await producer.abort()
            await producer.append(named(topic, f"committed-{name}"))
            await producer.commit()

        assert values(await member.take(2)) == [b"committed-one", b"committed-two"]

    async def test_nothing_behind_an_open_transaction_is_read_before_it_ends(self, rig: TransactionRig) -> None:
        topic = await topic_for(rig.log, GROUP)
        member, producer = await started(Member(rig.log, GROUP, topic)), await rig.transaction()
        await rig.log.append(named(topic, "before"))
        [opened] = await producer.append(named(topic, "open"))
        await rig.log.append(named(topic, "behind"))
        assert values(await member.take(1)) == [b"before"]
        assert await member.poll(timeout_s=0.5) == {}
        at = TopicPartition(topic, 0)
        assert await rig.log.ends([at]) == {at: opened.offset}

        await producer.commit()

        assert values(await member.take(2)) == [b"open", b"behind"]

    async def test_an_open_transaction_is_no_backlog_and_is_named(self, rig: TransactionRig) -> None:
        topic = await topic_for(rig.log, GROUP)
        member, producer = await started(Member(rig.log, GROUP, topic)), await rig.transaction()
        await rig.log.append(named(topic, "before"))
        [opened] = await producer.append(named(topic, "open"))
        await member.take(1)
        await member.consumer.commit({TopicPartition(topic, 0): opened.offset})

        [backlog] = await rig.log.backlogs({topic: GROUP})
        assert (backlog.stable, backlog.end, backlog.unread) == (opened.offset, opened.offset + 1, 0)
        assert await lag(rig.log, GROUP, topic) == 0

        await producer.abort()
        # A broker acknowledges the abort before its marker is in the partition.
        async with asyncio.timeout(PATIENCE_S):
            while backlog.stable is not None:
                [backlog] = await rig.log.backlogs({topic: GROUP})

    async def test_markers_and_aborted_records_at_the_end_do_not_stay_unread(self, rig: TransactionRig) -> None:
        topic = await topic_for(rig.log, GROUP)
        member, producer = await started(Member(rig.log, GROUP, topic)), await rig.transaction()
        at = TopicPartition(topic, 0)
        await producer.append(named(topic, "committed"))
        await producer.commit()
        await producer.append(named(topic, "aborted"))
        await producer.abort()
        [committed] = await member.take(1)
        async with asyncio.timeout(PATIENCE_S):
            while await lag(rig.log, GROUP, topic):
                await member.consumer.commit({at: committed.offset + 1})
                await member.poll()

    async def test_readers_outside_of_groups_see_only_what_was_committed(self, rig: TransactionRig) -> None:
        topic = await topic_for(rig.log)
        producer = await rig.transaction()
        [aborted] = await producer.append(named(topic, "aborted"))
        await producer.abort()
        await rig.log.append(named(topic, "plain"))
        [open_] = await producer.append(named(topic, "open"))
        follower = rig.log.follow(topic)

        scanned = [each.value async for batch in rig.log.scan(topic, 0) for each in batch]
        followed = [await anext(follower) for _ in range(2)]

        assert scanned == [b"plain"]
        assert [each and each.value for each in followed] == [b"plain", None]
        assert await rig.log.read([(aborted, None), (open_, None)]) == [None, None]
        await producer.commit()
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(follower)).value == b"open"  # type: ignore[union-attr]

    async def test_many_batches_between_transactions_are_all_read(self, rig: TransactionRig) -> None:
        topic = await topic_for(rig.log, GROUP)
        producer, wanted = await rig.transaction(), []
        for number in range(30):
            await producer.append(keyed(topic, 3))
            if number % 3:
                await producer.abort()
            else:
                wanted += [b"0", b"1", b"2"]
                await producer.commit()
        await rig.log.append(named(topic, "last"))
        member = await started(Member(rig.log, GROUP, topic))
        await settle([member], lambda: bool(member.records) and member.records[-1].value == b"last")
        assert values(member.records) == [*wanted, b"last"]
