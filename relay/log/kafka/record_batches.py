"""Record batches as Kafka keeps and sends them, read tolerantly. Pure: bytes in, records out.

The library's parser does the work, and gives up a whole batch for whatever it cannot read in it. Such a batch is read
again here, record by record: what is wrong with one record costs that record only, and a batch goes as a whole only
where its frame, its checksum or its codec is wrong. Either is a `Record` with a `Flaw`: nothing is skipped silently.
Sources: the Kafka protocol guide, "Record Batch" and "Record"; KIP-98, KIP-82.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote_from_bytes

from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from relay.log.kafka.codecs import CodecError, TooMuch, decompressed, may_exceed
from relay.log.port import Flaw, Headers, Record, TopicPartition

MAX_BATCH_BYTES: Final = 128 * 1024**2
"""Of a batch, uncompressed: more is not unpacked, whatever it may hold."""
RAW_NAME: Final = "relay-raw-"
"""Before the name of a header that is not UTF-8; what follows is its bytes, percent-encoded."""

_FRAME: Final = struct.Struct(">qi")  # base offset, bytes that follow
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_MAGIC_AT: Final = 16
_CHECKED_FROM: Final = 21  # the checksum covers what is behind it
_LEAST_BYTES: Final = _MAGIC_AT + 1
_FORMAT: Final = 2
_CODEC: Final = 0x07
_APPEND_TIME: Final = 0x08
_CONTROL: Final = 0x20


class Chunk(NamedTuple):
    """What one fetch gave. `next_offset`: where to go on; offsets below it that are not here are gone."""

    records: list[Record]
    next_offset: int


class _Header(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


class _Unreadable(Exception):
    """Why no more can be read here, in words. `reason`: of the dead letter."""

    def __init__(self, text: str, reason: str = "invalid") -> None:
        super().__init__(text)
        self.reason = reason


def whole_size(data: bytes) -> int:
    """Bytes that the first batch in `data` claims to have; 0 where not even that is there."""
    return _FRAME.size + max(0, int(_FRAME.unpack_from(data)[1])) if len(data) >= _FRAME.size else 0


def decode(at: TopicPartition, data: bytes, *, start: int, end: int, max_bytes: int) -> Chunk:
    """The records in `data`, the answer to a fetch from offset `start` on, and where to go on. Raises nothing.

    `end`: the log's high watermark. `max_bytes`: a larger value cannot go on to any topic of ours, so it is not kept.
    The last batch may be cut short, as a fetch does it: it comes again. The next offset is beyond `start`, unless
    there was nothing at all.
    """
    records: list[Record] = []
    following, position, view = start, 0, memoryview(data)
    while following < end and len(data) - position >= _FRAME.size:
        base, length = _FRAME.unpack_from(data, position)
        stop = position + _FRAME.size + length
        if stop - position < _LEAST_BYTES or stop > len(data) or base >= end:
            break
        try:
            found, following = _read(at, view[position:stop], following, end, max_bytes)
            records += found
        except _Unreadable as error:
            last = _before_next(data, stop, following, end)
            records.append(_gap(at, following, last, error))
            following = last + 1
        position = stop
    if following == start and data:
        records.append(_gap(at, start, start, _Unreadable("its batch has no sensible frame")))
        following += 1
    return Chunk(records, following)


def _before_next(data: bytes, position: int, start: int, end: int) -> int:
    """The offset before the batch at `position`, if that one is there and can be right; else `start`."""
    base = _FRAME.unpack_from(data, position)[0] if len(data) - position >= _FRAME.size else start
    return base - 1 if start < base < end else start


def as_record(at: TopicPartition, raw: Any, max_bytes: int) -> Record:
    """A record of the library as ours. A header without a value, which others may write, becomes an empty one."""
    headers = tuple(raw.headers)
    for _, value in headers:
        if value is None:
            headers = tuple((name, other or b"") for name, other in headers)
            break
    value = raw.value
    if value is not None and len(value) > max_bytes:
        flaw = _oversized(len(value), max_bytes)
        return Record(*at, raw.offset, raw.key, None, headers, raw.timestamp, flaw)
    return Record(*at, raw.offset, raw.key, value, headers, raw.timestamp)


def _read(at: TopicPartition, batch: memoryview, start: int, end: int, max_bytes: int) -> tuple[list[Record], int]:
    """The records of one batch from `start` on, and the offset behind it. Raises _Unreadable where it tells no offsets
    that can be."""
    try:
        return _read_by_library(at, batch, start, end, max_bytes)
    except Exception:  # noqa: BLE001  whatever the parser and its codecs raise about a batch, it is read again
        return _salvaged(at, batch, start, end, max_bytes)


def _read_by_library(
    at: TopicPartition, batch: memoryview, start: int, end: int, max_bytes: int
) -> tuple[list[Record], int]:
    if batch[_MAGIC_AT] == _FORMAT:
        codec = _HEADER.unpack_from(batch)[5] & _CODEC
        if may_exceed(codec, len(batch), MAX_BATCH_BYTES):  # the library would unpack all of it
            decompressed(codec, bytes(batch[_HEADER.size :]), MAX_BATCH_BYTES)
    elif batch[_MAGIC_AT] > _FORMAT:
        raise _Unreadable("a format of the future")
    parsed = MemoryRecords(bytes(batch)).next_batch()
    if not parsed.validate_crc():
        raise _Unreadable("wrong checksum")
    following = parsed.next_offset
    if not start < following <= end:
        raise _Unreadable("wrong offsets")
    if parsed.is_control_batch:
        return [], following
    records = [as_record(at, raw, max_bytes) for raw in parsed]
    if not in_order(records, following):
        raise _Unreadable("wrong offsets")
    return [record for record in records if record.offset >= start], following


def in_order(records: Sequence[Record], end: int) -> bool:
    """Whether the offsets grow, and stay below `end`. The broker does not look at those that a client wrote."""
    before = -1
    for record in records:
        if record.offset <= before:
            return False
        before = record.offset
    return before < end


def _salvaged(at: TopicPartition, batch: memoryview, start: int, end: int, max_bytes: int) -> tuple[list[Record], int]:
    """What can be read of a batch that the library cannot read, and the offset behind it. Raises _Unreadable."""
    header = _header(batch, start, end)
    last = header.base_offset + header.last_delta
    try:
        data = _unpacked(header, batch)
    except _Unreadable as error:
        return [_gap(at, max(start, header.base_offset), last, error)], last + 1
    if header.attributes & _CONTROL:
        return [], last + 1
    return list(_records(at, header, data, start, max_bytes)), last + 1


def _header(batch: memoryview, start: int, end: int) -> _Header:
    """Of a batch in format 2 whose offsets can be: those of a damaged header would skip what is well."""
    if batch[_MAGIC_AT] != _FORMAT:
        raise _Unreadable(f"a batch in format {batch[_MAGIC_AT]} cannot be read")
    if len(batch) < _HEADER.size:
        raise _Unreadable("a batch is shorter than its header")
    header = _Header(*_HEADER.unpack_from(batch))
    if header.last_delta < 0 or not start <= header.base_offset + header.last_delta < end:
        raise _Unreadable("a batch tells offsets that cannot be")
    return header


def _unpacked(header: _Header, batch: memoryview) -> bytes:
    if calc_crc32c(bytes(batch[_CHECKED_FROM:])) != header.checksum:
        raise _Unreadable("wrong checksum")
    if header.records < 0:
        raise _Unreadable("a negative number of records")
    try:
        return decompressed(header.attributes & _CODEC, bytes(batch[_HEADER.size :]), MAX_BATCH_BYTES)
    except TooMuch as error:
        raise _Unreadable(str(error), "too_large") from error
    except CodecError as error:
        raise _Unreadable(str(error)) from error


def _records(at: TopicPartition, header: _Header, data: bytes, start: int, max_bytes: int) -> Iterator[Record]:
    """Each record stands in a frame of its own, so that the next one can be found behind it, whatever is in it.

    Where there are as many records as offsets, their places tell these. What the records say was a client's to make up.
    """
    previous, last, position = header.base_offset - 1, header.base_offset + header.last_delta, 0
    dense = header.records == header.last_delta + 1
    for _ in range(header.records):
        if previous == last:
            return
        try:
            size, position = _varint(data, position, len(data))
            if not 0 <= size <= len(data) - position:
                raise _Unreadable(f"a record of {size} bytes in a batch that has {len(data) - position} more")
        except _Unreadable as error:
            yield from _rest(at, max(start, previous + 1), last, error)
            return
        record = _Parser(data, position, position + size).record(at, header, previous, max_bytes, dense=dense)
        position, previous = position + size, record.offset
        if record.offset >= start:
            yield record
    if position < len(data):
        yield from _rest(at, max(start, previous + 1), last, _Unreadable("bytes behind the last record"))


def _rest(at: TopicPartition, first: int, last: int, why: _Unreadable) -> Iterator[Record]:
    if first <= last:
        yield _gap(at, first, last, why)


def _gap(at: TopicPartition, first: int, last: int, why: _Unreadable) -> Record:
    """Stands for offsets of which nothing can be read."""
    offsets = f"offset {first} is" if first == last else f"offsets {first} to {last} are"
    detail = f"{offsets} skipped in {at.topic}/{at.partition}: {why}"
    return Record(*at, last, None, None, (), 0, Flaw(why.reason, detail, first_offset=first))


def _oversized(size: int, max_bytes: int) -> Flaw:
    return Flaw("too_large", f"the record has {size} bytes; {max_bytes} are allowed", omitted=f"value={size}")


class _Parser:
    """Reads one record, from `position` to `stop`, as far as it goes."""

    def __init__(self, data: bytes, position: int, stop: int) -> None:
        self._data = data
        self._position = position
        self._stop = stop
        self._headers: list[tuple[str, bytes]] = []
        self._key: bytes | None = None
        self._value: bytes | None = None
        self._flaw: Flaw | None = None

    def record(self, at: TopicPartition, header: _Header, previous: int, max_bytes: int, *, dense: bool) -> Record:
        """`previous`: the offset before; a record that tells none that can be is taken for the one behind it. `dense`:
        so is every one."""
        offset, timestamp = previous + 1, header.max_timestamp
        try:
            self._position += 1  # attributes: unused
            delta = self._varint()
            if not header.attributes & _APPEND_TIME:
                timestamp = header.first_timestamp + delta
            told = header.base_offset + self._varint()
            if not dense:
                if not previous < told <= header.base_offset + header.last_delta:
                    raise _Unreadable("an offset that cannot be")
                offset = told
            self._key = self._bytes("key")
            self._value = self._bytes("value")
            self._read_headers()
        except _Unreadable as error:
            self._flaw = Flaw("invalid", f"the record cannot be read: {error}")
        if self._value is not None and len(self._value) > max_bytes:
            self._flaw, self._value = _oversized(len(self._value), max_bytes), None
        return Record(*at, offset, self._key, self._value, self._named(), timestamp, self._flaw)

    def _named(self) -> Headers:
        return tuple(self._headers)

    def _read_headers(self) -> None:
        count = self._varint()
        if count < 0:
            raise _Unreadable(f"{count} headers")
        for _ in range(count):
            name = self._name()
            self._headers.append((name, self._bytes(f"header {name[:80]}") or b""))
        if self._position != self._stop:
            raise _Unreadable(f"{self._stop - self._position} bytes behind its headers")

    def _name(self) -> str:
        raw = self._bytes("header's name")
        if raw is None:
            raise _Unreadable("a header without a name")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            name = RAW_NAME + quote_from_bytes(raw, safe="")
            if self._flaw is None:
                self._flaw = Flaw("invalid", f"the name of a header is not UTF-8: {name[:200]}")
            return name

    def _bytes(self, what: str) -> bytes | None:
        size = self._varint()
        if size < 0:
            return None  # -1 is right for a key and a value; others may mean what they want with another number
        if size > self._stop - self._position:
            raise _Unreadable(f"a {what} of {size} bytes in {self._stop - self._position}")
        self._position += size
        return self._data[self._position - size : self._position]

    def _varint(self) -> int:
        number, self._position = _varint(self._data, self._position, self._stop)
        return number


def _varint(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """A zigzag number of at most 64 bits at `position`, and the position behind it."""
    number, shift = 0, 0
    while position < stop and shift < 64:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
        shift += 7
    raise _Unreadable("a number without an end")
