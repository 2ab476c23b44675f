"""Tests of failures of the Kafka log: members and producers that die, a broker that stops, hangs, and compacts."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeVar

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from bench.kafka_parts import free_ports
from relay.domain.errors import ConsumerBroken, LogUnavailable, PartitionLost, UserError
from relay.domain.topics import TopicSpec
from relay.log.kafka.cluster import KafkaCluster
from relay.log.kafka.feed import Feed
from relay.log.kafka.log import KafkaLog
from relay.log.partitioner import partition_of
from relay.log.port import Assignment, Coordinate, NewRecord, Subscription, TopicPartition
from tests.contract.log_contract import PATIENCE_S, Member, keyed, settle, started, topic_for, unique, values
from tests.integration.kafka_process import COMMITTED_RECORDS, SESSION_TIMEOUT_MS
from tests.log_reads import lag, newest
from tests.servers.kafka import Broker, KafkaBroker
from tests.servers.kafka import own_broker as own_broker

pytestmark = pytest.mark.kafka

LONGER_THAN_ANY_TEST_MS: Final = 600_000
REQUEST_TIMEOUT_MS: Final = 2_000


@asynccontextmanager
async def opened(
    bootstrap: str,
    *,
    session_timeout_ms: int = 15_000,
    heartbeat_interval_ms: int = 200,
    request_timeout_ms: int = 15_000,
    replication_factor: int | None = None,
) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(
        KafkaCluster(bootstrap, request_timeout_ms=request_timeout_ms),
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=heartbeat_interval_ms,
        replication_factor=replication_factor,
    )
    await log.start()
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def process(role: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.kafka_process", role, *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def line(child: asyncio.subprocess.Process) -> list[str]:
    assert child.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        words = (await child.stdout.readline()).decode().split()
    assert words, "the process ended"
    return words


T = TypeVar("T")


async def repeated(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until the log is available, as the engine does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except LogUnavailable:
                continue


@pytest_asyncio.fixture
async def log(kafka_broker: Broker) -> AsyncIterator[KafkaLog]:
    async with opened(kafka_broker.bootstrap, session_timeout_ms=SESSION_TIMEOUT_MS) as log:
        yield log


@pytest_asyncio.fixture
async def frail(own_broker: KafkaBroker) -> AsyncIterator[KafkaLog]:
    """A log whose broker the test may stop; it is up again, and answers, at the start of each test."""
    own_broker.thaw()
    async with opened(own_broker.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as log:
        yield log


# members


async def test_who_leaves_is_not_waited_for(kafka_broker: Broker) -> None:
    async with opened(kafka_broker.bootstrap, session_timeout_ms=LONGER_THAN_ANY_TEST_MS) as log:
        group = unique("group")
        topic = await topic_for(log, group, partitions=2)
        one, two = await started(Member(log, group, topic)), await started(Member(log, group, topic))
        await settle([one, two], lambda: len(one.owned) == len(two.owned) == 1)

        await one.consumer.close()
        await settle([two], lambda: len(two.owned) == 2)


async def test_who_begins_does_not_wait_for_heartbeats_until_it_has_its_share(kafka_broker: Broker) -> None:
    never_ms = LONGER_THAN_ANY_TEST_MS // 3
    async with opened(
        kafka_broker.bootstrap, session_timeout_ms=LONGER_THAN_ANY_TEST_MS, heartbeat_interval_ms=never_ms
    ) as log:
        group = unique("group")
        topic = await topic_for(log, group, partitions=2)
        one, two = await started(Member(log, group, topic)), await started(Member(log, group, topic))
        await settle([one, two], lambda: len(one.owned) == len(two.owned) == 1)


async def test_closing_the_log_lets_its_members_leave(kafka_broker: Broker) -> None:
    async with opened(kafka_broker.bootstrap, session_timeout_ms=LONGER_THAN_ANY_TEST_MS) as log:
        group = unique("group")
        topic = await topic_for(log, group)
        async with opened(kafka_broker.bootstrap, session_timeout_ms=LONGER_THAN_ANY_TEST_MS) as other:
            one = await started(Member(other, group, topic))
            await settle([one], lambda: len(one.owned) == 1)
        assert one.revocations == [TopicPartition(topic, 0)]

        two = await started(Member(log, group, topic))
        await settle([two], lambda: len(two.owned) == 1)


async def test_the_rest_takes_over_from_a_killed_member_where_it_had_committed(
    log: KafkaLog, kafka_broker: Broker
) -> None:
    group = unique("group")
    topic = await topic_for(log, group, partitions=2)
    survivor = await started(Member(log, group, topic, commit_on_revoke=True))
    await settle([survivor], lambda: len(survivor.owned) == 2)

    async with process("consume", kafka_broker.bootstrap, topic, group) as child:
        await settle([survivor], lambda: len(survivor.owned) == 1)
        [_, number] = await line(child)
        taken = TopicPartition(topic, int(number))
        keys = {partition_of(b"%d" % n, 2): b"%d" % n for n in range(20)}
        await log.append([NewRecord(topic, keys[taken.partition], b"%d" % n) for n in range(12)])
        assert await line(child) == ["committed", str(COMMITTED_RECORDS)]
        child.kill()

        await settle([survivor], lambda: len(survivor.owned) == 2)
        await settle([survivor], lambda: len(survivor.records) >= 7)  # some may have come with the assignment
        assert values(survivor.records) == [b"%d" % n for n in range(COMMITTED_RECORDS, 12)]


async def test_a_former_group_is_taken_over_once_it_has_no_member(log: KafkaLog) -> None:
    former, group = unique("former"), unique("group")
    topic = await topic_for(log, former)
    await log.append(keyed(topic, 4))
    before = await started(Member(log, former, topic))
    await before.take(4)

    member = await started(Member(log, group, topic, former=lambda _: former))
    await settle([before, member], lambda: former in (member.consumer.waits_for() or ""))
    assert member.owned == {}
    await before.consumer.commit({TopicPartition(topic, 0): 3})
    await before.consumer.close()

    assert values(await member.take(1)) == [b"3"]
    assert member.consumer.waits_for() is None
    await member.consumer.close()


async def test_a_member_of_another_release_is_waited_for(log: KafkaLog, kafka_broker: Broker) -> None:
    group = unique("group")
    topic = await topic_for(log, group)
    await log.append(keyed(topic, 1))
    other = AIOKafkaConsumer(topic, bootstrap_servers=kafka_broker.bootstrap, group_id=group, enable_auto_commit=False)
    await other.start()
    member = await started(Member(log, group, topic))
    await settle([member], lambda: "another release" in (member.consumer.waits_for() or ""))
    assert member.owned == {}

    await other.stop()
    assert values(await member.take(1)) == [b"0"]
    await member.consumer.close()


async def test_a_session_timeout_that_the_broker_refuses_is_named(kafka_broker: Broker) -> None:
    async with opened(kafka_broker.bootstrap, session_timeout_ms=86_400_000) as log:
        group = unique("group")
        member = await started(Member(log, group, await topic_for(log, group)))
        refused = "refuses RELAY_KAFKA_SESSION_TIMEOUT, 86400 s"
        await settle([member], lambda: refused in (member.consumer.waits_for() or ""))
        await member.consumer.close()


async def test_who_was_put_out_gives_up_what_it_had_and_comes_back(log: KafkaLog) -> None:
    group = unique("group")
    topic = await topic_for(log, group)
    member = await started(Member(log, group, topic))
    await settle([member], lambda: len(member.owned) == 1)
    place, epoch = next(iter(member.owned.items()))
    membership = member.consumer._member  # type: ignore[attr-defined]
    await membership.offsets.leave(membership.generation[1])  # as the broker does when a session is over

    await settle([member], lambda: member.owned.get(place, 0) > epoch)
    assert member.revocations == [place]
    await log.append(keyed(topic, 1))
    await member.take(1)
    await member.consumer.commit({place: 1})
    await member.consumer.close()


async def test_who_is_not_heard_of_for_a_session_holds_nothing_and_comes_back(own_broker: KafkaBroker) -> None:
    """By then the group may have dealt to others what it had."""
    own_broker.thaw()
    async with opened(own_broker.bootstrap, session_timeout_ms=2_000, request_timeout_ms=REQUEST_TIMEOUT_MS) as log:
        group = unique("group")
        topic = await topic_for(log, group)
        member = await started(Member(log, group, topic))
        await settle([member], lambda: len(member.owned) == 1)
        place, epoch = next(iter(member.owned.items()))

        own_broker.freeze()
        try:
            await settle([member], lambda: member.owned == {})
            with pytest.raises(PartitionLost):
                await member.consumer.confirm([Assignment(place, epoch)])
        finally:
            own_broker.thaw()
        await settle([member], lambda: member.owned.get(place, 0) > epoch)
        await member.consumer.close()


async def test_what_looks_after_a_member_does_not_die_in_silence(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = unique("group")
    member = await started(Member(log, group, await topic_for(log, group)))
    await settle([member], lambda: len(member.owned) == 1)

    async def dies() -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(member.consumer._wanted, "look", dies)  # type: ignore[attr-defined]
    member.consumer.subscribe([])
    with pytest.raises(RuntimeError, match="a bug"):
        await settle([member], lambda: False)
    await member.consumer.close()


async def test_commits_go_through_while_the_group_is_dealt_anew(log: KafkaLog) -> None:
    """While a second member joins and leaves, the first one continues to commit and keeps its membership."""
    group = unique("group")
    topic = await topic_for(log, group, partitions=4)
    await log.append(keyed(topic, 400, keys=40))
    member = await started(Member(log, group, topic, rank=0))
    await settle([member], lambda: len(member.owned) == 4)
    committed = 0

    async def join_and_leave() -> None:
        for _ in range(5):
            guest = await started(Member(log, group, topic, rank=1))
            async with asyncio.timeout(PATIENCE_S):
                while not guest.owned:
                    await guest.poll()
            await guest.consumer.close()

    async with asyncio.TaskGroup() as tasks:
        guests = tasks.create_task(join_and_leave())
        while not guests.done():
            await member.poll()
            ends = member.ends(list(member.owned))
            try:
                await member.consumer.commit(ends)
                committed += bool(ends)
            except PartitionLost:
                assert ends.keys() - member.owned.keys()
    assert committed
    await member.consumer.close()


async def test_what_a_listener_raises_comes_out_of_poll(log: KafkaLog) -> None:
    group = unique("group")
    topic = await topic_for(log, group)
    await log.append(keyed(topic, 1))

    async def assigned(_: Sequence[Assignment]) -> None:
        raise UserError("cannot take it")

    async def revoked(_: Sequence[TopicPartition]) -> None:
        raise UserError("cannot give it back")

    consumer = log.consumer(Subscription(group, [topic]), assigned, revoked)
    await consumer.start()
    with pytest.raises(UserError, match="cannot take it"):
        await consumer.poll(max_records=1, timeout_s=PATIENCE_S)
    assert await consumer.poll(max_records=1, timeout_s=0) == {}
    await consumer.close()


async def test_a_dead_coordination_task_is_noticed(log: KafkaLog) -> None:
    group = unique("group")
    topic = await topic_for(log, group)
    member = await started(Member(log, group, topic))
    await settle([member], lambda: len(member.owned) == 1)

    member.consumer._member._coordinator._coordination_task.cancel()  # type: ignore[attr-defined]

    with pytest.raises(ConsumerBroken, match="coordination task is dead"):
        await settle([member], lambda: False)


async def test_fetching_that_broke_off_is_made_anew_for_whoever_comes_back(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = unique("group")
    topic = await topic_for(log, group)
    member = await started(Member(log, group, topic))
    await settle([member], lambda: len(member.owned) == 1)

    def fail(*_: object) -> bool:
        raise ZeroDivisionError("a mistake of ours")

    with monkeypatch.context() as broken:
        broken.setattr(Feed, "accept", fail)
        await log.append(keyed(topic, 1))
        with pytest.raises(ConsumerBroken, match="a mistake of ours"):
            await settle([member], lambda: False)
    await member.consumer.close()

    again = await started(Member(log, group, topic))
    await settle([again], lambda: len(again.records) == 1)


# producers


async def test_nothing_acknowledged_is_lost_when_the_producer_is_killed(log: KafkaLog, kafka_broker: Broker) -> None:
    topic = await topic_for(log, partitions=3)
    acknowledged: list[tuple[Coordinate, bytes]] = []

    async with process("produce", kafka_broker.bootstrap, topic) as child:
        while len(acknowledged) < 500:
            partition, offset, value = await line(child)
            acknowledged.append((Coordinate(topic, int(partition), int(offset)), value.encode()))
        child.kill()

    read = await log.read([(at, None) for at, _ in acknowledged])
    assert [record and record.value for record in read] == [value for _, value in acknowledged]


async def test_large_appends_keep_the_order_of_each_key(log: KafkaLog) -> None:
    """More than a batch holds, in one call."""
    topic = await topic_for(log, partitions=2)
    sent = [NewRecord(topic, b"%d" % (n % 3), b"%06d" % n * 500) for n in range(300)]

    at = await log.append(sent)

    for key in range(3):
        offsets = [place.offset for place, record in zip(at, sent, strict=True) if record.key == b"%d" % key]
        assert offsets == sorted(set(offsets))
    read = await log.read([(place, record.key) for place, record in zip(at, sent, strict=True)])
    assert [record and record.value for record in read] == [record.value for record in sent]


async def test_a_record_with_neither_key_nor_value_goes_through(log: KafkaLog) -> None:
    topic = await topic_for(log)
    [at] = await log.append([NewRecord(topic, None, None, (("h", b"1"),))])
    [record] = await log.read([(at, None)])
    assert record is not None
    assert (record.key, record.value, record.headers) == (None, None, (("h", b"1"),))


async def test_a_cancelled_append_leaves_the_log_usable(log: KafkaLog) -> None:
    topic = await topic_for(log, partitions=2)
    for _ in range(20):
        appending = asyncio.ensure_future(log.append(keyed(topic, 40, keys=10)))
        await asyncio.sleep(0)
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending

    assert len(await log.append(keyed(topic, 40, keys=10))) == 40


# the broker


async def test_nobody_there_is_said(frail: KafkaLog) -> None:
    [port] = free_ports(1)
    nowhere = KafkaLog(KafkaCluster(f"127.0.0.1:{port}"))
    with pytest.raises(LogUnavailable, match=f"127.0.0.1:{port}"):
        await nowhere.start()
    await nowhere.close()


async def test_work_goes_on_when_the_broker_is_back(frail: KafkaLog, own_broker: KafkaBroker) -> None:
    group = unique("group")
    topic = await repeated(lambda: topic_for(frail, group))
    member = await started(Member(frail, group, topic))
    await frail.append(keyed(topic, 3))
    await member.take(3)

    own_broker.kill()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(LogUnavailable):
            await frail.append(keyed(topic, 1))
        with pytest.raises(LogUnavailable):
            await member.consumer.commit({TopicPartition(topic, 0): 3})
        with pytest.raises(LogUnavailable):
            await lag(frail, group, topic)
        assert await member.poll() == {}
    await asyncio.to_thread(own_broker.start)

    await repeated(lambda: frail.append([NewRecord(topic, b"key-0", b"after")]))
    await settle([member], lambda: member.records[-1].value == b"after")
    await repeated(lambda: member.consumer.commit(member.ends([TopicPartition(topic, 0)])))
    assert await lag(frail, group, topic) == 0


@pytest.mark.parametrize("failure", ["freeze", "kill"])
async def test_without_the_broker_everything_still_ends(frail: KafkaLog, own_broker: KafkaBroker, failure: str) -> None:
    group = unique("group")
    topic = await repeated(lambda: topic_for(frail, group))
    member = await started(Member(frail, group, topic))
    await frail.append(keyed(topic, 1))
    await member.take(1)
    following = frail.follow(topic)
    await anext(following)
    waiting = asyncio.ensure_future(frail.append(keyed(topic, 1)))

    getattr(own_broker, failure)()
    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(LogUnavailable):
                await member.consumer.commit({TopicPartition(topic, 0): 1})
            await member.consumer.close()
            await asyncio.gather(waiting, return_exceptions=True)
            await following.aclose()
            await frail.close()
        assert member.owned == {}
        with pytest.raises(LogUnavailable):
            await frail.append(keyed(topic, 1))
    finally:
        if failure == "kill":
            await asyncio.to_thread(own_broker.start)
        own_broker.thaw()


# time


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
async def test_the_brokers_clock_counts_and_not_the_senders(
    log: KafkaLog, kafka_broker: Broker, cleanup: Literal["delete", "compact"]
) -> None:
    topic = await topic_for(log, group := unique("group"), cleanup=cleanup)
    member = await started(Member(log, group, topic))
    [first] = await log.append([NewRecord(topic, b"first", b"")])
    sender = AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap)
    await sender.start()
    yesterday_ms, tomorrow_ms = (int((time.time() + off_s) * 1000) for off_s in (-86_400, 86_400))
    for wrong_ms in (yesterday_ms, tomorrow_ms):
        await sender.send_and_wait(topic, b"", str(wrong_ms).encode(), timestamp_ms=wrong_ms)
    await sender.stop()
    last = (await log.append([NewRecord(topic, b"last", b"")]))[0]

    consumed = await member.take(4)
    assert [record.offset for record in consumed] == [first.offset, first.offset + 1, first.offset + 2, last.offset]
    times = [record.timestamp_ms for record in consumed]
    assert times == sorted(times)
    assert times[0] > yesterday_ms + 80_000_000
    assert times[-1] < tomorrow_ms - 80_000_000
    assert await log.read([(record.coordinate, record.key) for record in consumed]) == consumed
    assert [record async for batch in log.scan(topic, 0) for record in batch] == consumed
    await member.consumer.close()


async def test_a_topic_that_leaves_the_time_to_senders_is_described_so(log: KafkaLog, kafka_broker: Broker) -> None:
    topic = await topic_for(log)
    assert (await log.describe([topic]))[topic].sender_timed is False
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    await admin.start()
    await admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, topic, {"message.timestamp.type": "CreateTime"})]
    )
    await admin.close()
    async with asyncio.timeout(PATIENCE_S):
        while not (await log.describe([topic]))[topic].sender_timed:
            continue


# compaction, administration


async def test_what_was_compacted_away_reads_as_none(log: KafkaLog, kafka_broker: Broker) -> None:
    topic = await topic_for(log, cleanup="compact")
    eager = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, eager)])
    await admin.close()
    [old] = await log.append([NewRecord(topic, b"a", b"old")])
    [kept] = await log.append([NewRecord(topic, b"b", b"kept")])

    async with asyncio.timeout(PATIENCE_S):
        while (await log.read([(old, b"a")])) != [None]:
            await log.append([NewRecord(topic, b"a", b"new" * 1000)])  # each closes a segment, which may be compacted

    [record] = await log.read([(kept, b"b")])
    assert record is not None
    assert record.value == b"kept"
    assert [record.key for record in await newest(log, topic, 0)] == [b"b", b"a"]


async def test_many_processes_may_create_the_same_topics_at_once(kafka_broker: Broker) -> None:
    group = unique("group")
    specs = [TopicSpec(unique("topic"), 3), TopicSpec(unique("topic"), 1, "compact", None)]
    async with (
        opened(kafka_broker.bootstrap) as one,
        opened(kafka_broker.bootstrap) as two,
        opened(kafka_broker.bootstrap) as three,
    ):
        created = await asyncio.gather(*(log.create(specs, {specs[0].name: group}) for log in (one, two, three)))
        assert sorted(name for names in created for name in names) == sorted(spec.name for spec in specs)
        member = await started(Member(one, group, specs[0].name))
        await one.append(keyed(specs[0].name, 9, keys=9))
        await member.take(9)


async def test_what_the_cluster_cannot_give_is_the_users_mistake(kafka_broker: Broker) -> None:
    topic = unique("topic")
    async with opened(kafka_broker.bootstrap, replication_factor=99) as log:
        with pytest.raises(UserError, match=topic):
            await log.create([TopicSpec(topic, 1)], {})


async def test_a_topic_that_is_new_to_a_group_with_members_begins_at_its_beginning(log: KafkaLog) -> None:
    """The broker takes no offsets for such a group from outside."""
    group = unique("group")
    read, other = await topic_for(log, group), await topic_for(log)
    member = await started(Member(log, group, read))
    await settle([member], lambda: len(member.owned) == 1)

    await log.append(keyed(other, 3))
    await log.create([], {other: group})
    assert [each.committed for each in await log.backlogs({other: group})] == [0]

    member.consumer.subscribe([read, other])
    assert values(await member.take(3)) == [b"0", b"1", b"2"]
    assert member.revocations == []
    await member.consumer.commit({TopicPartition(other, 0): 3})
    assert [each.committed for each in await log.backlogs({other: group})] == [3]
    await log.create([], {other: group})
    assert [each.committed for each in await log.backlogs({other: group})] == [3]
    await member.consumer.close()
