"""A consumer and its lanes: polls, hands out, commits; a lane opens per assigned partition, and closes when revoked.

A failure that concerns one lane - its offset is missing, or its epoch is not the owner's - restarts that lane only.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

from relay.clock import Clock
from relay.domain.errors import ConsumerBroken, LogUnavailable, OffsetMissing, PartitionLost, Unavailable
from relay.engine.observer import Observer
from relay.engine.open_lane import LINGER_S, OpenLane
from relay.engine.policy import CROWDED, ByteBudget
from relay.engine.supervision import Broken, Restarts, Retrier, StallDetector, begin_anew, end, raising_stray_cancels
from relay.log.port import Assignment, Consumer, OnAssigned, OnRevoked, Record, TopicPartition, Unable

POLL_S = 1.0
POLL_RECORDS = 100
"""For each of our partitions."""
POLL_BYTES = 8 * 1024**2
"""Of all of them."""
THROTTLE_EVERY_S = 0.1
"""Interval after progress: lanes that have room again get more, also during a poll."""
COMMIT_EVERY_S = 0.5
COMMIT_RECORDS = 1_000
"""Finished and uncommitted records, over all lanes, that are committed earlier."""
REPORT_EVERY_S = 1.0
WAITING_S = 2.0
"""A rebalance without dead members takes less."""
REVOKE_GRACE_S = 5.0
FENCED_S = 5.0
"""A fenced lane is normally revoked with the next heartbeat. After this time the group is asked for its owner."""
FENCED_ASK_EVERY_S = 5.0
"""Interval at which it asks again, while the group does not answer."""
LOST_S = 60.0
"""The group has reported another owner for so long without revoking the lane: this member is out of step with it."""


class OpenConsumer(Protocol):
    def __call__(self, on_assigned: OnAssigned, on_revoked: OnRevoked) -> Consumer: ...


@dataclass(slots=True, eq=False)
class _RunningLane:
    lane: OpenLane
    ending: asyncio.Task[None] | None = None
    standstill: StallDetector = field(default_factory=StallDetector)
    reported: int | None = None
    """Unfinished records in the last report."""


class Runner:
    """Runs one member of one consumer group until `stop` is set, then drains and leaves the group.

    `open_lane` makes the lane of an assigned partition. `grace_s`: how long calls in flight may take at a stop. `name`:
    the role that it reads for, for display. `memory`: of the process's lanes.
    """

    def __init__(
        self,
        open_consumer: OpenConsumer,
        open_lane: Callable[[Assignment], OpenLane],
        clock: Clock,
        retrier: Retrier,
        grace_s: float,
        observer: Observer | None = None,
        name: str = "consumer",
        memory: ByteBudget | None = None,
    ) -> None:
        self._consumer = open_consumer(self._assigned, self._revoked)
        self._open_lane = open_lane
        self._clock = clock
        self._retrier = retrier
        self._grace_s = grace_s
        self._observer = observer or Observer()
        self._name = name
        self._memory = memory or ByteBudget()
        self._lanes: dict[TopicPartition, _RunningLane] = {}
        self._paused: set[TopicPartition] = set()
        self._active: set[TopicPartition] = set()
        """Lanes that were offered records, and may be at a bound: idle ones need no check."""
        self._crowded = False
        self._committed: dict[TopicPartition, int] = {}
        self._moved: set[TopicPartition] = set()
        """Lanes whose offset may have to be committed: those that were active since the last commit."""
        self._lingering: list[_RunningLane] = []
        self._reported_at = -REPORT_EVERY_S
        self._waiting_since = 0.0
        self._stopping = False
        self._fences_asked_at = -FENCED_ASK_EVERY_S
        self._broken: Broken | None = None
        self._missing: set[TopicPartition] = set()
        """Partitions whose offset the consumer has set itself: records read there do not show which ones exist."""
        self._restarts = Restarts()
        self._restarting: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()  # one for all lanes
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Raises unexpected exceptions: then the process has to exit, and to be started again."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await self._retrier.until_done("join the consumer group", self._consumer.start)
            self._waiting_since = self._clock.monotonic()
            polling = tasks.create_task(raising_stray_cancels(self._poll(stop)))
            committing = tasks.create_task(raising_stray_cancels(self._commit_regularly()))
            try:
                await self._stopped(polling, stop)
                self._stopping = True
                await self._stop_lanes(list(self._lanes), self._grace_s)
                if self._broken is not None:
                    raise self._broken
            except asyncio.CancelledError:
                if self._stopping:  # a second signal, or the end of the grace: nothing waits any longer
                    await end(each.ending for each in self._lanes.values() if each.ending is not None)
                raise
            finally:
                # A poll that waits for records would delay the stop. A closed consumer has nothing to wait for.
                await end((polling, committing, *self._restarting))
                await self._consumer.close()
                for each in self._lingering:
                    each.lane.stop(0.0)
                for each in self._lanes.values():  # after an exception
                    each.lane.close()

    def subscribe(self, topics: Collection[str], unable: Unable) -> None:
        """As `Consumer.subscribe`."""
        self._consumer.subscribe(topics, unable)

    async def _stopped(self, polling: asyncio.Task[None], stop: asyncio.Event) -> None:
        """Until `stop`, or the end of `polling`: lanes stop at once, also while a poll waits."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((polling, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    # intake

    async def _poll(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._report_regularly()
                if self._memory.free <= 0:  # other lanes may have used it up since the last check
                    self._throttle_all()
                wanted = POLL_RECORDS * max(1, len(self._lanes))
                batches = await self._consumer.poll(max_records=wanted, timeout_s=POLL_S, max_bytes=self._room)
            except LogUnavailable as error:
                await self._retrier.pause("poll", error)
                continue
            except OffsetMissing as error:
                missing = {TopicPartition(*place) for place in error.partitions}
                self._missing |= missing
                self._restart(missing, error)
                continue
            except (ConsumerBroken, PartitionLost) as error:
                self._broken = error  # calls in flight end properly before it is raised
                return
            for partition, records in batches.items():
                self._offer(partition, records)
            self._throttle(
                batches.keys() | self._paused
            )  # no other lane has more records than at the last check of all

    def _room(self) -> int:
        """Bytes of one poll: only a part of the free budget, as all may be for one lane."""
        return min(POLL_BYTES, self._memory.free // 2)

    def _offer(self, partition: TopicPartition, records: Sequence[Record]) -> None:
        running = self._lanes.get(partition)
        if running is not None and not (running.lane.core.fenced_at is not None or running.lane.left.is_set()):
            running.lane.offer(records)
            self._active.add(partition)

    def _throttle_all(self) -> None:
        unfinished = {at: each.lane.core.unfinished for at in self._active if (each := self._lanes.get(at))}
        self._crowded = sum(unfinished.values()) >= CROWDED
        self._throttle(unfinished)
        self._moved |= self._active
        self._active = {at for at, count in unfinished.items() if count or at in self._paused}

    def _throttle(self, partitions: Iterable[TopicPartition]) -> None:
        """Backpressure: a lane at its bound gets nothing until something ends."""
        checked = [(at, each.lane) for at in partitions if (each := self._lanes.get(at))]
        waiting = {at for at, lane in checked if self._has_enough(lane)}
        if stopped := waiting - self._paused:
            self._consumer.pause(sorted(stopped))
        if resumed := {at for at, _ in checked if at in self._paused} - waiting:
            self._consumer.resume(sorted(resumed))
        self._paused = (self._paused | stopped) - resumed

    def _has_enough(self, lane: OpenLane) -> bool:
        if lane.core.full:
            lane.relieve()
            if lane.core.full:
                return True
        return lane.has_enough(crowded=self._crowded)

    async def _report_regularly(self) -> None:
        """Reports levels, and checks for fenced lanes, about once a second."""
        now = self._clock.monotonic()
        if now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._report(now)
            await self._reopen_fenced(now)

    async def _reopen_fenced(self, now: float) -> None:
        """A lane that is fenced and stays assigned to this member opens again."""
        fenced = {p: at for p, each in self._lanes.items() if (at := each.lane.core.fenced_at) is not None}
        longest_s = now - min(fenced.values(), default=now)
        if longest_s < FENCED_S or now - self._fences_asked_at < FENCED_ASK_EVERY_S:
            return
        self._fences_asked_at = now
        lanes = [running.lane for running in self._lanes.values()]
        try:
            begun = await begin_anew(self._consumer, lanes, self._clock)
        except PartitionLost as error:
            if longest_s >= LOST_S:
                self._restart(fenced, error)
            return  # as it should be: the lane is another's
        except Unavailable as error:
            self._retrier.report("look up the owner of a fenced lane", error)
            return
        names = ", ".join(f"{topic}/{number}" for topic, number in begun) or "the fenced lanes"
        self._restart(fenced, PartitionLost(f"the group has counted anew: {names} stay here, and are made anew"))

    def _restart(self, partitions: Iterable[TopicPartition], failure: Broken | None) -> None:
        """Restart these lanes after a pause, while others go on. `failure`: None if it was reported already."""
        lanes = {partition: self._lanes.get(partition) for partition in partitions}
        those, pause_s = self._restarts.begin(lanes, self._clock.monotonic())
        if those and self._tasks is not None and not self._stopping:
            if failure is not None:
                self._observer.service_failed(self._name, failure, pause_s)
            task = _started(self._tasks, self._restarted(those, pause_s))
            if task is not None:
                self._restarting.add(task)
                task.add_done_callback(self._restarting.discard)

    async def _restarted(self, lanes: Mapping[TopicPartition, _RunningLane | None], pause_s: float) -> None:
        """Restart those that are still open: one that was lost and assigned again in the meantime is new already."""
        await self._clock.sleep(pause_s)
        if self._stopping:
            return
        still = [partition for partition, running in lanes.items() if self._lanes.get(partition) is running]
        await raising_stray_cancels(self._consumer.restart(still))
        self._restarts.end(lanes)

    def _report(self, now: float) -> None:
        self._report_waiting(now)
        self._observer.tick()
        for partition, running in self._lanes.items():
            unfinished = running.lane.core.unfinished
            if unfinished == 0 == running.reported:
                continue  # like almost all of thousands of lanes
            running.reported = unfinished
            observer, stuck_at = running.lane.core.setup.observer, running.lane.stuck_at
            observer.lane(partition, unfinished=unfinished)
            stalled_s = running.standstill.look(stuck_at, now)
            if stalled_s is not None and stuck_at is not None:
                observer.stalled(partition, stuck_at, stalled_s)

    def _report_waiting(self, now: float) -> None:
        """A member that gets no partitions for a while reports the reason: nothing else would show it."""
        reason = self._consumer.waits_for()
        if reason is None:
            self._waiting_since = now
        elif now - self._waiting_since >= WAITING_S:
            self._retrier.report("get partitions assigned", LogUnavailable(reason))

    # commits

    async def _commit_regularly(self) -> None:
        """Slow progress is committed in one call with more; only a new owner waits for commits."""
        committed_at = -inf
        while True:
            await self._progress.wait()
            self._progress.clear()
            await self._clock.sleep(THROTTLE_EVERY_S)
            self._throttle_all()
            offsets, now = self._uncommitted(self._moved), self._clock.monotonic()
            self._moved = set(offsets)
            finished = sum(offset - self._committed.get(partition, offset) for partition, offset in offsets.items())
            if offsets and (now - committed_at >= COMMIT_EVERY_S or finished >= COMMIT_RECORDS):
                committed_at = now
                await self._commit(offsets)
            elif offsets:
                self._progress.set()

    def _uncommitted(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The watermarks that have moved."""
        offsets: dict[TopicPartition, int] = {}
        for partition in partitions:
            running = self._lanes.get(partition)
            if running is None or running.lane.core.fenced_at is not None or partition in self._missing:
                continue
            offset = running.lane.core.next_offset
            if offset is not None and offset != self._committed.get(partition):
                offsets[partition] = offset
        return offsets

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """If it fails, the next commit replaces it, or the new owner repeats the records."""
        try:
            await self._consumer.commit(offsets)
            self._committed.update(offsets)
        except LogUnavailable as error:
            self._retrier.report("commit", error)
            self._progress.set()
        except PartitionLost:
            return  # the revocation that follows ends the lane

    # ownership

    async def _assigned(self, assignments: Sequence[Assignment]) -> None:
        if self._tasks is None:
            raise AssertionError("assigned before run")
        if self._stopping:
            return  # the consumer is about to be closed, which gives them back
        for assignment in assignments:
            self._missing.discard(assignment.partition)
            lane = self._open_lane(assignment)
            lane.progress = self._progress
            lane.on_break = partial(self._restart, [assignment.partition], None)
            running = self._lanes[assignment.partition] = _RunningLane(lane)
            lane.on_stop = partial(self._end, self._tasks, running)

    def _end(self, tasks: asyncio.TaskGroup, running: _RunningLane) -> None:
        """A lane has a task of its own only while it ends: there may be thousands."""
        running.ending = _started(tasks, running.lane.finish())
        if running.ending is None:
            running.lane.close()

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._stop_lanes(partitions, REVOKE_GRACE_S, linger_s=LINGER_S)

    async def _stop_lanes(self, partitions: Sequence[TopicPartition], grace_s: float, *, linger_s: float = 0.0) -> None:
        """Stop starting, finish calls in flight, commit, forget. Requests may take longer than a revocation."""
        running = [self._lanes[partition] for partition in partitions if partition in self._lanes]
        for each in running:
            each.lane.stop(grace_s, linger_s=linger_s)
        for each in running:
            await each.lane.left.wait()
        if offsets := self._uncommitted(partitions):
            await self._commit(offsets)
        self._lingering = [each for each in (*self._lingering, *running) if each.ending and not each.ending.done()]
        for each in running:
            each.lane.core.setup.observer.lane(each.lane.partition, unfinished=None)
        for partition in partitions:
            self._lanes.pop(partition, None)
            self._committed.pop(partition, None)
            self._paused.discard(partition)
            self._active.discard(partition)
            self._moved.discard(partition)


def _started(tasks: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> asyncio.Task[None] | None:
    """None if all of `tasks` were ended in the meantime."""
    try:
        return tasks.create_task(work)
    except RuntimeError:
        work.close()
        return None
