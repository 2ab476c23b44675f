"""The log contract on the embedded log with its own server; and its retention, limits and crashes."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from relay.domain.errors import LogUnavailable, OffsetMissing
from relay.domain.topics import TopicSpec
from relay.embedded.valkey import ValkeyServer
from relay.log.port import Coordinate, Log, NewRecord, TopicPartition
from relay.log.streams.log import StreamsLog
from relay.log.streams.scripts import CHANGES_KEPT
from relay.log.streams.store import Slice
from tests.contract.log_contract import PATIENCE_S, LogContract, Member, keyed, settle, started, topic_for, values
from tests.servers.busy import busy

ALL_PAST: Final = -3600
"""A retention that has passed for every record, whatever the clock shows."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path: that of a unix socket has at most 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="relay-"))
    yield path
    shutil.rmtree(path)


@pytest_asyncio.fixture
async def server(directory: Path) -> AsyncIterator[ValkeyServer]:
    server = ValkeyServer(directory)
    await server.start()
    yield server
    if not server.exited.is_set():
        server.kill()  # quicker than a stop; the data are not needed any more
    await server.exited.wait()
    await server.stop()


class StreamsRig:
    max_message_bytes = 200_000

    def __init__(self, server: ValkeyServer) -> None:
        self.server = server
        self._client = self._new()
        self.log: Log = self._client

    def _new(self) -> StreamsLog:
        return StreamsLog(self.server.url(0), prefix="t:", max_message_bytes=self.max_message_bytes)

    async def reopen(self) -> Log:
        await self.log.close()  # to the server, the same as a process that dies: connections end, nothing else is said
        self._client = self._new()
        self.log = self._client
        await self.log.start()
        return self.log

    def another(self) -> Log:
        return self._new()

    async def drop_before(self, at: Coordinate) -> None:
        async with Redis.from_url(self.server.url(0)) as redis:
            await redis.xtrim(f"t:log:records:{at.topic}/{at.partition}", minid=f"{at.offset + 1}-0", approximate=False)

    async def spoil(self, topic: str) -> None:
        store = self._client._store
        await store.append([Slice(TopicPartition(topic, 0), await store.spec(topic), [(b"k", b"rubbish")], 0)])
        self._client._watchers.notify({topic})

    async def expel(self, consumer: Any) -> None:
        await consumer.store.take(consumer.group.name, dict.fromkeys(consumer._owned))


class TestStreamsLog(LogContract):
    @pytest_asyncio.fixture
    async def rig(self, server: ValkeyServer) -> AsyncIterator[StreamsRig]:
        rig = StreamsRig(server)
        await rig.log.start()
        yield rig
        await rig.log.close()


@pytest_asyncio.fixture
async def log(server: ValkeyServer) -> AsyncIterator[StreamsLog]:
    log = StreamsLog(server.url(0))
    await log.start()
    yield log
    await log.close()


async def test_a_server_that_is_busy_with_a_script_is_unavailable(server: ValkeyServer, log: StreamsLog) -> None:
    topic = await topic_for(log)
    async with busy(server.url(0)):
        with pytest.raises(LogUnavailable, match="BUSY"):
            await log.append(keyed(topic, 1))
        with pytest.raises(LogUnavailable, match="BUSY"):
            await log.describe([topic])
    await log.append(keyed(topic, 1))


@pytest.mark.parametrize(
    ("settings", "follows", "reason"),
    [
        ({}, True, "replica"),
        ({"replica-serve-stale-data": "no"}, True, "MASTER"),
        ({"min-replicas-to-write": "1"}, False, "NOREPLICAS"),
    ],
)
async def test_a_server_that_refuses_because_of_its_replication_is_unavailable(
    server: ValkeyServer, log: StreamsLog, settings: dict[str, str], follows: bool, reason: str
) -> None:
    topic = await topic_for(log)
    async with Redis.from_url(server.url(0)) as redis:
        for name, value in settings.items():
            await redis.config_set(name, value)
        if follows:
            await redis.replicaof("127.0.0.1", "1")  # nothing listens there
        with pytest.raises(LogUnavailable, match=reason):
            await log.append(keyed(topic, 1))
        await redis.replicaof("NO", "ONE")
        await redis.config_set("min-replicas-to-write", "0")
    await log.append(keyed(topic, 1))


