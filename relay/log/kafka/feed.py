"""The fetched data of one partition: its position, and the records that were fetched and not taken yet; and the memory
that all partitions of a process may use for these."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from relay.domain.errors import RelayError
from relay.log.kafka.cluster import FETCH_BYTES, LARGEST_BATCH
from relay.log.kafka.leader_epochs import UNKNOWN, ReadHistory
from relay.log.kafka.record_batches import AT_ONCE_BYTES, Unpacking, whole_size
from relay.log.kafka.wire import Aborted, FetchFrom
from relay.log.port import Record, TopicPartition

_CUTS: Final = 10
"""How often in a row a batch may arrive truncated before its length counts as wrong."""
_RECREATED_S: Final = 30.0
"""Time after which a leader epoch below the known one is that of a new topic of the same name; before, it may be from a
broker with outdated metadata."""


class TopicVanished(RelayError):
    """The topic of these partitions was deleted while they were read. There may be another one of its name."""

    def __init__(self, partitions: Collection[TopicPartition] = ()) -> None:
        super().__init__(f"Kafka: the topic of {', '.join(map(str, sorted(partitions)))} was deleted")
        self.partitions = partitions


@dataclass(eq=False, slots=True)
class Feed:
    """The fetched data of one partition."""

    at: TopicPartition
    history: ReadHistory
    on_arrival: Callable[[], None]
    max_record_bytes: int
    position: int = field(init=False)
    """The next offset to be taken."""
    following: int | None = field(init=False)
    """The next offset to be fetched; None if it is known only after unpacking."""
    held: int = 0
    """Bytes fetched and not taken, as fetched."""
    opened: int = 0
    """Bytes of the unpacked batch of which records are left."""
    taken: int = 0
    """Bytes of the records that the last `take` returned."""
    paused: bool = False
    paused_at: float = -inf
    has_vanished: bool = False
    """Its topic was deleted."""
    trouble: Exception | None = None
    """The error to raise when all records before it have been taken."""
    leader_epoch: int = UNKNOWN
    proved: int = UNKNOWN
    """The last epoch in which a leader confirmed that its log has the records that were read."""
    strikes: int = 0
    """Errors in a row."""
    struck_at: float = -inf
    filled_at: float = -inf
    """When records arrived, for the caller."""
    _lower_since: float | None = None
    """When metadata first had a lower leader epoch than the known one."""
    _max_bytes: int = FETCH_BYTES
    _cuts: int = 0
    _chunks: deque[Unpacking] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.position = self.following = self.history.position

    @property
    def wanted(self) -> FetchFrom | None:
        """The fetch to be requested now, if any."""
        if self.following is None or self.paused or self.trouble or self.held >= FETCH_BYTES:
            return None
        return FetchFrom(self.following, self._max_bytes, self.leader_epoch)

    @property
    def has_some(self) -> bool:
        """Whether `take` would return records, or an error is pending."""
        return bool(self._chunks) or self.trouble is not None

    @property
    def is_over(self) -> bool:
        """All fetched records have been taken, and an error is next."""
        return not self._chunks and self.trouble is not None

    @property
    def large(self) -> Unpacking | None:
        """The batch that has to be unpacked in a thread before more can be taken."""
        return self._chunks[0] if self._chunks and self._chunks[0].is_large else None

    def is_outdated(self, epoch: int, now: float) -> bool:
        """Whether metadata with this leader epoch are older than the known one."""
        if epoch >= self.leader_epoch:
            self._lower_since = None
            return False
        self._lower_since = now if self._lower_since is None else self._lower_since
        return now - self._lower_since < _RECREATED_S

    def accept(self, data: bytes, high_watermark: int, aborted: Sequence[Aborted] = ()) -> bool:
        """Add the response to the `wanted` fetch. False if there is nothing to take in it."""
        if self.following is None or not data:
            return False
        start, most = self.following, self.max_record_bytes
        chunk = Unpacking(
            self.at, data, start=start, end=high_watermark, max_bytes=most, aborted=aborted, history=self.history
        )
        if chunk.behind == self.following and len(data) < (size := whole_size(data)) <= LARGEST_BATCH:
            self._cuts += 1  # of a broker that cuts even the first batch, where it or the answer becomes too large
            if self._cuts <= _CUTS:
                self._max_bytes = max(self._max_bytes, size)
                return False
        self._max_bytes, self._cuts = FETCH_BYTES, 0
        self._chunks.append(chunk)
        self.held += len(data)
        self.following = chunk.behind if chunk.behind != self.following else None
        return True

    def take(self, count: int, max_bytes: int) -> list[Record]:
        """At most `count` records, none behind those that have `max_bytes` or more. Fewer, though there are more, if
        a `large` batch is next."""
        found: list[Record] = []
        self.taken = 0
        while self._chunks and len(found) < count and self.taken < max_bytes:
            chunk = self._chunks[0]
            found += chunk.take(count - len(found), min(max_bytes - self.taken, AT_ONCE_BYTES))
            self.taken += chunk.taken
            self.position, self.opened = chunk.position, chunk.opened
            if not chunk.done:
                break
            self._chunks.popleft()
            self.held -= chunk.size
        if not self._chunks and self.following is None:
            self.following = self.position
        self.history.taken(found[-1].offset if found else None, self.position)
        return found

    def unpacked(self, chunk: Unpacking) -> bool:
        """Note that `chunk` is unpacked now. False if it was dropped meanwhile."""
        if not self._chunks or self._chunks[0] is not chunk:
            return False
        self.opened = chunk.opened
        return True

    def fold(self) -> None:
        """Free the memory of unpacked records; the next `take` unpacks them again."""
        if self._chunks:
            self._chunks[0].fold()
            self.opened = self._chunks[0].opened

    def drop(self) -> None:
        """Drop the data that were not taken, and the error: they are requested again."""
        self.trouble = None
        self._chunks.clear()
        self.held = self.opened = 0
        self.following = self.position


class FetchMemory:
    """Limits of the fetched data over all feeds. `held`: bytes that were fetched and not taken.

    `held_limit`: above it nothing more is requested. The responses to earlier requests still arrive, two of a broker at
    most. `opened_limit`: of unpacked batches of which records are left, in bytes; above it all but the last are packed
    again.
    """

    def __init__(self, held_limit: int, opened_limit: int) -> None:
        self.held = 0
        self._held_limit = held_limit
        self._opened_limit = opened_limit
        self._opened: dict[TopicPartition, Feed] = {}
        self._room = asyncio.Event()

    async def room(self) -> None:
        """Wait until there is memory for another response."""
        while self.held >= self._held_limit:
            self._room.clear()
            await self._room.wait()

    def hold(self, size: int) -> None:
        """Change the number of bytes held."""
        self.held += size
        if self.held < self._held_limit:
            self._room.set()

    def note_opened(self, feed: Feed) -> None:
        """Record how much of `feed` is unpacked now."""
        self._opened.pop(feed.at, None)
        if feed.opened:
            self._opened[feed.at] = feed
            total = sum(each.opened for each in self._opened.values())
            while total > self._opened_limit and len(self._opened) > 1:
                oldest = self._opened.pop(next(iter(self._opened)))
                total -= oldest.opened
                oldest.fold()
