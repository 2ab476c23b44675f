"""Log port: topics of keyed, ordered, durable records, read by consumer groups.

Any method may raise LogUnavailable: then its effect is unknown, and it can be repeated safely (a repeated append may
leave a second copy; readers absorb it). Records are opaque bytes, which no adapter decodes.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from msgspec import Struct, structs

from relay.domain.coordinate import Coordinate as Coordinate
from relay.domain.coordinate import Headers as Headers
from relay.domain.rights import Right
from relay.domain.sliced import sliced
from relay.domain.topics import TopicSpec

T = TypeVar("T")

AT_ONCE: Final = 32
"""Records that `read_each` has in memory at a time."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class NewRecord(Struct, frozen=True, gc=False):
    """A record to append. The partition follows from `key` (murmur2, as Kafka's default), the same in every log.

    `value` None is a tombstone: in a compacted topic it removes the key. `spread`: the number of partitions to use,
    which the topic has by now, even if this client has last seen fewer: so all writers agree while a topic grows. With
    0, or if the topic really has fewer, all of its partitions are used.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    spread: int = 0


def size_of(record: "NewRecord | Record") -> int:
    """Bytes of key, value and headers, without any frame."""
    if isinstance(record, Record) and record.size:
        return record.size
    headers = sum(map(len, chain.from_iterable(record.headers)))
    return len(record.key or b"") + len(record.value or b"") + headers


class Flaw(Struct, frozen=True, gc=False):
    """Why a record is not as its writer meant it. `reason`: `invalid` or `too_large`, for the dead letter; `detail`:
    for operators. `omitted`: parts that were not kept ("value=62914560").

    `first_offset`: the offsets from this one to the record's are unreadable, and the record, without key and value,
    stands for them all. None if it is one record, with its readable parts.
    """

    reason: str
    detail: str
    first_offset: int | None = None
    omitted: str | None = None


class Record(Struct, frozen=True, gc=False):
    """A record as read. `timestamp_ms`: Unix time of its append by the log's clock (see `TopicState.sender_timed`).

    `flaw`: None, or why it cannot be read. Logs have many producers: a mistake of one costs its own offset only, or, if
    records cannot be separated, those offsets that cannot be read. The name of a header that is not UTF-8
    is `relay-raw-` and its bytes, percent-encoded. `size`: as `size_of` returns it, where that was found while the
    record was decoded: later its headers are out of the CPU's caches.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    flaw: Flaw | None = None
    size: int = 0

    def changed(self, **fields: Any) -> "Record":
        """A copy with these fields."""
        return structs.replace(self, size=0, **fields)

    @property
    def coordinate(self) -> Coordinate:
        return Coordinate(self.topic, self.partition, self.offset)

    @property
    def is_gap(self) -> bool:
        """Whether it stands for unreadable offsets."""
        return self.flaw is not None and self.flaw.first_offset is not None


class Assignment(NamedTuple):
    """A partition given to this consumer. `epoch` grows with every change of owner: it fences a former one. `start`:
    the group's next offset, 0 if it has none."""

    partition: TopicPartition
    epoch: int
    start: int = 0


OnAssigned = Callable[[Sequence[Assignment]], Awaitable[None]]
OnRevoked = Callable[[Sequence[TopicPartition]], Awaitable[None]]
MaxBytes = Callable[[], int]
FormerGroup = Callable[[str], str | None]
"""Topic -> the group that read it in an earlier release, whose offsets are taken over; None if there was none."""


