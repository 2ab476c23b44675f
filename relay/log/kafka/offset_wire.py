"""Requests about offsets that speak of leader epochs (Kafka 2.3 and newer): commits in version 6, committed offsets in
version 5, and where an epoch ended in version 3. The library's own do not.

Source: the Kafka protocol guide; KIP-320.
"""

from collections.abc import Sequence
from typing import Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitResponse_v3
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String

_CONSUMER: Final = -1


class _CommitAnswer(OffsetCommitResponse_v3):  # type: ignore[misc]  # the library is untyped
    API_VERSION = 6


class _CommitStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 8
    API_VERSION = 6
    RESPONSE_TYPE = _CommitAnswer
    SCHEMA = Schema(
        ("group", String()),
        ("generation", Int32),
        ("member", String()),
        (
            "topics",
            Array(
                ("topic", String()),
                (
                    "partitions",
                    Array(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", String())),
                ),
            ),
        ),
    )


class CommitAsk(Request[_CommitStruct]):  # type: ignore[misc]
    """Commits for a member of `group`. Rows: partition, offset, leader epoch, metadata."""

    API_KEY = _CommitStruct.API_KEY

    def __init__(
        self, group: str, generation: int, member: str, topics: Sequence[tuple[str, list[tuple[int, int, int, str]]]]
    ) -> None:
        self._fields = group, generation, member, list(topics)

    def build(self, request_struct_class: type[_CommitStruct]) -> _CommitStruct:
        return request_struct_class(*self._fields)


class _CommittedAnswer(Response):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String()),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", String()),
                        ("error_code", Int16),
                    ),
                ),
            ),
        ),
        ("error_code", Int16),
    )


class _CommittedStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 5
    RESPONSE_TYPE = _CommittedAnswer
    SCHEMA = Schema(
        ("group", String()),
        ("topics", Array(("topic", String()), ("partitions", Array(Int32)))),
    )


class CommittedAsk(Request[_CommittedStruct]):  # type: ignore[misc]
    """Asks for the offsets of `group` in these partitions."""

    API_KEY = _CommittedStruct.API_KEY

    def __init__(self, group: str, topics: Sequence[tuple[str, list[int]]]) -> None:
        self._fields = group, list(topics)

    def build(self, request_struct_class: type[_CommittedStruct]) -> _CommittedStruct:
        return request_struct_class(*self._fields)


class _EpochEndAnswer(Response):  # type: ignore[misc]
    API_KEY = 23
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String()),
                (
                    "partitions",
                    Array(("error_code", Int16), ("partition", Int32), ("leader_epoch", Int32), ("end", Int64)),
                ),
            ),
        ),
    )


class _EpochEndStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = _EpochEndAnswer
    SCHEMA = Schema(
        ("replica", Int32),
        (
            "topics",
            Array(
                ("topic", String()),
                ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("leader_epoch", Int32))),
            ),
        ),
    )


class EpochEndAsk(Request[_EpochEndStruct]):  # type: ignore[misc]
    """Asks a leader for the ends of epochs. Rows: partition, the epoch since which it has to lead (-1: any), and the
    one whose end is wanted."""

    API_KEY = _EpochEndStruct.API_KEY

    def __init__(self, topics: Sequence[tuple[str, list[tuple[int, int, int]]]]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: type[_EpochEndStruct]) -> _EpochEndStruct:
        return request_struct_class(_CONSUMER, self._topics)
