"""The log contract on a real Kafka broker."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.structs import TopicPartition as KafkaPartition

from relay.domain.errors import LogUnavailable, OffsetMissing, RecordTooLarge
from relay.domain.topics import TopicSpec
from relay.log.kafka import fetch_loop, holdings
from relay.log.kafka.cluster import KafkaCluster
from relay.log.kafka.log import KafkaLog
from relay.log.kafka.offsets import Committed, GroupOffsets
from relay.log.port import Coordinate, Log, NewRecord, TopicPartition
from tests.contract.log_contract import (
    PATIENCE_S,
    LogContract,
    Member,
    grouped_topic,
    keyed,
    settle,
    started,
    topic_for,
    unique,
    values,
)
from tests.expecting import present
from tests.fakes.raw_batches import RawBatch, RawRecord, produce_raw
from tests.servers.kafka import Broker, KafkaBroker, own_broker

__all__ = ["own_broker"]

pytestmark = pytest.mark.kafka


PATIENCE_MS: Final = 60_000
"""The timeout of requests that are not to fail on a slow machine."""


class KafkaRig:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = self._new()
        self.log: Log = self._client
        self.max_message_bytes = self._client._cluster.max_record_bytes

    def _new(self) -> KafkaLog:
        return KafkaLog(KafkaCluster(self._bootstrap), session_timeout_ms=10_000, heartbeat_interval_ms=100)

    async def reopen(self) -> Log:
        members = await vanish(self._client)
        self._client = self._new()
        self.log = self._client
        await self.log.start()
        for group, member in members:
            await self._expel(group, member)
        return self.log

    async def expel(self, consumer: Any) -> None:
        await self._expel(consumer._group, consumer._member.generation[1])

    async def _expel(self, group: str, member: str) -> None:
        """Do at once what the broker does when the session of a member expires."""
        ours = self._client._client
        request = LeaveGroupRequest(group, member)
        await ours._repeated("expelling a member", lambda client: ours._to_coordinator(client, group, request))

    def another(self) -> Log:
        return self._new()

    async def drop_before(self, at: Coordinate) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        await admin.delete_records({KafkaPartition(at.topic, at.partition): RecordsToDelete(at.offset)})
        await admin.close()

    async def spoil(self, topic: str) -> None:
        await produce_raw(self._client, topic, RawBatch([RawRecord(headers=[(b"\xff", b"")])]))


async def vanish(log: KafkaLog) -> list[tuple[str, str]]:
    """Cut all connections and end all tasks of `log`, as a killed process would; the group members that are left."""
    members = []
    for consumer in log._consumers:
        member, consumer._closing = consumer._member, True
        coordinator, standing = member._coordinator, member.generation
        if coordinator is None or consumer._maintaining is None or standing is None:
            continue
        members.append((consumer._group, standing[1]))
        own = [coordinator._coordination_task, coordinator._heartbeat_task, member._vigil]
        await cut(member._client, *own, consumer._maintaining, *consumer._ending)
        consumer._maintaining = None
    running = present(log._producer._running)
    log._producer._running, log._producer._closed = None, True
    running.accumulator.close()
    producer = running.producer
    producer._closed = True
    producer._message_accumulator.fail_all(KafkaError("the process is gone"))
    await cut(producer.client, producer._sender.sender_task)
    await log._fetching[0].close()
    await log._client.close()
    return members


async def cut(client: AIOKafkaClient, *tasks: asyncio.Task[Any] | None) -> None:
    for connection in client._conns.values():
        connection.close()
    running = [task for task in (*tasks, client._sync_task) if task is not None]
    for task in running:
        task.cancel()
    for task in running:
        with suppress(asyncio.CancelledError, KafkaError):
            await task


class TestKafkaLog(LogContract):
    @pytest_asyncio.fixture
    async def rig(self, kafka_broker: Broker) -> AsyncIterator[KafkaRig]:
        rig = KafkaRig(kafka_broker.bootstrap)
        await rig.log.start()
        yield rig
        await rig.log.close()


@asynccontextmanager
async def opened(
    bootstrap: str,
    *,
    request_timeout_ms: int = 1_000,
    max_message_bytes: int = 2**21,
    session_timeout_ms: int = 15_000,
    read_partitions: Mapping[str, int] = MappingProxyType({}),
) -> AsyncIterator[KafkaLog]:
    cluster = KafkaCluster(
        bootstrap,
        request_timeout_ms=request_timeout_ms,
        max_message_bytes=max_message_bytes,
        read_partitions=read_partitions,
    )
    log = KafkaLog(cluster, session_timeout_ms=session_timeout_ms)
    await log.start()
    try:
        yield log
    finally:
        await log.close()


async def until_appended(log: KafkaLog, records: list[NewRecord], failed: asyncio.Event) -> list[Coordinate]:
    while True:
        try:
            return await log.append(records)
        except LogUnavailable:
            failed.set()


async def test_what_a_broker_acknowledges_is_there_and_in_order_though_it_dies_meanwhile(
    own_broker: KafkaBroker,
) -> None:
    async with (
        opened(own_broker.bootstrap, request_timeout_ms=PATIENCE_MS) as patient,
        opened(own_broker.bootstrap) as log,
    ):
        topics = [await topic_for(patient, partitions=number) for number in (1, 2, 4)]
        at: dict[tuple[int, int], Coordinate] = {}
        begun, failed, back = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def caller(name: int) -> None:
            for number in range(0, 10_000, 5):
                records = [
                    NewRecord(topics[n % 3], b"%d" % (n % 9), b"%d-%d" % (name, n)) for n in range(number, number + 5)
                ]
                done = back.is_set()
                found = await until_appended(log, records, failed)
                at.update({(name, number + n): each for n, each in enumerate(found)})
                if len(at) > 500:
                    begun.set()
                if done:
                    return

        async with asyncio.TaskGroup() as callers:
            for name in range(10):
                callers.create_task(caller(name))
            await begun.wait()
            own_broker.kill()
            await failed.wait()
            await asyncio.to_thread(own_broker.start)
            back.set()

        read = await patient.read([(each, None) for each in at.values()])
        assert [record and record.value for record in read] == [b"%d-%d" % each for each in at]
        for name in range(10):
            for partition in {each[:2] for each in at.values()}:
                offsets = [at[each].offset for each in sorted(at) if each[0] == name and at[each][:2] == partition]
                assert offsets == sorted(offsets)


async def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_start(kafka_broker: Broker) -> None:
    """The new topic soon has the next offset to read, with the same leader epoch as the deleted one."""
    async with opened(kafka_broker.bootstrap, request_timeout_ms=PATIENCE_MS) as log:
        group, topic = await grouped_topic(log)
        at = TopicPartition(topic, 0)
        await log.append(keyed(topic, 3))
        member = await started(Member(log, group, topic))
        await member.take(3)
        await member.consumer.commit({at: 3})
        first = await log.topic_id(topic)
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
        await admin.start()
        await admin.delete_topics([topic])
        await admin.close()
        await settle([member], lambda: member.revocations == [at])

        spec = TopicSpec(topic, 1)
        while not await log.create([spec], {}):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await log.append(keyed(topic, 5))
        with pytest.raises(OffsetMissing):
            await settle([member], lambda: False)
        await member.consumer.restart([at])
        assert values(await member.take(5)) == [b"%d" % number for number in range(5)]
        assert await log.topic_id(topic) not in ("", first)
        assert await log.cluster_id() != ""


async def created_again(kafka_broker: Broker, log: KafkaLog, topic: str, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()
    while not await log.create([TopicSpec(topic, partitions)], {}):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("partitions", [1, 5])
async def test_a_topic_that_is_created_again_with_other_partitions_is_read_from_its_start(
    kafka_broker: Broker, partitions: int
) -> None:
    """Those that it does not have any more do not hold up the others, and new ones are not found only minutes later."""
    async with opened(kafka_broker.bootstrap) as log:
        group, topic = await grouped_topic(log, partitions=3)
        await log.append(keyed(topic, 9, keys=9))
        member = await started(Member(log, group, topic))
        await member.take(9)
        await created_again(kafka_broker, log, topic, partitions)
        producer = AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap)
        await producer.start()
        await producer.send_and_wait(topic, b"new", partition=partitions - 1)
        await producer.stop()

        def is_read() -> bool:
            return len(member.owned) == partitions and b"new" in values(member.records)

        while not is_read():
            try:
                await settle([member], is_read)
            except OffsetMissing as error:
                await member.consumer.restart([TopicPartition(*place) for place in error.partitions])


async def test_a_topic_that_is_created_again_while_it_is_paused_is_read_from_its_start(
    kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is fetched meanwhile, and finished records of the deleted one are committed for the other."""
    monkeypatch.setattr(fetch_loop, "_PAUSED_S", 0.0)
    async with opened(kafka_broker.bootstrap, request_timeout_ms=PATIENCE_MS) as log:
        group = unique("group")
        topic, other = await topic_for(log, group), await topic_for(log, group)
        at = TopicPartition(topic, 0)
        await log.append(keyed(topic, 3))
        member = await started(Member(log, group, topic, other))
        await member.take(3)
        member.consumer.pause([at])
        await log.append(keyed(other, 1))
        await member.take(1)  # the fetch that had the paused one in it is over

        await created_again(kafka_broker, log, topic)
        await log.append(keyed(topic, 5))
        await member.consumer.commit({at: 3})
        member.consumer.resume([at])
        with pytest.raises(OffsetMissing):
            await settle([member], lambda: False)
        await member.consumer.restart([at])
        assert values(await member.take(5)) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("incarnation", [1, 2])
