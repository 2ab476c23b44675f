"""Messages straight onto `from_sender`, as a sender with a Kafka producer of its own has it: CloudEvents, binary."""

import asyncio
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bench.drawing import Drawing, receiver_name, source_name
from bench.produce import Leader
from bench.wire import Payloads, prefix
from relay.log.partitioner import partition_of

_BATCH_BYTES: Final = 262_144
_Headers = list[tuple[str, bytes]]


class KafkaOutlet:
    """A slice's messages go in one request per leader, with a batch per partition. Not compressed, acks=all."""

    def __init__(self, bootstrap: str, topic: str, drawing: Drawing, payloads: Payloads) -> None:
        self.acked = 0
        self.failed = 0
        self.produced = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._drawing = drawing
        self._payloads = payloads
        self._places: dict[int, tuple[int, bytes, _Headers]] = {}
        self._leaders: list[Leader] = []
        """By partition."""
        self._settled = asyncio.Event()

    async def start(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap)  # for what it learns about the topic
        await producer.start()
        try:
            partitions = sorted(await producer.partitions_for(self._topic))
            cluster = producer.client.cluster
            nodes = [cluster.leader_for_partition(TopicPartition(self._topic, partition)) for partition in partitions]
            addresses = {node: cluster.broker_metadata(node) for node in nodes}
        finally:
            await producer.stop()
        loop, connected = asyncio.get_running_loop(), dict[int, Leader]()
        for node, address in addresses.items():
            leader = Leader(self._topic, self._count)
            await loop.create_connection(lambda leader=leader: leader, address.host, address.port)  # type: ignore[misc]
            connected[node] = leader
        self._leaders = [connected[node] for node in nodes]

    async def send(self, first: int, times_ns: list[int]) -> None:
        building: dict[int, Any] = {}
        counts: dict[int, int] = {}
        pair_of, behind = self._drawing.pair, self._payloads.behind
        for serial, time_ns in enumerate(times_ns, first):
            pair = pair_of(serial)
            partition, key, headers = self._places.get(pair) or self._place(pair)
            value = prefix(time_ns, serial, pair) + behind(serial)
            named = [*headers, ("ce_id", b"%d" % serial)]
            if partition not in building:
                building[partition], counts[partition] = _batch(), 0
            if building[partition].append(counts[partition], None, key, value, named) is None:  # it is full
                self._hand_over(building, counts)
                building, counts = {partition: _batch()}, {partition: 0}
                building[partition].append(0, None, key, value, named)
            counts[partition] += 1
        self._hand_over(building, counts)

    async def flush(self) -> None:
        while not all(leader.idle for leader in self._leaders):
            self._settled.clear()
            await self._settled.wait()

    async def close(self) -> None:
        for leader in self._leaders:
            leader.close()

    def _hand_over(self, building: dict[int, Any], counts: dict[int, int]) -> None:
        by_leader: dict[Leader, list[int]] = {}
        for partition in building:
            by_leader.setdefault(self._leaders[partition], []).append(partition)
        for leader, partitions in by_leader.items():
            batches = {partition: bytes(building[partition].build()) for partition in partitions}
            self.produced += 1
            leader.send(batches, {partition: counts[partition] for partition in partitions})

    def _count(self, error: int, count: int) -> None:
        if error:
            self.failed += count
        else:
            self.acked += count
        self._settled.set()

    def _place(self, pair: int) -> tuple[int, bytes, _Headers]:
        source = source_name(self._drawing.source_of(pair)).encode()
        receiver = receiver_name(self._drawing.receiver_of(pair)).encode()
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_source", source),
            ("ce_type", b"push"),
            ("ce_receiver", receiver),
            ("content-type", b"application/json"),
        ]
        place = self._places[pair] = (partition_of(source, len(self._leaders)), source, headers)
        return place


def _batch() -> Any:
    """The library's own encoder of record batches, which is compiled."""
    return DefaultRecordBatchBuilder(
        2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=0, batch_size=_BATCH_BYTES
    )
