"""Fetching from one broker: a long poll for all wanted partitions, on a connection of its own, and beside it short
requests for those that are wanted since.

A fetch session lets a request name only the changes, as the broker remembers the partitions (KIP-227). A broker that
grants no session, or has forgotten it, gets full requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code

from relay.log.kafka.cluster import FETCH_ALL_BYTES, GATHER_S, Isolation, KafkaCluster, ends_within
from relay.log.kafka.feed import Feed
from relay.log.kafka.wire import NO_SESSION, Asked, FetchAnswer, FetchAsk, FetchedPartition
from relay.log.port import TopicPartition

LONG_WAIT_S: Final = 5.0
"""The broker holds an empty long poll so long; a record ends it at once."""

_SHORT_WAIT_S: Final = 0.04
"""The same of a short request, so that whatever is wanted next waits no longer than that."""

_GRACE_S: Final = 0.005
"""The long poll has so long to return before a short request is sent beside it."""

_LEAST_WAIT_S: Final = 0.01
_RENEWED_S: Final = 60.0
"""A session gets a full request so often: nothing else would show that a partition is missing from it."""

_CLOSE_S: Final = 2.0
_LOST: Final = (KafkaError, OSError, TimeoutError, NotImplementedError, RuntimeError)
"""What asking raises when the connection is gone; RuntimeError is uvloop's, where it has closed the transport, and the
library, which reads, has not seen that yet."""

_IDLE_MS: Final = 540_000
_FIRST_EPOCH: Final = 0
_LAST_EPOCH: Final = 2**31 - 1
SESSION_ID_NOT_FOUND: Final = 70
INVALID_SESSION_EPOCH: Final = 71


class FetchSession:
    """The partitions of one broker. `feeds`: all that it leads; `asked`: what it has been asked for and will be again
    with every request, until that changes."""

    def __init__(self) -> None:
        self.feeds: dict[TopicPartition, Feed] = {}
        self.asked: dict[TopicPartition, Asked] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._id = NO_SESSION
        self._epoch = _FIRST_EPOCH

    def changed(self, at: TopicPartition) -> bool:
        """Look at this partition again. True: it waits for records that it was not asked for."""
        feed = self.feeds.get(at)
        wanted = None if feed is None else feed.wanted
        if wanted == self.asked.get(at):
            self._changed.pop(at, None)
            return False
        self._changed[at] = None
        return wanted is not None

    def served(self, at: TopicPartition) -> None:
        """Records came of it: the others come before it in the next request."""
        if at in self.asked:
            self.asked[at] = self.asked.pop(at)
        if at in self._changed:
            del self._changed[at]
            self._changed[at] = None

    def late(self) -> dict[TopicPartition, Asked]:
        """Wanted partitions that were not requested yet."""
        return {
            at: wanted
            for at in self._changed
            if (feed := self.feeds.get(at)) is not None and (wanted := feed.wanted) is not None
        }

    @property
    def is_empty(self) -> bool:
        """Nothing is wanted."""
        return not self.late() and self.asked.keys() <= self._changed.keys()

    def request(self, max_wait_ms: int, min_bytes: int, isolation: Isolation) -> FetchAsk:
        """The next request, for all that is wanted."""
        late = self.late()
        forgotten = [at for at in self._changed if at not in late and self.asked.pop(at, None) is not None]
        self.asked.update(late)
        self._changed.clear()
        anew = self._epoch == _FIRST_EPOCH
        return FetchAsk(
            self.asked if anew else late,
            max_wait_ms=max_wait_ms,
            max_bytes=most_bytes(self.asked if anew else late),
            min_bytes=min_bytes,
            isolation=isolation,
            forgotten=() if anew else forgotten,
            session=self._id,
            epoch=self._epoch,
        )

    def answered(self, answer: FetchAnswer) -> bool:
        """Take note of the session in the answer to `request`. False: it was refused, so that nothing else is in it."""
        if answer.error in (SESSION_ID_NOT_FOUND, INVALID_SESSION_EPOCH):
            self.restart()
            return False
        self._id = answer.session
        if self._id == NO_SESSION:
            self._epoch = _FIRST_EPOCH
        else:
            self._epoch = self._epoch % _LAST_EPOCH + 1
        return True

    def renew(self) -> None:
        """Send a full request next time."""
        self._epoch = _FIRST_EPOCH

    def restart(self) -> None:
        """As `renew`, with a broker that does not know of the session, or a new connection."""
        self._id = NO_SESSION
        self._epoch = _FIRST_EPOCH


def most_bytes(asked: Mapping[TopicPartition, Asked]) -> int:
    """Of the answer to a request for these."""
    return max(FETCH_ALL_BYTES, max((each.max_bytes for each in asked.values()), default=0))


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Owner(Protocol):
    """Of all links."""

    def arrived(self, at: TopicPartition, part: FetchedPartition) -> None:
        """There is an answer to what was wanted of a partition."""

    def told(self) -> None:
        """All that one answer brought has been said."""

    def answered(self, link: "Link") -> None:
        """Every requested partition was answered, and those in order were reported."""

    def failed(self, link: "Link", error: Exception) -> None:
        """The connection is gone, and what was asked for with it."""

    async def room(self) -> None:
        """Returns when there is memory for another answer."""


class Link:
    """To one broker. `run` works until it is cancelled; `add`, `remove` and `changed` set the wanted partitions.

    A broker answers the requests of a connection one after the other: that is why there are two. A response counts
    only if it is for what is wanted now, so no record is delivered twice, however often it was requested.

    `busy_since`: when the present turn began, on `clock`; None while there is nothing to ask for, or no room.
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
        self._flowing = False
        """The last answer brought records."""

    def changed(self, at: TopicPartition) -> None:
        """This partition is wanted, or wanted from elsewhere, or not wanted any more."""
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
        """For good, in bounded time, after `run` has ended."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            if (closed := connection.close()) is not None:
                await ends_within(_ending(closed), _CLOSE_S)

    async def _polls(self) -> None:
        while True:
            self.busy_since = None
            while self.session.is_empty:
                self._wake.clear()
                await self._wake.wait()
            await self._owner.room()
            await asyncio.sleep(self._idle_until - self._clock())
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
            answer = await self._answer("long", request, wait_s)
            self._polling_until = None
            if answer is not None and self.session.answered(answer):
                self._heed(answer, self.session.asked)
                self._owner.answered(self)

    async def _short_requests(self) -> None:
        while True:
            await self._late.wait()
            await asyncio.sleep(_GRACE_S)
            await self._owner.room()
            self._late.clear()
            while self._polling_until is not None and (late := self.session.late()):
                wait_s = min(_SHORT_WAIT_S, max(0.0, self._polling_until - self._clock()))
                request = FetchAsk(
                    late,
                    max_wait_ms=round(wait_s * 1000),
                    max_bytes=most_bytes(late),
                    isolation=self._cluster.isolation,
                )
                answer = await self._answer("short", request, wait_s)
                if answer is None:
                    break
                self._heed(answer, late)
                await self._owner.room()

    async def _answer(self, name: str, request: FetchAsk, wait_s: float) -> FetchAnswer | None:
        """None: the connection failed, which its owner knows by now."""
        try:
            connection = await self._connected(name)
            answer: FetchAnswer = await connection.send(request)
            return answer
        except _LOST as error:
            self._fail(error)
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

    def _heed(self, answer: FetchAnswer, asked: Mapping[TopicPartition, Asked]) -> None:
        if answer.error:
            self._fail(for_code(answer.error)())
            return
        feeds, session = self.session.feeds, self.session
        self._flowing = any(part.data for part in answer.parts)
        for part in answer.parts:
            feed, was = feeds.get(part.at), asked.get(part.at)
            if feed is None or was is None or feed.wanted is None or feed.wanted.offset != was.offset:
                continue  # not wanted any more, or from elsewhere
            self._owner.arrived(part.at, part)
            if feed.wanted is None:
                self._changed_at = self._clock()  # it will be wanted again: a long poll without it must not last
            session.changed(part.at)
            session.served(part.at)
        if answer.throttle_ms:
            self._idle_until = self._clock() + answer.throttle_ms / 1000
        self._owner.told()

    def _fail(self, error: Exception) -> None:
        self._disconnect()
        self._owner.failed(self, error)

    def _disconnect(self) -> None:
        self.session.restart()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


async def _ending(closed: Awaitable[None]) -> None:
    await closed
