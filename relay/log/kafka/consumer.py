"""Member of a consumer group on Kafka, for all topics that a process reads in one role.

The group assigns partitions (`membership`), and only changes are applied: partitions that stay are read on through a
rebalance. Assigned partitions start at the committed offset (`offsets`), and are fetched by the loop of the whole
process (`fetch_loop`); those no longer assigned are released, and then the member rejoins without them.
"""

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from relay.clock import set_within
from relay.domain.errors import ConsumerClosed, LogUnavailable, OffsetMissing, PartitionLost
from relay.log.kafka.client import KafkaClient
from relay.log.kafka.cluster import GroupTiming, KafkaCluster, ends_within
from relay.log.kafka.feed import TopicVanished
from relay.log.kafka.fetch_loop import FetchLoop
from relay.log.kafka.holdings import HeldPartition, Holdings, Lost, WantedTopics
from relay.log.kafka.member_metadata import MemberMetadata
from relay.log.kafka.membership import GroupMember
from relay.log.kafka.offsets import Committed, GroupOffsets
from relay.log.port import (
    NONE_UNABLE,
    Assignment,
    MaxBytes,
    OnAssigned,
    OnRevoked,
    Record,
    Subscription,
    TopicPartition,
    Unable,
    no_limit,
)

_REVOKE_S: Final = 15.0
"""Time limit of `on_revoked` when this member leaves: requests in flight (5 s) and a last commit. Below the rebalance
timeout."""

_TICK_S: Final = 1.0
"""Interval at which a waiting poll checks its member."""

_RETRY_S: Final = 1.0
"""Interval of retries of what could not begin: a missing topic, an offset that other members still hold."""

_MAINTAIN_EVERY_S: Final = 60.0
_VANISHED_S: Final = 1.0
_RECOMMIT_S: Final = 3_600.0
"""The broker forgets offsets to which nothing was committed for `offsets.retention`, unless members list their topics
in a separate field; for the relay this list would be too long."""


