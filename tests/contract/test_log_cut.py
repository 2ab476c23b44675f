"""The contract for logs that lose their last records, in memory and on a real broker that is killed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from relay.embedded.valkey import ValkeyServer
from relay.log.kafka.leader_epochs import ReadHistory
from relay.log.port import Coordinate, Log, TopicPartition
from relay.log.streams.log import StreamsLog
from relay.log.streams.scripts import FIXED_DIGITS, StreamKeys
from tests.contract.cut_contract import CommitsOutliveCut, CutContract, CutRig, append, missing, reading
from tests.contract.log_contract import grouped_topic, topic_for, unique, values
from tests.contract.test_log_kafka import PATIENCE_MS, opened
from tests.contract.test_log_streams import directory, server
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.servers.kafka import KafkaBroker, own_broker
from tests.servers.kafka_cut import cut_log

__all__ = ["directory", "own_broker", "server"]


class MemoryRig:
    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self.log = MemoryLog(self._broker)

    async def cut(self, at: Coordinate) -> None:
        self._broker.cut(at)


class TestMemoryLogCut(CommitsOutliveCut, CutContract):
    @pytest_asyncio.fixture
    async def rig(self) -> AsyncIterator[MemoryRig]:
        rig = MemoryRig()
        await rig.log.start()
        yield rig
        await rig.log.close()


class StreamsRig:
    """Everything else that the server stores stays, unlike after a loss of the end of its file."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self.log = StreamsLog(server.url(0))

    async def cut(self, at: Coordinate) -> None:
        self._server.kill()
        await self._server.exited.wait()
        await self._server.start()
        place = TopicPartition(at.topic, at.partition)
        keys = StreamKeys("")
        async with Redis.from_url(self._server.url(0)) as redis:
            for stream in (keys.records(place), keys.changes(place)):
                if await redis.type(stream) == b"stream":
                    kept: Any = await redis.xrange(stream, max=f"{at.offset}-0")
                    await redis.delete(stream)  # which would remember the ids that it had
                    for number, fields in kept:
                        await redis.xadd(stream, fields, id=number)
                else:
                    values = await redis.hgetall(stream)
                    for key in (key for key, value in values.items() if int(value[:FIXED_DIGITS]) >= at.offset):
                        await redis.hdel(stream, key)
            await redis.hset(keys.ends, str(place), at.offset)


class TestStreamsLogCut(CutContract):
    @pytest_asyncio.fixture
    async def rig(self, server: ValkeyServer) -> AsyncIterator[StreamsRig]:
        rig = StreamsRig(server)
        await rig.log.start()
        yield rig
        await rig.log.close()


def cut_before(directory: Path, record: bytes) -> None:
    """The file that the server writes loses the call that wrote this record, and all calls since."""
    [file] = directory.glob("**/*.incr.aof")
    written = file.read_bytes()
    file.write_bytes(written[: written.rindex(b"*1\r\n$5\r\nMULTI", 0, written.index(record))])


async def test_a_file_of_the_embedded_log_that_lost_its_end_is_noticed(server: ValkeyServer, directory: Path) -> None:
    log = StreamsLog(server.url(0))
    await log.start()
    topic = await topic_for(log, "group")
    at = TopicPartition(topic, 0)
    async with reading(log, "group", topic) as member:
        await append(log, topic, 10, "old ")
        await member.take(10)
        await member.consumer.commit({at: 3})  # which is lost, too, as it came last
        server.kill()
        await server.exited.wait()
        cut_before(directory, b"old 5")
        await server.start()
        await append(log, topic, 6, "new ")

        assert (await missing(member)).lost == {at: (5, 10)}
        await member.consumer.restart([at])
        assert values(await member.take(8)) == [b"old 3", b"old 4", *(b"new %d" % n for n in range(6))]
    await log.close()


class Outages:
    """Scenarios that run at the same time on one broker, which dies once all of them wait for that: a start of a broker
    costs two seconds of CPU."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._running = 0
        self._cuts: list[Coordinate] = []
        self._back = asyncio.Event()

    async def run(self, scenarios: Sequence[Callable[[CutRig], Awaitable[None]]]) -> None:
        self._running = len(scenarios)
        async with opened(self._broker.bootstrap, request_timeout_ms=PATIENCE_MS) as log:
            await topic_for(log, unique("group"))  # else all wait at once for the first group coordinators
        async with asyncio.TaskGroup() as tasks:
            for scenario in scenarios:
                tasks.create_task(self._run(scenario))

    async def _run(self, scenario: Callable[[CutRig], Awaitable[None]]) -> None:
        try:
            # a slow machine is no reason for a request to fail, nor for a member to lose its group
            patient: dict[str, Any] = {"request_timeout_ms": PATIENCE_MS, "session_timeout_ms": PATIENCE_MS}
            async with opened(self._broker.bootstrap, **patient) as log:
                await scenario(KafkaRig(self, log))
        except Exception as error:
            error.add_note(f"in {scenario}")
            raise
        self._running -= 1
        await self._die_once_all_wait()

    async def cut(self, at: Coordinate) -> None:
        self._cuts.append(at)
        back = self._back
        await self._die_once_all_wait()
        await back.wait()

    async def _die_once_all_wait(self) -> None:
        if not self._cuts or len(self._cuts) < self._running:
            return
        self._broker.kill()
        for at in self._cuts:
            cut_log(self._broker, at)
        self._cuts.clear()
        back, self._back = self._back, asyncio.Event()
        await asyncio.to_thread(self._broker.start)  # members whose loop it blocks would leave their groups
        back.set()


@dataclass
class KafkaRig:
    outages: Outages
    log: Log

    async def cut(self, at: Coordinate) -> None:
        await self.outages.cut(at)


class KafkaLogCut(CommitsOutliveCut, CutContract):
    async def test_an_offset_of_the_last_release_beyond_the_end_begins_with_the_first_record(self, rig: CutRig) -> None:
        """It committed no leader epoch: whether the log has grown again below that offset cannot be known."""
        group, topic = await grouped_topic(rig.log)
        at = TopicPartition(topic, 0)
        await append(rig.log, topic, 10, "old ")
        async with reading(rig.log, group, topic) as before:
            await before.take(10)
            before.consumer._holdings.get(at).history = ReadHistory()  # type: ignore[attr-defined]
            await before.consumer.commit({at: 10})

        await rig.cut(Coordinate(topic, 0, 5))
        await append(rig.log, topic, 2, "new ")

        async with reading(rig.log, group, topic) as member:
            assert (await missing(member)).lost == {at: (7, 10)}
            await member.consumer.restart([at])
            assert values(await member.take(7)) == [*(b"old %d" % n for n in range(5)), b"new 0", b"new 1"]


@pytest.mark.kafka
async def test_a_killed_kafka_broker_that_lost_its_end(own_broker: KafkaBroker) -> None:
    suite = KafkaLogCut()
    scenarios = [getattr(suite, name) for name in dir(suite) if name.startswith("test_")]
    assert len(scenarios) == 8
    await Outages(own_broker).run(scenarios)
