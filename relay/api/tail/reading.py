"""What was appended to some topics since the last look, of bounded length."""

from collections.abc import Mapping, Sequence
from typing import Final

from relay.api.tail.event import Read, TailedEvent
from relay.log.port import Log, Record, TopicPartition

MOST_AT_ONCE: Final = 1_000
"""Records that a look reads, of all partitions."""
TOPICS_S: Final = 30.0
"""After which it is looked again which partitions there are."""
_BATCH: Final = 20
"""Records at a time in memory: each may be as large as the log takes them."""


class Reading:
    """From the ends that the first look finds. `readers`: by topic, in the order in which a message passes them."""

    def __init__(self, log: Log, readers: Mapping[str, Read], most: int = MOST_AT_ONCE) -> None:
        self._log = log
        self._readers = readers
        self._most = most
        self._partitions: list[TopicPartition] = []
        self._look_at_topics = 0.0
        self._next: dict[TopicPartition, int] | None = None

    async def look(self, now: float) -> tuple[Sequence[TailedEvent], int]:
        """What happened since the last look, in order, and how many older records were passed over. `now`: of a
        monotonic clock. Raises LogUnavailable."""
        if now >= self._look_at_topics:
            self._partitions = await self._there()
            self._look_at_topics = now + TOPICS_S
        ends = await self._log.ends(self._partitions)
        if self._next is None:
            self._next = dict(ends)
            return [], 0
        return await self._up_to(ends, self._next)

    async def _there(self) -> list[TopicPartition]:
        """The topics that a message passes last come first: if ends are asked for one by one, later events of a message
        are not seen before its earlier ones."""
        states = await self._log.describe(list(self._readers))
        return [
            TopicPartition(topic, number)
            for topic in reversed(list(self._readers))
            if topic in states
            for number in range(states[topic].spec.partitions)
        ]

    async def _up_to(
        self, ends: Mapping[TopicPartition, int], following: dict[TopicPartition, int]
    ) -> tuple[Sequence[TailedEvent], int]:
        """`following`: of each partition the next offset to read; moves on, also past what was passed over."""
        grown = {at: end for at, end in ends.items() if end > following.get(at, 0)}
        share, passed = _share([end - following.get(at, 0) for at, end in grown.items()], self._most), 0
        found: list[TailedEvent] = []
        for at, end in reversed(grown.items()):  # as a message passes them
            start = max(following.get(at, 0), end - share)
            passed += start - following.get(at, 0)
            found += await self._between(at, start, end)
            following[at] = end
        following |= ends  # a topic that was made anew begins anew
        return sorted(found, key=lambda happening: happening.place), passed

    async def _between(self, at: TopicPartition, start: int, end: int) -> list[TailedEvent]:
        read = self._readers[at.topic]
        told = [
            read(record)
            async for batch in self._log.scan(*at, start=start, end=end, batch=_BATCH)
            for record in batch
            if not _is_tombstone(record)
        ]
        return [happening for happening in told if happening is not None]


def _is_tombstone(record: Record) -> bool:
    return record.value is None


def _share(waiting: Sequence[int], most: int) -> int:
    """How many records of each partition are read, so that it is at most `most` in all, or one of each."""
    return max(waiting, default=0) if sum(waiting) <= most else max(1, most // len(waiting))
