"""Partitioner: murmur2 as in Kafka's default one, so that every log has the records of a key in the same partition."""

from collections.abc import Mapping
from functools import lru_cache
from struct import unpack_from
from typing import Final

from relay.log.port import TopicPartition, Unable

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of `data`, unsigned, in [0, 2**32).

    Source: org.apache.kafka.common.utils.Utils.murmur2 (little-endian MurmurHash2 with Kafka's seed).
    """
    h = _SEED ^ len(data)
    whole = len(data) & ~3
    for word in unpack_from(f"<{whole >> 2}I", data):
        k = word * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=8_192)  # a source's records share one key; hashing in Python costs microseconds, an entry 300 bytes
def partition_of(key: bytes | None, partitions: int) -> int:
    """The partition, in [0, partitions), of records with `key`. Records without a key go to partition 0."""
    if key is None:
        return 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_of(keys: Unable, counts: Mapping[str, int]) -> frozenset[TopicPartition]:
    """The partitions of records with these keys. `counts`: number of partitions by topic."""
    return frozenset(
        TopicPartition(topic, partition_of(key, counts[topic]))
        for topic in keys.keys() & counts.keys()
        for key in keys[topic]
    )


def place_of(key: bytes | None, spread: int, partitions: int) -> int:
    """The partition of a record that is spread over `spread` of a topic's partitions; see `NewRecord`."""
    return partition_of(key, spread if 0 < spread < partitions else partitions)