async def expiring(log: StreamsLog, *groups: str) -> str:
    """A topic of one partition whose records are past retention at once, and that these groups read."""
    topic = await topic_for(log)
    name = f"expiring-{topic}"
    for group in groups:
        await log.create([TopicSpec(name, 1, retention_s=ALL_PAST)], {name: group})
    return name


async def commit(log: StreamsLog, group: str, topic: str, next_offset: int) -> None:
    member = await started(Member(log, group, topic))
    await member.consumer.commit({TopicPartition(topic, 0): next_offset})
    await member.consumer.close()


@asynccontextmanager
async def later(server: ValkeyServer, topic: str, **named: Any) -> AsyncIterator[StreamsLog]:
    """Another process, which has appended one record: its first append looks for records past retention."""
    log = StreamsLog(server.url(0), **named)
    await log.start()
    await log.append(keyed(topic, 1))
    yield log
    await log.close()


async def kept(log: StreamsLog, topic: str, count: int) -> list[int]:
    """The offsets among the first `count` that the log still holds."""
    found = await log.read([(Coordinate(topic, 0, offset), b"key-0") for offset in range(count)])
    return [record.offset for record in found if record is not None]


async def test_retention_stops_at_the_slowest_group(log: StreamsLog, server: ValkeyServer) -> None:
    topic = await expiring(log, "fast", "slow")
    await log.append(keyed(topic, 10))
    await commit(log, "fast", topic, 10)
    await commit(log, "slow", topic, 4)

    async with later(server, topic) as other:
        assert await kept(other, topic, 11) == list(range(4, 11))
        slow = await started(Member(other, "slow", topic))
        assert [record.offset for record in await slow.take(7)] == list(range(4, 11))
        await slow.consumer.close()


async def test_a_group_that_is_informational_holds_no_record_back(log: StreamsLog, server: ValkeyServer) -> None:
    topic = await expiring(log, "worker", "told")
    await log.append(keyed(topic, 10))
    await commit(log, "worker", topic, 7)

    async with later(server, topic, passed={"told"}) as other:
        assert await kept(other, topic, 11) == list(range(7, 11))
        told = await started(Member(other, "told", topic))
        with pytest.raises(OffsetMissing):
            await told.take(1)
        await told.consumer.close()


async def test_what_is_young_stays_although_it_was_read(log: StreamsLog, server: ValkeyServer) -> None:
    topic = await topic_for(log, "group")
    await log.append(keyed(topic, 5))
    await commit(log, "group", topic, 5)

    async with later(server, topic) as other:
        assert await kept(other, topic, 6) == list(range(6))


async def test_a_group_that_comes_late_begins_at_what_is_left(log: StreamsLog, server: ValkeyServer) -> None:
    topic = await expiring(log, "first")
    await log.append(keyed(topic, 5))
    await commit(log, "first", topic, 3)
    async with later(server, topic) as other:
        await other.create([], {topic: "late"})

        late = await started(Member(other, "late", topic))
        assert [record.offset for record in await late.take(3)] == [3, 4, 5]
        await late.consumer.close()


async def test_a_follower_that_is_far_behind_misses_nothing(log: StreamsLog) -> None:
    topic = await topic_for(log, cleanup="compact")
    following = log.follow(topic)
    assert await anext(following) is None

    rounds = 3 * CHANGES_KEPT // 1000
    await log.append([NewRecord(topic, b"gone", b"0")])
    for n in range(rounds):
        await log.append([NewRecord(topic, b"%d" % key, b"%d" % n) for key in range(1000)])
    await log.append([NewRecord(topic, b"gone", None), NewRecord(topic, b"last", b"")])

    seen: dict[bytes | None, bytes | None] = {}
    async with asyncio.timeout(PATIENCE_S):
        async for record in following:
            assert record is not None
            seen[record.key] = record.value
            if record.key == b"last":
                break
    assert seen == {b"%d" % key: b"%d" % (rounds - 1) for key in range(1000)} | {b"gone": None, b"last": b""}


