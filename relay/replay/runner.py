"""Runs the jobs that replay and discard: one process at a time, under a lease. Each step is a record on
`receiver_config`, from which another process can continue."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from math import inf
from typing import Final

from relay.clock import Clock
from relay.control.projections import ReplayJob
from relay.domain.control_key import ControlKey, Kind, encode_value
from relay.domain.errors import NotYet, Unavailable, UserError
from relay.domain.identity import DeliveryId
from relay.domain.replay_job import JobState, ReplayProgress
from relay.domain.sliced import sliced
from relay.domain.topics import SHARED, Topics
from relay.log.port import Coordinate, Log, NewRecord
from relay.recovery.unfinished import unfinished
from relay.replay.plan import ReplayPlan
from relay.replay.replay_service import ReplayService
from relay.replay.scanner import ReplayScanner, ScanChunk
from relay.state.lease import LEASE_S, keeping_lease
from relay.state.port import State
from relay.telemetry.logging import get_logger

LEASE: Final = "replays"
CHECK_EVERY_S: Final = 1.0
CONFLICT_CHECK_S: Final = 0.1
"""Interval at which a job checks whether another one has done its step about the same letters."""
AT_ONCE: Final = 500
"""Letters of a step: progress is published after each step."""
REPORT_S: Final = 2.0
"""Interval at which the number of skipped records is published."""
AT_A_TIME: Final = 4
"""Jobs at a time; one that is paced for hours must not block all others."""
ROOM: Final = 25_000
"""Unfinished messages of a receiver in the shared lane, up to which it gets more: beyond the parking limit they
would become dead letters again."""
CHECK_ROOM_AFTER: Final = 5_000
"""Records for such a receiver after which its backlog is checked: that takes reading the unread records."""
REMEMBERED: Final = 50_000
REMEMBERED_S: Final = 600.0
"""The newest generations whose records are on the log, while their rows may not say so yet: other jobs do not begin
them again. Later, the log may have lost the record."""
KEPT: Final = 1_000
KEPT_S: Final = 30 * 86_400.0
"""The newest finished jobs are kept for as long as dead letters are."""
_SURE: Final = frozenset({"replayed", "discarded", "cancelled"})

BEGUN: Final = ReplayPlan(skip="replayed")

_Generation = tuple[DeliveryId, int]

_RECORDS: Final[tuple[Kind, ...]] = ("replay-stop", "replay-progress", "replay")
"""The records of a job, in the order in which they are removed."""
_log = get_logger("relay.replays")


@dataclass(eq=False)
class ReplayRunner:
    """One per process. `owner`: unique per process. `room`: see ROOM."""

    log: Log
    state: State
    topics: Topics
    replay_service: ReplayService
    clock: Clock
    _: KW_ONLY
    owner: str
    room: int = ROOM
    _under_way: set[_Generation] = field(default_factory=set)
    _begun: dict[_Generation, float] = field(default_factory=dict)
    """When each was begun, on the monotonic clock; the newest last."""

    async def run(self) -> None:
        """Runs until cancelled. While log or state are unavailable nothing is replayed."""
        while True:
            try:
                if self._open() and await self.state.lease(LEASE, self.owner, LEASE_S):
                    async with keeping_lease(self.state, self.clock, LEASE, self.owner):
                        await self._work()
                        await self._forget_old()
            except* (Unavailable, NotYet) as group:
                _log.debug("replays_wait", error=str(group.exceptions[0]))
            await self.clock.sleep(CHECK_EVERY_S)

    def _open(self) -> list[ReplayJob]:
        """Oldest first."""
        return [job for job in reversed(self.replay_service.jobs.all()) if job.is_known and not job.is_over]

    async def _work(self) -> None:
        """Works until no job is left. Raises NotYet when another process has taken the lease."""
        running: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                running = {id: task for id, task in running.items() if not task.done()}
                for job in next_of(self._open(), running):
                    running[job.order.id] = tasks.create_task(self._do(job))
                if not running:
                    return
                await asyncio.wait(
                    [*running.values(), tasks.create_task(self.clock.sleep(CHECK_EVERY_S))],
                    return_when=asyncio.FIRST_COMPLETED,
                )

    async def _do(self, job: ReplayJob) -> None:
        """One job, to its end. Waits while log or state are unavailable; publishes an error of the job."""
        running = _RunningJob(job)
        _log.info("replay_begun", job=job.order.id, action=job.order.action, sent=job.progress.sent)
        while True:
            try:
                await self._advance(running)
            except UserError as error:
                await self._end(running, "failed", str(error))
            except Unavailable as error:
                _log.debug("replay_waits", job=job.order.id, error=str(error))
                await self._report_wait(running, f"waits: {error}")
                await self.clock.sleep(CHECK_EVERY_S)
                continue
            except NotYet:
                raise
            except Exception as error:  # noqa: BLE001  the outermost place: a fault in one job must not affect others
                _log.error("replay_failed", job=job.order.id, exc_info=True)
                await self._end(running, "failed", f"a fault of the relay: {type(error).__name__}")
            return

    async def _report_wait(self, running: "_RunningJob", detail: str) -> None:
        if running.progress.detail != detail:
            with suppress(Unavailable):
                await self._report(running, replace(running.progress, detail=detail))

    async def _advance(self, running: "_RunningJob") -> None:
        order, scanner = running.job.order, ReplayScanner(self.log, self.topics, running.job.order)
        if running.progress.counted is None:
            await self._report(running, replace(running.progress, state="counting", detail=None))
            counted = 0
            async for chunk in scanner.chunks(size=AT_ONCE):
                counted += len(chunk)
                if self._is_stopping(running):
                    await self._end(running, "stopped")
                    return
            now = round(self.clock.time(), 3)
            await self._report(running, replace(running.progress, state="running", counted=counted, begun_at=now))
        size = AT_ONCE if order.rate is None else max(1, min(AT_ONCE, int(order.rate)))
        progress = running.progress
        async for chunk in scanner.chunks(progress.group, progress.positions, size=size):
            if self._is_stopping(running):
                await self._end(running, "stopped")
                return
            sent = await self._step(running, chunk)
            await self._pace(running, sent)
        await self._end(running, "done")

    async def _step(self, running: "_RunningJob", chunk: ScanChunk) -> int:
        """Returns how many were sent. The chunk's contents are published before anything of it is sent."""
        order, before = running.job.order, running.progress
        await self.replay_service.check_rows(chunk.receivers())
        plans = await self.replay_service.plans(order, chunk)
        if any(plan.acts for plan in plans):
            upto = _furthest(before.upto, chunk.positions) if before.group == chunk.group else chunk.positions
            positions = before.positions if before.group == chunk.group else ()
            await self._report(running, replace(before, group=chunk.group, positions=positions, upto=upto, detail=None))
            plans = await self._carry_out(plans)
            running.gathered.update(self._for_shared(plans))
        if chunk.letters:
            await self.replay_service.executor.close(chunk.letters, plans)
        sent, skipped = _tally(chunk, plans, before)
        after = before.after(sent, skipped)
        upto = before.upto if before.group == chunk.group else ()
        now_there = replace(after, group=chunk.group, positions=chunk.positions, upto=upto, detail=None)
        running.progress = now_there
        if self.clock.monotonic() - running.reported_at > REPORT_S:
            await self._report(running, now_there)
        return sum(plan.acts for plan in plans)

    async def _carry_out(self, plans: Sequence[ReplayPlan]) -> list[ReplayPlan]:
        """Except what another job has begun since its rows were read, or before its lane has read the record."""
        generations = set[_Generation]().union(*(plan.generations for plan in plans))
        while not generations.isdisjoint(self._under_way):
            await self.clock.sleep(CONFLICT_CHECK_S)
        self._under_way |= generations
        try:
            plans = [BEGUN if plan.out and self._are_begun(plan.generations) else plan for plan in plans]
            done = await self.replay_service.executor.carry_out(plans)
        finally:
            self._under_way -= generations
        for generation in [generation for plan in done if plan.out for generation in plan.generations]:
            self._begun.pop(generation, None)
            self._begun[generation] = self.clock.monotonic()
        for generation in list(islice(self._begun, max(0, len(self._begun) - REMEMBERED))):
            del self._begun[generation]
        return done

    def _are_begun(self, generations: AbstractSet[_Generation]) -> bool:
        since = self.clock.monotonic() - REMEMBERED_S
        return all(self._begun.get(generation, -inf) > since for generation in generations)

    def _for_shared(self, plans: Sequence[ReplayPlan]) -> list[str]:
        """The receiver of each record that went to the shared lane."""
        shared = self.topics.to_receiver(SHARED)
        return [out.delivery.receiver for plan in plans for out in plan.out if out.record.topic == shared]

    async def _leave_room(self, running: "_RunningJob") -> None:
        for name in [name for name, count in running.gathered.items() if count >= CHECK_ROOM_AFTER]:
            while not self._is_stopping(running):
                if await unfinished(self.log, self.state, self.topics, name, SHARED) < self.room:
                    break
                await self.clock.sleep(CHECK_EVERY_S)
            del running.gathered[name]

    async def _pace(self, running: "_RunningJob", sent: int) -> None:
        await self._leave_room(running)
        rate, now = running.job.order.rate, self.clock.monotonic()
        if rate is None:
            return
        running.next_at = max(running.next_at, now) + sent / rate
        while (left_s := running.next_at - self.clock.monotonic()) > 0 and not self._is_stopping(running):
            await self.clock.sleep(min(left_s, CHECK_EVERY_S))

    def _is_stopping(self, running: "_RunningJob") -> bool:
        job = self.replay_service.jobs.get(running.job.order.id)
        return job is None or job.stopping

    async def _end(self, running: "_RunningJob", how: JobState, detail: str | None = None) -> None:
        ended = replace(running.progress, state=how, ended_at=round(self.clock.time(), 3), detail=detail)
        stop = NewRecord(self.topics.receiver_config, ControlKey("replay-stop", running.job.order.id).encode(), None)
        at = await self._report(running, ended, *([stop] if how == "stopped" else []))
        # until it has read this end, this process takes the job for an unfinished one
        await self.replay_service.reach(at.offset + 1)
        skipped = sum(ended.skipped.values())
        _log.info("replay_ended", job=running.job.order.id, state=how, sent=ended.sent, skipped=skipped)

    async def _report(self, running: "_RunningJob", progress: ReplayProgress, *more: NewRecord) -> Coordinate:
        """Asks for the lease right before: a process that was suspended for longer than the lease must not publish."""
        if not await self.state.lease(LEASE, self.owner, LEASE_S):
            raise NotYet("another process runs the replays")
        key = ControlKey("replay-progress", running.job.order.id).encode()
        *_, at = await self.log.append([NewRecord(self.topics.receiver_config, key, encode_value(progress)), *more])
        running.progress, running.reported_at = progress, self.clock.monotonic()
        return at

    async def _forget_old(self) -> None:
        over = [job for job in self.replay_service.jobs.all() if job.is_over]
        now = self.clock.time()
        old = [job for n, job in enumerate(over) if n >= KEPT or now - (job.progress.ended_at or now) > KEPT_S]
        keys = [ControlKey(kind, job.order.id).encode() for job in old for kind in _RECORDS]
        for some in sliced(keys, AT_ONCE):
            await self.log.append([NewRecord(self.topics.receiver_config, key, None) for key in some])