def no_former_group(_topic: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer group, and the topics that a member of it reads at first. `rank`: of members that want the same
    partitions, the lower get theirs first, where a log is read by several processes. `named`: its topics were chosen
    for it; it goes before members that read all topics, and they get its partitions back when it is gone. `former`: the
    offsets of such a group are taken over once it has no members, one time, and never where this group has an offset.
    """

    group: str
    topics: Collection[str]
    rank: int = 0
    named: bool = False
    former: FormerGroup = no_former_group


def no_limit() -> int:
    return sys.maxsize


Unable = Mapping[str, frozenset[bytes]]
"""Keys of records that a member cannot finish, by topic."""

NONE_UNABLE: Final[Unable] = MappingProxyType({})


class Consumer(Protocol):
    """A member of a consumer group. Records are returned per partition in order, from the committed offset on.

    `on_assigned` is awaited before the first record of a partition is returned; `on_revoked` is awaited before
    another member gets it, so its commits still count. A partition that was lost without warning is revoked too.
    Partitions that stay are read on meanwhile: both are called beside polls, and may overlap for different partitions.
    """

    async def start(self) -> None: ...

    def subscribe(self, topics: Collection[str], unable: Unable = NONE_UNABLE) -> None:
        """Read these topics from now on, and no others, also while it runs: partitions of other topics are revoked. A
        topic that does not exist is looked up again and again; `waits_for` reports it. Partitions with keys
        of `unable` go to members that can finish all that is in them, where there are any."""
        ...

    async def poll(
        self, *, max_records: int, timeout_s: float, max_bytes: MaxBytes = no_limit
    ) -> Mapping[TopicPartition, Sequence[Record]]:
        """The next records of the assigned, unpaused partitions; empty after `timeout_s` without any.

        At most `max_records` in all, and none when those before it have `max_bytes`, as of the return, or more.
        Unreadable data is returned in its place as a record with a flaw: finishing that record finishes all offsets
        that it stands for. Raises OffsetMissing if the log has no record at the committed offset of some partitions
        (any more), or the group has none; by then the first existing record has been committed in its place, where they
        begin again: `restart` them. The others go on. Raises ConsumerBroken if this consumer will never return records
        again, and ConsumerClosed once it is closed.
        `close` ends a call in progress; one that was cancelled may only be followed by `close`. Each call gives other
        tasks a turn, also when records are available.
        """
        ...

    async def restart(self, partitions: Collection[TopicPartition]) -> None:
        """Have those of these that are ours revoked, and assigned again with a higher epoch, from their committed
        offsets on; the others continue. The revocation is over at the return, the assignment may follow."""
        ...

    def waits_for(self) -> str | None:
        """The reason why a started member has no assignment yet (which may be empty), or may not begin; for
        operators."""
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no records of these until `resume`. Already revoked partitions are ignored."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    async def confirm(self, assignments: Sequence[Assignment]) -> float:
        """Have the group confirm, now, that these are still ours, with this member and these epochs. Returns for how
        many seconds, from the call on, they are assigned to no other member without a rebalance that includes us.
        Raises PartitionLost if it does not confirm.
        """
        ...

    async def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Remember the *next* offset to read per partition. Raises PartitionLost if one is no longer ours."""
        ...

    async def close(self) -> None:
        """Leave the group, so that others take over at once. Awaits `on_revoked` first. Never raises; bounded time."""
        ...


class LogReader(Protocol):
    """Random access, outside of any group. Records with a flaw are returned as any other; unreadable offsets are left
    out, and reported in the log of the process."""

    async def read(self, wanted: Sequence[tuple[Coordinate, bytes | None]]) -> list[Record | None]:
        """The records at these coordinates, each with its key; None for those that are gone.

        In a compacted topic a newer record of the same key may be returned in place of the wanted one (the newest is
        the truth there); a key whose newest record is a tombstone gives None.
        """
        ...

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the newest record of each."""
        ...

    async def cluster_id(self) -> str:
        """The id of the log's cluster, which no other log has. Empty if it has none."""
        ...

    async def topic_id(self, topic: str) -> str:
        """The id of the present topic of that name: another one once it was deleted and created again. Empty if there
        is no such topic, or the log has no ids."""
        ...

    def scan(
        self, topic: str, partition: int, *, start: int = 0, end: int | None = None, batch: int = 1_000
    ) -> AsyncIterator[Sequence[Record]]:
        """A partition from offset `start` on, or from its first record if that is later, up to its end as of the
        first record asked for, or before offset `end`: in offset order, in lists of 1 to `batch` records, with little
        held in memory.

        Records that retention removes meanwhile are left out. Of a compacted topic, tombstones and records that have a
        newer one of their key may be left out.
        """
        ...

    def follow(self, topic: str, *, start: int | None = None) -> AsyncIterator[Record | None]:
        """All records of a topic (partition 0) from its beginning, then new ones as they are appended, for ever.

        Yields None once, when all records that existed at the call have been yielded. Tombstones are yielded. Of a
        compacted topic, records that existed at the call are yielded in any order.

        `start`: only records from that offset on, in order; it has to be behind all records of a call of the last hours
        that had yielded None. Raises OffsetMissing if the log does not have all records since.
        """
        ...


async def read_each(
    log: LogReader, wanted: Sequence[tuple[Coordinate, bytes | None]], made: Callable[[Record | None], T]
) -> list[T]:
    """As `LogReader.read`, the results of `made` for each record: little memory, however large the records are."""
    found = list[T]()
    for some in sliced(wanted, AT_ONCE):
        found += map(made, await log.read(some))
    return found


class TopicState(NamedTuple):
    """The present configuration of a topic. `replication`, `min_insync`: None if the log has no replicas.

    `retention_bytes`: per partition, None if only age counts. `mixed_cleanup`: it deletes by age and compacts, too.
    `sender_timed`: timestamps are from the clocks of producers, not the log's own. `in_sync`: replicas in sync of
    each partition.
    """

    spec: TopicSpec
    replication: int | None
    min_insync: int | None
    max_message_bytes: int
    retention_bytes: int | None = None
    mixed_cleanup: bool = False
    sender_timed: bool = False
    in_sync: tuple[int, ...] = ()

    @property
    def refusing(self) -> int:
        """Number of partitions that refuse records, as too few of their replicas are in sync."""
        least = min(self.min_insync or 0, self.replication or 0)
        return sum(number < least for number in self.in_sync)


class Backlog(NamedTuple):
    """Progress of a group in a partition. `first`: the oldest existing offset; `end`: behind the newest; `committed`:
    the next to read, None if the group has no offset. `stable`: the first offset of an open transaction of a sender,
    before whose end no later record is read; None if there is none. `lost_from`: the first offset of what the group has
    committed and the log has lost since; other records may be there now. None if it lost nothing of that."""

    group: str
    partition: TopicPartition
    first: int
    end: int
    committed: int | None
    stable: int | None = None
    lost_from: int | None = None

    @property
    def finished(self) -> int:
        """The offset before which the group has committed the records that are there now."""
        committed = self.committed or 0
        return committed if self.lost_from is None else min(committed, self.lost_from)

    @property
    def readable(self) -> int:
        """The offset before which all can be read now."""
        return self.end if self.stable is None else self.stable

    @property
    def position(self) -> int:
        """The committed offset; before it, where the log has lost records since, or the first one if that is gone."""
        return max(self.first, self.finished)

    @property
    def unread(self) -> int:
        """Number of readable offsets that are not committed yet."""
        return max(0, self.readable - self.position)

    @property
    def is_lost(self) -> bool:
        """Whether the log does not have the committed offset: deleted unread, or lost with the end of the log."""
        return self.committed is not None and not self.first <= self.committed <= self.end


class LogAdmin(Protocol):
    async def create(self, specs: Sequence[TopicSpec], groups: Mapping[str, str]) -> list[str]:
        """Create the topics that are missing and return their names. `groups`: topic -> consumer group whose
        offset is set to the beginning where it has none yet (a missing offset is an alarm, never "latest").
        Repeatable; an existing topic or offset is left as it is."""
        ...

    async def grow(self, topic: str, partitions: int) -> None:
        """Increases a topic's partitions; one with as many or more stays unchanged. Existing records stay, and keys may
        map to other partitions from now on. Repeatable; `create` gives groups an offset on the new ones."""
        ...

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        """The topics that exist, by name. Raises SettingsHidden."""
        ...

    async def backlogs(self, groups: Mapping[str, str]) -> list[Backlog]:
        """`groups`: topic -> the group that reads it. One for each partition of those topics that exist."""
        ...

    async def lacking(self, rights: Sequence[Right]) -> list[Right]:
        """The missing rights among `rights`, each with the operations that are refused; none if the log has no users.
        Rights that it does not report count as granted."""
        ...

    async def about(self) -> str:
        """Name and version of the server, in a few words for operators."""
        ...


class Log(LogReader, LogAdmin, Protocol):
    """A log. `start` connects (waiting is the caller's business), `close` releases everything in bounded time."""

    async def start(self) -> None: ...

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        """Append in order (records of one partition keep their order) and return when all are acknowledged:
        replicated (Kafka, acks=all) or fsynced (embedded). Raises LogUnavailable when not all were (PartlyAppended: it
        says which were; of a partition always the first ones), RecordTooLarge when one never will be (it says which;
        none of the others is known to be there)."""
        ...

    def consumer(self, subscription: Subscription, on_assigned: OnAssigned, on_revoked: OnRevoked) -> Consumer:
        """A member of the subscription's group."""
        ...

    async def close(self) -> None: ...
