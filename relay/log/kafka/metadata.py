"""Leaders and leader epochs of partitions, and the addresses of the brokers: metadata in version 7 (Kafka 2.1 and
newer).

The library's own metadata has no epochs. Without these a broker that was frozen takes itself for the leader that it
was, and reports that offsets that it missed do not exist. Source: KIP-320.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka.protocol.api import Request
from aiokafka.protocol.metadata import MetadataRequest_v5, MetadataResponse_v5
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from relay.log.port import TopicPartition


class Leader(NamedTuple):
    """`epoch`: grows with every change of the leader."""

    node: int
    epoch: int


class Layout(NamedTuple):
    """What has no leader just now is not in it."""

    leaders: dict[TopicPartition, Leader]
    brokers: dict[int, tuple[str, int]]


BROKERS: Final = Array(("node", Int32), ("host", String()), ("port", Int32), ("rack", String()))
PARTITIONS: Final = Array(
    ("error", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", Array(Int32)),
    ("isr", Array(Int32)),
    ("offline", Array(Int32)),
)


class _Answer(MetadataResponse_v5):  # type: ignore[misc]  # the library is untyped
    API_VERSION = 7
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
            ),
        ),
    )


class _MetadataStruct(MetadataRequest_v5):  # type: ignore[misc]  # the library is untyped
    API_VERSION = 7
    RESPONSE_TYPE = _Answer


class LayoutAsk(Request[_MetadataStruct]):  # type: ignore[misc]  # the library is untyped
    """Asks for `topics`, and creates none."""

    API_KEY = _MetadataStruct.API_KEY

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: type[_MetadataStruct]) -> _MetadataStruct:
        return request_struct_class(self._topics, False)


def layout_of(answer: Any) -> Layout:
    """What the answer to a LayoutAsk says."""
    leaders = {
        TopicPartition(topic, number): Leader(node, epoch)
        for _, topic, _, partitions in answer.topics
        for _, number, node, epoch, *_ in partitions
        if node >= 0
    }
    return Layout(leaders, {node: (host, port) for node, host, port, _ in answer.brokers})
