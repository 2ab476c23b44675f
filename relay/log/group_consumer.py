"""A consumer for logs whose consumer groups live in one process. What differs between them is a GroupStore.

All callbacks run in the task that calls `start`, `poll` or `close`: a member gives a partition up in its own next
poll, which is woken for it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from relay.domain.errors import ConsumerClosed, OffsetMissing, PartitionLost
from relay.log.groups import Group
from relay.log.port import Assignment, OnAssigned, OnRevoked, Record, TopicPartition
from relay.log.watchers import Watchers

_CLOSE_TIMEOUT_S: Final = 20.0
_CONFIRMED_S: Final = 15.0
"""As a session lasts on Kafka. Here nobody is put out for being slow, but for ever is no time to promise."""
_log = logging.getLogger(__name__)


class Taken(NamedTuple):
    """What a new owner gets: its epoch, and the group's next offset (None: it has none)."""

    epoch: int
    next_offset: int | None


class Commit(NamedTuple):
    epoch: int
    next_offset: int


class GroupStore(Protocol):
    """The log behind a consumer. Any method may raise LogUnavailable."""

    async def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """All partitions of these topics."""
        ...

    async def take(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Taken]:
        """Make the caller the owner of these: the epoch of each grows, which ends every former owner's right."""
        ...

    async def fetch(
        self, positions: Mapping[TopicPartition, int], max_records: int
    ) -> dict[TopicPartition, list[Record]]:
        """What there is from these offsets on, the first partitions first; none without records, at most
        `max_records` in all. Does not wait. Raises OffsetMissing, with the partitions, where the record at an offset
        was removed, or the offset is behind the end."""
        ...

    async def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        """All, or, if one of the epochs is not the newest, none and PartitionLost."""
        ...

    async def confirm(self, group: str, epochs: Mapping[TopicPartition, int]) -> None:
        """Raises PartitionLost if one of them is not the newest."""
        ...

    async def first(self, partition: TopicPartition) -> int:
        """The offset of the first record that is still there, or of the next one."""
        ...


@dataclass(frozen=True, slots=True)
class _Owned:
    epoch: int
    position: int | None


