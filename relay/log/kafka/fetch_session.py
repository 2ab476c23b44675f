"""A fetch session: the partitions that one connection to a broker fetches, and how often it does.

A fetch session lets a request name only the changes, as the broker remembers the partitions (KIP-227). A broker that
grants no session, or has forgotten it, gets full requests.
"""

from collections.abc import Mapping
from math import inf
from typing import Final

from relay.log.kafka.cluster import FETCH_ALL_BYTES, Isolation
from relay.log.kafka.feed import Feed
from relay.log.kafka.wire import NO_SESSION, FetchFrom, FetchRequest, FetchResponse
from relay.log.port import TopicPartition

FEW: Final = 256
PARTITION_S: Final = 25e-6
BURST_S: Final = 0.25
"""With more than FEW partitions, a long poll takes on average PARTITION_S for each further one, after a burst of polls
that are worth BURST_S: see PollPace."""

_FIRST_EPOCH: Final = 0
_LAST_EPOCH: Final = 2**31 - 1
SESSION_ID_NOT_FOUND: Final = 70
INVALID_SESSION_EPOCH: Final = 71


class FetchSession:
    """The partitions of one broker. `feeds`: all that it leads; `asked`: those in the session, which every request
    includes until they change."""

    def __init__(self) -> None:
        self.feeds: dict[TopicPartition, Feed] = {}
        self.asked: dict[TopicPartition, FetchFrom] = {}
        self._changed: dict[TopicPartition, None] = {}
        self._id = NO_SESSION
        self._epoch = _FIRST_EPOCH

    def changed(self, at: TopicPartition) -> bool:
        """Look at this partition again. True if it waits for records that were not requested."""
        feed = self.feeds.get(at)
        wanted = None if feed is None else feed.wanted
        if wanted == self.asked.get(at):
            self._changed.pop(at, None)
            return False
        self._changed[at] = None
        return wanted is not None

    def served(self, at: TopicPartition) -> None:
        """It got records, so the next request names the others first."""
        if at in self.asked:
            self.asked[at] = self.asked.pop(at)
        if at in self._changed:
            del self._changed[at]
            self._changed[at] = None

    def late(self) -> dict[TopicPartition, FetchFrom]:
        """Wanted partitions that were not requested yet."""
        return {
            at: wanted
            for at in self._changed
            if (feed := self.feeds.get(at)) is not None and (wanted := feed.wanted) is not None
        }

    @property
    def is_empty(self) -> bool:
        """Whether no partition is wanted."""
        return not self.late() and self.asked.keys() <= self._changed.keys()

    def request(self, max_wait_ms: int, min_bytes: int, isolation: Isolation) -> FetchRequest:
        """The next request, for all that is wanted."""
        late = self.late()
        forgotten = [at for at in self._changed if at not in late and self.asked.pop(at, None) is not None]
        self.asked.update(late)
        self._changed.clear()
        anew = self._epoch == _FIRST_EPOCH
        return FetchRequest(
            self.asked if anew else late,
            max_wait_ms=max_wait_ms,
            max_bytes=most_bytes(self.asked if anew else late),
            min_bytes=min_bytes,
            isolation=isolation,
            forgotten=() if anew else forgotten,
            session=self._id,
            epoch=self._epoch,
        )

    def answered(self, answer: FetchResponse) -> bool:
        """Note the session in the response to `request`. False if the broker rejected it: the response is empty."""
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
        """As `renew`, with a broker that has no such session, or on a new connection."""
        self._id = NO_SESSION
        self._epoch = _FIRST_EPOCH


class PollPace:
    """Limits the long polls of a session with many partitions, so that each brings more records.

    A broker looks at all partitions of a session for each request, and twice if it has to wait for records: with 2,000
    partitions that takes some 10 ms of its CPU, as much as a hundred records.
    """

    def __init__(self) -> None:
        self._paid_until = -inf

    def pause_s(self, now: float) -> float:
        """How long the next poll has to wait."""
        return max(0.0, self._paid_until - BURST_S - now)

    def polled(self, now: float, partitions: int) -> None:
        self._paid_until = max(self._paid_until, now) + PARTITION_S * max(0, partitions - FEW)


def most_bytes(asked: Mapping[TopicPartition, FetchFrom]) -> int:
    """The largest response to a request for these, in bytes."""
    return max(FETCH_ALL_BYTES, max((each.max_bytes for each in asked.values()), default=0))