async def test_an_offset_that_was_committed_for_a_deleted_topic_is_known_as_such_at_the_next_start(
    kafka_broker: Broker, incarnation: int
) -> None:
    """The process ends before the paused lane goes on. `incarnation` 2: release 0.1 would not read it with an id."""
    async with opened(kafka_broker.bootstrap, request_timeout_ms=PATIENCE_MS) as log:
        group, topic = await grouped_topic(log)
        at = TopicPartition(topic, 0)
        await log.append(keyed(topic, 3))
        await GroupOffsets(log._client, group).commit({at: Committed(0, incarnation)})
        member = await started(Member(log, group, topic))
        await member.take(3)
        member.consumer.pause([at])
        await created_again(kafka_broker, log, topic)
        await log.append(keyed(topic, 5))
        await member.consumer.commit({at: 3})
        await member.consumer.close()
        [backlog] = await log.backlogs({topic: group})
        assert (backlog.committed, backlog.lost_from) == (3, 0 if incarnation == 1 else None)
        assert backlog.unread == (5 if incarnation == 1 else 2)

        following = await started(Member(log, group, topic))
        if incarnation == 1:
            with pytest.raises(OffsetMissing):
                await settle([following], lambda: False)
            await following.consumer.restart([at])
        first = 0 if incarnation == 1 else 3
        assert values(await following.take(5 - first)) == [b"%d" % number for number in range(first, 5)]
        await following.consumer.commit({at: 5})
        await following.consumer.close()
        [backlog] = await log.backlogs({topic: group})
        assert (backlog.committed, backlog.lost_from) == (5, None)


