"""Which link fetches which partition: a broker has one, or two if it leads many partitions."""

from collections.abc import Callable, Iterator
from typing import Final

from relay.log.kafka.feed import Feed
from relay.log.kafka.fetch_link import BrokerAddress, Link
from relay.log.kafka.fetch_session import FEW
from relay.log.port import TopicPartition

QUIET_S: Final = 30.0
"""A partition without records for this long is moved to the quiet link of its broker."""

_SORT_S: Final = 5.0


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
        self._homes: dict[TopicPartition, Link] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(self._pair_of)

    def meet(self, node: int, address: BrokerAddress) -> None:
        """The broker has this address now."""
        if (pair := self._pairs.get(node)) is None:
            pair = self._pairs[node] = _Pair(address, self._new(address))
            self._pair_of[pair.busy] = pair
        pair.address = address
        for link in pair.links:
            link.move(address)

    def home(self, at: TopicPartition) -> Link | None:
        return self._homes.get(at)

    def add(self, feed: Feed, node: int) -> None:
        """Fetch it from this broker."""
        pair = self._pairs[node]
        self._move(feed, pair.busy if len(pair.busy.session.feeds) < FEW else self._quiet(pair))

    def remove(self, at: TopicPartition) -> None:
        if (link := self._homes.pop(at, None)) is not None:
            link.remove(at)

    def changed(self, at: TopicPartition) -> None:
        if (link := self._homes.get(at)) is not None:
            link.changed(at)

    def got_records(self, feed: Feed) -> None:
        feed.filled_at = self._clock()
        if (pair := self._pair_of[self._homes[feed.at]]).busy is not self._homes[feed.at]:
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
        self._homes[feed.at] = link
        link.add(feed)
