"""Calls of the log to Valkey, one method per call; `scripts` defines how records, groups and topics are stored."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MasterDownError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from relay.domain.errors import LogUnavailable, OffsetMissing, PartitionLost
from relay.domain.redis_errors import plain
from relay.domain.sliced import sliced
from relay.domain.topics import TopicSpec
from relay.log.group_consumer import Commit, Fetched, Position, TakenPartition
from relay.log.port import Coordinate, Record, TopicPartition
from relay.log.streams import scripts
from relay.log.streams.histories import Histories
from relay.log.streams.scripts import Entry, StreamKeys, from_entry, from_value, from_values, group_field

_FETCH_BYTES: Final = 8 * 1024**2
_READ_AT_ONCE: Final = 100
_SPANS_AT_ONCE: Final = 500
_CHANGES_AT_ONCE: Final = 100
_SCAN_COUNT: Final = 500
_SCAN_BYTES: Final = 1024**2
_INDEX_COUNT: Final = 100
"""Fewer than `_SCAN_COUNT`: the server copies each value to find its offset, and parked ones may be large."""
_MAX_CONNECTIONS: Final = 32
_TIMEOUT_S: Final = 5.0  # an fsync may stall while the append-only file is rewritten

Argument = str | bytes | int


class Slice(NamedTuple):
    """Records to append to one partition, packed. `floor`: a follower has yet to read changes from this offset on; None
    without a follower."""

    at: TopicPartition
    spec: TopicSpec
    records: Sequence[tuple[bytes, bytes]]
    floor: int | None


class PartitionSpan(NamedTuple):
    """The offsets of a partition: the first one still there, and the one behind the last."""

    first: int
    end: int


class StreamStore:
    """Raises LogUnavailable whenever the server does not answer, or refuses to write."""

    def __init__(self, url: str, prefix: str) -> None:
        self.keys = StreamKeys(prefix)
        self._specs: dict[str, TopicSpec] = {}
        self._closed = False
        self.histories = Histories()
        self._committed: dict[tuple[str, TopicPartition], int] = {}
        """History of the log when a group of this process committed."""
        # No retries: a repeated append leaves a second copy, and the caller knows better when to repeat.
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=3,
            redis_connect_func=self._connected,
        )
        self._redis = Redis(connection_pool=self._pool)
        self._scripts: dict[str, AsyncScript] = {}
        """By source; registered when they are first called."""

    async def open(self) -> None:
        """Read the list of topics."""
        with self._errors():
            found = cast(dict[bytes, bytes], await self._redis.hgetall(self.keys.topics))
        self._specs = {name.decode(): msgspec.json.decode(spec, type=TopicSpec) for name, spec in found.items()}

    async def close(self) -> None:
        """Drop all connections; later calls, and those in progress, raise LogUnavailable."""
        self._closed = True
        await self._redis.aclose()
        await self._pool.disconnect()

    async def about(self) -> str:
        """Name and version of the server."""
        info = await self.info("server")
        name = "Valkey" if "valkey_version" in info else "Redis"
        return f"{name} {info.get('valkey_version') or info.get('redis_version')}, the embedded log"

    async def info(self, section: str) -> Mapping[str, Any]:
        """A section of the server's INFO."""
        with self._errors():
            return await self._redis.info(section)

    # topics

    async def topics(self) -> list[TopicSpec]:
        await self.open()
        return list(self._specs.values())

    async def spec(self, topic: str, partitions: int = 0) -> TopicSpec:
        """`partitions`: the number that the topic should have. Raises LogUnavailable if there is no such topic."""
        if topic not in self._specs or self._specs[topic].partitions < partitions:
            await self.open()  # another client may have made it, or have let it grow
        try:
            return self._specs[topic]
        except KeyError:
            raise LogUnavailable(f"topic {topic} does not exist") from None

    async def create_topic(self, spec: TopicSpec) -> bool:
        """False where the topic is there already; it stays as it is."""
        with self._errors():
            made = await self._redis.hsetnx(self.keys.topics, spec.name, msgspec.json.encode(spec))
        await self.open()
        return bool(made)

    async def grow_topic(self, topic: str, partitions: int) -> None:
        """Raises LogUnavailable when there is no such topic."""
        while (spec := await self.spec(topic, partitions)).partitions < partitions:
            grown = msgspec.json.encode(replace(spec, partitions=partitions))
            await self._call(scripts.GROW_TOPIC, [self.keys.topics], [topic, partitions, grown])

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicSpec]:
        await self.open()
        return {topic: self._specs[topic] for topic in topics if topic in self._specs}

    async def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for topic in topics for n in range((await self.spec(topic)).partitions)]

    async def trim(self, partition: TopicPartition, retention_s: int, passed: Iterable[str] = ()) -> int:
        """Remove records beyond the retention that every group is past but those in `passed`; returns the first offset
        kept."""
        keys = [self.keys.ends, self.keys.records(partition), self.keys.offsets(partition.topic)]
        args: list[Argument] = [str(partition), partition.partition, retention_s * 1000, *passed]
        first: int = await self._call(scripts.TRIM, keys, args)
        return first

    # records

    async def append(self, slices: Sequence[Slice]) -> list[int]:
        """Appends all slices or none, on disk. Returns the first offset of each slice."""
        keys = [self.keys.ends]
        args: list[Argument] = []
        for at, spec, records, floor in slices:
            followed = spec.cleanup == "compact" and at.partition == 0
            keys += [self.keys.records(at), self.keys.changes(at) if followed else ""]
            args += [str(at), spec.cleanup, -1 if floor is None else floor, len(records)]
            for key, packed in records:
                args += [key, packed]
        firsts: list[int] = await self._call(scripts.APPEND, keys, args)
        return firsts

    async def fetch(
        self, positions: Mapping[TopicPartition, Position], max_records: int, max_bytes: int = _FETCH_BYTES
    ) -> dict[TopicPartition, Fetched]:
        offsets = {at: position.offset for at, position in positions.items()}
        found = await self.histories.read(positions, lambda: self.fetch_from(offsets, max_records, max_bytes))
        for at, records in found.items():
            self.histories.has_read(at, records[-1].offset + 1)
        return {at: Fetched(records, self.histories.of(at)) for at, records in found.items()}

    async def fetch_from(
        self, positions: Mapping[TopicPartition, int], max_records: int, max_bytes: int = _FETCH_BYTES
    ) -> dict[TopicPartition, list[Record]]:
        keys, args = [self.keys.ends], list[Argument]([max_records, max(1, min(max_bytes, _FETCH_BYTES))])
        for partition, position in positions.items():
            keys.append(self.keys.records(partition))
            args += [str(partition), position]
        found: list[tuple[int, list[Entry]]] = await self._call(scripts.FETCH, keys, args)
        gone = [partition for partition, (missing, _) in zip(positions, found, strict=True) if missing]
        if gone:
            names = ", ".join(map(str, gone))
            raise OffsetMissing(f"the log does not hold the next offset of {names}", gone)
        return {
            partition: [from_entry(partition, entry) for entry in entries]
            for partition, (_, entries) in zip(positions, found, strict=True)
            if entries
        }

    async def read(self, wanted: Sequence[tuple[Coordinate, bytes | None]]) -> list[Record | None]:
        """The records at these coordinates; in a compacted topic the newest of their keys."""
        return [record for some in sliced(wanted, _READ_AT_ONCE) for record in await self._read_some(some)]

    async def _read_some(self, wanted: Sequence[tuple[Coordinate, bytes | None]]) -> list[Record | None]:
        partitions = [TopicPartition(at.topic, at.partition) for at, _ in wanted]
        args = list[Argument]()
        for at, key in wanted:
            cleanup = (await self.spec(at.topic)).cleanup
            args += [cleanup, at.offset if cleanup == "delete" else key or b""]
        keys = [self.keys.records(partition) for partition in partitions]
        found: list[Entry | bytes | None] = await self._call(scripts.READ, keys, args)
        return [
            None if it is None else from_value(at, it) if isinstance(it, bytes) else from_entry(at, it)
            for at, it in zip(partitions, found, strict=True)
        ]

    async def pages(self, partition: TopicPartition) -> AsyncIterator[list[Record]]:
        """All records of a compacted partition, some at a time and in no order: those that are there throughout the
        call, and of those that change meanwhile the older or the newer state. A record may come twice."""
        cursor, keys = b"0", [self.keys.records(partition)]
        while True:  # in steps: one HGETALL of a large table would delay all other calls
            cursor, lengths, values = await self._call(scripts.PAGE, keys, [cursor, _SCAN_COUNT])
            yield from_values(partition, lengths, values)
            if cursor == b"0":
                return

    async def in_order(self, partition: TopicPartition, start: int, end: int) -> AsyncIterator[list[Record]]:
        """The records of a compacted partition from `start` to before `end`, in offset order, about a MiB at a time.
        Those that change meanwhile are left out. In memory are all keys, but no more payloads than that."""
        first, last = (b"%0*d" % (scripts.FIXED_DIGITS, offset) for offset in (start, end))
        entries = await self._entries(partition, first, last)
        position, keys = 0, [self.keys.records(partition)]
        while position < len(entries):
            asked = entries[position : position + _SCAN_COUNT]
            looked_at, lengths, values = await self._call(scripts.VALUES, keys, [_SCAN_BYTES, *asked])
            yield from_values(partition, lengths, values)
            position += looked_at

    async def _entries(self, partition: TopicPartition, first: bytes, end: bytes) -> list[bytes]:
        """As INDEX returns them, sorted. There may be a million: bytes are the smallest form of them."""
        found: set[bytes] = set()
        cursor, keys = b"0", [self.keys.records(partition)]
        while True:
            cursor, entries = await self._call(scripts.INDEX, keys, [cursor, _INDEX_COUNT])
            found.update(entry for entry in entries if first <= entry < end)
            if cursor == b"0":
                return sorted(found)

    async def changes(self, partition: TopicPartition, position: int) -> tuple[int, list[Record]]:
        """The changes of a compacted partition from offset `position` on (with tombstones, without records that changed
        again since), about a MiB of them, and the position to go on from. Raises LogUnavailable if that part of the
        changes is gone."""
        keys = [self.keys.ends, self.keys.records(partition), self.keys.changes(partition)]
        args: list[Argument] = [str(partition), position, _CHANGES_AT_ONCE, _SCAN_BYTES]
        missing, following, found = await self._call(scripts.CHANGES, keys, args)
        if missing:
            raise LogUnavailable(f"fell behind the changes of {partition.topic}: follow it anew")
        return following, [
            scripts.tombstone(partition, offset, int(at_ms), key) if value is None else from_value(partition, value)
            for offset, at_ms, key, value in found
        ]

    async def span(self, partition: TopicPartition) -> PartitionSpan:
        """Of a partition that is not compacted; of a compacted one only `end` means something."""
        return (await self.spans([partition]))[partition]

    async def spans(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionSpan]:
        """As `span`, in the order of `partitions`."""
        found: dict[TopicPartition, PartitionSpan] = {}
        for some in sliced(partitions, _SPANS_AT_ONCE):
            keys = [self.keys.ends]
            for partition in some:
                compact = (await self.spec(partition.topic)).cleanup == "compact"
                keys.append(self.keys.changes(partition) if compact else self.keys.records(partition))
            spans: list[list[int]] = await self._call(scripts.SPANS, keys, list(map(str, some)))
            found |= {partition: PartitionSpan(*span) for partition, span in zip(some, spans, strict=True)}
        return found

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the newest record of each, as of one moment."""
        for topic in {partition.topic for partition in partitions}:
            await self.spec(topic)
        if not partitions:
            return {}
        with self._errors():
            found = cast(list[bytes | None], await self._redis.hmget(self.keys.ends, list(map(str, partitions))))
        return {partition: int(end or 0) for partition, end in zip(partitions, found, strict=True)}

    # groups

    async def begin_group(self, group: str, spec: TopicSpec) -> None:
        """Put `group` at the beginning of each partition where it has no offset."""
        records = [self.keys.records(TopicPartition(spec.name, n)) for n in range(spec.partitions)]
        keys = [self.keys.offsets(spec.name), self.keys.ends, *records]
        await self._call(scripts.BEGIN_GROUP, keys, [group, spec.name, spec.cleanup])

    async def there(self, topics: Collection[str]) -> dict[str, int]:
        return {topic: spec.partitions for topic, spec in (await self.describe(list(topics))).items()}

    async def take(
        self, group: str, partitions: Mapping[TopicPartition, str | None]
    ) -> dict[TopicPartition, TakenPartition]:
        args = list[Argument]()
        for partition, former in partitions.items():
            field = group_field(partition.partition, group)
            args += [field, field if former is None else group_field(partition.partition, former)]
        history = {at: self._committed.get((group, at), self.histories.of(at)) for at in partitions}
        reply: list[tuple[int, bytes | None]] = await self._call(scripts.TAKE, self._group_keys(partitions), args)
        taken: dict[TopicPartition, TakenPartition] = {}
        for at, (epoch, found) in zip(partitions, reply, strict=True):
            position = None if found is None else Position(int(found), history[at])
            self.histories.has_read(at, 0 if position is None else position.offset)
            taken[at] = TakenPartition(epoch, position)
        return taken

    async def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        partitions, args = list(commits), list[Argument]()
        for partition, commit in commits.items():
            args += [group_field(partition.partition, group), commit.epoch, commit.position.offset]
        lost: int = await self._call(scripts.COMMIT, self._group_keys(partitions), args)
        if lost:
            raise PartitionLost(f"{group} has a newer owner of {partitions[lost - 1]}")
        self._committed.update({(group, at): commit.position.history for at, commit in commits.items()})

    async def confirm(self, group: str, epochs: Mapping[TopicPartition, int]) -> None:
        for partition, epoch in epochs.items():
            with self._errors():
                field = group_field(partition.partition, group)
                newest = await self._redis.hget(self.keys.epochs(partition.topic), field)
            if newest is None or int(newest) != epoch:
                raise PartitionLost(f"{group} has a newer owner of {partition}")

    async def begun(self, topic: str) -> set[int]:
        """The partitions in which a group has an offset."""
        with self._errors():
            fields = cast(list[bytes], await self._redis.hkeys(self.keys.offsets(topic)))
        return {int(field.partition(b"/")[0]) for field in fields}

    async def first(self, partition: TopicPartition) -> int:
        return (await self.span(partition)).first

    async def committed(self, group: str, topic: str) -> list[int | None]:
        """The group's next offset in each partition, None where it has none."""
        fields = [group_field(n, group) for n in range((await self.spec(topic)).partitions)]
        with self._errors():
            values = cast(list[bytes | None], await self._redis.hmget(self.keys.offsets(topic), fields))
        return [None if value is None else int(value) for value in values]

    def _group_keys(self, partitions: Iterable[TopicPartition]) -> list[str]:
        return [key for p in partitions for key in (self.keys.offsets(p.topic), self.keys.epochs(p.topic))]

    # calls

    async def _connected(self, connection: AbstractConnection) -> None:
        """Before a connection is used: has the server been started since the last one, and where does its log end?"""
        try:
            await connection.on_connect()
            info = cast(bytes, await _asked(connection, "INFO", "server"))
            run = info.partition(b"run_id:")[2].split()[0].decode()
            if run != self.histories.run:
                ends = cast(dict[bytes, bytes], await _asked(connection, "HGETALL", self.keys.ends))
                self.histories.begin(run, {scripts.partition_of_field(field): int(end) for field, end in ends.items()})
        except BaseException:  # else a reply that is still unread would answer the next command
            await connection.disconnect(nowait=True)
            raise

    async def _call(self, source: str, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """The reply of the script with this source."""
        script = self._scripts.get(source)
        if script is None:
            script = self._scripts[source] = self._redis.register_script(source)
        with self._errors():
            return await script(keys=keys, args=args)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._closed:
            raise LogUnavailable("the log is closed")
        before = _cancels()
        try:
            yield
        except (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError, MasterDownError) as error:
            raise LogUnavailable(f"the log does not answer: {plain(error)}") from error
        except ResponseError as error:
            # The disk is full or failing, or there are fewer replicas than `min-replicas-to-write`.
            if str(error).startswith(("MISCONF ", "NOREPLICAS ")):
                raise LogUnavailable(f"the log cannot write: {error}") from error
            if str(error).startswith("BUSY "):  # with a script, for longer than `busy-reply-threshold`
                raise LogUnavailable(f"the log does not answer: {error}") from error
            raise
        # asyncio.wait_for, which the Redis client sends with, may swallow a cancellation on Python 3.11.
        if _cancels() > before:
            raise asyncio.CancelledError


async def _asked(connection: AbstractConnection, *command: str) -> object:
    await connection.send_command(*command)
    return cast(object, await connection.read_response())


def _cancels() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
