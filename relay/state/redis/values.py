"""Converts values for the scripts: times, bytes, and the names of tags and lanes.

Lua's MessagePack has no binary type: it reads and writes every string as text. So bytes are sent and received as `Raw`.
"""

import math
from functools import lru_cache
from typing import Final

import msgspec

from relay.state import rows
from relay.state.port import Lane

EMPTY: Final = msgspec.Raw(b"\xa0")


def ms(seconds: float) -> int:
    """Milliseconds, rounded up (so that no wait is shortened) except for float noise. -1 for infinity."""
    return -1 if seconds == math.inf else math.ceil(seconds * 1000 - 1e-6)


def seconds(whole_ms: int) -> float:
    return math.inf if whole_ms == -1 else whole_ms / 1000


_SHORT_TEXTS: Final = [bytes((0xA0 | size,)) for size in range(32)]


def raw(data: bytes) -> msgspec.Raw:
    """A MessagePack string of any bytes."""
    size = len(data)
    if size < 32:
        return msgspec.Raw(_SHORT_TEXTS[size] + data)
    if size < 2**16:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)


def text_bytes(text: msgspec.Raw) -> bytes:
    """The content of a MessagePack string that may not be UTF-8; empty for the number 0."""
    data = bytes(text)
    size_bytes = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(data[0], 0)
    return data[1 + size_bytes :]


@lru_cache(maxsize=65_536)
def tag_of(owner: str) -> int:
    """`rows.tag_of` with a cache, because it is called for every row."""
    return rows.tag_of(owner)


def lane_key(lane: Lane) -> str:
    return f"{lane.topic}/{lane.partition}"
