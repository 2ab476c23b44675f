"""The compression codecs of Kafka, with a bound on the unpacked size of a batch, which is not known before."""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

from aiokafka.codec import snappy_decode

from relay.domain.errors import UserError

try:
    import cramjam
except ImportError as error:  # what the relay itself writes is snappy, so without it nothing goes
    raise UserError("Kafka's codecs are missing; install them: pip install 'webhook-relay[zstd]'") from error

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_GROWTH: Final = {NONE: 1, GZIP: 1_032, SNAPPY: 22, LZ4: 255, ZSTD: 65_536}
"""How many times larger than its bytes a batch may become: deflate's matches are 258 bytes in 2 bits, snappy's 64 in 3
bytes, lz4's lengths 255 for each byte, and a block of zstd 128 KiB in 4 bytes or little less."""

_NAMES: Final = {NONE: "bytes", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_MODULES: Final = {LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
_GZIP_WINDOW: Final = 31
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_BYTES: Final = 16
_ROOM: Final = 8
_FULL: Final = "failed to write whole buffer"
"""What cramjam says when there is more than the buffer holds."""


class CodecError(Exception):
    """The bytes are not of that codec."""


class TooMuch(CodecError):
    """They become larger than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes, uncompressed")


def may_exceed(codec: int, size: int, limit: int) -> bool:
    """Whether `size` bytes of this codec may become more than `limit`."""
    return size * _GROWTH.get(codec, 1) > limit


def decompressed(codec: int, data: bytes, limit: int) -> bytes:
    """`data` uncompressed; never more than `limit` bytes are unpacked. Raises CodecError, TooMuch.

    Of gzip, whose checksum stands at the end and is not always there, whatever comes out counts.
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
        raise CodecError(f"damaged {_NAMES[codec]}: {error}") from error
    raise CodecError(f"unknown codec {codec}")


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
    """These unpack all at once, or into memory that is there: so into more and more of it, until it is enough."""
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
