"""Encoding of the metadata of group members: their subscriptions, and the assignment of each.

A topic is a fingerprint of its name, so that the leader needs no topic names, and thousands of them are a few kB: a
group's record, with the bytes of all members, has to stay well below the limit of a Kafka record.
Another format needs another PROTOCOL: the broker keeps members of different ones apart.
"""

import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from relay.log.groups import MemberSubscription
from relay.log.port import TopicPartition

PROTOCOL: Final = "relay-1"

_WIDTH: Final = 5
"""Bytes of a fingerprint: that two of 5,000 topics share one happens once in 100,000 such sets."""

_PLACE: Final = struct.Struct(f">{_WIDTH}sH")

Place = tuple[bytes, int]
"""Fingerprint of a topic, and number of a partition."""


class _Encoded(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`topics`: as `_packed`. `several`: by fingerprint the partitions of topics that do not have just one. Without
    `unable` where it would be empty."""

    named: bool
    rank: int
    generation: int
    topics: bytes
    several: dict[bytes, int]
    owned: bytes
    unable: bytes = zlib.compress(b"")


_decoder: Final = msgspec.msgpack.Decoder(_Encoded)


class MemberMetadata:
    """Encodes the subscription of a member that wants these topics, and decodes its assignment. `topics`: name ->
    number of partitions. `unable`: as in `MemberSubscription`."""

    def __init__(self, topics: Mapping[str, int], unable: Collection[TopicPartition] = frozenset()) -> None:
        self.unable = unable
        self._names: dict[bytes, list[str]] = {}
        for name in topics:
            self._names.setdefault(fingerprint(name), []).append(name)
        self._topics = dict(topics)
        self._wanted = _packed(map(fingerprint, topics))
        self._several = {fingerprint(name): count for name, count in topics.items() if count != 1}

    def encode(
        self, owned: Collection[TopicPartition], generation: int, *, named: bool = False, rank: int = 0
    ) -> bytes:
        encoded = (named, rank, generation, self._wanted, self._several, _packed_places(owned))
        unable = (_packed_places(self.unable),) if self.unable else ()  # a former release ignores it
        return msgspec.msgpack.encode(encoded + unable)

    def partitions(self, assigned: bytes) -> frozenset[TopicPartition]:
        """The assigned partitions of topics that this member knows and wants."""
        return frozenset(
            TopicPartition(name, number)
            for topic, number in _places(assigned)
            for name in self._names.get(topic, ())
            if number < self._topics.get(name, 0)
        )


@lru_cache(maxsize=65_536)
def fingerprint(topic: str) -> bytes:
    return blake2b(topic.encode(), digest_size=_WIDTH).digest()


def decode_subscription(data: bytes) -> MemberSubscription[Place]:
    """Raises msgspec.DecodeError, zlib.error or struct.error for invalid bytes."""
    read = _decoder.decode(data)
    wants = _wanted(read.topics, tuple(sorted(read.several.items())))
    unable, owned = frozenset(_places(read.unable)), frozenset(_places(read.owned))
    return MemberSubscription(wants, read.named, read.rank, unable, owned, read.generation)


def encode_assignment(places: Collection[Place]) -> bytes:
    return zlib.compress(b"".join(_PLACE.pack(*place) for place in places), 1)


@lru_cache(maxsize=64)
def _wanted(topics: bytes, several: tuple[tuple[bytes, int], ...]) -> frozenset[Place]:
    """Cached, as members of a pool want the same."""
    counts = dict(several)
    return frozenset((topic, n) for topic in _unpacked(topics) for n in range(counts.get(topic, 1)))


def _packed_places(partitions: Collection[TopicPartition]) -> bytes:
    return encode_assignment([(fingerprint(topic), n) for topic, n in sorted(partitions)])


def _places(data: bytes) -> Iterator[Place]:
    return _PLACE.iter_unpack(zlib.decompress(data))


def _packed(fingerprints: Iterable[bytes]) -> bytes:
    """In order, as differences to the one before, all first bytes first: zlib compresses these well."""
    numbers = sorted(int.from_bytes(each) for each in set(fingerprints))
    steps = b"".join((n - m).to_bytes(_WIDTH) for m, n in zip([0, *numbers], numbers, strict=False))
    return zlib.compress(b"".join(steps[plane::_WIDTH] for plane in range(_WIDTH)))


def _unpacked(data: bytes) -> Iterator[bytes]:
    planes = zlib.decompress(data)
    count, number = len(planes) // _WIDTH, 0
    for n in range(count):
        number += int.from_bytes(planes[n::count])
        yield number.to_bytes(_WIDTH)