async def test_a_follower_that_was_away_for_too_long_begins_anew(log: StreamsLog) -> None:
    topic = await topic_for(log, cleanup="compact")
    for _ in range(2 * CHANGES_KEPT // 1000 + 2):
        await log.append([NewRecord(topic, b"k", b"v")] * 1000)

    with pytest.raises(OffsetMissing):
        await anext(log.follow(topic, start=1))


async def test_changes_that_nobody_follows_do_not_pile_up(log: StreamsLog, server: ValkeyServer) -> None:
    topic = await topic_for(log, cleanup="compact")

    for _ in range(2 * CHANGES_KEPT // 1000 + 2):
        await log.append([NewRecord(topic, b"k", b"v")] * 1000)

    async with Redis.from_url(server.url(0)) as redis:
        assert CHANGES_KEPT <= await redis.xlen(f"log:changes:{topic}/0") < CHANGES_KEPT + 1100


async def accepts(log: StreamsLog, records: Sequence[NewRecord]) -> bool:
    try:
        await log.append(records)
    except LogUnavailable:
        return False
    return True


async def test_a_full_server_refuses_and_keeps_what_it_has(directory: Path) -> None:
    server = ValkeyServer(directory, maxmemory_bytes=8 * 1024**2)
    await server.start()
    log = StreamsLog(server.url(0))
    await log.start()
    topic = await topic_for(log, "group")

    large = [NewRecord(topic, b"k", bytes(100_000))]

    accepted = 0
    while await accepts(log, large):
        accepted += 1

    with pytest.raises(LogUnavailable, match="maxmemory"):
        await log.append(large)
    member = await started(Member(log, "group", topic))
    assert len(await member.take(accepted)) == accepted > 0
    await member.consumer.close()
    await log.close()
    await server.stop()


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(server: ValkeyServer, log: StreamsLog) -> None:
    topic = await topic_for(log, "group", partitions=3)
    member = await started(Member(log, "group", topic))
    acknowledged: set[bytes] = set()
    enough = asyncio.Event()

    async def produce(name: int) -> None:
        for n in range(100_000):
            value = b"%d-%d" % (name, n)
            try:
                await log.append([NewRecord(topic, value, value)] * 3)
            except LogUnavailable:
                return
            acknowledged.add(value)
            if len(acknowledged) >= 200:
                enough.set()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as producers:
        for name in range(16):
            producers.create_task(produce(name))
        await enough.wait()
        server.kill()
    await server.exited.wait()
    with pytest.raises(LogUnavailable, match=r"^the log does not answer: no server answers at /\S+: conn"):
        await member.poll()

    await server.start()

    await settle([member], lambda: acknowledged <= set(values(member.records)))  # the same clients come back
    for partition in range(3):
        offsets = [record.offset for record in member.records if record.partition == partition]
        assert offsets == list(range(len(offsets)))


CHILD: Final = """
import asyncio, sys
from pathlib import Path
from relay.domain.topics import TopicSpec
from relay.embedded.valkey import ValkeyServer
from relay.log.port import NewRecord
from relay.log.streams.log import StreamsLog

async def main():
    server = ValkeyServer(Path(sys.argv[1]))
    await server.start()
    log = StreamsLog(server.url(0))
    await log.start()
    await log.create([TopicSpec("t", 1)], {"t": "group"})
    print(server.pid, flush=True)
    for n in range(1_000_000):
        await log.append([NewRecord("t", b"k", b"%d" % n)])
        print(n, flush=True)

asyncio.run(main())
"""


async def ended(process: int) -> None:
    """Return when the process of this pidfd has ended."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, over.set)
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()
    loop.remove_reader(process)
    os.close(process)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next start ends a server whose parent was killed")
async def test_a_killed_process_takes_its_server_along_and_the_next_one_goes_on(directory: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(directory), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    its_server = os.pidfd_open(int(await child.stdout.readline()))
    told = b"".join([await child.stdout.readline() for _ in range(50)])
    child.send_signal(signal.SIGKILL)
    told += await child.stdout.read()
    last = int(told[: told.rindex(b"\n")].split()[-1])  # what was acknowledged when it died
    await child.wait()
    await ended(its_server)

    server = ValkeyServer(directory)
    await server.start()
    log = StreamsLog(server.url(0))
    await log.start()
    member = await started(Member(log, "group", "t"))
    await settle([member], lambda: len(member.records) > last)

    assert [record.value for record in member.records] == [b"%d" % n for n in range(len(member.records))]
    await member.consumer.close()
    await log.close()
    await server.stop()
