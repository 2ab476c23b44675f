"""Reader of Kafka outside of any group: records by coordinate, a partition to its end, a topic as it grows."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Literal

from aiokafka.errors import OffsetOutOfRangeError

from relay.domain.errors import LogUnavailable, OffsetMissing
from relay.domain.sliced import sliced
from relay.domain.topics import TopicSpec
from relay.log.kafka.client import KafkaClient
from relay.log.kafka.cluster import FETCH_BYTES
from relay.log.kafka.leader_epochs import UNKNOWN, EpochQuery, ReadHistory
from relay.log.kafka.record_batches import FetchedRecords
from relay.log.kafka.wire import FetchFrom
from relay.log.port import Coordinate, Record, TopicPartition

_RECORD_BYTES: Final = 16_384
"""Bytes fetched per wanted record: a few typical records, because wanted ones are often adjacent."""

_BULK_BYTES: Final = 1_048_576
_FOLLOWED_BYTES: Final = 131_072
"""Bytes of a follower's fetch, which are some thousand small records when they are unpacked: more would block the event
loop."""
_WAIT_MS: Final = 5_000
_LOOK_S: Final = 0.1
_REPORTED: Final = 1_000
"""Gaps in the log that one reader reports at most."""

_log = logging.getLogger(__name__)

Specs = Callable[[Collection[TopicPartition]], Awaitable[Mapping[str, TopicSpec]]]
Wanted = tuple[Coordinate, bytes | None]


class KafkaReader:
    """As the port says, on a client of its own. `specs`: the topics of the given partitions, by name."""

    def __init__(self, client: KafkaClient, specs: Specs) -> None:
        self._client = client
        self._specs = specs
        self._reported: set[Coordinate] = set()

    async def read(self, wanted: Sequence[Wanted]) -> list[Record | None]:
        """As the port says.

        Kafka finds records by offset, not by key. So in a compacted topic a newer record of the key, or a tombstone,
        replaces the wanted one only if the same fetch returned it.
        """
        by_partition: dict[TopicPartition, list[Wanted]] = {}
        for coordinate, key in dict.fromkeys(wanted):
            by_partition.setdefault(TopicPartition(coordinate.topic, coordinate.partition), []).append(
                (coordinate, key)
            )
        specs = await self._specs(by_partition)
        found: dict[Wanted, Record] = {}
        for place, entries in by_partition.items():
            if place.partition >= (spec := specs[place.topic]).partitions:
                continue
            entries.sort(key=lambda entry: entry[0].offset)
            found.update(await self._read_partition(place, entries, newest_counts=spec.cleanup == "compact"))
        return [found.get(entry) for entry in wanted]

    async def scan(
        self, topic: str, partition: int, *, start: int = 0, end: int | None = None, batch: int = 1_000
    ) -> AsyncGenerator[Sequence[Record], None]:
        """As the port says. One fetch is in memory at a time."""
        place = TopicPartition(topic, partition)
        latest = await self._offset(place, "latest")
        stop = latest if end is None else min(end, latest)
        position = max(start, await self._offset(place, "earliest"))
        while position < stop:
            try:
                chunk = await self._fetch(place, FetchFrom(position, _BULK_BYTES))
            except OffsetOutOfRangeError:
                first = await self._offset(place, "earliest")
                if first <= position:
                    return  # the end itself went back: the topic was created again
                position = first
                continue
            records = [record for record in chunk.records if record.offset < stop]
            for some in sliced(records, batch):
                yield some
            position = chunk.next_offset if chunk.next_offset > position else await self._behind(place, stop, chunk)

    async def follow(
        self, topic: str, history: ReadHistory, start: int | None = None
    ) -> AsyncGenerator[Record | None, None]:
        """As the port says. Waiting fetches occupy the client: give each follower one of its own. `history`: of the
        records followed before `start`, and from here on.

        Tombstones stay for `delete.retention.ms`, a day by default: the records before `start` may be so old.
        """
        place = TopicPartition(topic, 0)
        first = await self._offset(place, "earliest")
        end = await self._offset(place, "latest")
        position = first if start is None else start
        await self._prove(place, history, position)
        if not first <= position <= end:
            raise OffsetMissing(f"{topic} does not hold what came since offset {position}", [place])
        caught_up = False
        while True:
            if not caught_up and position >= end:
                caught_up = True
                yield None
            before = history.epoch_before(position)
            asked, wait_ms = FetchFrom(position, _FOLLOWED_BYTES), _WAIT_MS if caught_up else 0
            try:
                chunk = await self._fetch(place, asked, max_wait_ms=wait_ms, history=history)
            except OffsetOutOfRangeError as error:
                why = f"Kafka: {place} does not hold offset {position} any more: read it anew"
                raise LogUnavailable(why) from error
            if not chunk.records or history.epoch_before(chunk.next_offset) != before:
                await self._prove(place, history, position)
            for record in chunk.records:
                if not caught_up and record.offset >= end:
                    caught_up = True
                    yield None
                yield record
            if chunk.next_offset > position or caught_up:
                position = chunk.next_offset
            else:
                position = await self._behind(place, end, chunk)

    async def _offset(self, place: TopicPartition, which: Literal["earliest", "latest"]) -> int:
        return (await self._client.offsets([place], which))[place]

    async def _behind(self, place: TopicPartition, end: int, empty: FetchedRecords) -> int:
        """Where to continue after a response without records, on the way to `end`: the records in between were
        compacted away, or are not visible yet: the end that a new leader knows may grow for a moment."""
        if empty.end >= end:
            return end
        latest = await self._offset(place, "latest")
        if latest <= empty.next_offset:
            raise LogUnavailable(f"Kafka: {place} ends at {latest} now, not at {end}")
        await asyncio.sleep(_LOOK_S)
        return empty.next_offset

    async def _prove(self, place: TopicPartition, history: ReadHistory, position: int) -> None:
        """Have the leader confirm that its log has the records read before `position`. Raises OffsetMissing."""
        asked = EpochQuery(UNKNOWN, history.epoch_before(position))
        while asked.written != UNKNOWN:
            end = (await self._client.epoch_ends({place: asked})).get(place)
            if end is None:
                await asyncio.sleep(_LOOK_S)
                continue
            if (offset := history.divergence(position, end, UNKNOWN)) is None:
                return
            raise OffsetMissing(f"{place} lost its end from offset {offset} on", [place], {place: (offset, position)})

    async def _fetch(
        self, place: TopicPartition, asked: FetchFrom, *, max_wait_ms: int = 0, history: ReadHistory | None = None
    ) -> FetchedRecords:
        """A fetch without unreadable offsets, each of which is logged once."""
        chunk = await self._client.fetch(place, asked, max_wait_ms=max_wait_ms, history=history)
        gaps = [record for record in chunk.records if record.is_gap]
        for gap in gaps:
            if gap.flaw is not None and gap.coordinate not in self._reported and len(self._reported) < _REPORTED:
                self._reported.add(gap.coordinate)
                _log.error("offsets_skipped", extra={"problem": gap.flaw.detail})
        if not gaps:
            return chunk
        return chunk._replace(records=[record for record in chunk.records if not record.is_gap])

    async def _read_partition(
        self, place: TopicPartition, entries: Sequence[Wanted], *, newest_counts: bool
    ) -> dict[Wanted, Record]:
        """`entries` are in offset order."""
        found: dict[Wanted, Record] = {}
        todo = list(entries)
        while todo:
            first = todo[0][0].offset
            try:
                chunk = await self._fetch(place, FetchFrom(first, min(FETCH_BYTES, _RECORD_BYTES * len(todo))))
            except OffsetOutOfRangeError:
                todo = await self._within(place, todo)
                continue
            found.update(_matching(chunk, todo, newest_counts=newest_counts))
            following = max(chunk.next_offset, first + 1)  # no records: `first` is the end, or compacted away
            todo = [entry for entry in todo if entry[0].offset >= following]
        return found

    async def _within(self, place: TopicPartition, entries: Sequence[Wanted]) -> list[Wanted]:
        """Those entries that the log can have; the others were deleted, or never existed."""
        first = await self._offset(place, "earliest")
        end = await self._offset(place, "latest")
        return [entry for entry in entries if first <= entry[0].offset < end]


def _matching(chunk: FetchedRecords, entries: Sequence[Wanted], *, newest_counts: bool) -> dict[Wanted, Record]:
    at = {record.offset: record for record in chunk.records}
    if newest_counts:
        newest = {record.key: record for record in chunk.records}
        at = {offset: newest[record.key] for offset, record in at.items()}
    return {
        entry: record
        for entry in entries
        if (record := at.get(entry[0].offset)) is not None and not (newest_counts and record.value is None)
    }
