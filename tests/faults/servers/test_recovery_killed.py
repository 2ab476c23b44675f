"""The process that recovers the state dies half-way: another one takes over when its lease is over."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import pytest

from relay.clock import SystemClock
from relay.domain.errors import StateUnavailable
from relay.domain.topics import Topics
from relay.engine.holding import Holding
from relay.engine.observer import Observer
from relay.engine.parked_copy import LIFE_KEY, parked_key, wrap
from relay.engine.supervision import Retrier
from relay.engine.work import Work
from relay.log.port import NewRecord, Record
from relay.recovery import recovery_pass
from relay.recovery.recovery_pass import BATCH, LEASE, Recovery
from relay.state.port import Lane, Restored
from relay.state.redis.state import RedisState
from relay.state.replies import answered, of
from relay.state.rows import TAGS, DueRequest, Mark, Parked, ParkedLife, RowKey, Stage, tag_of
from tests.contract.state_contract import row
from tests.fakes.log import MemoryBroker, MemoryLog
from tests.log_reads import newest
from tests.servers.valkey import ValkeyServer

TOPICS: Final = Topics("")
LANE: Final = Lane("to_receiver_ci", 0, 1)
COPIES: Final = 2 * BATCH + 100
FOREVER_S: Final = 3_600.0
"""Of a lease that does not end while a slow machine runs the test."""
EVERY_TAG: Final = frozenset(range(TAGS))
OWNER: Final = row().owner
QUEUE: Final = bytes(12)


class DyingState(RedisState):
    """Its process dies as soon as it has put back the first batch: nothing of it is heard any more."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.died = asyncio.Event()

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        if not self.died.is_set():
            found = await super().restore(lane, parked)
            self.died.set()
            return found
        await asyncio.Event().wait()
        return []

    async def lease(self, name: str, owner: str, ttl_s: float) -> bool:
        self._speak()
        return await super().lease(name, owner, ttl_s)

    async def release(self, name: str, owner: str | None) -> None:
        self._speak()
        await super().release(name, owner)

    def _speak(self) -> None:
        if self.died.is_set():
            raise StateUnavailable("dead")


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    server = ValkeyServer(fsync="always")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def log() -> MemoryLog:
    """Parked records: retries of one lane, in no order, written while the state was alive."""
    log = MemoryLog(MemoryBroker(now_ms=lambda: int(time.time() * 1000)))
    await log.start()
    await log.create(TOPICS.fixed(), {})
    copies = [copy_of(row(number), number) for number in range(COPIES)]
    await log.append([NewRecord(TOPICS.parked_messages, LIFE_KEY, b"ready"), *reversed(copies)])
    return log


def copy_of(key: RowKey, offset: int) -> NewRecord:
    record = Record(LANE.topic, LANE.partition, offset, b"source", b"payload", (), 0)
    work = Work(record, key, 0, QUEUE, key.owner)
    return wrap(TOPICS.parked_messages, LANE.topic, work, key, due_ms=1, poll=False)


def recovery_of(log: MemoryLog, state: RedisState, owner: str) -> Recovery:
    clock, observer = SystemClock(), Observer()
    retrier = Retrier(clock, observer)
    holding = Holding(log, state, TOPICS.receiver_config)
    return Recovery(
        log, state, TOPICS.parked(), clock, observer, retrier, owner=owner, in_doubt_s=60.0, holding=holding
    )


async def killed_half_way(log: MemoryLog, url: str) -> None:
    """The leader of a pass dies: it has the lease, and has put back some."""
    dying = DyingState(url)
    leader = asyncio.create_task(recovery_of(log, dying, "dies").heal())
    await dying.died.wait()
    leader.cancel()
    with suppress(asyncio.CancelledError):
        await leader
    await dying.close()


async def test_another_one_takes_over_and_ends_it(
    server: ValkeyServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_pass, "LEASE_S", FOREVER_S)
    await killed_half_way(log, server.url)
    state = RedisState(server.url)
    assert not await state.lease(LEASE, "takes over", 1.0)
    assert await state.lost() == EVERY_TAG

    await state.release(LEASE, "dies")  # as if its time were over
    await recovery_of(log, state, "takes over").heal()
    assert await state.lost() == frozenset()
    assert await answered(state.parked([OWNER])) == [(COPIES, 0)]
    order = []
    for _ in range(20):
        ((head,),) = await answered(state.take_due(of(LANE, [DueRequest(tag_of(OWNER), 10)]), lease_s=60))
        order.append(head.row)
        await answered(state.unpark(of(LANE, [ParkedLife(head.row, 0, QUEUE)])))
    assert order == [row(number) for number in range(20)]
    await state.close()


async def test_what_was_finished_before_is_not_put_back(
    server: ValkeyServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing tombstone is written by the process that completes the pass."""
    monkeypatch.setattr(recovery_pass, "LEASE_S", FOREVER_S)
    state, finished = RedisState(server.url), row(COPIES - 1)
    await state.ready(sorted(await state.lost()), in_doubt_s=0)
    await answered(state.mark([Mark(finished, 0, Stage.DONE)]))
    server.restart()
    await killed_half_way(log, server.url)

    await state.release(LEASE, "dies")
    await recovery_of(log, state, "takes over").heal()
    assert await answered(state.parked([OWNER])) == [(COPIES - 1, 0)]
    assert await keys(log) == {parked_key(LANE.topic, row(number)) for number in range(COPIES - 1)} | {LIFE_KEY}
    await state.close()


async def keys(log: MemoryLog) -> set[bytes | None]:
    """Of all that is parked."""
    spec = TOPICS.parked()
    return {record.key for n in range(spec.partitions) for record in await newest(log, spec.name, n)}
