"""The rights of this user on the cluster, from metadata in version 8 and groups in version 3 (Kafka 2.3 and newer).

Source: KIP-430. The library's own requests do not ask.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.admin import DescribeGroupsRequest_v3, DescribeGroupsResponse_v3
from aiokafka.protocol.api import Request
from aiokafka.protocol.metadata import MetadataRequest_v5, MetadataResponse_v5
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from relay.domain.errors import LogUnavailable
from relay.domain.rights import Operation, Right
from relay.log.kafka.client import KafkaClient, check
from relay.log.kafka.metadata import BROKERS, PARTITIONS

_BITS: Final[dict[Operation, int]] = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Alter": 7,
    "Describe": 8,
    "DescribeConfigs": 10,
}
PATIENCE_S: Final = 3.0
_NOT_TOLD: Final = -(2**31)
_ALL: Final = sum(1 << bit for bit in _BITS.values())


class _TopicsAnswer(MetadataResponse_v5):  # type: ignore[misc]  # the library is untyped
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", BROKERS),
        ("cluster_id", String()),
        ("controller", Int32),
        (
            "topics",
            Array(
                ("error", Int16),
                ("topic", String()),
                ("is_internal", Boolean),
                ("partitions", PARTITIONS),
                ("operations", Int32),
            ),
        ),
        ("cluster_operations", Int32),
    )


class _TopicsStruct(MetadataRequest_v5):  # type: ignore[misc]
    API_VERSION = 8
    RESPONSE_TYPE = _TopicsAnswer
    SCHEMA = Schema(
        ("topics", Array(String())),
        ("creates", Boolean),
        ("of_cluster", Boolean),
        ("of_topics", Boolean),
    )


class _TopicsAsk(Request[_TopicsStruct]):  # type: ignore[misc]
    API_KEY = _TopicsStruct.API_KEY

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: type[_TopicsStruct]) -> _TopicsStruct:
        return request_struct_class(self._topics, False, False, True)


class _GroupStruct(DescribeGroupsRequest_v3):  # type: ignore[misc]
    RESPONSE_TYPE = DescribeGroupsResponse_v3  # the library has that of version 2, which does not tell


class _GroupAsk(Request[_GroupStruct]):  # type: ignore[misc]
    API_KEY = _GroupStruct.API_KEY

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[_GroupStruct]) -> _GroupStruct:
        return request_struct_class([self._group], True)


async def lacking(client: KafkaClient, rights: Iterable[Right]) -> list[Right]:
    """As the port says. Also empty if the cluster is too old to report them."""
    probed = [(right, right.probe) for right in rights if right.probe is not None]
    topics = sorted({probe for right, probe in probed if right.kind == "topic"})
    groups = sorted({probe for right, probe in probed if right.kind == "group"})
    try:
        allowed = await client.asked("asking what this user may do", _TopicsAsk(topics), _of_topics) if topics else {}
        of_groups = await asyncio.gather(*(_of_group(client, group) for group in groups))
        allowed |= dict(zip(groups, of_groups, strict=True))
    except (IncompatibleBrokerVersion, NotImplementedError):
        return []
    missing = [(right, _without(right, allowed.get(probe, _ALL))) for right, probe in probed]
    return [right.only(operations) for right, operations in missing if operations]


def _without(right: Right, allowed: int) -> tuple[Operation, ...]:
    return tuple(each for each in right.operations if not allowed & 1 << _BITS[each])


def _of_topics(answer: Any) -> dict[str, int]:
    """By topic, of those that exist; a topic that is missing is another matter."""
    found: dict[str, int] = {}
    for error, topic, _, _, operations in answer.topics:
        if for_code(error) is TopicAuthorizationFailedError:
            found[topic] = 1 << _BITS["DescribeConfigs"]  # which nobody asked for: it may be there
        elif error == 0 and operations != _NOT_TOLD:
            found[topic] = operations
    return found


async def _of_group(client: KafkaClient, group: str) -> int:
    """All of them where the group's coordinator does not answer soon: not all need it, and who joins will hear it."""
    doing = f"asking what this user may do with {group}"
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await client.coordinated(group, doing, _GroupAsk(group), _told)
    except TimeoutError:
        return _ALL
    except LogUnavailable as error:
        return 0 if isinstance(error.__cause__, GroupAuthorizationFailedError) else _ALL


def _told(answer: Any) -> int:
    [(error, *_, operations)] = answer.groups
    check(error)
    return _ALL if operations == _NOT_TOLD else int(operations)