@dataclass(eq=False, repr=False)
class KafkaConsumer:
    """As the port says. `client`: for requests that no other member's slowness may hold up; `fetching`: the process's
    own loop."""

    cluster: KafkaCluster
    timing: GroupTiming
    subscription: Subscription
    on_assigned: OnAssigned
    on_revoked: OnRevoked
    client: KafkaClient
    fetching: FetchLoop
    _holdings: Holdings = field(default_factory=Holdings)
    _paused: set[TopicPartition] = field(default_factory=set)
    _occupied: frozenset[str] = frozenset()
    _trouble: str | None = None
    _committed_at: float = 0.0
    _maintenance_due: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: asyncio.Future[None] | None = None
    _failures: list[Exception] = field(default_factory=list)
    _maintaining: asyncio.Task[None] | None = None
    _ending: set[asyncio.Task[None]] = field(default_factory=set)
    """Partitions that are being released."""
    _closing: bool = False
    _closed: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._group = self.subscription.group
        self._offsets = GroupOffsets(self.client, self._group)
        self._member = GroupMember(self.cluster, self.timing, self._offsets, self._group, self)
        self._wanted = WantedTopics(self.client, self.subscription.topics)

    # the port

    async def start(self) -> None:
        """Join the group, in the background. Raises LogUnavailable."""
        await self._wanted.look()
        await self._join()
        if self._closing:  # meanwhile
            await self._member.leave()
            return
        self._committed_at = monotonic()
        self._loop = asyncio.get_running_loop()
        self._maintaining = asyncio.create_task(self._maintain())

    def subscribe(self, topics: Collection[str], unable: Unable = NONE_UNABLE) -> None:
        if self._wanted.change(topics, unable):
            self._maintenance_due.set()

    async def poll(
        self, *, max_records: int, timeout_s: float, max_bytes: MaxBytes = no_limit
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """As the port says."""
        if self._maintaining is None or self._closing:
            raise ConsumerClosed(f"Kafka: {self._group}: the consumer is closed")
        await asyncio.sleep(0)  # nothing below waits if records are available
        deadline = monotonic() + timeout_s
        while not self._closing:
            if self._failures:
                raise self._failures.pop(0)
            if self._maintaining.done():
                self._maintaining.result()  # raises its error
            self._member.look(is_waiting=self._waits_for_others is not None)
            records = await self._take(max_records, max_bytes())
            remaining = deadline - monotonic()
            if records or remaining <= 0:
                return records
            if not self._failures and not self._closing:
                await self._wait(min(remaining, _TICK_S))
        return {}

    def waits_for(self) -> str | None:
        if (reason := self._waits_for_others or self._trouble) is not None:
            return reason
        if (reason := self._wanted.waits_for) is not None:
            return reason
        if not self._member.has_joined or self._member.is_assigned:
            return None
        if not self._member.has_coordinator:
            return f"Kafka: {self._group} cannot be joined: its coordinator does not answer"
        session_s = self.timing.session_timeout_ms / 1000
        return f"Kafka: {self._group} waits up to {session_s:g} s for members that ended without a word to come back"

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        stopped = self._holdings.readable.intersection(partitions) - self._paused
        self._paused |= stopped
        self.fetching.pause(sorted(stopped))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        resumed = self._paused.intersection(partitions)
        self._paused -= resumed
        self.fetching.resume(sorted(resumed))
        self._wake_poll()

    async def restart(self, partitions: Collection[TopicPartition]) -> None:
        ours = self._holdings.kept(partitions)
        self._leave(ours)
        await self._release(ours, again=True)

    async def confirm(self, assignments: Sequence[Assignment]) -> float:
        """As the port says: by a heartbeat, which the coordinator accepts or rejects."""
        for partition, epoch, _ in assignments:
            held = self._holdings.get(partition)
            if held is None or not held.is_open or held.epoch != epoch:
                raise PartitionLost(f"{self._group}: {partition} is not assigned with epoch {epoch}")
        refusal = await self._member.confirm()
        if refusal is not None:
            raise PartitionLost(f"{self._group}: {refusal}")
        return min(self.timing.session_timeout_ms, self.timing.rebalance_timeout_ms) / 1000

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """As the port says; in bounded time, 10 s. Partitions that are still ours are committed also when another one
        is lost."""
        ours = self._holdings.of(next_offsets)
        await self._commit({p: held.committed(next_offsets[p]) for p, held in ours.items() if not held.is_missing})
        if lost := sorted(next_offsets.keys() - ours.keys()):
            raise PartitionLost(f"{self._group}: {', '.join(map(str, lost))} went to another member")

    async def _commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
        await self._member.commit(commits)
        for partition, held in self._holdings.of(commits).items():
            held.offset, held.is_of_another = commits[partition].offset, False
            held.history.forget_before(held.offset)

    async def close(self) -> None:
        self._closing = True
        self._wake_poll()
        async with self._closed:
            if self._maintaining is None:
                return
            self._maintaining.cancel()
            await asyncio.wait([self._maintaining])
            self._maintaining = None
            await ends_within(self._release_all(), _REVOKE_S)
            for task in self._ending:
                task.cancel()
            self._shut(self._holdings.owned)
            self._holdings.lose()
            await self._member.leave()

    # called by its member

    def metadata(self) -> bytes:
        holdings = self._holdings
        if holdings.is_ending:  # partitions of a former membership: until they are released it wants nothing
            return MemberMetadata({}).encode((), -1)
        named, rank = self.subscription.named, self.subscription.rank
        return self._wanted.metadata.encode(holdings.owned, holdings.generation, named=named, rank=rank)

    def assigned(self, generation: int, assigned: bytes) -> None:
        if self._closing:
            return
        gone = self._holdings.assign(generation, self._wanted.metadata.partitions(assigned))
        if gone:
            self._leave(gone)
            self._end(self._release(gone, again=False))
        self._maintenance_due.set()
        self._wake_poll()

    def lost(self) -> None:
        self._shut(self._holdings.owned)
        lost = self._holdings.lose()
        if lost and not self._closing:
            self._end(self._release_lost(lost))
        if (topic := self._wanted.any) is not None:  # a request finds out why, as that of the library does not
            self._wanted.recount({topic})
            self._maintenance_due.set()
        self._wake_poll()

    # beside polling

    async def _maintain(self) -> None:
        """Open assigned partitions, and look for topics."""
        while True:
            self._maintenance_due.clear()
            is_pending = True
            try:
                if await self._wanted.look():
                    self._member.rejoin()
                await self._join()
                is_pending = await self._open_assigned() or bool(self._wanted.missing)
                await self._commit_again()
                self._trouble = None
            except LogUnavailable as error:
                self._trouble = str(error)
                # perhaps a topic that was created again does not have all partitions that are assigned
                self._wanted.recount({at.topic for at in self._holdings.owned - self._holdings.readable})
            except PartitionLost:
                continue  # the revocation reports it
            await set_within(self._maintenance_due, _RETRY_S if is_pending else _MAINTAIN_EVERY_S)

    async def _join(self) -> None:
        """Join unless no wanted topic exists yet."""
        topic = self._wanted.any
        if topic is not None and not self._member.has_joined:
            await self._member.join(topic)

    async def _open_assigned(self) -> bool:
        """Open assigned partitions at their offsets. True if some of them have to wait."""
        generation, assigned, former = self._member.generation, self._holdings.to_open(), self.subscription.former
        if not assigned or generation is None:
            return bool(assigned)
        begun = await self._offsets.begun(assigned, generation, former)
        self._occupied = begun.occupied
        still = [p for p, held in self._holdings.to_open().items() if assigned.get(p) is held]
        starts = {p: at for p, at in begun.starts.items() if not assigned[p].is_of_another}
        await self._assign({p: starts[p] for p in still if p in starts})
        missing = [p for p in still if p not in starts and former(p.topic) not in begun.occupied]
        if missing:
            self._fail(await self._missed(missing))
        return bool(begun.occupied)

    async def _assign(self, starts: Mapping[TopicPartition, Committed]) -> None:
        if not starts:
            return
        begun = [Assignment(p, self._holdings.open(p, at), at.offset) for p, at in starts.items()]
        await self._call(self.on_assigned(sorted(begun)))
        for partition, held in self._holdings.of(self._holdings.readable & starts.keys()).items():
            self.fetching.open(partition, held.history, self._wake_poll)
        self._wake_poll()

    async def _missed(self, partitions: Collection[TopicPartition], lost: Lost | None = None) -> OffsetMissing:
        """Commit where these restart. Returns the error to raise."""
        self._shut(partitions)
        self._holdings.miss(partitions)
        try:
            firsts = await self.client.offsets(partitions, "earliest")
            ends = await self.client.offsets(partitions, "end")
            starts, found = self._holdings.restarts(partitions, firsts, ends, lost or {})
            await self._commit(starts)
        except (LogUnavailable, PartitionLost):
            self._end(self.restart(partitions))  # the restart finds it again
            raise
        names = ", ".join(map(str, sorted(partitions)))
        return OffsetMissing(f"{self._group} has no record to go on with on {names}", partitions, found)

    # releasing

    def _leave(self, gone: Mapping[TopicPartition, HeldPartition]) -> None:
        self._holdings.leave(gone)
        self._shut(gone)

    async def _release(self, gone: Mapping[TopicPartition, HeldPartition], *, again: bool) -> None:
        """`again`: to restart them. Otherwise the group waits for the release."""
        if opened := sorted(partition for partition, held in gone.items() if held.is_open):
            await self._call(self.on_revoked(opened))
        self._holdings.left(gone, again=again)
        if not self._closing and len(self._holdings.of(gone)) < len(gone):
            self._member.rejoin()
        self._maintenance_due.set()

    async def _release_lost(self, lost: Sequence[TopicPartition]) -> None:
        await self._call(self.on_revoked(lost))
        self._holdings.ended(lost)
        self._member.rejoin()

    async def _release_all(self) -> None:
        releasing = set(self._ending)
        ours = self._holdings.kept(list(self._holdings.owned))
        self._leave(ours)
        await self._release(ours, again=False)
        if releasing:
            await asyncio.wait(releasing)

    async def _call(self, call: Awaitable[None]) -> None:
        """Await a callback. `poll` raises its error, as this task has no caller."""
        try:
            await call
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _end(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(error)

    # offsets

    async def _commit_again(self) -> None:
        """Commit offsets that no finished record would commit: those that the broker would forget, and those behind
        which there are only markers, for example."""
        if behind := self._holdings.behind():
            await self.commit(behind)
        if monotonic() - self._committed_at >= _RECOMMIT_S:
            self._committed_at = monotonic()
            ours = self._holdings.of(self._holdings.readable)
            await self.commit({partition: held.offset for partition, held in ours.items()})

    # records

    async def _take(self, max_records: int, max_bytes: int) -> Mapping[TopicPartition, Sequence[Record]]:
        ready = self._holdings.readable
        if self._paused:
            ready = ready - self._paused
        try:
            return self.fetching.take(ready, max_records, max_bytes)
        except OffsetMissing as error:
            gone = [TopicPartition(*place) for place in error.partitions]
            raise await self._missed([p for p in gone if p in ready], error.lost) from error
        except TopicVanished as error:
            vanished = ready.intersection(error.partitions)
            self._shut(vanished)
            # from now on a commit would count for another topic of that name, as a last one may have
            self._holdings.miss(vanished, of_another=True)
            self._wanted.recount({at.topic for at in vanished})
            self._end(self._restart_later(vanished))
            return {}

    async def _restart_later(self, vanished: Collection[TopicPartition]) -> None:
        """Once the cluster has deleted the offsets of a deleted topic: then they start at the first record."""
        await asyncio.sleep(_VANISHED_S)
        await self.restart(vanished)

    def _shut(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.fetching.shut(partition)
            self._paused.discard(partition)

    async def _wait(self, timeout_s: float) -> None:
        """Wait until records arrive, or the member's partitions change."""
        self._waiting = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._wake_poll)
        try:
            await self._waiting
        finally:
            self._waiting = None
            timer.cancel()

    def _wake_poll(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._failures.append(error)
        self._wake_poll()

    @property
    def _waits_for_others(self) -> str | None:
        if self._occupied:
            names = ", ".join(sorted(self._occupied)[:3])
            return f"Kafka: {self._group} takes over from {names}, as soon as that has no members any more: stop them"
        return self._member.waits_for
