"""How a member of a group ends: at a stop, and when something unexpected ends it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from relay.domain.errors import LogUnavailable, OffsetMissing, RelayError, Unavailable
from relay.engine.observer import Observer
from relay.engine.open_lane import OpenLane
from relay.engine.policy import ByteBudget
from relay.engine.runner import Runner
from relay.engine.supervision import FIRST_PAUSE_S, CallCancelled, Retrier
from relay.log.port import (
    NONE_UNABLE,
    Assignment,
    MaxBytes,
    OnAssigned,
    OnRevoked,
    Record,
    TopicPartition,
    Unable,
    no_limit,
)
from tests.fakes.virtual_time import LoopClock, virtually


class _Consumer:
    """Waits in its poll; once it is closed, a poll returns at once, without giving other tasks a turn."""

    def __init__(self, on_assigned: OnAssigned, on_revoked: OnRevoked) -> None:
        self.polling = asyncio.Event()
        self.missing: str | None = None
        self.closed = False
        self.polled_when_closed = 0
        self._under_way = 0
        self.under_way_at_close: int | None = None
        self.closed_at: float | None = None
        self.failures: list[BaseException] = []
        self.restarted: list[list[TopicPartition]] = []
        self.records: dict[TopicPartition, list[Record]] = {}
        self.committed: list[Mapping[TopicPartition, int]] = []
        self.commit_failures: list[LogUnavailable] = []
        self.on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._assigned: list[TopicPartition] = []

    async def assign(self, *assignments: Assignment) -> None:
        self._assigned = [each.partition for each in assignments]
        await self.on_assigned(assignments)

    async def start(self) -> None:
        return

    async def poll(
        self, *, max_records: int, timeout_s: float, max_bytes: MaxBytes = no_limit
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        self.polling.set()
        if self.failures:
            raise self.failures.pop(0)
        if self.closed:
            self.polled_when_closed += 1
            assert self.polled_when_closed < 100, "it goes round without end"
            return {}
        if self.records:
            records, self.records = self.records, {}
            return records
        self._under_way += 1
        try:
            await asyncio.sleep(timeout_s)
        finally:
            self._under_way -= 1
        return {}

    def subscribe(self, topics: Collection[str], unable: Unable = NONE_UNABLE) -> None:
        self.topics = frozenset(topics)

    async def restart(self, partitions: Collection[TopicPartition]) -> None:
        self.restarted.append(list(partitions))

    def waits_for(self) -> str | None:
        return self.missing

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        return

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        return

    async def confirm(self, assignments: Sequence[Assignment]) -> float:
        return 15.0

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        self.committed.append(dict(next_offsets))
        if self.commit_failures:
            raise self.commit_failures.pop(0)

    async def close(self) -> None:
        if self._assigned:
            await self._on_revoked(self._assigned)
        self.under_way_at_close = self._under_way
        self.closed_at = asyncio.get_running_loop().time()
        self.closed = True
        await asyncio.sleep(1)


class _Told(Observer):
    def __init__(self) -> None:
        self.waits: list[tuple[str, str]] = []
        self.failed: list[tuple[str, RelayError, float]] = []
        self.looks = 0

    def tick(self) -> None:
        self.looks += 1

    def service_failed(self, name: str, error: RelayError, again_in_s: float) -> None:
        self.failed.append((name, error, again_in_s))

    def waiting(self, what: str, error: Unavailable) -> None:
        self.waits.append((what, str(error)))


class _Lane:
    """Finishes each record as soon as it gets it."""

    def __init__(self, at: TopicPartition) -> None:
        self.partition = at
        self.stuck_at = None
        self.left = asyncio.Event()
        self.progress = asyncio.Event()
        setup = SimpleNamespace(observer=Observer())
        self.core = SimpleNamespace(unfinished=0, next_offset=None, full=False, fenced_at=None, setup=setup)

    def offer(self, records: Sequence[Record]) -> None:
        self.core.next_offset = records[-1].offset + 1
        self.progress.set()

    def has_enough(self, *, crowded: bool) -> bool:
        return crowded

    def stop(self, grace_s: float, *, linger_s: float = 0.0) -> None:
        self.left.set()

    def close(self) -> None:
        return


class _BusyLane(_Lane):
    """Has a request in flight, which takes an hour."""

    def __init__(self, at: TopicPartition) -> None:
        super().__init__(at)
        self._stopping = False
        self.on_stop: Callable[[], None] = lambda: None

    def stop(self, grace_s: float, *, linger_s: float = 0.0) -> None:
        if not self._stopping:
            self._stopping = True
            self.on_stop()

    async def finish(self) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            self.left.set()


class _Rig:
    def __init__(self, memory: int = sys.maxsize, lane: type[_Lane] = _Lane) -> None:
        self.lanes: list[_Lane] = []
        self._lane_type = lane
        clock, self.told = LoopClock(), _Told()
        self.opened: list[_Consumer] = []
        self.runner: Runner = Runner(
            self._open,
            self._lane,
            clock,
            Retrier(clock, self.told),
            5,
            self.told,
            "to-receiver",
            ByteBudget(memory),
        )

    def _open(self, on_assigned: OnAssigned, on_revoked: OnRevoked) -> _Consumer:
        self.opened.append(_Consumer(on_assigned, on_revoked))
        return self.opened[-1]

    def _lane(self, assignment: Assignment) -> OpenLane:
        self.lanes.append(self._lane_type(assignment.partition))
        return cast(OpenLane, self.lanes[-1])


@asynccontextmanager
async def _running(rig: _Rig) -> AsyncIterator[_Consumer]:
    """The consumer of the member, which is stopped in the end."""
    stop = asyncio.Event()
    running = asyncio.create_task(rig.runner.run(stop))
    yield rig.opened[0]
    stop.set()
    await running


async def _ended(cause: Callable[[asyncio.Task[None]], Awaitable[None]]) -> _Consumer:
    rig = _Rig()
    running = asyncio.create_task(rig.runner.run(asyncio.Event()))
    consumer = rig.opened[0]
    await consumer.polling.wait()
    await cause(running)
    return consumer


@virtually
async def test_a_stop_does_not_wait_for_records() -> None:
    async with _running(_Rig()) as consumer:
        await consumer.polling.wait()
        stopped_at = asyncio.get_running_loop().time()
    assert (consumer.closed_at, consumer.under_way_at_close, consumer.polled_when_closed) == (stopped_at, 0, 0)


@virtually
async def test_a_member_that_is_cancelled_ends_its_poll_before_it_closes() -> None:
    async def cancel(running: asyncio.Task[None]) -> None:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    consumer = await _ended(cancel)
    assert consumer.closed
    assert consumer.under_way_at_close == 0
    assert consumer.polled_when_closed == 0


@virtually
async def test_a_stop_that_is_cancelled_waits_for_no_request() -> None:
    rig, stop = _Rig(lane=_BusyLane), asyncio.Event()
    running = asyncio.create_task(rig.runner.run(stop))
    consumer = rig.opened[0]
    await consumer.polling.wait()
    await consumer.assign(Assignment(TopicPartition("to_receiver_ci", 0), 1))
    stop.set()
    await asyncio.sleep(2)
    running.cancel()
    cancelled_at = asyncio.get_running_loop().time()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert consumer.closed_at == cancelled_at


@virtually
async def test_the_failure_of_another_service_comes_out() -> None:
    """It is what people need to see, and not that everything stands still."""
    rig = _Rig()

    async def fail() -> None:
        await rig.opened[0].polling.wait()
        raise RuntimeError("a bug")

    with pytest.RaisesGroup(RuntimeError):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(rig.runner.run(asyncio.Event()))
            tasks.create_task(fail())
    assert rig.opened[0].closed
    assert rig.opened[0].polled_when_closed == 0


@virtually
async def test_a_member_without_partitions_says_what_it_waits_for_as_long_as_that_lasts() -> None:
    rig = _Rig()
    rig.opened[0].missing = "others may come back"
    async with _running(rig):
        await asyncio.sleep(1.5)
        assert rig.told.waits == [], "a rebalance takes a moment"
        await asyncio.sleep(3)
        assert set(rig.told.waits) == {("get partitions assigned", "others may come back")}
        rig.opened[0].missing = None
        await asyncio.sleep(1.5)
        told = len(rig.told.waits)
        await asyncio.sleep(10)
        assert len(rig.told.waits) == told


@virtually
async def test_what_ends_by_time_alone_is_looked_at_without_any_traffic() -> None:
    rig = _Rig()
    async with _running(rig):
        await asyncio.sleep(10)
        assert 9 <= rig.told.looks <= 12


@virtually
async def test_a_missing_offset_restarts_its_lane_only_and_later_and_later() -> None:
    """The member goes on, and so do the lanes of all others."""
    rig = _Rig()
    lane = TopicPartition("to_receiver_ci", 0)
    first, again = (OffsetMissing("gone", [lane]) for _ in range(2))
    rig.opened[0].failures = [first]
    async with _running(rig) as consumer:
        await asyncio.sleep(FIRST_PAUSE_S + 0.5)
        assert consumer.restarted == [[lane]]

        consumer.failures = [again]
        await asyncio.sleep(2 * FIRST_PAUSE_S)
        assert consumer.restarted == [[lane]]
        await asyncio.sleep(FIRST_PAUSE_S + 0.5)
        assert consumer.restarted == [[lane], [lane]]
        assert rig.told.failed == [
            ("to-receiver", first, FIRST_PAUSE_S),
            ("to-receiver", again, 2 * FIRST_PAUSE_S),
        ]
        assert len(rig.opened) == 1
        assert not consumer.closed


@virtually
async def test_a_lane_that_waits_for_its_restart_does_not_hold_up_a_stop() -> None:
    rig = _Rig()
    rig.opened[0].failures = [OffsetMissing("gone", [TopicPartition("t", 0)])]
    async with _running(rig) as consumer:
        await consumer.polling.wait()
    assert consumer.closed
    assert consumer.restarted == []


@virtually
async def test_a_poll_that_the_client_library_cancels_does_not_end_the_member_in_silence() -> None:
    rig = _Rig()
    rig.opened[0].failures = [asyncio.CancelledError()]
    with pytest.RaisesGroup(CallCancelled):
        await rig.runner.run(asyncio.Event())
    assert rig.opened[0].closed


@pytest.mark.parametrize("memory", [0, sys.maxsize], ids=["no memory left", "memory"])
@virtually
async def test_an_offset_is_committed_until_that_succeeds_also_of_a_lane_that_is_idle_meanwhile(memory: int) -> None:
    rig, lane, other = _Rig(memory), TopicPartition("to_receiver_ci", 0), TopicPartition("to_receiver_cd", 0)
    rig.opened[0].commit_failures = [LogUnavailable("away")]
    async with _running(rig) as consumer:
        await consumer.polling.wait()
        await consumer.assign(Assignment(lane, 1), Assignment(other, 1))
        consumer.records = {lane: [Record(*lane, 6, None, b"", (), 0)]}
        await asyncio.sleep(10)
        assert consumer.committed == [{lane: 7}, {lane: 7}]

        consumer.records = {other: [Record(*other, 0, None, b"", (), 0)]}
        await asyncio.sleep(10)
        assert consumer.committed[2:] == [{other: 1}]
