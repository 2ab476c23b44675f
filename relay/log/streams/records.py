"""Records as bytes in Valkey: as entries of a stream, or as values of a hash (see `scripts`)."""

from itertools import accumulate

import msgspec

from relay.log.port import Flaw, Headers, NewRecord, Record, TopicPartition
from relay.log.streams.scripts import FIXED_DIGITS

Packed = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers of a record."""

Entry = tuple[bytes, tuple[bytes, bytes, bytes, bytes]]
"""Of a stream: its id, and its fields with their values."""

_decode = msgspec.msgpack.Decoder(Packed).decode
_decode_lengths = msgspec.msgpack.Decoder(list[int]).decode
_encode = msgspec.msgpack.Encoder().encode


def pack(record: NewRecord) -> bytes:
    return _encode((record.key, record.value, record.headers))


def from_entry(at: TopicPartition, entry: Entry) -> Record:
    entry_id, (_, at_ms, _, packed) = entry
    offset = int(entry_id[: entry_id.index(b"-")]) - 1
    return _unpacked(at, offset, int(at_ms), packed)


def from_value(at: TopicPartition, value: bytes) -> Record:
    offset, at_ms = int(value[:FIXED_DIGITS]), int(value[FIXED_DIGITS : 2 * FIXED_DIGITS])
    return _unpacked(at, offset, at_ms, memoryview(value)[2 * FIXED_DIGITS :])


def from_values(at: TopicPartition, lengths: bytes, values: bytes) -> list[Record]:
    """`lengths`: as MessagePack, of the hash values that `values` has one behind the other."""
    ends = list(accumulate(_decode_lengths(lengths)))
    return [from_value(at, values[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _unpacked(at: TopicPartition, offset: int, at_ms: int, packed: bytes | memoryview) -> Record:
    try:
        key, value, headers = _decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = f"offset {offset} is skipped in {at.topic}/{at.partition}: {error}"
        return Record(at.topic, at.partition, offset, None, None, (), at_ms, Flaw("invalid", detail, offset))
    return Record(at.topic, at.partition, offset, key, value, headers, at_ms)


def tombstone(at: TopicPartition, offset: int, at_ms: int, key: bytes) -> Record:
    return Record(at.topic, at.partition, offset, key, None, (), at_ms)
