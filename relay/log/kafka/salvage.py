"""Parser of record batches, for those that the library's parser refuses, and decompression that bounds the unpacked
size, which is not known before. Pure: bytes in, records out.

A broken record costs that record only, and a whole batch is lost only if its frame, its checksum or its codec is wrong.
Either is a `Record` with a `Flaw`: nothing is skipped silently.
Sources: the Kafka protocol guide, "Record Batch" and "Record"; KIP-98, KIP-82.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote_from_bytes

from aiokafka.codec import snappy_decode
from aiokafka.record.util import calc_crc32c

from relay.domain.errors import UserError
from relay.log.port import Flaw, Record, TopicPartition

try:
    import cramjam
except ImportError as error:  # the relay itself writes snappy
    raise UserError("Kafka's codecs are missing; install them: pip install 'webhook-relay[zstd]'") from error

MAX_BATCH_BYTES: Final = 128 * 1024**2
"""Maximum uncompressed size of a batch: more is never unpacked."""
RAW_NAME: Final = "relay-raw-"
"""Prefix of the name of a header that is not UTF-8; its bytes follow, percent-encoded."""

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
MAGIC_AT: Final = 16
FORMAT: Final = 2
CODEC: Final = 0x07
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
_CHECKED_FROM: Final = 21  # the checksum covers the bytes behind it
_APPEND_TIME: Final = 0x08

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_NAMES: Final = {NONE: "bytes", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_MODULES: Final = {LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
_GZIP_WINDOW: Final = 31
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_BYTES: Final = 16
_ROOM: Final = 8
_FULL: Final = "failed to write whole buffer"
"""The error of cramjam when there is more than the buffer holds."""


class BatchHeader(NamedTuple):
    """The header of a batch."""

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
        """Whether the batch can result from a fetch from `start` on, from a log that ended at `end` a moment ago.

        A broker determines the end first, and then reads. Records appended in between follow without a gap.
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
    """Why no more can be read here. `reason`: of the dead letter."""

    def __init__(self, text: str, reason: str = "invalid") -> None:
        super().__init__(text)
        self.reason = reason


class TooMuch(Unreadable):
    """The data would become larger than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes, uncompressed", "too_large")


def header_of(batch: bytes, start: int, end: int) -> BatchHeader:
    """The header of a batch. Raises Unreadable unless it is in format 2 and has plausible offsets: those of a damaged
    header would skip good records."""
    if batch[MAGIC_AT] != FORMAT:
        raise Unreadable(f"a batch in format {batch[MAGIC_AT]} cannot be read")
    if len(batch) < HEADER.size:
        raise Unreadable("a batch is shorter than its header")
    header = BatchHeader(*HEADER.unpack_from(batch))
    if not header.fits(start, end):
        raise Unreadable("a batch has offsets that cannot be")
    return header


def unpacked(header: BatchHeader, batch: bytes, limit: int) -> bytes:
    """The records of a batch, uncompressed, as bytes. Raises Unreadable; TooMuch above `limit` bytes."""
    if calc_crc32c(batch[_CHECKED_FROM:]) != header.checksum:
        raise Unreadable("wrong checksum")
    if header.records < 0:
        raise Unreadable("a negative number of records")
    return decompressed(header.codec, batch[HEADER.size :], limit)


def gap(at: TopicPartition, first: int, last: int, why: Unreadable) -> Record:
    """A record that stands for unreadable offsets."""
    offsets = f"offset {first} is" if first == last else f"offsets {first} to {last} are"
    detail = f"{offsets} skipped in {at}: {why}"
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
        """`previous`: the offset before; a record without a plausible offset, or every record if `dense`, gets the one
        behind it."""
        offset, timestamp = previous + 1, header.max_timestamp
        try:
            self._position += 1  # attributes: unused
            delta = self._varint()
            if not header.attributes & _APPEND_TIME:
                timestamp = header.first_timestamp + delta
            written = header.base_offset + self._varint()
            if not dense:
                if not previous < written <= header.last_offset:
                    raise Unreadable("an offset that cannot be")
                offset = written
            self._key = self._bytes("key")
            self._value = self._bytes("value")
            self._read_headers()
        except Unreadable as error:
            self._flaw = Flaw("invalid", f"the record cannot be read: {error}")
        if self._value is not None and len(self._value) > max_bytes:
            self._flaw, self._value = oversized(len(self._value), max_bytes), None
        return Record(*at, offset, self._key, self._value, tuple(self._headers), timestamp, self._flaw)

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
            return None  # -1 for a key and a value; the meaning of other numbers is not defined
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


# codecs


def decompressed(codec: int, data: bytes, limit: int) -> bytes:
    """`data` uncompressed; never more than `limit` bytes are unpacked. Raises Unreadable, TooMuch.

    gzip has its checksum at the end, and not always one: all that can be unpacked counts.
    """
    try:
        if codec == NONE:
            return data
        if codec == GZIP:
            return _gunzipped(data, limit)
        if codec == SNAPPY:
            return _unsnapped(data, limit)
        if codec in _MODULES:
            return _into_buffer(_MODULES[codec], data, limit)
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError) as error:
        raise Unreadable(f"damaged {_NAMES[codec]}: {error}") from error
    raise Unreadable(f"unknown codec {codec}")


def _gunzipped(data: bytes, limit: int) -> bytes:
    found = bytearray()
    while data:
        member = zlib.decompressobj(_GZIP_WINDOW)
        found += member.decompress(data, limit + 1 - len(found))
        if len(found) > limit:
            raise TooMuch(limit)
        data = member.unused_data
    return bytes(found)


def _unsnapped(data: bytes, limit: int) -> bytes:
    """Each block states its size, which counts only if its bytes can become so many."""
    if sum(cramjam.snappy.decompress_raw_len(block) for block in _snappy_blocks(data)) > limit:
        raise TooMuch(limit)
    return bytes(snappy_decode(data))


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """One, or those in the frame of the Java library: each behind its size."""
    if not data.startswith(_XERIAL):
        yield data
        return
    position = _XERIAL_BYTES
    while position < len(data):
        [size] = struct.unpack_from(">i", data, position)
        if size < 0:
            raise ValueError("a block of a negative size")
        yield data[position + 4 : position + 4 + size]
        position += 4 + size


def _into_buffer(module: Any, data: bytes, limit: int) -> bytes:
    """These codecs unpack all at once, or into a buffer: so into larger and larger ones, until the data fit."""
    room = min(limit, _ROOM * (len(data) + 1))
    while True:
        buffer = bytearray(room)
        try:
            return bytes(memoryview(buffer)[: module.decompress_into(data, buffer)])
        except cramjam.DecompressionError as error:
            if str(error) != _FULL:
                raise
            if room == limit:
                raise TooMuch(limit) from error
        room = min(limit, _ROOM * room)