class _RunningJob:
    """A job, with unpublished progress."""

    __slots__ = ("gathered", "job", "next_at", "progress", "reported_at")

    def __init__(self, job: ReplayJob) -> None:
        self.job = job
        self.progress = job.progress
        self.next_at = 0.0
        self.gathered: Counter[str] = Counter()
        """Records for receivers in the shared lane since their backlog was checked."""
        self.reported_at = -inf


def next_of(open_ones: Sequence[ReplayJob], running: Collection[str]) -> list[ReplayJob]:
    """The jobs to begin now: the oldest of the owner with the fewest running. The last place is for an owner without
    any."""
    has = Counter(job.order.by for job in open_ones if job.order.id in running)
    waiting = [job for job in open_ones if job.order.id not in running]
    found: list[ReplayJob] = []
    while waiting and len(running) + len(found) < AT_A_TIME:
        job = min(waiting, key=lambda job: has[job.order.by])
        if has[job.order.by] >= AT_A_TIME - 1:
            break
        has[job.order.by] += 1
        waiting.remove(job)
        found.append(job)
    return found


def _furthest(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(pair) for pair in zip(one or other, other, strict=True))


def _tally(chunk: ScanChunk, plans: Sequence[ReplayPlan], before: ReplayProgress) -> tuple[int, Counter[str]]:
    """The number sent, and the numbers skipped by reason. A record that an earlier process had begun to send counts
    as sent."""
    sent, skipped = 0, Counter[str]()
    upto = before.upto if before.group == chunk.group else ()
    for number, record, plan in zip(chunk.numbers, chunk.records, plans, strict=True):
        tried = bool(upto) and record.offset < upto[number]
        if plan.acts or (tried and plan.skip in _SURE):
            sent += 1
        else:
            skipped[plan.skip or "nothing"] += 1
    return sent, skipped
