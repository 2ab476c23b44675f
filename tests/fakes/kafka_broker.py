"""Kafka brokers that speak of nothing but fetching, over real sockets: they do what a real one does only by chance."""

import asyncio
import contextlib
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO

from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11

from relay.domain.errors import LogUnavailable
from relay.log.kafka.leader_epochs import UNKNOWN, EpochEnd, EpochQuery
from relay.log.kafka.metadata import Layout, Leader
from relay.log.port import TopicPartition
from tests.fakes.raw_batches import RawBatch

_FETCH, _VERSIONS = 1, 18
_HEADER = struct.Struct(">hhi")
_OUT_OF_RANGE, _FENCED, _UNKNOWN_SESSION, _WRONG_EPOCH = 1, 74, 70, 71

Row = tuple[int, int, int, int, int, list[tuple[int, int]], int, bytes]
"""Of an answer: partition, error, high watermark, last stable offset, log start, aborted, preferred, data."""


@dataclass
class Asking:
    """A fetch request as it came. `all`: with what the session had before. `answered`: set when it was."""

    connection: int
    size: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session: int
    epoch: int
    wanted: dict[TopicPartition, tuple[int, int]]
    forgotten: list[TopicPartition]
    all: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class FakeLog:
    """Of one partition. `hidden`: records at its end that are above the high watermark. `epochs`: (first offset, leader
    epoch), ascending. `aborted`: (producer, first offset)."""

    start: int = 0
    end: int = 0
    hidden: int = 0
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)

    def cut(self, end: int) -> None:
        """It has lost what was from `end` on."""
        self.batches = [(behind, data) for behind, data in self.batches if behind <= end]
        self.end = end
        self.epochs = [(first, epoch) for first, epoch in self.epochs if first < end]

    def epoch_end(self, epoch: int) -> EpochEnd:
        """As Kafka answers."""
        known = [each for _, each in self.epochs]
        if epoch == max(known, default=UNKNOWN):
            return EpochEnd(epoch, self.end)
        above = [first for first, each in self.epochs if each > epoch]
        if not above:
            return EpochEnd(UNKNOWN, UNKNOWN)
        return EpochEnd(max((each for each in known if each <= epoch), default=epoch), above[0])

    def read(self, offset: int) -> bytes:
        """All from the batch on that has `offset`."""
        return b"".join(data for end, data in self.batches if end > offset and end <= self.end - self.hidden)