@pytest.mark.parametrize("failure", ["freeze", "kill"])
async def test_appends_end_while_the_broker_is_away_and_succeed_in_order_afterwards(
    own_broker: KafkaBroker, failure: str
) -> None:
    async with (
        opened(own_broker.bootstrap, request_timeout_ms=PATIENCE_MS) as patient,
        opened(own_broker.bootstrap) as log,
    ):
        topic = await topic_for(patient)
        ignored = asyncio.Event()
        await until_appended(log, keyed(topic, 1), ignored)
        getattr(own_broker, failure)()
        calls = [asyncio.ensure_future(log.append(keyed(topic, 3))) for _ in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in outcomes] == [LogUnavailable] * 5

        if failure == "freeze":
            own_broker.thaw()
        else:
            await asyncio.to_thread(own_broker.start)
        at = [await until_appended(log, [NewRecord(topic, b"k", b"%d" % n)], ignored) for n in range(5)]
        assert at == sorted(at)
        read = await patient.read([(each, None) for [each] in at])
        assert [record and record.value for record in read] == [b"%d" % n for n in range(5)]


async def test_a_topic_with_a_lower_limit_refuses_only_what_is_larger(kafka_broker: Broker) -> None:
    """The limit applies to batches, and several records share a batch."""
    async with (
        opened(kafka_broker.bootstrap, max_message_bytes=1_000) as strict,
        opened(kafka_broker.bootstrap, request_timeout_ms=15_000) as log,
    ):
        topic = await topic_for(strict)
        await log.append(keyed(topic, 1))
        values = [os.urandom(size) for size in (40_000, 40_000, 90_000, 30_000, 10)]
        outcomes = await asyncio.gather(
            *(log.append([NewRecord(topic, b"k", value)]) for value in values), return_exceptions=True
        )

        assert isinstance(outcomes[2], RecordTooLarge)
        assert topic in str(outcomes[2])
        at = [each[0] for each in outcomes if isinstance(each, list)]
        read = await log.read([(each, b"k") for each in at])
        assert [record and record.value for record in read] == [values[n] for n in (0, 1, 3, 4)]


