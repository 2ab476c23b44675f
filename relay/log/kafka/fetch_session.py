"""A fetch session: the broker remembers the partitions, so that a request has only the changes. Pure.

Source: KIP-227. A broker that grants no session, or has forgotten it, gets full requests.
"""

from collections.abc import Mapping
from typing import Final

from relay.log.kafka.feed import Feed
from relay.log.kafka.fetch_wire import NO_SESSION, Asked, FetchAnswer, FetchAsk
from relay.log.kafka.settings import FETCH_ALL_BYTES, Isolation
from relay.log.port import TopicPartition

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
