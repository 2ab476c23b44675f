"""Client for requests that the library's producer and consumer do not offer, or not safely.

Metadata requests of the library's clients create missing topics where the broker allows it; these never do.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, TypeVar

from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    NoError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from relay.domain.errors import LogUnavailable
from relay.domain.sliced import sliced
from relay.log.kafka.cluster import LARGEST_BATCH, Isolation, KafkaCluster, LoginRejected, ends_within
from relay.log.kafka.leader_epochs import EpochEnd, EpochQuery, ReadHistory
from relay.log.kafka.metadata import Layout, LayoutRequest, layout_of
from relay.log.kafka.record_batches import FetchedRecords, Unpacking, whole_size
from relay.log.kafka.wire import (
    FetchFrom,
    FetchRequest,
    FetchResponse,
    by_topic,
    epoch_end_request,
)
from relay.log.port import TopicPartition

_RETRY_S: Final = 0.1
_PATIENCE_S: Final = 2.0
"""Time limit in seconds with one broker, for requests that any broker can answer."""

_EARLIEST: Final = -2
_LATEST: Final = -1
PARTITIONS_A_REQUEST: Final = 1_000
TOPICS_A_REQUEST: Final = 200
"""For metadata: the response is decoded in one go."""

LEADER_CHANGES: Final = frozenset({3, 5, 6, 7, 9, 56, 74, 75, 78, 100})
"""Errors of a partition whose leader moved, or is about to: no topic, no leader, not the leader, too slow, no replica,
storage, fenced and unknown leader epoch, offset not there yet, no topic of that id."""

_NO_COORDINATOR: Final = (
    "the group's coordinator is not there yet (a fresh broker takes a moment; with fewer brokers than its "
    "offsets.topic.replication.factor it never comes)"
)

FORBIDDEN: Final = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)

_T = TypeVar("_T")


class Replicas(NamedTuple):
    """A partition: the broker that leads it (-1 if none), and the numbers of its replicas and of those in sync."""

    partition: int
    leader: int
    replicas: int
    in_sync: int


@contextmanager
def kafka_errors(doing: str) -> Iterator[None]:
    """Translate the library's errors to LogUnavailable. `doing`: the operation, for its text."""
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        raise LogUnavailable(f"Kafka: {doing}: {described(error)}") from error
    except AttributeError as error:  # of the library's admin client, if the only broker has just started
        if error.name != "nodeId" or error.obj is not None:
            raise
        raise LogUnavailable(f"Kafka: {doing}: no broker has joined the cluster yet") from error


def described(error: BaseException) -> str:
    """The text of an error: many of the library's have a name and no text."""
    if isinstance(error, GroupCoordinatorNotAvailableError):
        return _NO_COORDINATOR
    if isinstance(error, LoginRejected):
        return str(error.args[0])
    if isinstance(error, FORBIDDEN):
        of_topic = f" on {error.args[0]}" if error.args else ""
        name = type(error).__name__
        return f"{name}: this user lacks the right{of_topic}; `relay rights` prints the commands that give it"
    name = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    text = str(error).removeprefix(f"{name}: ")
    if text.startswith("Unable to bootstrap"):  # then it lists the addresses, in a form for programmers
        return "connection failed"
    return f"{name}: {text}" if text and text != name else name


def no_topic(*names: str) -> LogUnavailable:
    """The error for missing topics, which may be created any moment."""
    return LogUnavailable(f"Kafka: no topic {', '.join(names)}; `relay topics apply` creates it")


