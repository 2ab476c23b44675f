"""Measures which receivers take more than their share of the shared lane: for the log, a metric and the heartbeats.

Each process sees what it sends itself. All messages to a receiver are in one partition of the shared lane, so one
process sees all of its POSTs, and the neighbours that it delays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relay.domain.hot_receivers import HotLane, HotReceivers, PostWindow
from relay.domain.topics import SHARED, Topics
from relay.state.read_model import LaneLoad
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

_log = get_logger("relay.engine")


@dataclass(eq=False)
class HotReceiverWatch:
    """`is_shared`: whether a receiver is in the shared lane. `moved`: those that have left it because they are hot."""

    metrics: Metrics
    topics: Topics
    is_shared: Callable[[str], bool]
    moved: Callable[[], Mapping[str, HotLane]]
    _known: HotReceivers = field(default_factory=HotReceivers)
    _own: PostWindow = field(default_factory=PostWindow)

    def add(self, sent: Mapping[str, int]) -> None:
        """Takes the number of POSTs to each receiver since the last call."""
        moved = self.moved()
        self._own.add({name: posts for name, posts in sent.items() if name in moved})
        turns = self._known.add({name: posts for name, posts in sent.items() if posts and self.is_shared(name)})
        for turn in turns:
            facts = {"receiver": turn.receiver, "share": round(turn.share, 3), "posts": turn.posts}
            if turn.state == "hot":
                _log.warning("receiver_hot", **facts)
            elif self.is_shared(turn.receiver):
                _log.info("receiver_calm", **facts)
        self.metrics.hot_receiver_share.clear()
        for name, share in self._known.hot.items():
            self.metrics.hot_receiver_share.labels(name).set(share)

    def load(self, topic: str) -> LaneLoad | None:
        """The load of a lane that this process serves; None if it is not measured."""
        lane = self.topics.lane_of(topic)
        if topic != self.topics.to_receiver(lane):
            return None
        if lane == SHARED:
            return LaneLoad(self._known.posts, tuple(self._known.hot.items()))
        return LaneLoad(self._own.sums[lane]) if lane in self.moved() else None
