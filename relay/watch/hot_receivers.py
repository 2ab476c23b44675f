"""Reports receivers that take more than their share of the shared lane: in the log, and as a metric.

Each process sees what it sends itself. All messages to a receiver are in one partition of the shared lane, so one
process sees all of its POSTs, and the neighbours that it delays.
"""

from collections.abc import Callable, Mapping

from relay.domain.hot_receivers import HotReceivers
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

_log = get_logger("relay.engine")


class HotReceiverWatch:
    """`is_shared`: whether a receiver is in the shared lane."""

    def __init__(self, metrics: Metrics, is_shared: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._is_shared = is_shared
        self._known = HotReceivers()

    def add(self, sent: Mapping[str, int]) -> None:
        """Takes the number of POSTs to each receiver since the last call."""
        turns = self._known.add({name: posts for name, posts in sent.items() if posts and self._is_shared(name)})
        for turn in turns:
            facts = {"receiver": turn.receiver, "share": round(turn.share, 3), "posts": turn.posts}
            if turn.state == "hot":
                _log.warning("receiver_hot", **facts)
            else:
                _log.info("receiver_calm", **facts)
        self._metrics.hot_receiver_share.clear()
        for name, share in self._known.hot.items():
            self._metrics.hot_receiver_share.labels(name).set(share)