class KafkaClient:
    """One set of connections. A request is repeated while its error is temporary, within its timeout.

    Every method may raise LogUnavailable. If no broker answers, the connections are closed, so that the next request
    starts from the bootstrap servers: the cluster may have moved to other addresses.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._client: AIOKafkaClient | None = None
        self._connecting = asyncio.Lock()
        self._leaders: dict[TopicPartition, int] = {}
        self._coordinators: dict[str, int] = {}
        self._closed = False

    async def close(self) -> None:
        """Close for good, in bounded time: requests in flight and later ones raise LogUnavailable."""
        self._closed = True
        await self._disconnect()

    async def topics(self, names: Sequence[str], refused: set[str] | None = None) -> dict[str, list[Replicas]]:
        """The partitions, in order, of the topics that exist. `refused`: gets those that this user may not see, which
        raise LogUnavailable otherwise."""
        return await self._repeated("reading metadata", lambda client: self._metadata(client, names, refused))

    async def existing(self, names: Sequence[str]) -> dict[str, list[Replicas]]:
        """As `topics`. Raises LogUnavailable if one is missing."""
        there = await self.topics(names)
        if missing := [name for name in names if name not in there]:
            raise no_topic(*missing)
        return there

    async def layout(self, names: Sequence[str]) -> Layout:
        """The partitions of these topics; a topic that the cluster cannot describe does not delay the others."""
        return await self.asked("reading metadata", LayoutRequest(names), layout_of)

    async def offsets(
        self, partitions: Iterable[TopicPartition], which: Literal["earliest", "latest", "end"]
    ) -> dict[TopicPartition, int]:
        """The first offset that still exists, the one behind the last readable record, or the end of the log: the
        offset that the next record will get. Open transactions are between the last two."""
        wanted = list(partitions)
        timestamp = _EARLIEST if which == "earliest" else _LATEST
        isolation = Isolation.READ_UNCOMMITTED if which == "end" else self._cluster.isolation

        async def ask(client: AIOKafkaClient) -> dict[TopicPartition, int]:
            offsets: dict[TopicPartition, int] = {}
            for node, led in (await self._by_leader(client, wanted)).items():
                topics = by_topic((partition, (partition.partition, timestamp)) for partition in led)
                answer = await self._send(client, node, OffsetRequest(-1, isolation, topics))
                for topic, rows in answer.topics:
                    for number, error, _, offset in rows:
                        check(error)
                        offsets[TopicPartition(topic, number)] = offset
            return offsets

        return await self._repeated("asking for offsets", ask)

    async def epoch_ends(self, asked: Mapping[TopicPartition, EpochQuery]) -> dict[TopicPartition, EpochEnd]:
        """The leaders' replies, without partitions whose leader is changing."""

        async def ask(client: AIOKafkaClient) -> dict[TopicPartition, EpochEnd]:
            found: dict[TopicPartition, EpochEnd] = {}
            for node, led in (await self._by_leader(client, asked.keys())).items():
                for some in sliced(led, PARTITIONS_A_REQUEST):
                    request = epoch_end_request(by_topic((p, (p.partition, *asked[p])) for p in some))
                    for topic, rows in (await self._send(client, node, request)).topics:
                        for error, number, epoch, end in rows:
                            if error in LEADER_CHANGES:
                                self._leaders.pop(TopicPartition(topic, number), None)
                            else:
                                check(error)
                                found[TopicPartition(topic, number)] = EpochEnd(epoch, end)
            return found

        return await self._repeated("asking for leader epochs", ask)

    async def fetch(
        self, partition: TopicPartition, asked: FetchFrom, *, max_wait_ms: int = 0, history: ReadHistory | None = None
    ) -> FetchedRecords:
        """The records asked for: at least one if there is any, otherwise none after `max_wait_ms`. Unreadable data is
        returned as a record with a flaw, and never stops the reader. `history`: notes leader epochs.

        Raises the library's OffsetOutOfRangeError when the offset is before the first record or behind the end.
        """
        doing = f"reading {partition} at {asked.offset}"
        return await self._repeated(doing, lambda client: self._fetch(client, partition, asked, max_wait_ms, history))

    async def asked(self, doing: str, request: object, read: Callable[[Any], _T]) -> _T:
        """The result of `read` for the response of any broker; as `coordinated`."""

        async def ask(client: AIOKafkaClient) -> _T:
            nodes = [broker.nodeId for broker in client.cluster.brokers()]
            return read(await self._first_to_answer(client, random.sample(nodes, len(nodes)), request))

        return await self._repeated(doing, ask)

    async def coordinated(self, group: str, doing: str, request: object, read: Callable[[Any], _T]) -> _T:
        """The result of `read` for the response of the group's coordinator. `read` may raise the library's errors; the
        retriable ones repeat the request."""

        async def ask(client: AIOKafkaClient) -> _T:
            return read(await self._to_coordinator(client, group, request))

        return await self._repeated(doing, ask)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._forget()
        if client is not None:
            await ends_within(client.close())

    async def _connected(self) -> AIOKafkaClient:
        async with self._connecting:
            if self._closed:
                raise LogUnavailable("Kafka: this connection is closed")
            if self._client is None:
                self._client = await self._cluster.client(self._cluster.request_timeout_ms)
            return self._client

    async def _repeated(self, doing: str, ask: Callable[[AIOKafkaClient], Awaitable[_T]]) -> _T:
        """The result of `ask`. Raises LogUnavailable, or OffsetOutOfRangeError."""
        last: KafkaError | None = None
        clock, cluster = asyncio.get_running_loop().time, self._cluster
        repeat_until = clock() + (cluster.request_timeout_s if cluster.repeat_s is None else cluster.repeat_s)
        try:
            async with asyncio.timeout(cluster.request_timeout_s):
                while True:
                    client = await self._connected()
                    try:
                        return await ask(client)
                    except KafkaError as error:
                        if not error.retriable or clock() >= repeat_until:
                            raise
                        last = error
                    self._forget()
                    await asyncio.sleep(_RETRY_S)
        except OffsetOutOfRangeError:
            raise
        except (KafkaError, OSError, TimeoutError) as error:
            if last is not None or isinstance(error, TimeoutError):
                await self._disconnect()
            raise LogUnavailable(f"Kafka: {doing}: {described(last or error)}") from error

    async def _send(self, client: AIOKafkaClient, node: int, request: object) -> Any:
        """The response, in the shape of the library's schema: callers decode it at once."""
        current = self._client
        if current is None or current is not client:
            raise KafkaConnectionError("the connection was given up meanwhile")
        return await current.send(node, request)

    async def _first_to_answer(self, client: AIOKafkaClient, nodes: Sequence[int], request: object) -> Any:
        """The response of the first broker that answers: one that is frozen, or cut off, does not delay another."""
        for node in nodes:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    return await self._send(client, node, request)
            except (KafkaConnectionError, NodeNotReadyError, TimeoutError):
                continue
        raise KafkaConnectionError("no broker answers")

    async def _to_coordinator(self, client: AIOKafkaClient, group: str, request: object) -> Any:
        node = self._coordinators.get(group)
        if node is None:
            node = self._coordinators[group] = await client.coordinator_lookup(CoordinationType.GROUP, group)
        return await self._send(client, node, request)

    def _forget(self) -> None:
        self._leaders.clear()
        self._coordinators.clear()

    async def _metadata(
        self, client: AIOKafkaClient, names: Sequence[str], refused: set[str] | None = None
    ) -> dict[str, list[Replicas]]:
        if not names:
            return {}  # an empty list means no topics in some versions, and all topics in others
        request = MetadataRequest(list(names), allow_auto_topic_creation=False)
        answer = await self._send(client, client.get_random_node(), request)
        found: dict[str, list[Replicas]] = {}
        for error, topic, _, partitions in answer.topics:
            if for_code(error) is UnknownTopicOrPartitionError:
                continue
            if for_code(error) is TopicAuthorizationFailedError:
                if refused is None:
                    raise TopicAuthorizationFailedError(topic)
                refused.add(topic)
                continue
            check(error)
            found[topic] = sorted(
                Replicas(number, leader, len(copies), len(in_sync))
                for _, number, leader, copies, in_sync, *_ in partitions
            )
            self._leaders.update({TopicPartition(topic, each.partition): each.leader for each in found[topic]})
        if len(found) == len(set(names)):
            client.cluster.update_metadata(answer)  # keeps the brokers' addresses current
        return found

    async def _by_leader(
        self, client: AIOKafkaClient, partitions: Collection[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        unknown = sorted({partition.topic for partition in partitions if partition not in self._leaders})
        for some in sliced(unknown, TOPICS_A_REQUEST):
            await self._metadata(client, some)
        led: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            if partition not in self._leaders:
                raise UnknownTopicOrPartitionError(f"{partition} does not exist")
            if self._leaders[partition] == -1:
                raise LeaderNotAvailableError(f"{partition} has no leader")
            led.setdefault(self._leaders[partition], []).append(partition)
        return led

    async def _fetch(
        self,
        client: AIOKafkaClient,
        at: TopicPartition,
        asked: FetchFrom,
        max_wait_ms: int,
        history: ReadHistory | None,
    ) -> FetchedRecords:
        isolation, most = self._cluster.isolation, self._cluster.max_record_bytes
        request = FetchRequest({at: asked}, max_wait_ms=max_wait_ms, max_bytes=asked.max_bytes, isolation=isolation)
        while True:
            [leader] = await self._by_leader(client, [at])
            answer: FetchResponse = await self._send(client, leader, request)
            check(answer.error)
            [(_, error, end, data, aborted, stable)] = answer.parts
            check(error)
            if len(data) < (size := whole_size(data)) and asked.max_bytes < size <= LARGEST_BATCH:
                larger = asked._replace(max_bytes=size)  # of a broker that cuts it
                return await self._fetch(client, at, larger, max_wait_ms, history)
            start = asked.offset
            chunk = Unpacking(
                at, data, start=start, end=end, max_bytes=most, aborted=aborted, history=history
            ).take_all()
            if chunk.next_offset > start or not answer.throttle_ms:
                return chunk._replace(end=stable) if isolation is Isolation.READ_COMMITTED and stable >= 0 else chunk
            await asyncio.sleep(answer.throttle_ms / 1000)  # empty because of a quota, not because of the log


def check(code: int) -> None:
    error = for_code(code)
    if error is not NoError:
        raise error()
