"""Fetching from one broker: a long poll for all wanted partitions, on a connection of its own, and beside it short
requests for those that are wanted since. And which link fetches which partition: a broker has one, or two if it leads
many partitions.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError, KafkaError

from relay.log.kafka.cluster import GATHER_S, KafkaCluster, ends_within
from relay.log.kafka.feed import Feed, FetchMemory
from relay.log.kafka.fetch_session import FEW, FetchSession, PollPace, most_bytes
from relay.log.kafka.wire import FetchedPartition, FetchFrom, FetchRequest, FetchResponse
from relay.log.port import TopicPartition

LONG_WAIT_S: Final = 5.0
"""Time for which the broker waits for records in a long poll; a record ends the wait."""

_SHORT_WAIT_S: Final = 0.04
"""The same for a short request, which bounds the wait of the next wanted partition."""

_GRACE_S: Final = 0.005
"""Time for the long poll to return before a short request is sent beside it."""

_LEAST_WAIT_S: Final = 0.01
_RENEWED_S: Final = 60.0
"""Interval of full requests: nothing else would show that a partition is missing from a session."""

_LOST: Final = (KafkaError, OSError, TimeoutError, NotImplementedError, RuntimeError)
"""Errors of a lost connection. RuntimeError is uvloop's, which has closed the transport before the library notices."""

_IDLE_MS: Final = 540_000

QUIET_S: Final = 30.0
"""A partition without records for this long is moved to the quiet link of its broker."""

_SORT_S: Final = 5.0


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Owner(Protocol):
    """The owner of all links. `memory`: of the data that they fetch."""

    memory: FetchMemory

    def polls(self, link: "Link") -> None:
        """Its next long poll will have all that it is to fetch now."""

    def arrived(self, at: TopicPartition, part: FetchedPartition) -> None:
        """A response has records for a wanted partition."""

    def announce(self) -> None:
        """All partitions of a response have been reported."""

    def answered(self, link: "Link") -> None:
        """Every requested partition was answered, and those in order were reported."""

    def failed(self, link: "Link") -> None:
        """The connection is lost, with the requests in flight."""


