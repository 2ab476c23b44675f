"""Consumer for logs whose consumer groups live in one process. Their differences are in a GroupStore.

A member takes its partitions in its next poll, which is woken for it. It releases partitions beside its polls, as that
may take seconds, and must not delay the partitions that stay.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from relay.clock import set_within
from relay.domain.errors import ConsumerClosed, OffsetMissing, PartitionLost
from relay.log.groups import ConsumerGroup, MemberSubscription, Watchers
from relay.log.partitioner import partitions_of
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
    size_of,
)

_CLOSE_TIMEOUT_S: Final = 20.0
_RECHECK_S: Final = 1.0
"""For topics that are missing."""
_CONFIRMED_S: Final = 15.0
"""The time for which `confirm` is valid, like a session on Kafka. Here no member is removed for being slow."""
_log = logging.getLogger(__name__)


class Position(NamedTuple):
    """A position to read from. `history`: of the log that was read up to there; a log that loses its end gets another
    one."""

    offset: int
    history: int = 0


class Fetched(NamedTuple):
    """Records, and the history of the log that they are from."""

    records: list[Record]
    history: int = 0


class TakenPartition(NamedTuple):
    """A partition with its new owner's epoch, and the group's next offset (None if it has none)."""

    epoch: int
    position: Position | None


class Commit(NamedTuple):
    epoch: int
    position: Position


class GroupStore(Protocol):
    """The log behind a consumer. Any method may raise LogUnavailable."""

    async def there(self, topics: Collection[str]) -> dict[str, int]:
        """Those of these topics that exist: how many partitions they have."""
        ...

    async def take(
        self, group: str, partitions: Mapping[TopicPartition, str | None]
    ) -> dict[TopicPartition, TakenPartition]:
        """Make the caller the owner of these: the epoch of each grows, which ends every former owner's right. With
        each the group whose offset is taken over, and whose epochs are lower, where this group has none."""
        ...

    async def fetch(
        self, positions: Mapping[TopicPartition, Position], max_records: int, max_bytes: int
    ) -> dict[TopicPartition, Fetched]:
        """The records from these positions on, the first partitions first: no empty lists, at most `max_records` in
        all, and not many more than have `max_bytes`. Does not wait. Raises OffsetMissing, with the partitions, if the
        record at an offset was removed, or the offset is behind the end, or the log has lost records that were read
        before it."""
        ...

    async def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """Commit all of them. Raises PartitionLost, and commits none, if one of the epochs is not the newest."""
        ...

    async def confirm(self, group: str, epochs: Mapping[TopicPartition, int]) -> None:
        """Raises PartitionLost if one of them is not the newest."""
        ...

    async def first(self, partition: TopicPartition) -> int:
        """The offset of the first record that is still there, or of the next one."""
        ...


@dataclass(frozen=True, slots=True)
class _Owned:
    """`committed`: the last known committed offset; None if the group has none."""

    epoch: int
    position: Position | None
    committed: int | None


@dataclass(eq=False, repr=False)
class GroupConsumer:
    """A `relay.log.port.Consumer`: a member of `group`, over `store`, woken by `watchers`."""

    store: GroupStore
    watchers: Watchers
    group: ConsumerGroup
    subscription: Subscription
    on_assigned: OnAssigned
    on_revoked: OnRevoked
    _there: dict[str, int] | None = None
    """The existing topics, with their partitions; None while they have to be looked up again."""
    _recheck_at: float = 0.0
    """When to look again for missing topics: one number for the check and the wait, as two could disagree."""
    _watched: tuple[str, ...] = ()
    _owned: dict[TopicPartition, _Owned] = field(default_factory=dict)
    _leaving: set[TopicPartition] = field(default_factory=set)
    _missing: set[TopicPartition] = field(default_factory=set)
    """The log does not have their offset: an error was raised, and they wait to be restarted."""
    _ending: set[asyncio.Task[None]] = field(default_factory=set)
    _failures: list[Exception] = field(default_factory=list)
    _paused: set[TopicPartition] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closing: bool = False

    def __post_init__(self) -> None:
        self._topics = frozenset(self.subscription.topics)
        self._unable = NONE_UNABLE

    def wake(self) -> None:
        self._wake.set()

    async def start(self) -> None:
        """Join the group and take the free partitions. Raises LogUnavailable."""
        self._loop = asyncio.get_running_loop()
        async with self._busy:
            try:
                await self._rebalance()
            except BaseException:
                self._leave()
                raise

    def subscribe(self, topics: Collection[str], unable: Unable = NONE_UNABLE) -> None:
        if (frozenset(topics), unable) != (self._topics, self._unable):
            self._topics, self._unable, self._there = frozenset(topics), unable, None
            self.wake()

    async def poll(
        self, *, max_records: int, timeout_s: float, max_bytes: MaxBytes = no_limit
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        if self._closing:
            raise ConsumerClosed(f"{self.group.name}: the consumer is closed")
        await asyncio.sleep(0)  # nothing below waits if records are available
        deadline = self._loop.time() + timeout_s
        async with self._busy:
            while not self._closing:
                self._wake.clear()
                await self._rebalance()
                if self._failures:
                    raise self._failures.pop(0)
                records = await self._fetch(max_records, max_bytes)
                if self._closing:
                    break
                if records or self._loop.time() >= deadline:
                    return records
                await self._sleep_until(deadline)
        return {}

    def waits_for(self) -> str | None:
        """Only missing topics: the owner of a partition is in this process, and releases it soon."""
        missing = sorted(self._topics - (self._there or {}).keys())
        return f"no topic {', '.join(missing)}; `relay topics apply` creates it" if missing else None

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(partition for partition in partitions if partition in self._owned)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self.wake()

    async def restart(self, partitions: Collection[TopicPartition]) -> None:
        """Release them; the member takes those that are assigned to it again with its next poll."""
        await self._give_up([p for p in partitions if p in self._owned and p not in self._leaving])

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        commits = {}
        for partition, next_offset in next_offsets.items():
            owned = self._owned.get(partition)
            if owned is None or not self.group.holds(self, partition):
                raise PartitionLost(f"{self.group.name} of this process no longer owns {partition}")
            history = owned.position.history if owned.position is not None else 0
            commits[partition] = Commit(owned.epoch, Position(next_offset, history))
        if commits:
            await self.store.commit(self.group.name, commits)
        for partition, commit in commits.items():
            if (owned := self._owned.get(partition)) is not None and owned.epoch == commit.epoch:
                self._owned[partition] = replace(owned, committed=commit.position.offset)

    async def confirm(self, assignments: Sequence[Assignment]) -> float:
        epochs = {each.partition: each.epoch for each in assignments}
        for partition, epoch in epochs.items():
            owned = self._owned.get(partition)
            if owned is None or owned.epoch != epoch or not self.group.holds(self, partition):
                raise PartitionLost(f"{self.group.name} of this process no longer owns {partition}")
        await self.store.confirm(self.group.name, epochs)
        return _CONFIRMED_S

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.wake()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S), self._busy:
                ending = set(self._ending)
                await self._give_up([partition for partition in self._owned if partition not in self._leaving])
                if ending:
                    await asyncio.wait(ending)
        except Exception:  # noqa: BLE001 - `close` never raises
            # Leaving must go on whatever the callback does: others wait for the partitions. Records that were not
            # committed are read again.
            _log.exception("consumer_close", extra={"group": self.group.name})
        finally:
            self._leave()

    def abandon(self) -> None:
        """Leave like a process that dies: without callback and commit."""
        self._closing = True
        for task in self._ending:
            task.cancel()
        self._leave()
        self.wake()

    async def _rebalance(self) -> None:
        """Begin to release partitions of others, then take the free ones that are ours."""
        if gone := [p for p in self._owned if p not in self._leaving and not self.group.meant_for(self, p)]:
            self._leaving.update(gone)
            task = asyncio.create_task(self._give_up_beside(gone))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if self._closing:
            return
        await self._join()
        if claimed := self.group.claim(self, self._leaving):
            await self._take(claimed)

    async def _join(self) -> None:
        """Join if the member is new, was removed by the group, or wants other topics. A removed member first releases
        its partitions."""
        if self._is_removed:
            return
        now = self._loop.time()
        is_complete = self._there is not None and self._there.keys() == self._topics
        is_changed = False
        if not is_complete and (self._there is None or now >= self._recheck_at):
            wanted = self._topics
            there = await self.store.there(wanted)
            if wanted != self._topics:
                self.wake()
                return
            is_changed, self._there, self._recheck_at = there != self._there, there, now + _RECHECK_S
            self._watch(tuple(there))
        if self._there is not None and (is_changed or self not in self.group):
            wants = frozenset(TopicPartition(name, n) for name, count in self._there.items() for n in range(count))
            unable = partitions_of(self._unable, self._there)
            named, rank = self.subscription.named, self.subscription.rank
            self.group.join(self, MemberSubscription(wants, named, rank, unable))

    @property
    def _is_removed(self) -> bool:
        """The group removed this member, and its partitions are not released yet."""
        return self not in self.group and bool(self._leaving)

    def _watch(self, topics: tuple[str, ...]) -> None:
        self.watchers.remove(self._watched, self._wake)
        self._watched = topics
        self.watchers.add(topics, self._wake)

    async def _take(self, claimed: Sequence[TopicPartition]) -> None:
        former = self.subscription.former
        try:
            taken = await self.store.take(self.group.name, {each: former(each.topic) for each in claimed})
        except BaseException:
            self.group.release(self, claimed)
            raise
        assigned: list[Assignment] = []
        for partition in claimed:
            epoch, position = taken[partition]
            start = None if position is None else position.offset
            self._owned[partition] = _Owned(epoch, position, start)
            assigned.append(Assignment(partition, epoch, start or 0))
        await self.on_assigned(assigned)

    async def _give_up_beside(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            await self._give_up(partitions)
        except Exception as error:  # noqa: BLE001 - poll raises it: this task has no caller
            self._failures.append(error)
            self.wake()

    async def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        self._leaving.update(partitions)
        try:
            await self.on_revoked(partitions)
        finally:
            for partition in partitions:
                self._owned.pop(partition, None)
            self._leaving.difference_update(partitions)
            self._missing.difference_update(partitions)
            self._paused.difference_update(partitions)
            self.group.release(self, partitions)
            self.wake()  # the group does not wake a removed member

    async def _fetch(self, max_records: int, max_bytes: MaxBytes) -> dict[TopicPartition, list[Record]]:
        await self._refuse_missing()
        positions = {}
        for partition in self._readable():
            if (position := self._owned[partition].position) is not None:
                positions[partition] = position
        if not positions:
            return {}
        try:
            fetched = await self.store.fetch(positions, max_records, max_bytes())
        except OffsetMissing as error:
            await self._commit_first(error)
            raise
        asked_for = self._readable()  # as of now, after the wait
        records = _upto(max_bytes(), {at: found for at, (found, _) in fetched.items() if at in asked_for})
        for partition, found in records.items():
            # Served partitions go to the end of the queue, so that a full one does not starve the others.
            position = Position(found[-1].offset + 1, fetched[partition].history)
            self._owned[partition] = replace(self._owned.pop(partition), position=position)
        return records

    def _readable(self) -> list[TopicPartition]:
        """In the order in which they are to be served."""
        left_out = self._paused | self._leaving | self._missing
        return [partition for partition in self._owned if partition not in left_out]

    async def _refuse_missing(self) -> None:
        missing = sorted(p for p in self._readable() if self._owned[p].position is None)
        if missing:
            names = ", ".join(map(str, missing))
            error = OffsetMissing(f"{self.group.name} has no offset on {names}", missing)
            await self._commit_first(error)
            raise error

    async def _commit_first(self, error: OffsetMissing) -> None:
        """Commit the offsets at which they restart: where the log diverges from the records read, if known, or at the
        first unfinished record before it; otherwise at the first record of the log: rows absorb repeated records."""
        starts: dict[TopicPartition, int] = {}
        for place in map(TopicPartition._make, error.partitions):
            if (owned := self._owned.get(place)) is not None:  # else it was released meanwhile
                divergence, _ = error.lost.get(place, (0, 0))
                starts[place] = max(await self.store.first(place), min(divergence, owned.committed or 0))
        await self.commit({place: start for place, start in starts.items() if place in self._owned})
        self._missing.update(starts.keys() & self._owned.keys())

    async def _sleep_until(self, deadline: float) -> None:
        if not self._is_removed and (self._there is None or self._there.keys() != self._topics):
            deadline = min(deadline, self._recheck_at)
        await set_within(self._wake, deadline - self._loop.time())

    def _leave(self) -> None:
        self._owned.clear()
        self.group.leave(self)
        self.watchers.remove(self._watched, self._wake)


def _upto(most: int, fetched: Mapping[TopicPartition, list[Record]]) -> dict[TopicPartition, list[Record]]:
    """The first of them, at least one: none behind those that have `most` bytes."""
    taken: dict[TopicPartition, list[Record]] = {}
    left = max(1, most)
    for partition, found in fetched.items():
        for count, record in enumerate(found, 1):
            left -= size_of(record)
            if left <= 0:
                return taken | {partition: found[:count]}
        taken[partition] = found
    return taken
