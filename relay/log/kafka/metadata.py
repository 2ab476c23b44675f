"""Requests to Kafka for metadata that the library does not have in this version: with leader epochs, ids of topics, and
rights. Pure.

Sources: the Kafka protocol guide; KIP-320 (leader epochs), KIP-430 (rights), KIP-516 (topic ids).
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

from relay.log.kafka.wire import OneVersionRequest, request_struct
from relay.log.port import TopicPartition

_NO_TOPIC: Final = 3


class Leader(NamedTuple):
    """`epoch`: grows with every change of the leader."""

    node: int
    epoch: int


class Layout(NamedTuple):
    """The leaders of partitions, without those that have none at the moment; the addresses of the brokers; and those of
    the topics that do not exist. `ids`: of the topics, behind that of their cluster, from Kafka 2.8 on; one that is
    created again has another. `cluster`: its id."""

    leaders: dict[TopicPartition, Leader]
    brokers: dict[int, tuple[str, int]]
    missing: frozenset[str] = frozenset()
    ids: Mapping[str, str] = MappingProxyType({})
    cluster: str | None = None


def is_same_topic(former: str, present: str) -> bool:
    """Whether an offset of the topic `former` counts for `present`, by their ids, empty where unknown. A mirror has
    other ids, in another cluster, and the offsets are converted for it."""
    return former == present or not former or former.partition("/")[0] != present.partition("/")[0]


class _Id:
    """A UUID, as bytes."""

    encode = bytes

    @staticmethod
    def decode(data: BytesIO) -> bytes:
        return data.read(16)


_Fields = tuple[tuple[str, Any], ...]


def _answer(array: Any, string: Any, *, id: _Fields = (), tags: _Fields = ()) -> Schema:
    """The schema of a response. `array`, `string`: in the form of its version; `id`: the field of a topic's id; `tags`:
    the last field of each structure."""
    partition: _Fields = (
        ("error", Int16),
        ("partition", Int32),
        ("leader", Int32),
        ("leader_epoch", Int32),
        ("replicas", array(Int32)),
        ("isr", array(Int32)),
        ("offline", array(Int32)),
        *tags,
    )
    topic: _Fields = (
        ("error", Int16),
        ("topic", string),
        *id,
        ("is_internal", Boolean),
        ("partitions", array(*partition)),
        ("operations", Int32),
        *tags,
    )
    return Schema(
        ("throttle_time_ms", Int32),
        ("brokers", array(("node", Int32), ("host", string), ("port", Int32), ("rack", string), *tags)),
        ("cluster_id", string),
        ("controller", Int32),
        ("topics", array(*topic)),
        ("cluster_operations", Int32),
        *tags,
    )


_WISHES: Final[_Fields] = (("creates", Boolean), ("of_cluster", Boolean), ("of_topics", Boolean))
_METADATA: Final = request_struct(
    3, 8, fields=Schema(("topics", Array(String())), *_WISHES), answer=_answer(Array, String())
)
_NO_ID: Final = bytes(16)
_ID: Final[_Fields] = (("id", _Id),)
_TAGS: Final[_Fields] = (("tags", TaggedFields),)
_LAYOUT: Final = request_struct(
    3,
    10,
    flexible=True,
    fields=Schema(("topics", CompactArray(*_ID, ("topic", CompactString()), *_TAGS)), *_WISHES, *_TAGS),
    answer=_answer(CompactArray, CompactString(), id=_ID, tags=_TAGS),
)


class LayoutRequest(OneVersionRequest):
    """As `metadata_request`, with the ids of topics where the broker has them. `layout_of` reads the response."""

    def __init__(self, topics: Sequence[str]) -> None:
        super().__init__(_METADATA, list(topics), False, False, False)
        self._with_ids: tuple[object, ...] = ([(_NO_ID, topic, {}) for topic in topics], False, False, False, {})
        self._CLASSES = (_METADATA, _LAYOUT)

    def build(self, struct_class: type[RequestStruct]) -> RequestStruct:
        return struct_class(*self._with_ids) if struct_class is _LAYOUT else super().build(struct_class)


def metadata_request(topics: Sequence[str], *, rights: bool = False) -> OneVersionRequest:
    """Asks for these topics, and creates none. `rights`: and for this user's operations on them."""
    return OneVersionRequest(_METADATA, list(topics), False, False, rights)


def layout_of(answer: Any) -> Layout:
    """The content of the response to a LayoutRequest."""
    has_ids = answer.API_VERSION == _LAYOUT.API_VERSION
    leaders: dict[TopicPartition, Leader] = {}
    ids: dict[str, str] = {}
    for _, topic, *row in answer.topics:
        if has_ids and row[0] != _NO_ID:
            ids[topic] = f"{answer.cluster_id}/{row[0].hex()}"
        for _, number, node, epoch, *_ in row[2 if has_ids else 1]:
            if node >= 0:
                leaders[TopicPartition(topic, number)] = Leader(node, epoch)
    missing = frozenset(topic for error, topic, *_ in answer.topics if error == _NO_TOPIC)
    brokers = {node: (host, port) for node, host, port, *_ in answer.brokers}
    return Layout(leaders, brokers, missing, ids, answer.cluster_id)
