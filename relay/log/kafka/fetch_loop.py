"""Fetches for a whole process: one request per broker for all partitions that it leads, over all readers.

`FetchLoop` knows the partitions and their leaders; a `Link` sends requests to one broker; a `Feed` has the data of one
partition until they are taken. Only then are they decoded, so that decoding is bounded by the reader.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from aiokafka.errors import for_code

from relay.clock import set_within
from relay.domain.errors import ConsumerBroken, ConsumerClosed, LogUnavailable, OffsetMissing
from relay.domain.sliced import sliced
from relay.log.kafka.client import LEADER_CHANGES, TOPICS_A_REQUEST, described
from relay.log.kafka.cluster import CLOSE_S, KafkaCluster, ends_within
from relay.log.kafka.feed import Feed, FetchMemory, TopicVanished
from relay.log.kafka.fetch_link import BrokerAddress, Link, Links
from relay.log.kafka.leader_epochs import UNKNOWN, EpochEnd, EpochQuery, ReadHistory
from relay.log.kafka.metadata import Layout, is_same_topic
from relay.log.kafka.wire import FetchedPartition
from relay.log.port import Record, TopicPartition

HELD_BYTES: Final = 8 * 1024**2
"""Bytes that are fetched and not taken, over all partitions; see FetchMemory."""

OPENED_BYTES: Final = 32 * 1024**2
"""Bytes of unpacked batches of which records are left."""

_OUT_OF_RANGE: Final = 1
_DOUBT_S: Final = 0.5
"""Time for which a missing offset is requested again: a restarted broker may still believe that it leads its former
partitions."""

_RETRY_S: Final = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)
_FORGIVEN_S: Final = 10.0
_LEADERLESS_S: Final = 50.0
_PAUSED_S: Final = 1.0
"""Pause after which a topic may be another one of its name. While it is fetched, the broker reports that it is deleted;
without a fetch only its id shows it."""
_REPORT_EVERY_S: Final = 30.0
"""Interval of reports of partitions that cannot be read: the reader pauses after each, with its other partitions."""
_STUCK_S: Final = 60.0
"""Longest time with one broker: 40 s, until connecting and responding have timed out."""


@dataclass(eq=False, repr=False)
class FetchLoop:
    """One for a process, for all roles. `layout`, `epoch_ends`: KafkaClient's. Not to be used from other threads.

    A partition that is not read has to be paused: its fetched data would keep memory that others wait for.
    """

    cluster: KafkaCluster
    layout: Callable[[Sequence[str]], Awaitable[Layout]]
    epoch_ends: Callable[[Mapping[TopicPartition, EpochQuery]], Awaitable[Mapping[TopicPartition, EpochEnd]]]
    memory: FetchMemory = field(default_factory=lambda: FetchMemory(HELD_BYTES, OPENED_BYTES))
    _feeds: dict[TopicPartition, Feed] = field(default_factory=dict)
    _ready: dict[TopicPartition, Feed] = field(default_factory=dict)
    _arrivals: dict[Callable[[], None], None] = field(default_factory=dict)
    _leaderless: dict[TopicPartition, float] = field(default_factory=dict)
    _seeking: asyncio.Event = field(default_factory=asyncio.Event)
    _large: asyncio.Queue[Feed] = field(default_factory=asyncio.Queue)
    _unpacked: Feed | None = None
    _begun: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Task[None] | None = None
    _tasks: asyncio.TaskGroup | None = None
    _failure: Exception | None = None
    _closed: bool = False
    _reported_at: float = float("-inf")
    _doubts: dict[TopicPartition, float] = field(default_factory=dict)
    """When a broker, maybe an old leader, first reported that the offset of a partition does not exist."""

    def __post_init__(self) -> None:
        self._links = Links(self._new_link, monotonic)

    def start(self) -> None:
        """Fetches in the background from now on; partitions may have been opened before."""
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Close for good, in bounded time. Never raises."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=CLOSE_S)
        for at in list(self._feeds):
            self.shut(at)
        for link in self._links:
            await ends_within(link.close())

    @property
    def is_broken(self) -> bool:
        """Whether it will never fetch again, so that a new one is needed."""
        return self._failure is not None

    def open(self, partition: TopicPartition, history: ReadHistory, on_arrival: Callable[[], None]) -> None:
        """Fetch `partition` from the position of `history`, which notes the records taken. `on_arrival` is called, from
        the event loop, when there are records, or an error, to be taken."""
        self.shut(partition)
        self._feeds[partition] = feed = Feed(partition, history, on_arrival, self.cluster.max_record_bytes)
        self._seek(feed)

    def shut(self, partition: TopicPartition) -> None:
        """Forget the partition, and drop its fetched data."""
        if (feed := self._feeds.pop(partition, None)) is not None:
            self._drop(feed)
            self._links.remove(partition)
            self._leaderless.pop(partition, None)
            self._doubts.pop(partition, None)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Leave these out of the requests. Their fetched data are dropped, and requested again from their positions."""
        for at in partitions:
            if (feed := self._feeds.get(at)) is not None and not feed.paused:
                feed.paused, feed.paused_at = True, monotonic()
                self._drop(feed)
                self._links.changed(at)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            if (feed := self._feeds.get(at)) is not None and feed.paused:
                feed.paused = False
                if monotonic() - feed.paused_at < _PAUSED_S or at in self._leaderless:
                    self._links.changed(at)
                else:
                    self._links.remove(at)
                    self._seek(feed)

    def take(
        self, partitions: Collection[TopicPartition], max_records: int, max_bytes: int = sys.maxsize
    ) -> dict[TopicPartition, list[Record]]:
        """The available records of `partitions`, at most `max_records` in all, each getting its share. Never waits.
        Returns no further record once they have `max_bytes` or more; at least one.

        A call that returned `max_records` may have left more, without another `on_arrival`. Raises OffsetMissing for
        partitions whose log has no record at their offset, or another one than was read, and TopicVanished: each time,
        until they are opened again or shut; and LogUnavailable, now and then, for errors of partitions that do not pass
        without help, of which it names one: they are requested again. The others lose nothing by that. Raises
        ConsumerBroken when nothing can be fetched any more, ConsumerClosed when this is closed.
        """
        self._check()
        among = partitions if isinstance(partitions, Set) else frozenset(partitions)
        feeds = [feed for at, feed in self._ready.items() if at in among]
        self._raise_trouble(feeds)
        found: dict[TopicPartition, list[Record]] = {}
        left, bytes_left = max_records, max(1, max_bytes)
        rest = [feed for feed in feeds if feed.has_some]
        while rest and left > 0 and bytes_left > 0:
            for others, feed in zip(range(len(rest), 0, -1), rest, strict=True):
                if bytes_left > 0 and (records := self._take(feed, -(-left // others), -(-bytes_left // others))):
                    found[feed.at] = found[feed.at] + records if feed.at in found else records
                    left -= len(records)
                    bytes_left -= feed.taken
            rest = [feed for feed in rest if feed.at in self._ready and not feed.is_over]
        self._announce_trouble(feeds)
        return found

    def _take(self, feed: Feed, count: int, max_bytes: int) -> list[Record]:
        at, held = feed.at, feed.held
        was_wanted = feed.wanted
        records = feed.take(count, max_bytes)
        self.memory.hold(feed.held - held)
        del self._ready[at]
        if feed.large is not None:
            self._large.put_nowait(feed)
        elif feed.has_some:
            self._ready[at] = feed  # behind the others
        self._note_opened(feed)
        if feed.wanted != was_wanted:
            self._links.changed(at)
        return records

    def _announce_trouble(self, feeds: Iterable[Feed]) -> None:
        """An error is next for these, though fewer records were returned than possible."""
        for on_arrival in {feed.on_arrival for feed in feeds if feed.is_over}:
            asyncio.get_running_loop().call_soon(on_arrival)

    def _raise_trouble(self, feeds: Iterable[Feed]) -> None:
        over = [feed for feed in feeds if feed.is_over]
        missing = {feed.at: feed.trouble for feed in over if isinstance(feed.trouble, OffsetMissing)}
        if missing:
            names = ", ".join(f"{at} at {self._feeds[at].position}" for at in sorted(missing))
            lost = {at: span for trouble in missing.values() for at, span in trouble.lost.items()}
            raise OffsetMissing(f"Kafka: there is no record to go on with: {names}", sorted(missing), lost)
        if vanished := [feed.at for feed in over if isinstance(feed.trouble, TopicVanished)]:
            raise TopicVanished(vanished)
        troubles = [feed.trouble for feed in over if feed.trouble is not None]
        for feed in over:  # all at once: one by one, the last would be requested long after it has recovered
            feed.trouble = None
            del self._ready[feed.at]
            self._links.changed(feed.at)
        if troubles and monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = monotonic()
            raise troubles[0]

    def _check(self) -> None:
        now = monotonic()
        for link in self._links:
            if self._failure is None and link.busy_since is not None and now - link.busy_since > _STUCK_S:
                self._failure = TimeoutError(f"no answer from {link.address} for {_STUCK_S:g} s")
        if self._failure is not None:  # also when it was closed because of it: the caller gets another one
            raise ConsumerBroken(f"Kafka: fetching has broken off: {self._failure!r}") from self._failure
        if self._closed:
            raise ConsumerClosed("Kafka: fetching has ended")

    # reports of a link

    def polls(self, link: Link) -> None:
        self._links.sort(link)

    def arrived(self, at: TopicPartition, part: FetchedPartition) -> None:
        feed = self._feeds[at]
        if part.error == 0:
            feed.strikes = 0
            if not feed.accept(part.data, part.high_watermark, part.aborted):
                return
            self.memory.hold(len(part.data))
            self._doubts.pop(at, None)
            self._links.got_records(feed)
        elif part.error == _OUT_OF_RANGE and monotonic() - self._doubts.setdefault(at, monotonic()) >= _DOUBT_S:
            feed.trouble = OffsetMissing("")
        else:
            if part.error not in LEADER_CHANGES and part.error != _OUT_OF_RANGE:
                feed.trouble = LogUnavailable(f"Kafka: {at} cannot be read: {described(for_code(part.error)())}")
            self._strike(feed)
        if feed.has_some:
            self._ready[at] = feed
            self._arrivals[feed.on_arrival] = None

    def announce(self) -> None:
        arrivals, self._arrivals = self._arrivals, {}
        for on_arrival in arrivals:
            on_arrival()

    def answered(self, link: Link) -> None:
        for at in [at for at in self._doubts if self._links.link_of(at) is link and at in link.session.asked]:
            del self._doubts[at]

    def failed(self, link: Link) -> None:
        for at in list(link.session.feeds):
            self._strike(self._feeds[at])

    # leaders

    def _strike(self, feed: Feed) -> None:
        """A fetch of it has failed: look for its leader again, after a while if that does not help."""
        now = monotonic()
        if now - feed.struck_at > _FORGIVEN_S:
            feed.strikes = 0
        feed.struck_at = now
        delay = _RETRY_S[min(feed.strikes, len(_RETRY_S) - 1)]
        feed.strikes += 1
        self._links.remove(feed.at)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._seek, feed)
        else:
            self._seek(feed)

    def _seek(self, feed: Feed) -> None:
        if self._feeds.get(feed.at) is feed:
            self._leaderless[feed.at] = monotonic()
            self._seeking.set()

    async def _find_leaders(self) -> None:
        tries = 0
        while True:
            await self._seeking.wait()
            self._seeking.clear()
            sought = set(self._leaderless)
            topics = sorted({at.topic for at in sought})
            with suppress(LogUnavailable):  # they are looked for again
                for some in sliced(topics, TOPICS_A_REQUEST):
                    self._settle(await self.layout(some))
                self._report_leaderless()
            tries = tries + 1 if sought & self._leaderless.keys() else 0
            delay_s = _RETRY_S[min(tries, len(_RETRY_S) - 1)] if self._leaderless else None
            await set_within(self._seeking, delay_s)  # partitions that are opened meanwhile do not wait for these
            if self._leaderless:
                self._seeking.set()

    def _settle(self, layout: Layout) -> None:
        unproved: dict[int, list[Feed]] = {}
        for feed in map(self._feeds.__getitem__, self._leaderless):
            if feed.at.topic in layout.missing and feed.leader_epoch != UNKNOWN:  # else it may just have been created
                feed.has_vanished = True
            topic_id = layout.ids.get(feed.at.topic, feed.history.topic_id)
            feed.has_vanished |= not is_same_topic(feed.history.topic_id, topic_id)
            if feed.has_vanished:  # its offsets still count for the former topic
                self._trouble(feed, TopicVanished())
            else:
                feed.history.topic_id = topic_id
        for at in [at for at in self._leaderless if at in layout.leaders and not self._feeds[at].has_vanished]:
            (node, epoch), feed = layout.leaders[at], self._feeds[at]
            if node in layout.brokers and not feed.is_outdated(epoch, monotonic()):
                del self._leaderless[at]
                feed.leader_epoch = epoch
                self._links.set_address(node, BrokerAddress(*layout.brokers[node]))
                if feed.proved == epoch or feed.history.epoch_before(feed.position) == UNKNOWN:
                    self._links.add(feed, node)
                else:
                    unproved.setdefault(node, []).append(feed)
        for node, feeds in unproved.items():
            if self._tasks is not None:
                self._tasks.create_task(self._prove(node, feeds))

    async def _prove(self, node: int, feeds: Sequence[Feed]) -> None:
        """Before the next fetch, a leader confirms that its log holds the records that were read: after an unclean
        election, or a crash, it may have lost its end, and grown again since."""
        for feed in feeds:  # records that were not taken are fetched again: they may be of the lost end
            trouble = feed.trouble
            self._drop(feed)
            if trouble is not None:
                feed.trouble, self._ready[feed.at] = trouble, feed
        asked = {feed.at: EpochQuery(feed.leader_epoch, feed.history.epoch_before(feed.position)) for feed in feeds}
        ends: Mapping[TopicPartition, EpochEnd] = {}
        with suppress(LogUnavailable):
            ends = await self.epoch_ends(asked)
        for feed in [feed for feed in feeds if self._feeds.get(feed.at) is feed]:
            at = feed.at
            if at not in ends:
                self._strike(feed)
            elif (offset := feed.history.divergence(feed.position, ends[at], feed.leader_epoch)) is None:
                feed.proved = feed.leader_epoch
                self._links.add(feed, node)
            else:
                self._trouble(feed, OffsetMissing("", [at], {at: (offset, feed.position)} if offset else None))

    def _report_leaderless(self) -> None:
        """Set the error of partitions that have had no leader for a long time."""
        now = monotonic()
        for at in [at for at, since in self._leaderless.items() if now - since > _LEADERLESS_S]:
            feed, self._leaderless[at] = self._feeds[at], now
            self._trouble(feed, LogUnavailable(f"Kafka: no broker leads {at}, or it does not exist"))

    def _trouble(self, feed: Feed, error: Exception) -> None:
        feed.trouble, self._ready[feed.at] = error, feed
        feed.on_arrival()

    def _new_link(self, address: BrokerAddress) -> Link:
        link = Link(address, self.cluster, self, monotonic)
        if self._tasks is not None:
            self._tasks.create_task(link.run())
        return link

    # memory

    def _drop(self, feed: Feed) -> None:
        self.memory.hold(-feed.held)
        feed.drop()
        self._ready.pop(feed.at, None)
        self._note_opened(feed)

    def _note_opened(self, feed: Feed) -> None:
        if feed is self._unpacked:
            self._begun.set()
        self.memory.note_opened(feed)

    async def _unpack_large(self) -> None:
        """Unpack large batches in a thread, one at a time, as each may take a second; the next one when the reader has
        begun to take records of the last."""
        while True:
            feed = await self._large.get()
            chunk = feed.large
            if chunk is None or self._feeds.get(feed.at) is not feed:
                continue
            await asyncio.to_thread(chunk.unpack)
            if feed.unpacked(chunk) and self._feeds.get(feed.at) is feed:
                self._ready[feed.at] = self._unpacked = feed
                self._begun.clear()
                feed.on_arrival()
                await self._begun.wait()

    # the tasks

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._find_leaders())
                self._tasks.create_task(self._unpack_large())
        except Exception as error:  # noqa: BLE001  `take` raises it, whatever it is
            self._failure = error
            for on_arrival in {feed.on_arrival for feed in self._feeds.values()}:
                on_arrival()
