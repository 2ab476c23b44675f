"""Requests to Kafka that the library does not have, or not in this version, and their responses as bytes (Kafka 2.3 and
newer). Pure.

Fetches have sessions; the library's own classes do not support these, and parse a response field by field: with a
thousand partitions that costs more than the records do. Offsets have leader epochs: without them a broker that was
frozen takes itself for the leader that it was, and reports that offsets that it missed do not exist.
Sources: the Kafka protocol guide; KIP-227 (sessions), KIP-320 (leader epochs), KIP-430 (rights). `metadata.py` has the
requests for metadata.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Final, NamedTuple, TypeVar

from aiokafka.protocol.admin import DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitResponse_v3
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String

from relay.log.kafka.cluster import Isolation
from relay.log.port import TopicPartition

NO_SESSION: Final = 0
NO_EPOCH: Final = -1
"""The epoch of a request outside of any session."""

_HEAD: Final = struct.Struct(">iiiibii")  # replica, wait, least bytes, most bytes, isolation, session, epoch
_WANTED: Final = struct.Struct(">iiqqi")  # partition, leader epoch, offset, log start, most bytes
_COUNT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_ANSWER: Final = struct.Struct(">ihii")  # throttle, error, session, topics
_PART: Final = struct.Struct(">ihqqqi")  # partition, error, high watermark, last stable, log start, aborted
_DATA: Final = struct.Struct(">ii")  # preferred replica, size
_ABORTED: Final = struct.Struct(">qq")  # producer, first offset
_UNKNOWN: Final = -1
_T = TypeVar("_T")
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


class FetchFrom(NamedTuple):
    """One partition of a fetch request: the offset, the maximum size, and the expected leader epoch; -1 accepts any."""

    offset: int
    max_bytes: int
    leader_epoch: int = -1


class OneVersionRequest(Request[RequestStruct]):  # type: ignore[misc]  # the library is untyped
    """A request in the one version of `struct_class`. `fields`: as in its schema."""

    API_KEY = -1

    def __init__(self, struct_class: type[RequestStruct], *fields: object) -> None:
        self.API_KEY = struct_class.API_KEY
        self._CLASSES: tuple[type[RequestStruct], ...] = (struct_class,)
        self._fields = fields

    def build(self, struct_class: type[RequestStruct]) -> RequestStruct:
        return struct_class(*self._fields)


def request_struct(
    key: int, version: int, *, fields: Schema, answer: Schema, flexible: bool = False
) -> type[RequestStruct]:
    """A request in one version, and its response. `flexible`: with tagged fields in their heads (KIP-482)."""
    of_version = {"API_KEY": key, "API_VERSION": version, "FLEXIBLE_VERSION": flexible}
    response = type("_Answer", (Response,), {**of_version, "SCHEMA": answer})
    return type("_Struct", (RequestStruct,), {**of_version, "SCHEMA": fields, "RESPONSE_TYPE": response})


# fetches


class FetchResponse(FetchResponse_v11):  # type: ignore[misc]  # the library is untyped
    """The response to a fetch request. `error`: a code that concerns the whole request."""

    def __init__(self, throttle_ms: int, error: int, session: int, parts: Sequence[FetchedPartition]) -> None:
        self.throttle_ms = throttle_ms
        self.error = error
        self.session = session
        self.parts = parts

    @classmethod
    def decode(cls, data: BytesIO | bytes) -> "FetchResponse":
        """Raises struct.error, ValueError."""
        if isinstance(data, bytes):
            data = BytesIO(data)
        with data.getbuffer() as buffer:
            return cls._decoded(buffer, data.tell())

    @classmethod
    def _decoded(cls, buffer: memoryview, place: int) -> "FetchResponse":
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
    RESPONSE_TYPE = FetchResponse

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def encode(self) -> bytes:
        return self._encoded

    def __repr__(self) -> str:
        return f"a fetch request of {len(self._encoded)} bytes"


class FetchRequest(OneVersionRequest):
    """A request for `wanted`, in this order; `forgotten`: of its session's partitions those that are left out now.

    It is answered after `max_wait_ms`, or as soon as there are `min_bytes` of records, or an error. `isolation`: a
    broker that is asked for committed records sends none from the first open transaction on, and names aborted ones.
    """

    def __init__(
        self,
        wanted: Mapping[TopicPartition, FetchFrom],
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
        _append(out, by_topic((at, _wanted(at.partition, asked)) for at, asked in wanted.items()))
        _append(out, by_topic((at, _COUNT.pack(at.partition)) for at in forgotten))
        out.append(_SHORT.pack(0))  # no rack
        super().__init__(_FetchStruct, b"".join(out))


def _wanted(partition: int, asked: FetchFrom) -> bytes:
    return _WANTED.pack(partition, asked.leader_epoch, asked.offset, _UNKNOWN, asked.max_bytes)


def by_topic(rows: Iterable[tuple[TopicPartition, _T]]) -> list[tuple[str, list[_T]]]:
    """The rows, grouped; the topics in the order in which they come first."""
    topics: dict[str, list[_T]] = {}
    for at, row in rows:
        topics.setdefault(at.topic, []).append(row)
    return list(topics.items())


def _append(out: list[bytes], topics: Sequence[tuple[str, list[bytes]]]) -> None:
    out.append(_COUNT.pack(len(topics)))
    for topic, encoded in topics:
        name = topic.encode()
        out += (_SHORT.pack(len(name)), name, _COUNT.pack(len(encoded)), *encoded)


# groups


class _GroupStruct(DescribeGroupsRequest_v3):  # type: ignore[misc]
    RESPONSE_TYPE = DescribeGroupsResponse_v3  # the library has that of version 2, which has no operations


def group_rights_request(group: str) -> OneVersionRequest:
    """Asks for this user's operations on a group."""
    return OneVersionRequest(_GroupStruct, [group], True)


