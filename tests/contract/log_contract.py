"""Contract tests of the log port. A subclass named Test... provides the fixture `rig`, a LogRig.

Each test creates its own topics and groups, so that all tests can share one server.
"""

import asyncio
import random
import tracemalloc
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, Protocol, cast

import pytest
from msgspec import structs

from relay.domain.errors import ConsumerClosed, LogUnavailable, OffsetMissing, PartitionLost, RecordTooLarge
from relay.domain.sliced import sliced
from relay.domain.topics import TopicSpec
from relay.log.partitioner import partition_of
from relay.log.port import (
    Assignment,
    Backlog,
    Coordinate,
    Headers,
    Log,
    MaxBytes,
    NewRecord,
    Record,
    Subscription,
    TopicPartition,
    no_limit,
    size_of,
)
from tests.expecting import present
from tests.log_reads import lag, newest

PATIENCE_S = 60.0
"""Far beyond what any log needs: a log that hangs fails here instead of at the end of the run."""


class LogRig(Protocol):
    """A log under test. `log` is started; `max_message_bytes` is its limit, at most a few MiB."""

    log: Log
    max_message_bytes: int

    async def reopen(self) -> Log:
        """The client dies without a word: nothing is flushed or committed any more, its group members vanish. Sets
        `log` to a new, started one on the same records and returns it."""
        ...

    def another(self) -> Log:
        """Another client of the same log; not started."""
        ...

    async def drop_before(self, at: Coordinate) -> None:
        """Remove the records of that partition before `at`, as retention would."""
        ...

    async def spoil(self, topic: str) -> None:
        """Append one record to partition 0 that cannot be read, or not as its writer meant it."""
        ...

    async def expel(self, consumer: Any) -> None:
        """Expel the consumer from its group, which assigns its partitions to others without notifying it."""
        ...


def unique(stem: str) -> str:
    return f"{stem}-{uuid.uuid4().hex[:12]}"


async def topic_for(
    log: Log, group: str | None = None, *, partitions: int = 1, cleanup: Literal["delete", "compact"] = "delete"
) -> str:
    """A new topic. The committed offset of `group` is its first one."""
    name = unique("topic")
    retention_s = None if cleanup == "compact" else 86_400
    await log.create([TopicSpec(name, partitions, cleanup, retention_s)], {name: group} if group else {})
    return name


async def grouped_topic(log: Log, *, partitions: int = 1) -> tuple[str, str]:
    """A new group, and a new topic of which it has committed the first offset."""
    group = unique("group")
    return group, await topic_for(log, group, partitions=partitions)


def keyed(topic: str, count: int, keys: int = 1) -> list[NewRecord]:
    return [NewRecord(topic, f"key-{n % keys}".encode(), str(n).encode()) for n in range(count)]