class FakeBroker:
    """`asked`: what came, in order. `errors`: answered for partitions instead of records. `grants`: sessions.

    `epochs`: of the leaders that it was last taken for. `deaf`: takes requests and answers none. `whole_first`: as
    Kafka does since KIP-74, else a batch is cut like others.
    """

    def __init__(self, node: int = 1) -> None:
        self.node = node
        self.port = 0
        self.asked: list[Asking] = []
        self.errors: dict[TopicPartition, int] = {}
        self.grants = True
        self.deaf = False
        self.whole_first = True
        self.throttle_ms = 0
        self.logs: dict[TopicPartition, FakeLog] = defaultdict(FakeLog)
        self.epochs: dict[TopicPartition, int] = {}
        self.fenced: dict[TopicPartition, int] = {}
        """Who asks with an older epoch than this one is refused."""
        self.sessions: dict[int, tuple[int, dict[TopicPartition, tuple[int, int]]]] = {}
        self.changed = asyncio.Condition()
        self.connections = 0
        self._ids = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """At the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._serving.clear()
        self.sessions.clear()

    async def append(self, at: TopicPartition, *batches: RawBatch, encoded: bytes | None = None) -> None:
        """`encoded`: instead of what the batch is."""
        log = self.logs[at]
        for batch in batches:
            size = len(batch.records)
            log.batches.append((log.end + size, encoded or batch.at(log.end).encoded()))
            if batch.epoch > max((epoch for _, epoch in log.epochs), default=UNKNOWN):
                log.epochs.append((log.end, batch.epoch))
            log.end += size
        await self.notify()

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], object]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)

    async def until_asked(self, count: int = 1) -> Asking:
        """The `count`-th request, from now on."""
        number = len(self.asked) + count
        await self.until(lambda: len(self.asked) >= number)
        return self.asked[number - 1]

    async def until_long(self) -> Asking:
        """A request that a broker holds for long, and that it has not answered."""

        def is_long() -> bool:
            return bool(self.asked) and not self.asked[-1].answered.is_set() and self.asked[-1].max_wait_ms > 1_000

        await self.until(is_long)
        return self.asked[-1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        number = self.connections
        try:
            while True:
                [size] = struct.unpack(">i", await reader.readexactly(4))
                frame = BytesIO(await reader.readexactly(size))
                key, version, correlation = _HEADER.unpack(frame.read(_HEADER.size))
                [client] = struct.unpack(">h", frame.read(2))
                frame.read(client)
                if key == _VERSIONS:
                    body = ApiVersionResponse_v0(0, [(_VERSIONS, 0, 0), (_FETCH, 4, 16)]).encode()
                else:
                    assert (key, version) == (_FETCH, 11)
                    body = (await self._fetch(number, size, FetchRequest_v11.decode(frame))).encode()
                writer.write(struct.pack(">ii", len(body) + 4, correlation) + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._serving.discard(task)

    async def _fetch(self, connection: int, size: int, request: FetchRequest_v11) -> FetchResponse_v11:
        wanted = {
            TopicPartition(topic, partition): (offset, most)
            for topic, rows in request.topics
            for partition, epoch, offset, _, most in rows
            if self.epochs.update({TopicPartition(topic, partition): epoch}) is None
        }
        forgotten = [TopicPartition(topic, number) for topic, rows in request.forgotten_topics_data for number in rows]
        ask = Asking(
            *(connection, size, request.max_wait_time, request.min_bytes, request.max_bytes),
            *(request.session_id, request.session_epoch, wanted, forgotten),
        )
        error = self._enter(ask)
        self.asked.append(ask)
        await self.notify()
        if self.deaf:
            await asyncio.Event().wait()
        if not error:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ask.max_wait_ms / 1000), self.changed:
                    await self.changed.wait_for(lambda: any(row[1] or row[-1] for row in self._rows(ask).values()))
        rows = {} if error else self._rows(ask)
        ask.answered.set()
        if ask.epoch > 0:
            rows = {at: row for at, row in rows.items() if row[1] or row[-1]}
        session = self._leave(ask, rows)
        await self.notify()
        return FetchResponse_v11(self.throttle_ms, error, session, _by_topic(rows))

    def _enter(self, ask: Asking) -> int:
        """As KIP-227 has it."""
        if ask.epoch <= 0:
            self.sessions.pop(ask.session, None)
            ask.all = dict(ask.wanted)
            return 0
        if ask.session not in self.sessions:
            return _UNKNOWN_SESSION
        epoch, known = self.sessions[ask.session]
        if epoch != ask.epoch:
            return _WRONG_EPOCH
        known.update(ask.wanted)
        for at in ask.forgotten:
            del known[at]
        ask.all = dict(known)
        return 0

    def _leave(self, ask: Asking, rows: Iterable[TopicPartition]) -> int:
        if ask.epoch > 0 and ask.session in self.sessions:
            epoch, known = self.sessions[ask.session]
            for at in rows:
                if at in known:
                    known[at] = known.pop(at)  # behind the others, as Kafka does it
            self.sessions[ask.session] = epoch + 1, known
            return ask.session
        if ask.epoch == 0 and self.grants:
            self._ids += 1
            self.sessions[self._ids] = 1, dict(ask.all)
            return self._ids
        return 0

    def _rows(self, ask: Asking) -> dict[TopicPartition, Row]:
        rows: dict[TopicPartition, Row] = {}
        room, first = ask.max_bytes, True
        for at, (offset, most) in ask.all.items():
            log, error, data = self.logs[at], self.errors.get(at, 0), b""
            high = log.end - log.hidden
            if not error and self.epochs.get(at, -1) < self.fenced.get(at, -1):
                error = _FENCED
            elif not error and not log.start <= offset <= log.end:
                error = _OUT_OF_RANGE
            elif not error:
                data = log.read(offset)
                whole = 12 + struct.unpack_from(">i", data, 8)[0] if data else 0
                if len(data) > min(room, most):
                    data = (
                        data[: max(whole, min(room, most))] if first and self.whole_first else data[: min(room, most)]
                    )
                    if self.whole_first and len(data) < whole:
                        data = b""
                first = first and not data
                room = max(0, room - len(data))
            rows[at] = (at.partition, error, high, high, log.start, log.aborted, -1, data)
        return rows


class FakeKafka:
    """Brokers, and `leaders`: the leader of each partition since which epoch. The first broker leads partitions that
    are not in there.

    `lookups`: topics that clients have asked for.
    """

    def __init__(self, brokers: Sequence[FakeBroker]) -> None:
        self.brokers = brokers
        self.leaders: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.lookups: list[list[str]] = []
        self.away = False
        self.partitions: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.ids: dict[str, str] = {}
        self.unproved = False
        self.proofs: list[dict[TopicPartition, EpochQuery]] = []
        self.changed = asyncio.Condition()

    async def until_looked_up(self, count: int) -> None:
        """So often, from now on."""
        number = len(self.lookups) + count
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.lookups) >= number)

    async def until_proved(self, count: int) -> None:
        """So often, in all."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.proofs) >= count)

    async def layout(self, names: Sequence[str]) -> Layout:
        async with self.changed:
            self.lookups.append(list(names))
            self.changed.notify_all()
        if self.away:
            raise LogUnavailable("Kafka: reading metadata: nobody answers")
        first = self.brokers[0].node
        leaders = {
            at: Leader(self.leaders.get(at, first), self.epochs.get(at, 0))
            for name in names
            if name not in self.deleted
            for number in range(self.partitions.get(name, 4))
            if self.leaders.get(at := TopicPartition(name, number), first) != -1
        }
        brokers = {broker.node: ("127.0.0.1", broker.port) for broker in self.brokers}
        return Layout(leaders, brokers, frozenset(self.deleted.intersection(names)), self.ids)

    async def epoch_ends(self, asked: Mapping[TopicPartition, EpochQuery]) -> dict[TopicPartition, EpochEnd]:
        """Of those whose leader is as `asked` has it."""
        async with self.changed:
            self.proofs.append(dict(asked))
            self.changed.notify_all()
        if self.away or self.unproved:
            raise LogUnavailable("Kafka: asking for leader epochs: no broker answers")
        brokers = {broker.node: broker for broker in self.brokers}
        return {
            at: brokers[self.leaders.get(at, self.brokers[0].node)].logs[at].epoch_end(ask.written)
            for at, ask in asked.items()
            if ask.leader == self.epochs.get(at, 0)
        }


@contextlib.asynccontextmanager
async def fake_kafka(brokers: int = 1) -> AsyncIterator[FakeKafka]:
    kafka = FakeKafka([FakeBroker(node) for node in range(1, brokers + 1)])
    for broker in kafka.brokers:
        await broker.start()
    try:
        yield kafka
    finally:
        for broker in kafka.brokers:
            await broker.stop()


def _by_topic(rows: Mapping[TopicPartition, Row]) -> list[tuple[str, list[Row]]]:
    topics: dict[str, list[Row]] = {}
    for at, row in rows.items():
        topics.setdefault(at.topic, []).append(row)
    return list(topics.items())
