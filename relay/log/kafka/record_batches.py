"""Decoder of record batches, tolerant of damage, a few records at a time. Pure: bytes in, records out.

The library's parser, which is in C, does the work; if it fails in a batch, `salvage` reads that batch on from the same
record. Either way a batch is unpacked only when its records are wanted.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from msgspec import structs

from relay.log.kafka import salvage
from relay.log.kafka.leader_epochs import ReadHistory
from relay.log.kafka.salvage import (
    CODEC,
    FORMAT,
    HEADER,
    MAGIC_AT,
    NONE,
    BatchHeader,
    TooMuch,
    Unreadable,
    gap,
    header_of,
    oversized,
)
from relay.log.kafka.wire import Aborted
from relay.log.port import Record, TopicPartition, size_of

UNPACKED_AT_ONCE: Final = 4 * 1024**2
"""Bytes of a batch, uncompressed, that block the loop acceptably: some ten milliseconds with the slowest codec."""

AT_ONCE_BYTES: Final = 4 * 1024**2
_FRAME: Final = struct.Struct(">qi")  # base offset, bytes that follow
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_AT: Final = 21
_LEAST_BYTES: Final = MAGIC_AT + 1
_ALL: Final = 2**62


class FetchedRecords(NamedTuple):
    """The records of one fetch. `next_offset`: where to go on; offsets below it that are not here are gone. `end`: the
    broker would have returned any records before it."""

    records: list[Record]
    next_offset: int
    end: int = 0


def whole_size(data: bytes) -> int:
    """Size of the first batch in `data` by its header, in bytes, or the least possible."""
    return _FRAME.size + max(0, int(_FRAME.unpack_from(data)[1])) if len(data) >= _FRAME.size else _FRAME.size


def offset_behind(data: bytes, start: int, end: int) -> int | None:
    """The offset behind the last whole batch in `data`, the response to a fetch from `start` on; `start` if there is no
    whole one. None if the headers are not plausible: then it is known only after unpacking."""
    position, following, size = 0, start, len(data)
    while size - position >= HEADER.size:
        header = BatchHeader(*HEADER.unpack_from(data, position))
        position += _FRAME.size + header.length
        if position > size:
            break
        if header.length < HEADER.size - _FRAME.size or header.magic != FORMAT or not header.fits(following, end):
            return None
        following = header.last_offset + 1
    return following


def _aborted_batches(data: bytes, aborted: Sequence[Aborted]) -> frozenset[int]:
    """Where in `data` the batches of `aborted` transactions begin. A producer's next marker behind the first offset of
    such a transaction is the one that aborts it."""
    found: set[int] = set()
    coming, open_ = sorted(aborted, key=lambda each: each.first_offset, reverse=True), set[int]()
    place = 0
    while len(data) - place >= HEADER.size:
        header = BatchHeader(*HEADER.unpack_from(data, place))
        while coming and coming[-1].first_offset <= header.base_offset:
            open_.add(coming.pop().producer_id)
        if header.is_control:
            open_.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in open_:
            found.add(place)
        place += max(_FRAME.size + header.length, HEADER.size)
    return frozenset(found)


@dataclass(eq=False, repr=False)
class Unpacking:
    """The records in `data`, the answer to a fetch from offset `start` on. Nothing here raises.

    `end`: the log's high watermark in the response, maybe a little behind its records. `max_bytes`: a larger value fits
    no topic of ours, so it is not kept. `aborted`: transactions whose records are left out.
    `history`: notes the leader epochs of the batches.
    The last batch may be incomplete, as in any fetch: it is fetched again. At the end `position` is beyond `start`,
    unless there was nothing at all.

    `position`: where to continue; offsets below it that were not returned are gone. `is_large`: the next batch is too
    large to be unpacked inline: call `unpack` first, in a thread if time matters. `size`: bytes as fetched.
    `taken`: bytes of the records that the last `take` returned. `behind`: see `offset_behind`.
    `opened`: bytes that the batch which is being read has, uncompressed.
    """

    at: TopicPartition
    data: bytes
    _: KW_ONLY
    start: int
    end: int
    max_bytes: int
    aborted: Sequence[Aborted] = ()
    history: ReadHistory | None = None
    done: bool = field(default=False, init=False)
    is_large: bool = field(default=False, init=False)
    opened: int = field(default=0, init=False)
    taken: int = field(default=0, init=False)
    _place: int = field(default=0, init=False)
    _packed: tuple[BatchHeader, bytes] | None = field(default=None, init=False)
    _unpacked: bytes | Unreadable = field(default=b"", init=False)

    def __post_init__(self) -> None:
        self.position = self._last = self.start
        self.behind = offset_behind(self.data, self.start, self.end)
        self.size = len(self.data)
        self._left_out = _aborted_batches(self.data, self.aborted) if self.aborted else frozenset[int]()
        self._coming = self._records()

    def take_all(self) -> FetchedRecords:
        """All records that were not taken, and where to go on. Unpacks large batches."""
        records: list[Record] = []
        while not self.done:
            records += self.take(_ALL)
            if self.is_large:
                self.unpack()
        return FetchedRecords(records, self.position, self.end)

    def take(self, count: int, max_bytes: int = AT_ONCE_BYTES) -> list[Record]:
        """The next records, `count` at most; none behind those that have `max_bytes` or more. If empty, though not
        done, see `is_large`."""
        found: list[Record] = []
        self.taken = 0
        if count <= 0 or self.is_large:
            return found
        for record in self._coming:
            if record is None:
                self.is_large = True
                return found
            found.append(record)
            self.taken += size_of(record)
            if len(found) >= count or self.taken >= max_bytes:
                self.done = self.position == self.behind
                return found
        self.done = True
        return found

    def unpack(self) -> None:
        """Unpack the large batch that is next, which may take a second."""
        if self._packed is not None:
            self._unpacked = _plain(*self._packed, salvage.MAX_BATCH_BYTES)
            self.opened = len(self._unpacked) if isinstance(self._unpacked, bytes) else 0
        self.is_large = False

    def fold(self) -> None:
        """Free the memory of the batch that is being read; the next `take` unpacks it again. Does nothing until records
        of it were taken: otherwise two batches could free each other for ever."""
        if self.opened and not self._unpacked:
            self.opened = 0
            if self.position > self._last:
                self._place += whole_size(self.data[self._place : self._place + _FRAME.size])
            self._coming = self._records()

    def _records(self) -> Iterator[Record | None]:
        """All records, and None before a large batch."""
        at, data, end = self.at, self.data, self.end
        while len(data) - self._place >= _FRAME.size:
            base, length = _FRAME.unpack_from(data, self._place)
            stop = self._place + _FRAME.size + length
            if stop - self._place < _LEAST_BYTES or stop > len(data) or base > max(self.position, end):
                break
            try:
                yield from self._batch(data[self._place : stop], aborted=self._place in self._left_out)
            except Unreadable as error:
                if self.position >= max(end, self.start + 1):
                    break  # all known offsets of the log are accounted for: the rest is fetched again
                last = self._before_next(stop)
                first, self.position = self.position, last + 1
                yield gap(at, first, last, error)
            self.opened = 0
            self._place = stop
        if self.position == self.start and data:
            self.position += 1
            yield gap(at, self.start, self.start, Unreadable("its batch has no sensible frame"))

    def _before_next(self, place: int) -> int:
        """The offset before the batch at `place`, if there is one and it is plausible; else our position."""
        start, data = self.position, self.data
        base = _FRAME.unpack_from(data, place)[0] if len(data) - place >= _FRAME.size else start
        return int(base) - 1 if start < base <= self.end else start

    def _batch(self, batch: bytes, *, aborted: bool) -> Iterator[Record | None]:
        """The records of one batch from our position on. Raises Unreadable if its offsets are not plausible."""
        if batch[MAGIC_AT] < FORMAT:
            yield from self._old_batch(batch)
            return
        header = header_of(batch, self.position, self.end)
        following = header.last_offset + 1
        if self.history is not None:
            self.history.written(header.base_offset, header.leader_epoch)
        if aborted or header.is_control:
            self.position = following
            return
        try:
            plain = _plain(header, batch, min(UNPACKED_AT_ONCE, salvage.MAX_BATCH_BYTES))
        except TooMuch:
            self._packed = header, batch
            yield None
            self._packed = None
            plain, self._unpacked = self._unpacked, b""
        if isinstance(plain, Unreadable):
            first, self.position = max(self.position, header.base_offset), following
            yield gap(self.at, first, header.last_offset, plain)
        else:
            self.opened, self._last = len(plain), header.last_offset
            yield from self._parsed(header, plain)
        self.position = following

    def _parsed(self, header: BatchHeader, plain: bytes) -> Iterator[Record]:
        """The records of a batch that is not compressed. Its checksum is right, so a mistake in it was written by the
        producer."""
        at, max_bytes, start = self.at, self.max_bytes, self.position
        previous, last, dense = header.base_offset - 1, header.last_offset, header.is_dense
        try:
            for raw in DefaultRecordBatch(plain):
                offset = raw.offset
                if (offset != previous + 1 and (dense or not previous < offset)) or offset > last:
                    break  # the broker does not check the offsets in records
                previous = offset
                if offset >= start:
                    record = as_record(at, raw, max_bytes)
                    self.position = offset + 1
                    yield record
            else:
                return
        except Exception:  # noqa: BLE001, S110  whatever the parser raises, the batch is read on below
            pass
        for record in salvage.salvaged(at, header, plain[HEADER.size :], self.position, max_bytes):
            self.position = record.offset + 1
            yield record

    def _old_batch(self, batch: bytes) -> Iterator[Record]:
        """The records of a batch in a former format, for which only the library has a parser."""
        start = self.position
        try:
            parsed = MemoryRecords(batch).next_batch()
            following, whole = parsed.next_offset, parsed.validate_crc()
            records = [as_record(self.at, raw, self.max_bytes) for raw in parsed]
        except Exception as error:  # whatever the parser and its codecs raise
            raise Unreadable(f"a batch in format {batch[MAGIC_AT]} cannot be read") from error
        if not whole or following <= start or not in_order(records, following):
            raise Unreadable("wrong checksum or offsets")
        for record in records:
            if record.offset >= start:
                self.position = record.offset + 1
                yield record
        self.position = following


def _plain(header: BatchHeader, batch: bytes, limit: int) -> bytes | Unreadable:
    """The batch without its compression, or why it is unreadable. Raises TooMuch above `limit`, if that is below
    MAX_BATCH_BYTES."""
    if header.codec == NONE and DefaultRecordBatch(batch).validate_crc() and header.records >= 0:
        return batch
    try:
        return _as_plain(header, batch, salvage.unpacked(header, batch, limit))
    except Unreadable as error:
        if isinstance(error, TooMuch) and limit < salvage.MAX_BATCH_BYTES:
            raise
        return error


def _as_plain(header: BatchHeader, batch: bytes, data: bytes) -> bytes:
    attributes = _ATTRIBUTES.pack(header.attributes & ~CODEC)
    behind = _ATTRIBUTES_AT + _ATTRIBUTES.size
    return b"".join((batch[:_ATTRIBUTES_AT], attributes, batch[behind : HEADER.size], data))


def as_record(at: TopicPartition, raw: Any, max_bytes: int) -> Record:
    """A record of the library as ours. A header without a value, which others may write, becomes an empty one."""
    headers = tuple(raw.headers)
    for _, value in headers:
        if value is None:
            headers = tuple((name, other or b"") for name, other in headers)
            break
    value, timestamp = raw.value, raw.timestamp
    if timestamp is None:  # the library's value for -1
        timestamp = -1
    if value is not None and len(value) > max_bytes:
        flaw = oversized(len(value), max_bytes)
        return Record(*at, raw.offset, raw.key, None, headers, timestamp, flaw)
    record = Record(*at, raw.offset, raw.key, value, headers, timestamp)
    structs.force_setattr(record, "size", size_of(record))  # it is new: no other code has seen it without
    return record


def in_order(records: Sequence[Record], end: int) -> bool:
    """Whether the offsets grow, and stay below `end`. The broker does not check those that a client wrote."""
    before = -1
    for record in records:
        if record.offset <= before:
            return False
        before = record.offset
    return before < end
