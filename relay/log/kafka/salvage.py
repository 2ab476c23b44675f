"""A batch that the library's parser refuses, read record by record. Pure: bytes in, records out.

A broken record costs that record only, and a whole batch is lost only if its frame, its checksum or its codec is wrong.
Either is a `Record` with a `Flaw`: nothing is skipped silently.
Sources: the Kafka protocol guide, "Record Batch" and "Record"; KIP-98, KIP-82.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes

from aiokafka.record.util import calc_crc32c

from relay.log.kafka.codecs import CodecError, TooMuch, decompressed
from relay.log.port import Flaw, Headers, Record, TopicPartition

MAX_BATCH_BYTES: Final = 128 * 1024**2
"""Of a batch, uncompressed: more is not unpacked, whatever it may hold."""
RAW_NAME: Final = "relay-raw-"
"""Before the name of a header that is not UTF-8; what follows is its bytes, percent-encoded."""

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
MAGIC_AT: Final = 16
FORMAT: Final = 2
CODEC: Final = 0x07
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
_CHECKED_FROM: Final = 21  # the checksum covers what is behind it
_APPEND_TIME: Final = 0x08


class BatchHeader(NamedTuple):
    """Of a batch, as it says of itself."""

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

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC

    def fits(self, start: int, end: int) -> bool:
        """Whether it can be a read from `start` on in a log that ended at `end` a moment ago.

        A broker determines the end first, and reads then. Records appended in between follow without a gap.
        """
        if self.last_delta < 0 or self.last_offset < start:
            return False
        return self.last_offset < end or (self.is_dense and self.base_offset <= max(start, end))

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_dense(self) -> bool:
        """As many records as offsets: their positions give their offsets."""
        return self.records == self.last_delta + 1


class Unreadable(Exception):
    """Why no more can be read here, in words. `reason`: of the dead letter."""

    def __init__(self, text: str, reason: str = "invalid") -> None:
        super().__init__(text)
        self.reason = reason


def header_of(batch: bytes, start: int, end: int) -> BatchHeader:
    """Of a batch in format 2 with plausible offsets: those of a damaged header would skip good records. Raises
    Unreadable for others."""
    if batch[MAGIC_AT] != FORMAT:
        raise Unreadable(f"a batch in format {batch[MAGIC_AT]} cannot be read")
    if len(batch) < HEADER.size:
        raise Unreadable("a batch is shorter than its header")
    header = BatchHeader(*HEADER.unpack_from(batch))
    if not header.fits(start, end):
        raise Unreadable("a batch tells offsets that cannot be")
    return header


def unpacked(header: BatchHeader, batch: bytes, limit: int) -> bytes:
    """The records of a batch, uncompressed, as bytes. Raises Unreadable; TooMuch above `limit`, if that is less than
    what a batch may ever have."""
    if calc_crc32c(batch[_CHECKED_FROM:]) != header.checksum:
        raise Unreadable("wrong checksum")
    if header.records < 0:
        raise Unreadable("a negative number of records")
    try:
        return decompressed(header.codec, batch[HEADER.size :], limit)
    except TooMuch as error:
        if limit < MAX_BATCH_BYTES:
            raise
        raise Unreadable(str(error), "too_large") from error
    except CodecError as error:
        raise Unreadable(str(error)) from error


def gap(at: TopicPartition, first: int, last: int, why: Unreadable) -> Record:
    """Stands for offsets of which nothing can be read."""
    offsets = f"offset {first} is" if first == last else f"offsets {first} to {last} are"
    detail = f"{offsets} skipped in {at.topic}/{at.partition}: {why}"
    return Record(*at, last, None, None, (), 0, Flaw(why.reason, detail, first_offset=first))


def oversized(size: int, max_bytes: int) -> Flaw:
    return Flaw("too_large", f"the record has {size} bytes; {max_bytes} are allowed", omitted=f"value={size}")


def salvaged(at: TopicPartition, header: BatchHeader, data: bytes, start: int, max_bytes: int) -> Iterator[Record]:
    """The records in `data`, uncompressed, from offset `start` on.

    Each record has a frame of its own, so that the next one can be found behind it, whatever is in it. If there are as
    many records as offsets, their positions give these. A client may have made up the offsets in the records.
    """
    previous, last, position = header.base_offset - 1, header.last_offset, 0
    dense = header.is_dense
    for _ in range(header.records):
        if previous == last:
            return
        try:
            size, position = _varint(data, position, len(data))
            if not 0 <= size <= len(data) - position:
                raise Unreadable(f"a record of {size} bytes in a batch that has {len(data) - position} more")
        except Unreadable as error:
            yield from _rest(at, max(start, previous + 1), last, error)
            return
        record = _Parser(data, position, position + size).record(at, header, previous, max_bytes, dense=dense)
        position, previous = position + size, record.offset
        if record.offset >= start:
            yield record
    if position < len(data):
        yield from _rest(at, max(start, previous + 1), last, Unreadable("bytes behind the last record"))


def _rest(at: TopicPartition, first: int, last: int, why: Unreadable) -> Iterator[Record]:
    if first <= last:
        yield gap(at, first, last, why)


class _Parser:
    """Reads the readable part of one record, from `position` to `stop`."""

    def __init__(self, data: bytes, position: int, stop: int) -> None:
        self._data = data
        self._position = position
        self._stop = stop
        self._headers: list[tuple[str, bytes]] = []
        self._key: bytes | None = None
        self._value: bytes | None = None
        self._flaw: Flaw | None = None

    def record(self, at: TopicPartition, header: BatchHeader, previous: int, max_bytes: int, *, dense: bool) -> Record:
        """`previous`: the offset before; a record without a plausible offset gets the one behind it. `dense`: every
        record does."""
        offset, timestamp = previous + 1, header.max_timestamp
        try:
            self._position += 1  # attributes: unused
            delta = self._varint()
            if not header.attributes & _APPEND_TIME:
                timestamp = header.first_timestamp + delta
            told = header.base_offset + self._varint()
            if not dense:
                if not previous < told <= header.base_offset + header.last_delta:
                    raise Unreadable("an offset that cannot be")
                offset = told
            self._key = self._bytes("key")
            self._value = self._bytes("value")
            self._read_headers()
        except Unreadable as error:
            self._flaw = Flaw("invalid", f"the record cannot be read: {error}")
        if self._value is not None and len(self._value) > max_bytes:
            self._flaw, self._value = oversized(len(self._value), max_bytes), None
        return Record(*at, offset, self._key, self._value, self._named(), timestamp, self._flaw)

    def _named(self) -> Headers:
        return tuple(self._headers)

    def _read_headers(self) -> None:
        count = self._varint()
        if count < 0:
            raise Unreadable(f"{count} headers")
        for _ in range(count):
            name = self._name()
            self._headers.append((name, self._bytes(f"header {name[:80]}") or b""))
        if self._position != self._stop:
            raise Unreadable(f"{self._stop - self._position} bytes behind its headers")

    def _name(self) -> str:
        raw = self._bytes("header's name")
        if raw is None:
            raise Unreadable("a header without a name")
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
            raise Unreadable(f"a {what} of {size} bytes in {self._stop - self._position}")
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
    raise Unreadable("a number without an end")