class GroupConsumer:
    """A `relay.log.port.Consumer`: a member of `group`, over `store`, woken by `watchers`."""

    def __init__(
        self,
        store: GroupStore,
        watchers: Watchers,
        group: Group,
        topics: Sequence[str],
        on_assigned: OnAssigned,
        on_revoked: OnRevoked,
    ) -> None:
        self._store = store
        self._watchers = watchers
        self._group = group
        self._topics = tuple(topics)
        self._wanted: frozenset[TopicPartition] = frozenset()
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._owned: dict[TopicPartition, _Owned] = {}
        self._paused: set[TopicPartition] = set()
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self._closing = False

    def wake(self) -> None:
        self._wake.set()

    async def start(self) -> None:
        """Join the group and take what is free. Raises LogUnavailable when a topic does not exist."""
        self._wanted = frozenset(await self._store.partitions(self._topics))
        async with self._busy:
            self._watchers.add(self._topics, self._wake)
            try:
                await self._take_part()
            except BaseException:
                self._leave()
                raise

    async def poll(self, *, max_records: int, timeout_s: float) -> Mapping[TopicPartition, Sequence[Record]]:
        if self._closing:
            raise ConsumerClosed(f"{self._group.name}: the consumer is closed")
        await asyncio.sleep(0)  # nothing below has to wait when records are at hand
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        async with self._busy:
            while not self._closing:
                self._wake.clear()
                await self._take_part()
                records = await self._fetch(max_records)
                if self._closing:
                    break
                if records or loop.time() >= deadline:
                    return records
                await self._sleep_until(deadline)
        return {}

    def waits_for(self) -> str | None:
        return None  # whoever holds a partition is here, and gives it up at its next poll

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(partition for partition in partitions if partition in self._owned)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self.wake()

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        commits = {}
        for partition, next_offset in next_offsets.items():
            owned = self._owned.get(partition)
            if owned is None or not self._group.holds(self, partition):
                raise PartitionLost(f"{self._group.name} of this process no longer owns {_named(partition)}")
            commits[partition] = Commit(owned.epoch, next_offset)
        if commits:
            await self._store.commit(self._group.name, commits)

    async def confirm(self, assignments: Sequence[Assignment]) -> float:
        epochs = dict(assignments)
        for partition, epoch in epochs.items():
            owned = self._owned.get(partition)
            if owned is None or owned.epoch != epoch or not self._group.holds(self, partition):
                raise PartitionLost(f"{self._group.name} of this process no longer owns {_named(partition)}")
        await self._store.confirm(self._group.name, epochs)
        return _CONFIRMED_S

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.wake()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S), self._busy:
                await self._give_up(list(self._owned))
        except Exception:  # noqa: BLE001 - it is on record in the log, and `close` never raises
            # Leaving must go on whatever the callback does: others wait for the partitions. What was not committed
            # is read again.
            _log.exception("consumer_close", extra={"group": self._group.name})
        finally:
            self._leave()

    def abandon(self) -> None:
        """Leave without a word, as a process that dies: no callback, no commit."""
        self._closing = True
        self._leave()
        self.wake()

    async def _take_part(self) -> None:
        """Give up what is meant for others, then take what is ours and free."""
        await self._give_up([p for p in self._owned if not self._group.meant_for(self, p)])
        if self._closing:
            return
        if self not in self._group:  # new, or put out by the group without warning
            self._group.join(self, self._wanted)
        if claimed := self._group.claim(self):
            await self._take(claimed)

    async def _take(self, claimed: Sequence[TopicPartition]) -> None:
        try:
            taken = await self._store.take(self._group.name, claimed)
        except BaseException:
            self._group.release(self, claimed)
            raise
        self._owned |= {partition: _Owned(*taken[partition]) for partition in claimed}
        await self._on_assigned([Assignment(partition, taken[partition].epoch) for partition in claimed])

    async def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        try:
            await self._on_revoked(partitions)
        finally:
            for partition in partitions:
                self._owned.pop(partition, None)
            self._paused.difference_update(partitions)
            self._group.release(self, partitions)

    async def _fetch(self, max_records: int) -> dict[TopicPartition, list[Record]]:
        await self._refuse_missing()
        positions = {}
        for partition, owned in self._owned.items():
            if partition in self._paused or owned.position is None:
                continue
            positions[partition] = owned.position
        if not positions:
            return {}
        try:
            fetched = await self._store.fetch(positions, max_records)
        except OffsetMissing as error:
            await self._commit_first(error)
            raise
        asked_for = self._owned.keys() - self._paused  # as it is now, after the wait
        records = {partition: found for partition, found in fetched.items() if partition in asked_for}
        for partition, found in records.items():
            # Served partitions go to the end of the queue, so that a full one does not starve the others.
            self._owned[partition] = replace(self._owned.pop(partition), position=found[-1].offset + 1)
        return records

    async def _refuse_missing(self) -> None:
        missing = sorted(partition for partition, owned in self._owned.items() if owned.position is None)
        if missing:
            names = ", ".join(map(_named, missing))
            error = OffsetMissing(f"{self._group.name} has no offset on {names}", missing)
            await self._commit_first(error)
            raise error

    async def _commit_first(self, error: OffsetMissing) -> None:
        """Whoever comes next begins with the first record that is there: rows absorb what comes again."""
        places = [TopicPartition(*place) for place in error.partitions]
        await self.commit({place: await self._store.first(place) for place in places})

    async def _sleep_until(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError:
            return

    def _leave(self) -> None:
        self._owned.clear()
        self._group.leave(self)
        self._watchers.remove(self._topics, self._wake)


def _named(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