async def test_a_close_ends_a_poll_that_waits(kafka_broker: Broker) -> None:
    async with opened(kafka_broker.bootstrap) as log, asyncio.timeout(PATIENCE_S):
        group, topic = await grouped_topic(log)
        member = await started(Member(log, group, topic))
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(member.take(40))
            for n in range(40):
                await log.append([NewRecord(topic, b"k", b"%d" % n)])
        assert values(reading.result()) == [b"%d" % n for n in range(40)]

        waiting = asyncio.ensure_future(member.poll(timeout_s=10 * PATIENCE_S))
        await asyncio.sleep(0)
        await log.append(keyed(topic, 1))
        await member.consumer.close()
        await waiting


async def test_a_topic_that_grew_is_used_in_full_if_all_of_it_is_read(kafka_broker: Broker) -> None:
    read: dict[str, int] = {}
    async with opened(kafka_broker.bootstrap, read_partitions=read) as log, asyncio.timeout(PATIENCE_S):
        grown, kept = topics = [await topic_for(log), await topic_for(log)]
        read[kept] = 1
        records = [record for topic in topics for record in keyed(topic, 20, keys=20)]
        await log.append(records)
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
        await admin.start()
        await admin.create_partitions({topic: NewPartitions(3) for topic in topics})
        await admin.close()
        used: set[tuple[str, int]] = set()
        while len(used) < 4:
            running = present(log._producer._running)
            await running.producer.client.force_metadata_update()  # as the client does every five minutes
            used = {(at.topic, at.partition) for at in await log.append(records)}
        assert used == {(grown, 0), (grown, 1), (grown, 2), (kept, 0)}