# offsets


def _topics(*row: tuple[str, object]) -> tuple[str, Array]:
    """The field `topics`: by topic the rows of its partitions."""
    return "topics", Array(("topic", String()), ("partitions", Array(*row)))


_COMMIT: Final = request_struct(
    8,
    6,
    fields=Schema(
        ("group", String()),
        ("generation", Int32),
        ("member", String()),
        _topics(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", String())),
    ),
    answer=OffsetCommitResponse_v3.SCHEMA,
)


def offset_commit_request(
    group: str, generation: int, member: str, topics: Sequence[tuple[str, list[tuple[int, int, int, str]]]]
) -> OneVersionRequest:
    """Commits for a member of `group`. Rows: partition, offset, leader epoch, metadata."""
    return OneVersionRequest(_COMMIT, group, generation, member, topics)


_COMMITTED: Final = request_struct(
    9,
    5,
    fields=Schema(("group", String()), ("topics", Array(("topic", String()), ("partitions", Array(Int32))))),
    answer=Schema(
        ("throttle_time_ms", Int32),
        _topics(
            ("partition", Int32),
            ("offset", Int64),
            ("leader_epoch", Int32),
            ("metadata", String()),
            ("error_code", Int16),
        ),
        ("error_code", Int16),
    ),
)


def offset_fetch_request(group: str, topics: Sequence[tuple[str, list[int]]]) -> OneVersionRequest:
    """Asks for the offsets of `group` in these partitions."""
    return OneVersionRequest(_COMMITTED, group, topics)


_EPOCH_END: Final = request_struct(
    23,
    3,
    fields=Schema(
        ("replica", Int32),
        _topics(("partition", Int32), ("current_leader_epoch", Int32), ("leader_epoch", Int32)),
    ),
    answer=Schema(
        ("throttle_time_ms", Int32),
        _topics(("error_code", Int16), ("partition", Int32), ("leader_epoch", Int32), ("end", Int64)),
    ),
)


def epoch_end_request(topics: Sequence[tuple[str, list[tuple[int, int, int]]]]) -> OneVersionRequest:
    """Asks a leader for the ends of epochs. Rows: partition, the epoch since which it has to lead (-1: any), and the
    epoch whose end is wanted."""
    return OneVersionRequest(_EPOCH_END, _CONSUMER, topics)
