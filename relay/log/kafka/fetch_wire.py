"""Fetch requests and their answers as bytes, in version 11 (Kafka 2.3 and newer). Pure.

The library's own cannot speak of fetch sessions, and take them apart field by field: with a thousand partitions that
costs more than the records do.
Source: the Kafka protocol guide, "Fetch API"; KIP-227 (sessions).
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Final, NamedTuple

from aiokafka.protocol.api import Request
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11

from relay.log.kafka.settings import Isolation
from relay.log.port import TopicPartition

NO_SESSION: Final = 0
NO_EPOCH: Final = -1
"""Of a request outside of any session."""

_HEAD: Final = struct.Struct(">iiiibii")  # replica, wait, least bytes, most bytes, isolation, session, epoch
_WANTED: Final = struct.Struct(">iiqqi")  # partition, leader epoch, offset, log start, most bytes
_COUNT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_ANSWER: Final = struct.Struct(">ihii")  # throttle, error, session, topics
_PART: Final = struct.Struct(">ihqqqi")  # partition, error, high watermark, last stable, log start, aborted
_DATA: Final = struct.Struct(">ii")  # preferred replica, size
_ABORTED: Final = struct.Struct(">qq")  # producer, first offset
_UNKNOWN: Final = -1
_CONSUMER: Final = -1


class Aborted(NamedTuple):
    """A transaction: who made it, and its first offset in a partition. It ends with that producer's next marker."""

    producer_id: int
    first_offset: int


class FetchedPartition(NamedTuple):
    """What an answer says of one partition. `error`: a code, 0 for none. `aborted`: transactions that reach into `data`
    and were aborted; none where the request asked for all records. `stable`: where open transactions begin; -1 where it
    does not say."""

    at: TopicPartition
    error: int
    high_watermark: int
    data: bytes
    aborted: Sequence[Aborted] = ()
    stable: int = -1


class Asked(NamedTuple):
    """Where a partition is to be read, how many bytes of it at most, and who has to be its leader: -1 for anybody."""

    offset: int
    max_bytes: int
    leader_epoch: int = -1


class FetchAnswer(FetchResponse_v11):  # type: ignore[misc]  # the library is untyped
    """`error`: a code that concerns the whole request."""

    def __init__(self, throttle_ms: int, error: int, session: int, parts: Sequence[FetchedPartition]) -> None:
        self.throttle_ms = throttle_ms
        self.error = error
        self.session = session
        self.parts = parts

    @classmethod
    def decode(cls, data: BytesIO | bytes) -> "FetchAnswer":
        """Raises struct.error, ValueError."""
        if isinstance(data, bytes):
            data = BytesIO(data)
        with data.getbuffer() as buffer:
            return cls._decoded(buffer, data.tell())

    @classmethod
    def _decoded(cls, buffer: memoryview, place: int) -> "FetchAnswer":
        throttle, error, session, topics = _ANSWER.unpack_from(buffer, place)
        place += _ANSWER.size
        parts: list[FetchedPartition] = []
        for _ in range(topics):
            [size] = _SHORT.unpack_from(buffer, place)
            place += _SHORT.size + size
            topic = str(buffer[place - size : place], "utf-8")
            [rows] = _COUNT.unpack_from(buffer, place)
            place += _COUNT.size
            for _ in range(rows):
                number, code, high, stable, _, count = _PART.unpack_from(buffer, place)
                behind = (place := place + _PART.size) + max(0, count) * _ABORTED.size
                aborted = [Aborted(*pair) for pair in _ABORTED.iter_unpack(buffer[place:behind])] if count > 0 else ()
                place = behind
                _, size = _DATA.unpack_from(buffer, place)
                place += _DATA.size
                found = bytes(buffer[place : place + size]) if size > 0 else b""
                place += len(found)
                if len(found) < size:
                    raise ValueError(f"{topic}/{number} has {len(found)} of its {size} bytes")
                parts.append(FetchedPartition(TopicPartition(topic, number), code, high, found, aborted, stable))
        return cls(throttle, error, session, parts)


class _FetchStruct(FetchRequest_v11):  # type: ignore[misc]  # the library is untyped
    RESPONSE_TYPE = FetchAnswer

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def encode(self) -> bytes:
        return self._encoded

    def __repr__(self) -> str:
        return f"a fetch request of {len(self._encoded)} bytes"


class FetchAsk(Request[_FetchStruct]):  # type: ignore[misc]  # the library is untyped
    """A request for `wanted`, in this order; `forgotten`: of its session's partitions those that are left out now.

    It is answered after `max_wait_ms`, or as soon as there are `min_bytes` of records, or an error. `isolation`: a
    broker that is asked for committed records sends none from the first open transaction on, and names aborted ones.
    """

    API_KEY = FetchRequest_v11.API_KEY

    def __init__(
        self,
        wanted: Mapping[TopicPartition, Asked],
        *,
        max_wait_ms: int,
        max_bytes: int,
        min_bytes: int = 1,
        isolation: Isolation = Isolation.READ_COMMITTED,
        forgotten: Iterable[TopicPartition] = (),
        session: int = NO_SESSION,
        epoch: int = NO_EPOCH,
    ) -> None:
        out = [_HEAD.pack(_CONSUMER, max_wait_ms, min_bytes, max_bytes, isolation, session, epoch)]
        _by_topic(out, ((at, _wanted(at.partition, asked)) for at, asked in wanted.items()))
        _by_topic(out, ((at, _COUNT.pack(at.partition)) for at in forgotten))
        out.append(_SHORT.pack(0))  # no rack
        self._encoded = b"".join(out)

    def build(self, request_struct_class: type[_FetchStruct]) -> _FetchStruct:
        return request_struct_class(self._encoded)


def _wanted(partition: int, asked: Asked) -> bytes:
    return _WANTED.pack(partition, asked.leader_epoch, asked.offset, _UNKNOWN, asked.max_bytes)


def _by_topic(out: list[bytes], rows: Iterable[tuple[TopicPartition, bytes]]) -> None:
    """Append the rows, grouped; the topics in the order in which they come first."""
    topics: dict[str, list[bytes]] = {}
    for at, row in rows:
        topics.setdefault(at.topic, []).append(row)
    out.append(_COUNT.pack(len(topics)))
    for topic, encoded in topics.items():
        name = topic.encode()
        out += (_SHORT.pack(len(name)), name, _COUNT.pack(len(encoded)), *encoded)