class Link:
    """Fetches from one broker. `run` works until it is cancelled; `changed` is called for each change of a partition.

    A broker answers the requests of a connection one after the other: that is why there are two. A response counts
    only if it is for the offset that is wanted now, so no record is delivered twice, however often it was requested.

    `busy_since`: when the current request began, on `clock`; None while no partition is wanted, or memory is full.
    """

    def __init__(self, address: BrokerAddress, cluster: KafkaCluster, owner: Owner, clock: Callable[[], float]) -> None:
        self.address = address
        self.session = FetchSession()
        self.busy_since: float | None = None
        self._cluster = cluster
        self._owner = owner
        self._clock = clock
        self._connections: dict[str, AIOKafkaConnection] = {}
        self._wake = asyncio.Event()
        self._late = asyncio.Event()
        self._polling_until: float | None = None
        self._changed_at = self._renewed_at = clock()
        self._idle_until = clock()
        self._pace = PollPace()
        self._flowing = False
        """The last answer brought records."""

    @property
    def is_polling(self) -> bool:
        return self._polling_until is not None

    def add(self, feed: Feed) -> None:
        self.session.feeds[feed.at] = feed
        self.changed(feed.at)

    def remove(self, at: TopicPartition) -> None:
        """Leave it out of the next request; the current one need not end earlier."""
        del self.session.feeds[at]
        self.session.changed(at)
        self._wake.set()

    def changed(self, at: TopicPartition) -> None:
        """Check this partition again: it became wanted or unwanted, or its offset changed."""
        late = self.session.changed(at)
        self._changed_at = self._clock()
        self._wake.set()
        if late and self._polling_until is not None:
            self._late.set()

    def move(self, address: BrokerAddress) -> None:
        """The broker has another address now."""
        if address != self.address:
            self.address = address
            self._disconnect()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._polls())
            tasks.create_task(self._short_requests())

    async def close(self) -> None:
        """Close for good, in bounded time, after `run` has ended."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            if (closed := connection.close()) is not None:
                await ends_within(closed)

    async def _polls(self) -> None:
        while True:
            self.busy_since = None
            while self.session.is_empty:
                self._wake.clear()
                await self._wake.wait()
            await self._owner.memory.room()
            now = self._clock()
            await asyncio.sleep(max(self._idle_until - now, self._pace.pause_s(now)))
            self._owner.polls(self)
            if self.session.is_empty:
                continue
            self.busy_since = now = self._clock()
            if now - self._renewed_at > _RENEWED_S:
                self.session.renew()
                self._renewed_at = now
            wait_s = min(LONG_WAIT_S, max(_LEAST_WAIT_S, now - self._changed_at))
            least_bytes = self._cluster.gather_bytes if self._flowing else 1
            if least_bytes > 1:
                wait_s = min(wait_s, GATHER_S)
            request = self.session.request(round(wait_s * 1000), least_bytes, self._cluster.isolation)
            self._polling_until = now + wait_s
            self._pace.polled(now, len(self.session.asked))
            answer = await self._answer("long", request, wait_s)
            self._polling_until = None
            if answer is not None and self.session.answered(answer):
                self._handle(answer, self.session.asked)
                self._owner.answered(self)

    async def _short_requests(self) -> None:
        while True:
            await self._late.wait()
            await asyncio.sleep(_GRACE_S)
            await self._owner.memory.room()
            self._late.clear()
            while self._polling_until is not None and (late := self.session.late()):
                wait_s = min(_SHORT_WAIT_S, max(0.0, self._polling_until - self._clock()))
                request = FetchRequest(
                    late,
                    max_wait_ms=round(wait_s * 1000),
                    max_bytes=most_bytes(late),
                    isolation=self._cluster.isolation,
                )
                answer = await self._answer("short", request, wait_s)
                if answer is None:
                    break
                self._handle(answer, late)
                await self._owner.memory.room()

    async def _answer(self, name: str, request: FetchRequest, wait_s: float) -> FetchResponse | None:
        """None if the connection failed, which was reported to the owner."""
        try:
            connection = await self._connected(name)
            answer: FetchResponse = await connection.send(request)
            return answer
        except _LOST:
            self._fail()
            return None

    async def _connected(self, name: str) -> AIOKafkaConnection:
        connection = self._connections.get(name)
        if connection is None or not connection.connected():
            address = self.address
            timeout_ms = round(LONG_WAIT_S * 1000) + self._cluster.request_timeout_ms
            connection = await self._cluster.connection(*address, request_timeout_ms=timeout_ms, max_idle_ms=_IDLE_MS)
            if address != self.address:
                connection.close()
                raise KafkaConnectionError("the broker has moved")
            self._connections[name] = connection
        return connection

    def _handle(self, answer: FetchResponse, asked: Mapping[TopicPartition, FetchFrom]) -> None:
        if answer.error:
            self._fail()
            return
        feeds, session = self.session.feeds, self.session
        self._flowing = any(part.data for part in answer.parts)
        for part in answer.parts:
            feed, was = feeds.get(part.at), asked.get(part.at)
            if feed is None or was is None or feed.wanted is None or feed.wanted.offset != was.offset:
                continue  # not wanted any more, or from another offset
            self._owner.arrived(part.at, part)
            if feed.wanted is None and feeds.get(part.at) is feed:
                self._changed_at = self._clock()  # it is wanted again soon: a long poll that lacks it must not last
            session.changed(part.at)
            session.served(part.at)
        if answer.throttle_ms:
            self._idle_until = self._clock() + answer.throttle_ms / 1000
        self._owner.announce()

    def _fail(self) -> None:
        self._disconnect()
        self._owner.failed(self)

    def _disconnect(self) -> None:
        self.session.restart()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class _Pair:
    """`quiet`: None while the broker has few partitions."""

    def __init__(self, address: BrokerAddress, busy: Link) -> None:
        self.address = address
        self.busy = busy
        self.quiet: Link | None = None
        self.sorted_at = float("-inf")

    @property
    def links(self) -> tuple[Link, ...]:
        return (self.busy,) if self.quiet is None else (self.busy, self.quiet)


class Links:
    """All links of a process, and their partitions.

    A broker looks at all partitions of a session for each request. Beyond FEW, those that bring no records are
    therefore in a session of their own, which waits for seconds, while the other one is as large as its traffic. A
    partition begins there, and is moved by its first record.
    """

    def __init__(self, new: Callable[[BrokerAddress], Link], clock: Callable[[], float]) -> None:
        self._new = new
        self._clock = clock
        self._pairs: dict[int, _Pair] = {}
        self._pair_of: dict[Link, _Pair] = {}
        self._link_of: dict[TopicPartition, Link] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(self._pair_of)

    def set_address(self, node: int, address: BrokerAddress) -> None:
        """The broker has this address now."""
        if (pair := self._pairs.get(node)) is None:
            pair = self._pairs[node] = _Pair(address, self._new(address))
            self._pair_of[pair.busy] = pair
        pair.address = address
        for link in pair.links:
            link.move(address)

    def link_of(self, at: TopicPartition) -> Link | None:
        return self._link_of.get(at)

    def add(self, feed: Feed, node: int) -> None:
        """Fetch it from this broker."""
        pair = self._pairs[node]
        self._move(feed, pair.busy if len(pair.busy.session.feeds) < FEW else self._quiet(pair))

    def remove(self, at: TopicPartition) -> None:
        if (link := self._link_of.pop(at, None)) is not None:
            link.remove(at)

    def changed(self, at: TopicPartition) -> None:
        if (link := self._link_of.get(at)) is not None:
            link.changed(at)

    def got_records(self, feed: Feed) -> None:
        feed.filled_at = self._clock()
        if (pair := self._pair_of[self._link_of[feed.at]]).busy is not self._link_of[feed.at]:
            self._move(feed, pair.busy)

    def sort(self, link: Link) -> None:
        """Move partitions without records from the busy link of this broker to the quiet one. `link`: the next to poll;
        a quiet link that polls already would have to request them beside it."""
        pair, now = self._pair_of[link], self._clock()
        feeds = pair.busy.session.feeds
        if len(feeds) <= FEW or now - pair.sorted_at < _SORT_S or (pair.quiet is not None and pair.quiet.is_polling):
            return
        pair.sorted_at = now
        for feed in [feed for feed in feeds.values() if now - feed.filled_at > QUIET_S and feed.wanted is not None]:
            self._move(feed, self._quiet(pair))

    def _quiet(self, pair: _Pair) -> Link:
        if pair.quiet is None:
            pair.quiet = self._new(pair.address)
            self._pair_of[pair.quiet] = pair
        return pair.quiet

    def _move(self, feed: Feed, link: Link) -> None:
        self.remove(feed.at)
        self._link_of[feed.at] = link
        link.add(feed)