class Member:
    """A consumer that remembers what it was given: `owned` now, every assignment, every record."""

    def __init__(self, log: Log, group: str, *topics: str, commit_on_revoke: bool = False, **named: Any) -> None:
        self.owned: dict[TopicPartition, int] = {}
        self.assignments: list[Assignment] = []
        self.records: list[Record] = []
        self.revocations: list[TopicPartition] = []
        self._commit_on_revoke = commit_on_revoke
        self.consumer = log.consumer(Subscription(group, topics, **named), self._assigned, self._revoked)

    async def _assigned(self, assignments: Sequence[Assignment]) -> None:
        self.assignments += assignments
        self.owned.update({tuple_.partition: tuple_.epoch for tuple_ in assignments})

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        if self._commit_on_revoke and (ends := self.ends(partitions)):
            await self.consumer.commit(ends)
        self.revocations += partitions
        for partition in partitions:
            self.owned.pop(partition, None)

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset to read, per partition."""
        read = ((TopicPartition(r.topic, r.partition), r.offset + 1) for r in self.records)
        return {partition: following for partition, following in read if partition in partitions}

    async def poll(
        self, *, max_records: int = 1000, timeout_s: float = 0.05, max_bytes: MaxBytes = no_limit
    ) -> Mapping[TopicPartition, list[Record]]:
        batches = await self.consumer.poll(max_records=max_records, timeout_s=timeout_s, max_bytes=max_bytes)
        for partition, records in batches.items():
            assert partition in self.owned, "a record came before its assignment, or after its revocation"
            self.records += records
        return {partition: list(records) for partition, records in batches.items()}

    async def take(self, count: int) -> list[Record]:
        """The next `count` records."""
        start = len(self.records)
        await settle([self], lambda: len(self.records) >= start + count)
        assert len(self.records) == start + count
        return self.records[start:]


async def started(member: Member) -> Member:
    await member.consumer.start()
    return member


class _Held(Member):
    """A member that returns from its revocation of `held` only when `let_go` is set."""

    def __init__(self, *named: Any, held: TopicPartition) -> None:
        super().__init__(*named)
        self._held = held
        self.let_go = asyncio.Event()

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        if self._held in partitions:
            await self.let_go.wait()
        await super()._revoked(partitions)


async def settle(members: Sequence[Member], until: Callable[[], bool]) -> None:
    """Let these members poll, in turn, until `until` returns true."""
    async with asyncio.timeout(PATIENCE_S):
        while not until():
            for member in members:
                await member.poll()


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


async def scanned(
    log: Log, topic: str, partition: int, *, start: int = 0, end: int | None = None, batch: int = 100
) -> list[Sequence[Record]]:
    async with asyncio.timeout(PATIENCE_S):
        return [found async for found in log.scan(topic, partition, start=start, end=end, batch=batch)]


def flat(batches: Sequence[Sequence[Record]]) -> list[bytes | None]:
    return [record.value for batch in batches for record in batch]


class LogContract:
    # records

    async def test_append_says_where_each_record_is(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=3)
        sent = keyed(topic, 30, keys=7)

        coordinates = await rig.log.append(sent)

        member = await started(Member(rig.log, group, topic))
        read = {record.coordinate: record for record in await member.take(30)}
        assert [(read[at].key, read[at].value) for at in coordinates] == [(r.key, r.value) for r in sent]

    async def test_a_batch_over_several_topics_answers_in_its_own_order(self, rig: LogRig) -> None:
        one, two = await topic_for(rig.log), await topic_for(rig.log)

        at = await rig.log.append([NewRecord(name, b"k", name.encode()) for name in (one, two, one)])

        assert [coordinate.topic for coordinate in at] == [one, two, one]
        assert at[0].offset < at[2].offset

    async def test_nothing_appended_is_nothing(self, rig: LogRig) -> None:
        assert await rig.log.append([]) == []

    async def test_records_of_a_key_keep_their_order(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=4)

        for start in range(0, 90, 30):
            await rig.log.append([NewRecord(topic, b"%d" % (n % 9), b"%d" % n) for n in range(start, start + 30)])

        member = await started(Member(rig.log, group, topic))
        records = await member.take(90)
        for key in range(9):
            of_key = [int(r.value or b"") for r in records if r.key == b"%d" % key]
            assert of_key == list(range(key, 90, 9))

    async def test_concurrent_appends_keep_the_order_of_each_caller(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)

        async def caller(name: int) -> None:
            for n in range(10):
                await rig.log.append([NewRecord(topic, b"%d" % name, b"%d" % n)])

        async with asyncio.TaskGroup() as callers:
            for name in range(8):
                callers.create_task(caller(name))

        member = await started(Member(rig.log, group, topic))
        records = await member.take(80)
        assert len({r.offset for r in records}) == 80
        for name in range(8):
            assert [r.value for r in records if r.key == b"%d" % name] == [b"%d" % n for n in range(10)]

    async def test_concurrent_appends_over_partitions_say_where_each_record_is(self, rig: LogRig) -> None:
        topics = [await topic_for(rig.log, partitions=number) for number in (1, 3, 1)]
        at: dict[tuple[int, int], Coordinate] = {}

        async def caller(name: int) -> None:
            for start in range(0, 60, 10):
                numbers = range(start, start + (name + start) % 10 + 1)
                found = await rig.log.append(
                    [NewRecord(topics[n % 3], b"%d" % (n % 7), b"%d-%d" % (name, n)) for n in numbers]
                )
                at.update({(name, n): coordinate for n, coordinate in zip(numbers, found, strict=True)})

        async with asyncio.TaskGroup() as callers:
            for name in range(12):
                callers.create_task(caller(name))

        assert len(set(at.values())) == len(at)
        read = await rig.log.read([(coordinate, b"%d" % (n % 7)) for (_, n), coordinate in at.items()])
        assert [record and record.value for record in read] == [b"%d-%d" % each for each in at]
        for name in range(12):
            for partition in {coordinate[:2] for coordinate in at.values()}:
                offsets = [at[each].offset for each in sorted(at) if each[0] == name and at[each][:2] == partition]
                assert offsets == sorted(offsets)

    @pytest.mark.parametrize(
        ("key", "value", "headers"),
        [
            (b"k", b"v", ()),
            (b"k", b"", ()),
            (b"k", None, ()),
            (None, b"v", ()),
            (b"", b"v", ()),
            (b"k", bytes(range(256)) * 3, (("h", bytes(range(256))),)),
            ("schlüssel".encode(), b"v", (("a", b"1"), ("b", b""), ("a", b"2"), ("überschrift", b"3"))),
        ],
    )
    async def test_bytes_come_back_as_they_were(
        self, rig: LogRig, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        group, topic = await grouped_topic(rig.log)

        await rig.log.append([NewRecord(topic, key, value, headers)])

        member = await started(Member(rig.log, group, topic))
        [record] = await member.take(1)
        assert (record.key, record.value, record.headers) == (key, value, headers)
        assert record.timestamp_ms > 1_600_000_000_000

    async def test_the_key_decides_the_partition(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, partitions=5)
        keys = [f"source-{n}".encode() for n in range(40)]

        at = await rig.log.append([NewRecord(topic, key, b"") for key in keys])

        assert [coordinate.partition for coordinate in at] == [partition_of(key, 5) for key in keys]

    async def test_a_record_over_the_limit_is_refused_for_good(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        other = await topic_for(rig.log)

        large = NewRecord(topic, b"k", bytes(rig.max_message_bytes + 1))
        with pytest.raises(RecordTooLarge) as refused:
            await rig.log.append([NewRecord(other, b"k", b"v"), large])
        assert refused.value.rejected == {1}

        await rig.log.append([NewRecord(topic, b"k", b"small")])
        member = await started(Member(rig.log, group, topic))
        assert values(await member.take(1)) == [b"small"]

    async def test_a_record_over_the_limit_does_no_harm_to_other_callers(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        await rig.log.append([NewRecord(topic, b"k", b"first")])
        sizes = (1, rig.max_message_bytes + 1, 2, 3, rig.max_message_bytes + 2, 4)

        outcomes = await asyncio.gather(
            *(rig.log.append([NewRecord(topic, b"k", b"v" * size)]) for size in sizes), return_exceptions=True
        )

        written = {size: each[0] for size, each in zip(sizes, outcomes, strict=True) if isinstance(each, list)}
        assert list(written) == [1, 2, 3, 4]
        assert [type(each) for each in outcomes if not isinstance(each, list)] == [RecordTooLarge, RecordTooLarge]
        read = await rig.log.read([(at, b"k") for at in written.values()])
        assert [record and record.value for record in read] == [b"v" * size for size in written]

    async def test_a_large_record_within_the_limit_goes_through(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        value = bytes(range(256)) * ((rig.max_message_bytes - 65_536) // 256)

        await rig.log.append([NewRecord(topic, b"k", value)])

        member = await started(Member(rig.log, group, topic))
        assert values(await member.take(1)) == [value]

    # polling

    async def test_a_poll_without_records_ends_empty(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        member = await started(Member(rig.log, group, topic))

        await settle([member], lambda: bool(member.owned))

        assert await member.poll(timeout_s=0.01) == {}

    async def test_a_waiting_poll_wakes_for_a_new_record(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        member = await started(Member(rig.log, group, topic))
        await settle([member], lambda: bool(member.owned))

        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(member.poll(timeout_s=PATIENCE_S))
            await rig.log.append([NewRecord(topic, b"k", b"v")])

        assert values(waiting.result()[TopicPartition(topic, 0)]) == [b"v"]

    async def test_a_poll_returns_no_more_than_it_is_asked_for(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=3)
        await rig.log.append(keyed(topic, 100, keys=20))
        member = await started(Member(rig.log, group, topic))

        async with asyncio.timeout(PATIENCE_S):
            while len(member.records) < 100:
                batches = await member.poll(max_records=7)
                assert sum(map(len, batches.values())) <= 7

        assert sorted(int(r.value or b"") for r in member.records) == list(range(100))

    async def test_a_poll_ends_with_the_record_with_which_there_are_enough_bytes(self, rig: LogRig) -> None:
        """The limit in bytes is evaluated when the poll returns, because free memory may have shrunk meanwhile."""
        group, topic = await grouped_topic(rig.log, partitions=3)
        sizes = [150_000 if n % 3 else 1_000 for n in range(60)]
        records = [NewRecord(topic, b"%d" % (n % 20), b"%d " % n + bytes(size)) for n, size in enumerate(sizes)]
        for start in range(0, 60, 10):
            await rig.log.append(records[start : start + 10])
        member = await started(Member(rig.log, group, topic))

        async with asyncio.timeout(PATIENCE_S):
            while len(member.records) < 60:
                enough = 0 if len(member.records) < 10 else 250_000
                batches = await member.poll(max_bytes=partial(int, enough))
                came = [size_of(record) for records in batches.values() for record in records]
                assert len(came) <= 1 or sum(came) - max(came) < enough

        found = [int((record.value or b"").split()[0].decode()) for record in member.records]
        assert sorted(found) == list(range(60))
        for key in range(20):
            assert (of := [n for n in found if n % 20 == key]) == sorted(of)

    async def test_a_paused_partition_waits_and_the_others_go_on(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        member = await started(Member(rig.log, group, topic))
        await settle([member], lambda: len(member.owned) == 2)
        keys = {partition_of(b"%d" % n, 2): b"%d" % n for n in range(20)}
        held, other = TopicPartition(topic, 0), TopicPartition(topic, 1)

        member.consumer.pause([held, TopicPartition(topic, 7)])
        await rig.log.append([NewRecord(topic, keys[p], b"%d" % p) for p in (0, 1)])
        assert [r.partition for r in await member.take(1)] == [other.partition]
        assert await member.poll() == {}

        member.consumer.resume([held])
        assert [r.partition for r in await member.take(1)] == [held.partition]

    async def test_close_ends_a_poll_under_way(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        member = await started(Member(rig.log, group, topic))
        await settle([member], lambda: bool(member.owned))

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(member.poll(timeout_s=10 * PATIENCE_S))
            await asyncio.sleep(0)
            await member.consumer.close()

        assert waiting.result() == {}
        assert member.revocations == [TopicPartition(topic, 0)]

    async def test_a_closed_consumer_says_so(self, rig: LogRig) -> None:
        """If it returned an empty list, the caller would poll again at once, forever."""
        group, topic = await grouped_topic(rig.log)
        await rig.log.append(keyed(topic, 1))
        member = await started(Member(rig.log, group, topic))
        await member.take(1)
        await member.consumer.close()

        with pytest.raises(ConsumerClosed):
            await member.poll()

    async def test_a_poll_gives_others_a_turn_though_records_are_at_hand(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        await rig.log.append(keyed(topic, 100))
        member = await started(Member(rig.log, group, topic))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        going_round = asyncio.create_task(others())
        async with asyncio.timeout(PATIENCE_S):
            while len(member.records) < 20:
                before = turns
                await member.poll(max_records=1)
                assert turns > before
        going_round.cancel()

    # groups

    async def test_a_group_goes_on_behind_its_commit(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        at = await rig.log.append(keyed(topic, 10))
        first = await started(Member(rig.log, group, topic))
        await first.take(10)
        await first.consumer.commit({TopicPartition(topic, 0): at[4].offset})
        await first.consumer.close()

        second = await started(Member(rig.log, group, topic))

        assert values(await second.take(6)) == [b"%d" % n for n in range(4, 10)]

    async def test_a_new_process_reads_again_what_was_not_committed(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        at = await rig.log.append(keyed(topic, 5))
        before = await started(Member(rig.log, group, topic))
        await before.take(5)
        await before.consumer.commit({TopicPartition(topic, 0): at[1].offset + 1})

        after = await started(Member(await rig.reopen(), group, topic))

        assert values(await after.take(3)) == [b"2", b"3", b"4"]

    async def test_groups_do_not_see_each_others_commits(self, rig: LogRig) -> None:
        one, two = unique("group"), unique("group")
        topic = await topic_for(rig.log, one)
        assert await rig.log.create([TopicSpec(topic, 1)], {topic: two}) == []
        await rig.log.append(keyed(topic, 3))

        for group in (one, two):
            member = await started(Member(rig.log, group, topic))
            await member.take(3)
            await member.consumer.commit(member.ends(list(member.owned)))
            await member.consumer.close()

    async def test_two_members_share_the_partitions(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=4)
        one = await started(Member(rig.log, group, topic))
        await settle([one], lambda: len(one.owned) == 4)

        two = await started(Member(rig.log, group, topic))
        await settle([one, two], lambda: len(one.owned) == len(two.owned) == 2)

        assert not one.owned.keys() & two.owned.keys()
        await rig.log.append(keyed(topic, 40, keys=40))
        await settle([one, two], lambda: len(one.records) + len(two.records) >= 40)
        assert sorted(int(r.value or b"") for r in one.records + two.records) == list(range(40))

    async def test_who_leaves_hands_over_at_once(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        one, two = await started(Member(rig.log, group, topic)), await started(Member(rig.log, group, topic))
        await settle([one, two], lambda: len(one.owned) == len(two.owned) == 1)

        await one.consumer.close()
        await settle([two], lambda: len(two.owned) == 2)

        assert one.owned == {}

    async def test_what_a_member_commits_while_it_is_revoked_counts(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        await rig.log.append(keyed(topic, 20, keys=10))
        one = await started(Member(rig.log, group, topic, commit_on_revoke=True))
        await one.take(20)

        two = await started(Member(rig.log, group, topic))
        await settle([one, two], lambda: len(one.owned) == len(two.owned) == 1)
        await one.consumer.close()
        await settle([two], lambda: len(two.owned) == 2)

        assert await two.poll() == {}
        assert await lag(rig.log, group, topic) == 0

    async def test_a_former_owner_cannot_commit(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        await rig.log.append(keyed(topic, 20, keys=10))
        one = await started(Member(rig.log, group, topic))
        await one.take(20)
        ends = one.ends(list(one.owned))

        two = await started(Member(rig.log, group, topic))
        await settle([one, two], lambda: len(one.owned) == len(two.owned) == 1)

        [lost] = two.owned
        with pytest.raises(PartitionLost):
            await one.consumer.commit({lost: ends[lost]})
        await one.consumer.close()
        with pytest.raises(PartitionLost):
            await one.consumer.commit(ends)

    async def test_the_epoch_grows_with_every_change_of_owner(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        epochs: dict[TopicPartition, list[int]] = {TopicPartition(topic, n): [] for n in (0, 1)}

        for reopen in (False, False, True, False):
            log = await rig.reopen() if reopen else rig.log
            member = await started(Member(log, group, topic))
            await settle([member], lambda member=member: len(member.owned) == 2)  # type: ignore[misc]
            for partition, epoch in member.owned.items():
                epochs[partition].append(epoch)
            await member.consumer.close()

        for seen in epochs.values():
            assert seen == sorted(set(seen))

    async def test_a_group_without_an_offset_is_an_alarm_and_begins_with_the_first_record(self, rig: LogRig) -> None:
        group = unique("group")
        topic = await topic_for(rig.log)
        await rig.log.append(keyed(topic, 10))
        member = await started(Member(rig.log, group, topic))

        await self._missed(member, 0)

        after = await started(Member(rig.log, group, topic))
        assert values(await after.take(10)) == [b"%d" % n for n in range(10)]

    async def test_an_offset_that_the_log_no_longer_holds_is_an_alarm(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        at = await rig.log.append(keyed(topic, 10))
        await rig.drop_before(at[5])
        member = await started(Member(rig.log, group, topic))

        await self._missed(member, 0)

        after = await started(Member(rig.log, group, topic))
        assert values(await after.take(5)) == [b"%d" % n for n in range(5, 10)]

    async def test_an_offset_behind_the_end_is_missing_and_others_stay_as_they_are(self, rig: LogRig) -> None:
        """As happens when a topic is recreated, or mirrored from another cluster."""
        group, topic = await grouped_topic(rig.log, partitions=2)
        keys = {partition_of(b"%d" % n, 2): b"%d" % n for n in range(20)}
        await rig.log.append([NewRecord(topic, keys[n % 2], b"%d" % n) for n in range(10)])
        before = await started(Member(rig.log, group, topic))
        await before.take(10)
        await before.consumer.commit({TopicPartition(topic, 0): 1000, TopicPartition(topic, 1): 4})
        await before.consumer.close()
        member = await started(Member(rig.log, group, topic))

        await self._missed(member, 0)

        after = await started(Member(rig.log, group, topic))
        again = await after.take(6)
        assert values([record for record in again if record.partition == 0]) == [b"0", b"2", b"4", b"6", b"8"]
        assert values([record for record in again if record.partition == 1]) == [b"9"]

    @staticmethod
    async def _missed(member: Member, partition: int) -> None:
        with pytest.raises(OffsetMissing) as raised:
            await settle([member], lambda: False)
        assert {number for _, number in raised.value.partitions} == {partition}
        await member.consumer.close()

    # what a member wants

    async def test_a_topic_more_is_read_and_nothing_that_stays_is_revoked(self, rig: LogRig) -> None:
        group = unique("group")
        stays, comes = await topic_for(rig.log, group, partitions=3), await topic_for(rig.log, group)
        member = await started(Member(rig.log, group, stays))
        await settle([member], lambda: len(member.owned) == 3)
        before = dict(member.owned)

        member.consumer.subscribe([stays, comes])
        await rig.log.append([*keyed(stays, 9, keys=9), *keyed(comes, 2)])
        await member.take(11)

        assert member.revocations == []
        assert {partition: member.owned[partition] for partition in before} == before
        await member.consumer.commit(member.ends(list(member.owned)))

    async def test_a_topic_less_is_revoked_alone_and_another_may_read_it(self, rig: LogRig) -> None:
        group = unique("group")
        stays, goes = await topic_for(rig.log, group), await topic_for(rig.log, group)
        await rig.log.append([*keyed(stays, 2), *keyed(goes, 4)])
        member = await started(Member(rig.log, group, stays, goes, commit_on_revoke=True))
        await member.take(6)

        member.consumer.subscribe([stays])
        await settle([member], lambda: len(member.owned) == 1)
        other = await started(Member(rig.log, group, goes))
        await settle([member, other], lambda: len(other.owned) == 1)

        assert member.revocations == [TopicPartition(goes, 0)]
        assert await other.poll() == {}, "all of it was committed"
        await rig.log.append(keyed(stays, 1))
        assert values(await member.take(1)) == [b"0"]

    async def test_a_partition_that_one_cannot_serve_goes_to_another_until_it_can(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        key = next(key for key in (b"a", b"b", b"c", b"d") if partition_of(key, 2) == 1)
        one = await started(Member(rig.log, group, topic, commit_on_revoke=True))
        two = await started(Member(rig.log, group, topic, commit_on_revoke=True))
        await settle([one, two], lambda: len(one.owned) == len(two.owned) == 1)
        place = TopicPartition(topic, 1)
        has, other = (one, two) if place in one.owned else (two, one)

        has.consumer.subscribe([topic], {topic: frozenset({key})})
        await settle([one, two], lambda: place in other.owned and len(has.owned) == 1)
        await rig.log.append([NewRecord(topic, key, b"v")])
        assert values(await other.take(1)) == [b"v"]

        other.consumer.subscribe([topic], {topic: frozenset({key})})
        has.consumer.subscribe([topic])
        await settle([one, two], lambda: place in has.owned and len(other.owned) == 1)
        assert has.consumer.waits_for() is None

    async def test_a_topic_that_is_missing_keeps_nobody_waiting_and_is_read_once_it_is_there(self, rig: LogRig) -> None:
        group, late = unique("group"), unique("late")
        there = await topic_for(rig.log, group)
        await rig.log.append(keyed(there, 2))
        member = await started(Member(rig.log, group, there, late))
        await member.take(2)
        assert late in (member.consumer.waits_for() or "")

        await rig.log.create([TopicSpec(late, 1)], {late: group})
        await rig.log.append(keyed(late, 3))

        assert values(await member.take(3)) == [b"0", b"1", b"2"]
        assert member.consumer.waits_for() is None
        assert member.revocations == []

    async def test_who_names_its_topics_goes_first_and_the_pool_takes_them_back(self, rig: LogRig) -> None:
        group = unique("group")
        topics = [await topic_for(rig.log, group) for _ in range(4)]
        pool = await started(Member(rig.log, group, *topics, commit_on_revoke=True))
        await rig.log.append([record for topic in topics for record in keyed(topic, 2)])
        await pool.take(8)

        own = await started(Member(rig.log, group, topics[0], named=True, commit_on_revoke=True))
        mine = TopicPartition(topics[0], 0)
        await settle([pool, own], lambda: own.owned.keys() == {mine})
        assert pool.revocations == [mine]
        await rig.log.append(keyed(topics[0], 1))
        assert values(await own.take(1)) == [b"0"]

        await own.consumer.close()
        await settle([pool], lambda: len(pool.owned) == 4)
        assert await pool.poll() == {}

    async def test_a_member_that_comes_and_goes_takes_no_partition_twice_from_those_who_stay(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=6)
        staying = [await started(Member(rig.log, group, topic, commit_on_revoke=True)) for _ in range(2)]
        await settle(staying, lambda: [len(each.owned) for each in staying] == [3, 3])
        before = [len(each.revocations) for each in staying]

        for _ in range(3):
            guest = await started(Member(rig.log, group, topic, commit_on_revoke=True))
            await settle([*staying, guest], lambda guest=guest: len(guest.owned) == 2)  # type: ignore[misc]
            await guest.consumer.close()
            await settle(staying, lambda: [len(each.owned) for each in staying] == [3, 3])

        moved = [len(each.revocations) - begun for each, begun in zip(staying, before, strict=True)]
        assert sum(moved) == 6, "two to each guest, and none of them but what the guests had"

    # beginning anew

    async def test_partitions_begin_anew_where_they_were_committed_and_the_others_go_on(self, rig: LogRig) -> None:
        group = unique("group")
        topic, other = await topic_for(rig.log, group), await topic_for(rig.log, group)
        at = await rig.log.append(keyed(topic, 4))
        member = await started(Member(rig.log, group, topic, other))
        await member.take(4)
        anew, epoch = TopicPartition(topic, 0), member.owned[TopicPartition(topic, 0)]
        await member.consumer.commit({anew: at[1].offset + 1})

        await member.consumer.restart([anew, TopicPartition("of nobody", 0)])
        assert member.revocations == [anew]

        await rig.log.append(keyed(other, 1))
        records = await member.take(3)
        assert values([each for each in records if each.topic == topic]) == [b"2", b"3"]
        assert member.owned[anew] > epoch
        assert await member.consumer.confirm([Assignment(*each) for each in member.owned.items()]) > 0
        await member.consumer.commit(member.ends([anew]))

    @pytest.mark.parametrize("meant_for_another", [True, False])
    async def test_what_is_dealt_while_it_is_begun_anew_goes_where_it_is_meant_to_be(
        self, rig: LogRig, meant_for_another: bool
    ) -> None:
        """The former owner gets the partition again only if no other member is to have it."""
        group = unique("group")
        topic, other = await topic_for(rig.log, group), await topic_for(rig.log, group)
        anew, moved = TopicPartition(topic, 0), TopicPartition(other, 0)
        former = _Held(rig.log, group, topic, other, held=anew)
        await started(former)
        await settle([former], lambda: former.owned.keys() == {anew, moved})
        restarting = asyncio.create_task(former.consumer.restart([anew]))
        wanted = [topic, other] if meant_for_another else [other]
        newer = await started(Member(rig.log, group, *wanted, named=True))
        await settle([former, newer], lambda: moved in newer.owned)
        assert anew not in newer.owned

        former.let_go.set()
        await restarting
        owner = newer if meant_for_another else former
        await settle([former, newer], lambda: anew in owner.owned)
        assert [len([each for each in one.assignments if each.partition == anew]) for one in (former, newer)] == (
            [1, 1] if meant_for_another else [2, 0]
        )
        await rig.log.append(keyed(topic, 1))
        await settle([former, newer], lambda: bool(owner.records))

    async def test_a_missing_offset_concerns_its_partition_only(self, rig: LogRig) -> None:
        group = unique("group")
        topic, other = await topic_for(rig.log, group), await topic_for(rig.log, group)
        at = await rig.log.append(keyed(topic, 6))
        await rig.drop_before(at[3])
        member = await started(Member(rig.log, group, topic, other))
        with pytest.raises(OffsetMissing):
            await settle([member], lambda: False)
        await settle([member], lambda: TopicPartition(other, 0) in member.owned)
        await rig.log.append(keyed(other, 2))
        assert values(await member.take(2)) == [b"0", b"1"]
        assert TopicPartition(other, 0) not in member.revocations

        await member.consumer.restart([TopicPartition(topic, 0)])
        assert values(await member.take(3)) == [b"3", b"4", b"5"]
        assert TopicPartition(other, 0) not in member.revocations

    # offsets of another group

    async def test_offsets_of_a_former_group_are_taken_over_once_and_never_backwards(self, rig: LogRig) -> None:
        former, group = unique("former"), unique("group")
        topic = await topic_for(rig.log, former, partitions=2)
        at = await rig.log.append(keyed(topic, 8, keys=8))
        before = await started(Member(rig.log, former, topic))
        await settle([before], lambda: len(before.owned) == 2)
        epochs = dict(before.owned)
        await before.consumer.commit({place: self._middle(at, place) for place in epochs})
        await before.consumer.close()

        def taken_over(_: str) -> str:
            return former

        first = await started(Member(rig.log, group, topic, former=taken_over))
        left = sum(self._middle(at, place) <= each.offset for place in epochs for each in at if each[:2] == place)
        await first.take(left)
        assert all(epoch > epochs[place] for place, epoch in first.owned.items())
        await first.consumer.commit(first.ends(list(first.owned)))
        await first.consumer.close()

        again = await started(Member(rig.log, group, topic, former=taken_over))
        await settle([again], lambda: len(again.owned) == 2)
        assert await again.poll() == {}
        assert await lag(rig.log, group, topic) == 0

    @staticmethod
    def _middle(at: Sequence[Coordinate], place: TopicPartition) -> int:
        offsets = [each.offset for each in at if each[:2] == place]
        return offsets[len(offsets) // 2]

    # who owns what

    async def test_a_group_confirms_what_its_member_has(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        member = await started(Member(rig.log, group, topic))
        await settle([member], lambda: len(member.owned) == 2)

        assert await member.consumer.confirm(member.assignments) > 0

        older = [each._replace(epoch=each.epoch - 1) for each in member.assignments]
        with pytest.raises(PartitionLost):
            await member.consumer.confirm(older)
        await member.consumer.close()
        with pytest.raises(PartitionLost):
            await member.consumer.confirm(member.assignments)

    async def test_a_group_does_not_confirm_what_went_to_another(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        one = await started(Member(rig.log, group, topic))
        await settle([one], lambda: len(one.owned) == 2)
        before = list(one.assignments)
        two = await started(Member(rig.log, group, topic))
        await settle([one, two], lambda: len(one.owned) == len(two.owned) == 1)

        with pytest.raises(PartitionLost):
            await one.consumer.confirm([each for each in before if each.partition in two.owned])
        assert await two.consumer.confirm([Assignment(*owned) for owned in two.owned.items()]) > 0

    async def test_a_group_does_not_confirm_a_member_that_it_put_out(self, rig: LogRig) -> None:
        """The member may not know yet that it was expelled: confirming only asks the group."""
        group, topic = await grouped_topic(rig.log)
        member = await started(Member(rig.log, group, topic))
        await settle([member], lambda: len(member.owned) == 1)
        await rig.expel(member.consumer)

        with pytest.raises(PartitionLost):
            await member.consumer.confirm(member.assignments[-1:])

    # random access

    async def test_records_are_found_by_their_coordinates(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, partitions=3)
        sent = keyed(topic, 12, keys=6)
        at = await rig.log.append(sent)
        wanted = [(coordinate, record.key) for coordinate, record in zip(at, sent, strict=True)]

        read = await rig.log.read([wanted[n] for n in (7, 0, 11, 3, 7)])

        assert [record and (record.coordinate, record.value) for record in read] == [
            (at[n], sent[n].value) for n in (7, 0, 11, 3, 7)
        ]

    async def test_a_record_that_is_gone_reads_as_none(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        at = await rig.log.append(keyed(topic, 6))
        await rig.drop_before(at[3])
        never = Coordinate(topic, 0, at[5].offset + 1000)

        read = await rig.log.read([(at[2], b"key-0"), (at[4], b"key-0"), (never, b"key-0")])

        assert [record and record.value for record in read] == [None, b"4", None]

    async def test_a_record_of_a_partition_that_does_not_exist_reads_as_none_until_it_is_added(
        self, rig: LogRig
    ) -> None:
        topic = await topic_for(rig.log)
        await rig.log.append(keyed(topic, 1))

        assert await rig.log.read([(Coordinate(topic, 2, 0), b"key-0")]) == [None]
        await rig.log.grow(topic, 3)
        added = await rig.log.append([structs.replace(record, spread=3) for record in keyed(topic, 30, keys=30)])

        assert {at.partition for at in added} == {0, 1, 2}
        read = await rig.log.read([(at, f"key-{number}".encode()) for number, at in enumerate(added)])
        assert [record and record.coordinate for record in read] == added

    async def test_a_compacted_topic_is_read_by_key(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        old, kept, removed = await rig.log.append([NewRecord(topic, key, b"1") for key in (b"a", b"b", b"c")])
        await rig.log.append([NewRecord(topic, b"a", b"2"), NewRecord(topic, b"c", None)])

        a, b, c = await rig.log.read([(old, b"a"), (kept, b"b"), (removed, b"c")])

        assert present(a).value in (b"1", b"2")
        assert b is not None
        assert (b.coordinate, b.value) == (kept, b"1")
        assert c is None

    async def test_a_snapshot_has_the_newest_of_each_key(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, partitions=2, cleanup="compact")
        keys = [b"%d" % n for n in range(20)]
        for version in (b"old", b"new"):
            await rig.log.append([NewRecord(topic, key, version, (("v", version),)) for key in keys])
        await rig.log.append([NewRecord(topic, keys[n], None) for n in (3, 4)])
        await rig.log.append([NewRecord(topic, keys[4], b"again")])

        for partition in (0, 1):
            records = await newest(rig.log, topic, partition)
            expected = {k: b"new" for k in keys if k != b"3" and partition_of(k, 2) == partition}
            if partition_of(b"4", 2) == partition:
                expected[b"4"] = b"again"
            assert {record.key: record.value for record in records} == expected
            offsets = [record.offset for record in records]
            assert offsets == sorted(offsets)
            assert {record.partition for record in records} <= {partition}

    # reading a partition whole

    async def test_a_scan_reads_a_partition_to_its_end_in_batches(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, partitions=2)
        sent = keyed(topic, 500, keys=20)
        at = await rig.log.append(sent)

        for partition in (0, 1):
            batches = await scanned(rig.log, topic, partition, batch=30)
            expected = sorted((c.offset, r.value) for c, r in zip(at, sent, strict=True) if c.partition == partition)
            assert [(record.offset, record.value) for batch in batches for record in batch] == expected
            assert all(1 <= len(batch) <= 30 for batch in batches)
            assert {record.partition for batch in batches for record in batch} == {partition}

    async def test_a_scan_may_begin_and_end_anywhere(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        at = await rig.log.append(keyed(topic, 10))
        end = at[-1].offset + 1

        assert flat(await scanned(rig.log, topic, 0, start=at[7].offset)) == [b"7", b"8", b"9"]
        assert flat(await scanned(rig.log, topic, 0, start=at[2].offset, end=at[4].offset)) == [b"2", b"3"]
        assert flat(await scanned(rig.log, topic, 0, end=at[1].offset)) == [b"0"]
        assert flat(await scanned(rig.log, topic, 0, end=0)) == []
        assert flat(await scanned(rig.log, topic, 0, start=at[8].offset, end=end + 5)) == [b"8", b"9"]
        assert flat(await scanned(rig.log, topic, 0, start=end)) == []
        assert flat(await scanned(rig.log, topic, 0, start=end + 5)) == []

    @pytest.mark.parametrize("cleanup", ["delete", "compact"])
    async def test_a_scan_of_nothing_is_empty(self, rig: LogRig, cleanup: Literal["delete", "compact"]) -> None:
        topic = await topic_for(rig.log, cleanup=cleanup)

        assert await scanned(rig.log, topic, 0) == []

    async def test_a_scan_leaves_out_what_came_after_it_began(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        await rig.log.append(keyed(topic, 10))
        seen: list[bytes | None] = []

        async with asyncio.timeout(PATIENCE_S):
            async for batch in rig.log.scan(topic, 0, batch=4):
                seen += values(batch)
                await rig.log.append(keyed(topic, 4))

        assert seen == [b"%d" % n for n in range(10)]

    async def test_two_groups_of_one_client_each_read_all_of_a_topic(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, "one")
        await rig.log.create([], {topic: "other"})
        one, other = await started(Member(rig.log, "one", topic)), await started(Member(rig.log, "other", topic))
        await rig.log.append(keyed(topic, 6))
        for member in (one, other):
            assert len({(record.partition, record.offset) for record in await member.take(6)}) == 6
            await member.consumer.close()

    async def test_a_scan_passes_over_what_retention_removed(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        at = await rig.log.append(keyed(topic, 6))
        await rig.drop_before(at[4])

        assert flat(await scanned(rig.log, topic, 0)) == [b"4", b"5"]

    async def test_what_retention_removes_during_a_scan_is_passed_over(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        big = random.Random(1).randbytes(rig.max_message_bytes // 2)  # so that one fetch does not bring them all
        at = await rig.log.append([NewRecord(topic, b"key", big + b"%d" % n) for n in range(20)])
        seen: list[int] = []

        async with asyncio.timeout(PATIENCE_S):
            async for batch in rig.log.scan(topic, 0, batch=1):
                seen += [record.offset for record in batch]
                if len(seen) == 1:
                    await rig.drop_before(at[18])

        assert seen == sorted(set(seen))
        assert {at[0].offset, at[18].offset, at[19].offset} <= set(seen)
        assert len(seen) < 20

    async def test_a_scan_of_a_compacted_topic_has_the_newest_of_each_key(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        await rig.log.append([NewRecord(topic, b"%d" % (n % 5), b"%d" % n) for n in range(20)])

        batches = await scanned(rig.log, topic, 0, batch=2)

        newest = {record.key: record.value for batch in batches for record in batch}
        assert newest == {b"%d" % n: b"%d" % (15 + n) for n in range(5)}
        offsets = [record.offset for batch in batches for record in batch]
        assert offsets == sorted(offsets)

    @pytest.mark.parametrize("partition", [0, 1])
    async def test_a_scan_of_a_compacted_topic_holds_few_payloads_at_once(self, rig: LogRig, partition: int) -> None:
        topic = await topic_for(rig.log, partitions=2, cleanup="compact")
        keys = [key for key in (b"%d" % n for n in range(800)) if partition_of(key, 2) == partition][:300]
        random_bytes = random.Random(1).randbytes
        for some in sliced(keys, 10):
            await rig.log.append([NewRecord(topic, key, random_bytes(100_000)) for key in some])
        seen: list[bytes | None] = []
        tracemalloc.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for found in rig.log.scan(topic, partition):
                    seen += [record.key for record in found]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert seen == keys
        assert peak < 12_000_000, f"{peak} bytes at once, of 30,000,000"

    async def test_a_scan_of_a_compacted_topic_has_what_did_not_change_meanwhile(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, partitions=2, cleanup="compact")
        keys = [key for key in (b"%d" % n for n in range(1000)) if partition_of(key, 2) == 1][:400]
        payload = random.Random(1).randbytes(10_000)
        await rig.log.append([NewRecord(topic, key, payload) for key in keys])
        stays = set(keys[::2])
        seen: list[bytes | None] = []
        async with asyncio.timeout(PATIENCE_S):
            async for found in rig.log.scan(topic, 1, batch=40):
                if not seen:
                    changes = [NewRecord(topic, key, None if n % 2 else b"new") for n, key in enumerate(keys[1::2])]
                    await rig.log.append(changes)
                seen += [record.key for record in found if record.value == payload]
        assert stays <= set(seen)
        assert seen == [key for key in keys if key in set(seen)]

    async def test_following_a_compacted_topic_first_catches_up(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        await rig.log.append([NewRecord(topic, key, key) for key in (b"a", b"b")])
        seen: dict[bytes | None, bytes | None] = {}
        caught_up = asyncio.Event()

        async def keep_following() -> None:
            async for record in rig.log.follow(topic):
                if record is None:
                    assert not caught_up.is_set()
                    assert seen == {b"a": b"a", b"b": b"b"}
                    caught_up.set()
                    continue
                seen[record.key] = record.value
                if record.key == b"last":
                    return

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_following())
            await caught_up.wait()
            await rig.log.append([NewRecord(topic, b"a", None), NewRecord(topic, b"b", b"2")])
            await rig.log.append([NewRecord(topic, b"b", b"3"), NewRecord(topic, b"c", b"1")])
            await rig.log.append([NewRecord(topic, b"last", b"")])
        assert seen == {b"a": None, b"b": b"3", b"c": b"1", b"last": b""}

    async def test_a_follower_that_is_cancelled_ends_whatever_it_does_at_the_moment(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")

        async def keep_following() -> None:
            async for _ in rig.log.follow(topic):
                caught_up.set()

        for round in range(20):
            caught_up = asyncio.Event()
            await rig.log.append([NewRecord(topic, b"k", b"v")])
            following = asyncio.create_task(keep_following())
            async with asyncio.timeout(PATIENCE_S):
                await caught_up.wait()
                for number in range(round):
                    await rig.log.append([NewRecord(topic, b"%d" % number, b"v")])
                following.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await following

    async def test_following_an_empty_topic_is_caught_up_at_once(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        following = rig.log.follow(topic)

        async with asyncio.timeout(PATIENCE_S):
            assert await anext(following) is None
            await rig.log.append([NewRecord(topic, b"k", b"v")])
            record = await anext(following)

        assert present(record).value == b"v"

    async def test_of_two_followers_at_the_same_record_either_may_end_first(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        await rig.log.append([NewRecord(topic, b"k", b"1")])
        async with asyncio.timeout(PATIENCE_S):
            async with aclosing(cast(Any, rig.log.follow(topic))) as first:
                assert await anext(first) is not None
                assert await anext(first) is None
                async with aclosing(cast(Any, rig.log.follow(topic))) as second:
                    assert await anext(second) is not None
                    assert await anext(second) is None
                await rig.log.append([NewRecord(topic, b"k", b"2")])
                record = await anext(first)
        assert present(record).value == b"2"

    async def test_a_follower_goes_on_where_it_was(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        at = await rig.log.append([NewRecord(topic, key, key) for key in (b"a", b"b", b"c")])
        await rig.log.append([NewRecord(topic, b"a", None), NewRecord(topic, b"b", b"2")])
        following = rig.log.follow(topic, start=at[2].offset)

        async with asyncio.timeout(PATIENCE_S):
            there = [await anext(following) for _ in range(4)]
            await rig.log.append([NewRecord(topic, b"d", b"4")])
            new = await anext(following)

        assert [record and (record.key, record.value) for record in there] == [
            (b"c", b"c"),
            (b"a", None),
            (b"b", b"2"),
            None,
        ]
        assert new is not None
        assert (new.key, new.offset) == (b"d", at[2].offset + 3)

    async def test_a_follower_with_nothing_missed_is_caught_up_at_once(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        await rig.log.append([NewRecord(topic, b"a", b"a")])
        [end] = (await rig.log.ends([TopicPartition(topic, 0)])).values()

        async with asyncio.timeout(PATIENCE_S):
            assert await anext(rig.log.follow(topic, start=end)) is None

    async def test_a_follower_from_beyond_the_end_is_told(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        await rig.log.append([NewRecord(topic, b"a", b"a")])

        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(OffsetMissing):
                await anext(rig.log.follow(topic, start=7))

    async def test_a_scan_of_a_compacted_topic_begins_where_it_is_told(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, cleanup="compact")
        at = await rig.log.append([NewRecord(topic, key, key) for key in (b"a", b"b", b"c", b"d")])
        await rig.log.append([NewRecord(topic, b"b", b"2")])

        batches = await scanned(rig.log, topic, 0, start=at[2].offset)

        newest = {record.key: record.value for batch in batches for record in batch}
        assert newest == {b"c": b"c", b"d": b"d", b"b": b"2"}

    async def test_a_topic_that_is_not_compacted_can_be_followed(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        await rig.log.append(keyed(topic, 3))
        following = rig.log.follow(topic)

        async with asyncio.timeout(PATIENCE_S):
            old = [await anext(following) for _ in range(4)]
            await rig.log.append([NewRecord(topic, b"k", None)])
            new = await anext(following)

        assert [record and record.value for record in old] == [b"0", b"1", b"2", None]
        assert present(new).value is None

    # administration

    async def test_create_is_repeatable_and_keeps_offsets(self, rig: LogRig) -> None:
        group = unique("group")
        specs = [TopicSpec(unique("topic"), 2), TopicSpec(unique("topic"), 1, "compact", None)]
        names = [spec.name for spec in specs]

        assert sorted(await rig.log.create(specs, {names[0]: group})) == sorted(names)
        await rig.log.append(keyed(names[0], 10, keys=10))
        member = await started(Member(rig.log, group, names[0]))
        await member.take(10)
        await member.consumer.commit(member.ends(list(member.owned)))
        await member.consumer.close()

        assert await rig.log.create(specs, {names[0]: group}) == []
        assert await lag(rig.log, group, names[0]) == 0

    async def test_a_topic_grows_and_keeps_what_it_has(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        before = await rig.log.append(keyed(topic, 6, keys=6))
        member = await started(Member(rig.log, group, topic))
        await member.take(6)
        await member.consumer.commit(member.ends(list(member.owned)))
        await member.consumer.close()

        for partitions in (3, 3, 2):
            await rig.log.grow(topic, partitions)
        await rig.log.create([], {topic: group})

        assert (await rig.log.describe([topic]))[topic].spec.partitions == 3
        backlogs = {each.partition.partition: each for each in await rig.log.backlogs({topic: group})}
        assert {number: each.committed for number, each in backlogs.items()} == {0: 6, 1: 0, 2: 0}
        assert {at.partition for at in before} == {0}
        await rig.log.append([structs.replace(record, spread=3) for record in keyed(topic, 30, keys=30)])
        member = await started(Member(rig.log, group, topic))
        assert {record.partition for record in await member.take(30)} == {0, 1, 2}

    async def test_what_is_missing_does_not_grow(self, rig: LogRig) -> None:
        with pytest.raises(LogUnavailable):
            await rig.log.grow(unique("missing"), 2)

    async def test_a_record_goes_over_as_many_partitions_as_it_says(self, rig: LogRig) -> None:
        """A spread above the number of partitions means all. A client with outdated metadata looks it up again."""
        topic = await topic_for(rig.log, partitions=2)
        other = rig.another()
        await other.start()
        keys = [f"key-{number}".encode() for number in range(30)]

        async def places(spread: int) -> list[int]:
            at = await rig.log.append([NewRecord(topic, key, b"v", spread=spread) for key in keys])
            return [each.partition for each in at]

        assert await places(1) == [0] * len(keys)
        assert await places(0) == await places(3) == [partition_of(key, 2) for key in keys]
        await other.grow(topic, 5)
        await other.close()
        assert await places(5) == [partition_of(key, 5) for key in keys]
        assert await places(3) == [partition_of(key, 3) for key in keys]

    async def test_describe_knows_what_there_is(self, rig: LogRig) -> None:
        specs = [TopicSpec(unique("topic"), 3, retention_s=3600), TopicSpec(unique("topic"), 1, "compact", None)]
        await rig.log.create(specs, {})

        log = await rig.reopen()
        described = await log.describe([specs[0].name, "no-such-topic", specs[1].name])

        assert {name: state.spec for name, state in described.items()} == {spec.name: spec for spec in specs}
        assert all(
            state.replication is None or state.replication >= (state.min_insync or 0) >= 1
            for state in described.values()
        )
        assert all(state.max_message_bytes > 0 for state in described.values())

    async def test_a_topic_is_never_made_by_appending(self, rig: LogRig) -> None:
        missing = unique("topic")

        with pytest.raises(LogUnavailable):
            await rig.log.append([NewRecord(missing, b"k", b"v")])

        assert await rig.log.describe([missing]) == {}

    async def test_lag_counts_what_is_not_committed(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        assert await lag(rig.log, group, topic) == 0
        await rig.log.append(keyed(topic, 10, keys=10))
        assert await lag(rig.log, group, topic) == 10

        member = await started(Member(rig.log, group, topic))
        records = await member.take(10)
        done = records[0]
        await member.consumer.commit({TopicPartition(topic, done.partition): done.offset + 1})

        assert await lag(rig.log, group, topic) == 9

    async def test_backlogs_tell_where_a_group_stands(self, rig: LogRig) -> None:
        group, idle = unique("group"), unique("group")
        topic = await topic_for(rig.log, group, partitions=2)
        other = await topic_for(rig.log)
        at = await rig.log.append(keyed(topic, 10, keys=10))
        ends = {n: 1 + max((each.offset for each in at if each.partition == n), default=-1) for n in range(2)}
        member = await started(Member(rig.log, group, topic))
        done = (await member.take(10))[0]
        await member.consumer.commit({TopicPartition(topic, done.partition): done.offset + 1})

        found = await rig.log.backlogs({topic: group, other: idle, unique("missing"): group})

        committed = {done.partition: done.offset + 1, 1 - done.partition: 0}
        of_group = [Backlog(group, TopicPartition(topic, n), 0, ends[n], committed[n]) for n in range(2)]
        assert sorted(each for each in found if each.group == group) == of_group
        assert [each for each in found if each.group == idle] == [Backlog(idle, TopicPartition(other, 0), 0, 0, None)]
        await member.consumer.close()

        last = at[-1]
        await rig.drop_before(last)
        assert {each.first for each in await rig.log.backlogs({topic: group}) if each.partition[1] == last[1]} == {
            last.offset
        }

    async def test_the_end_is_behind_the_newest_record(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log, partitions=2)
        places = [TopicPartition(topic, n) for n in range(2)]
        assert await rig.log.ends(places) == dict.fromkeys(places, 0)
        [at] = await rig.log.append(keyed(topic, 1))
        await rig.log.append(keyed(topic, 2))
        assert await rig.log.ends(places) == {place: 3 if place.partition == at.partition else 0 for place in places}

    async def test_all_clients_of_a_cluster_know_its_id(self, rig: LogRig) -> None:
        other = rig.another()
        await other.start()
        assert await other.cluster_id() == await rig.log.cluster_id()
        await other.close()

    async def test_a_topic_keeps_its_id_and_one_that_does_not_exist_has_none(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        first = await rig.log.topic_id(topic)
        await rig.log.append(keyed(topic, 1))
        assert await rig.log.topic_id(topic) == first
        assert await rig.log.topic_id(unique("topic")) == ""

    # what cannot be read

    async def test_what_cannot_be_read_comes_in_its_place_and_costs_nothing_else(self, rig: LogRig) -> None:
        group, others = unique("group"), unique("group")
        topic = await topic_for(rig.log, group)
        neighbour = await topic_for(rig.log, group)
        await rig.log.append(keyed(topic, 3))
        await rig.spoil(topic)
        await rig.spoil(topic)
        await rig.log.append([*keyed(topic, 2), *keyed(neighbour, 40)])

        member = await started(Member(rig.log, group, topic, neighbour))
        records = await member.take(47)

        there = [record for record in records if record.topic == topic]
        assert [record.offset for record in there] == list(range(7))
        assert [record.flaw is None for record in there] == [True] * 3 + [False] * 2 + [True] * 2
        assert values([record for record in there if record.flaw is None]) == [b"0", b"1", b"2", b"0", b"1"]
        assert {record.flaw.reason for record in there if record.flaw} == {"invalid"}
        assert values([record for record in records if record.topic == neighbour]) == [b"%d" % n for n in range(40)]
        await member.consumer.commit({TopicPartition(topic, 0): 5})
        await member.consumer.close()

        await rig.log.create([], {topic: others})
        again = await started(Member(rig.log, group, topic))
        assert [record.offset for record in await again.take(2)] == [5, 6]

    async def test_polls_go_on_when_only_what_cannot_be_read_is_there(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        member = await started(Member(rig.log, group, topic))
        await rig.spoil(topic)
        assert [record.flaw is None for record in await member.take(1)] == [False]
        await rig.spoil(topic)
        assert [record.flaw is None for record in await member.take(1)] == [False]
        await rig.log.append(keyed(topic, 1))
        assert values(await member.take(1)) == [b"0"]

    async def test_no_more_than_asked_for_comes_with_what_cannot_be_read(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log)
        await rig.spoil(topic)
        await rig.log.append(keyed(topic, 5))
        await rig.spoil(topic)
        member = await started(Member(rig.log, group, topic))
        seen: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            while sum(seen) < 7:
                seen.append(sum(map(len, (await member.poll(max_records=2)).values())))
        assert max(seen) <= 2
        assert [record.offset for record in member.records] == list(range(7))

    async def test_other_readers_pass_over_what_cannot_be_read(self, rig: LogRig) -> None:
        topic = await topic_for(rig.log)
        at = await rig.log.append(keyed(topic, 2))
        await rig.spoil(topic)
        at += await rig.log.append(keyed(topic, 2))

        read = await rig.log.read([(each, b"key-0") for each in at])
        assert [record and record.value for record in read] == [b"0", b"1", b"0", b"1"]
        [spoilt] = await rig.log.read([(Coordinate(topic, 0, 2), b"k")])
        assert spoilt is None or spoilt.flaw is not None
        batches = await scanned(rig.log, topic, 0, batch=1)
        assert all(batches)
        assert [record.offset for batch in batches for record in batch if record.flaw is None] == [0, 1, 3, 4]
        followed: list[Record] = []
        async with asyncio.timeout(PATIENCE_S):
            async for record in rig.log.follow(topic):
                if record is None:
                    break
                followed.append(record)
        assert [record.offset for record in followed if record.flaw is None] == [0, 1, 3, 4]

    # crashes

    async def test_nothing_acknowledged_is_lost_with_the_client(self, rig: LogRig) -> None:
        group, topic = await grouped_topic(rig.log, partitions=2)
        acknowledged: set[bytes] = set()
        enough = asyncio.Event()

        async def produce(log: Log, name: int) -> None:
            for n in range(100_000):
                value = b"%d-%d" % (name, n)
                try:
                    await log.append([NewRecord(topic, b"%d" % name, value)])
                except LogUnavailable:
                    return
                acknowledged.add(value)
                if len(acknowledged) >= 50:
                    enough.set()

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as producers:
            log = rig.log
            for name in range(4):
                producers.create_task(produce(log, name))
            await enough.wait()
            await rig.reopen()

        member = await started(Member(rig.log, group, topic))
        await settle([member], lambda: acknowledged <= set(values(member.records)))
