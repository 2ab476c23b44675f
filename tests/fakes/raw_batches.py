"""Record batches built byte by byte, as other clients write them, and as no client should: names and numbers of any
kind."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from aiokafka.client import AIOKafkaClient
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.errors import for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c

from relay.log.kafka.log import KafkaLog
from relay.log.port import TopicPartition

HEADER = struct.Struct(">qiibIhiqqqhii")
BODY_AT = HEADER.size
ENCODERS = {0: bytes, 1: gzip_encode, 2: snappy_encode, 3: lz4_encode, 4: zstd_encode}


def varint(number: int) -> bytes:
    """A zigzag number."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


@dataclass(frozen=True)
class RawRecord:
    """A record as it goes on the wire. `body`: instead of all that the other fields say."""

    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    header_count: int | None = None
    body: bytes | None = None

    def encoded(self, delta: int) -> bytes:
        if self.body is not None:
            return sized(self.body)
        count = len(self.headers) if self.header_count is None else self.header_count
        headers = b"".join(sized(name) + sized(value) for name, value in self.headers)
        return sized(
            b"\0" + varint(delta) + varint(delta) + sized(self.key) + sized(self.value) + varint(count) + headers
        )


@dataclass(frozen=True)
class RawBatch:
    """`attributes`: in place of the codec's. `deltas`: offsets of the records, relative; None: one after the other.
    `epoch`: of the leader that took it. `producer`: -1 for one without transactions."""

    records: Sequence[RawRecord]
    base: int = 0
    codec: int = 0
    attributes: int | None = None
    last_delta: int | None = None
    count: int | None = None
    tail: bytes = b""
    deltas: Sequence[int] | None = None
    timestamp: int = field(default=1_700_000_000_000)
    epoch: int = 0
    producer: int = -1

    @property
    def body(self) -> bytes:
        deltas = self.deltas or range(len(self.records))
        return b"".join(record.encoded(delta) for record, delta in zip(self.records, deltas, strict=True)) + self.tail

    def encoded(self, body: bytes | None = None) -> bytes:
        """The batch; `body`: in place of the compressed records."""
        body = ENCODERS[self.codec](self.body) if body is None else body
        attributes = self.codec if self.attributes is None else self.attributes
        last = len(self.records) - 1 if self.last_delta is None else self.last_delta
        count = len(self.records) if self.count is None else self.count
        latest = self.timestamp + max(0, last)
        after_checksum = struct.pack(
            ">hiqqqhii", attributes, last, self.timestamp, latest, self.producer, -1, -1, count
        )
        checksum = calc_crc32c(after_checksum + body)
        length = BODY_AT - 12 + len(body)
        return struct.pack(">qiibI", self.base, length, self.epoch, 2, checksum) + after_checksum + body

    def at(self, base: int) -> "RawBatch":
        return replace(self, base=base)


async def produce_raw(log: KafkaLog, topic: str, batch: RawBatch, *, partition: int = 0) -> None:
    """Send it as it is, as a client of another make does. Raises the library's error where the broker refuses it."""
    request = ProduceRequest(None, -1, 10_000, [(topic, [(partition, batch.encoded())])])
    ours, place = log._client, TopicPartition(topic, partition)

    async def ask(client: AIOKafkaClient) -> int:
        [leader] = await ours._by_leader(client, [place])
        answer = await ours._send(client, leader, request)
        [(_, [(_, code, *_)])] = answer.topics
        if for_code(code).retriable:
            raise for_code(code)  # a topic that is just being created
        return int(code)

    code = await ours._repeated("producing", ask)
    if code:
        raise for_code(code)(f"the broker refuses it: {code}")