async def test_partitions_that_were_added_are_read_from_their_start(
    kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an operator adds them: without an offset of the group."""
    monkeypatch.setattr("relay.log.kafka.consumer._MAINTAIN_EVERY_S", 0.1)
    monkeypatch.setattr(holdings, "_LOOK_S", 0.0)
    async with opened(kafka_broker.bootstrap) as log, asyncio.timeout(PATIENCE_S):
        group, topic = await grouped_topic(log)
        member = await started(Member(log, group, topic))
        await settle([member], lambda: len(member.owned) == 1)
        await log.grow(topic, 3)
        producer = AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap)
        await producer.start()
        for partition in range(3):
            await producer.send_and_wait(topic, b"of %d" % partition, partition=partition)
        await producer.stop()
        missing: set[tuple[str, int]] = set()
        while len(missing) < 2:
            try:
                await settle([member], lambda: False)
            except OffsetMissing as error:
                missing.update(error.partitions)
                await member.consumer.restart([TopicPartition(*place) for place in error.partitions])
        await settle([member], lambda: len(member.records) == 3)
        assert missing == {(topic, 1), (topic, 2)}
        assert {(each.partition, each.value) for each in member.records} == {(n, b"of %d" % n) for n in range(3)}


async def test_all_new_topics_of_an_append_are_looked_up_together(kafka_broker: Broker) -> None:
    """Otherwise, the request for each topic would include all topics before it."""
    async with opened(kafka_broker.bootstrap) as log, asyncio.timeout(PATIENCE_S):
        await log.append(keyed(await topic_for(log), 1))
        topics = [unique("topic") for _ in range(20)]
        await log.create([TopicSpec(topic, 1) for topic in topics], {})
        await log.ends([TopicPartition(topic, 0) for topic in topics])  # their leader accepts requests
        running = present(log._producer._running)
        updates: list[object] = []
        running.producer.client.cluster.add_listener(updates.append)

        places = await log.append([NewRecord(topic, b"k", b"v") for topic in topics])

        assert [at.topic for at in places] == topics
        assert len(updates) < 4


@pytest.mark.parametrize("deltas", [(0, 5, 2), (0, 1, 99), (4, 3, 2)])
async def test_offsets_that_a_client_made_up_do_no_harm(kafka_broker: Broker, deltas: tuple[int, ...]) -> None:
    """The broker stores such offsets unchanged."""
    async with opened(kafka_broker.bootstrap) as log, asyncio.timeout(PATIENCE_S):
        group, topic = await grouped_topic(log)
        await produce_raw(log, topic, RawBatch([RawRecord(value=b"%d" % n) for n in range(3)], deltas=deltas))
        await log.append(keyed(topic, 2))
        member = await started(Member(log, group, topic))
        records = await member.take(5)
        assert [record.offset for record in records] == list(range(5))
        assert values(records) == [b"0", b"1", b"2", b"0", b"1"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_what_a_sender_has_compressed_is_consumed_and_read(kafka_broker: Broker, codec: str) -> None:
    """The broker stores batches as sent. It returns zstd only to clients that fetch by a version that supports it."""
    async with opened(kafka_broker.bootstrap) as log, asyncio.timeout(PATIENCE_S):
        group, topic = await grouped_topic(log)
        sent = [b"%d" % n * 400 for n in range(20)]
        async with AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap, compression_type=codec) as producer:
            for future in [await producer.send(topic, value, key=b"k") for value in sent]:
                await future
        records = await (await started(Member(log, group, topic))).take(len(sent))
        assert values(records) == sent
        [last] = await log.read([(Coordinate(topic, records[-1].partition, records[-1].offset), None)])
        assert present(last).value == sent[-1]


def on_disk(broker: KafkaBroker, topic: str) -> Path:
    [segment] = (broker.data / f"{topic}-0").glob("*.log")
    return segment


async def test_batches_that_were_damaged_on_disk_are_skipped_and_say_so(own_broker: KafkaBroker) -> None:
    """Checksum, codec, frame of the records: of three good batches each one in the middle."""
    damage: list[Callable[[RawBatch], bytes]] = [
        lambda batch: batch.encoded()[:-1] + b"?",
        lambda batch: RawBatch(batch.records, attributes=6, base=batch.base).encoded(),
        lambda batch: batch.encoded(b"\x01" + b"\0" * (len(batch.body) - 1)),
    ]
    # a request that is given up and repeated would append a batch twice
    async with opened(own_broker.bootstrap, request_timeout_ms=PATIENCE_MS) as log:
        group = unique("group")
        topics = [await topic_for(log, group) for _ in damage]
        for topic, damaged in zip(topics, damage, strict=True):
            batches = [RawBatch([RawRecord(value=b"%d" % (2 * n + m)) for m in (0, 1)], base=2 * n) for n in range(3)]
            for batch in batches:
                await produce_raw(log, topic, batch.at(0))
            with on_disk(own_broker, topic).open("r+b") as segment:
                segment.seek(len(batches[0].encoded()))
                segment.write(damaged(batches[1]))

        member = await started(Member(log, group, *topics))
        await settle([member], lambda: len(member.records) == 5 * len(topics))
        for topic in topics:
            records = [record for record in member.records if record.topic == topic]
            assert values([record for record in records if not record.is_gap]) == [b"0", b"1", b"4", b"5"]
            [gap] = [record for record in records if record.is_gap]
            assert gap.flaw is not None
            assert (gap.flaw.first_offset, gap.offset) == (2, 3)
            assert "offsets 2 to 3 are skipped" in gap.flaw.detail
            assert member.ends([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 6}
            found = [record async for batch in log.scan(topic, 0) for record in batch]
            assert values(found) == [b"0", b"1", b"4", b"5"]
