"""Notices that a consumer of the Kafka library has stopped working: it does not say so itself.

Its fetch task can die while heartbeats go on; then polls find nothing, for ever, and nobody else gets the partitions.
"""

from collections.abc import Iterable
from typing import Final

from aiokafka import AIOKafkaConsumer

from relay.domain.errors import ConsumerBroken
from relay.log.kafka import membership
from relay.log.kafka.membership import Progress
from relay.log.port import TopicPartition

_EVERY_S: Final = 5.0
_STALLED_S: Final = 50.0
"""A fetch is answered within 10 s, a rebalance is over within 30: much longer without either is a fault. With a look
every 5 s it is noticed within a minute."""


class Watchdog:
    """Watches one consumer while it waits. Times are seconds on any monotonic clock."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._seen: dict[TopicPartition, tuple[Progress, float]] = {}
        self._checked_at = float("-inf")
        self._unassigned_since: float | None = None

    def unassigned(self, now: float) -> None:
        """A rebalance began: an assignment has to follow, be it an empty one."""
        self._seen.clear()
        self._unassigned_since = now

    def assigned(self) -> None:
        self._unassigned_since = None

    @property
    def is_assigned(self) -> bool:
        """Whether partitions were assigned, be it none, since the last rebalance began."""
        return self._unassigned_since is None

    def check(self, consumer: AIOKafkaConsumer, ready: Iterable[TopicPartition], now: float) -> None:
        """Look whether the partitions in `ready`, which wait for records, get any attention.

        Raises ConsumerBroken if not for _STALLED_S; then that time starts anew.
        """
        if task := membership.dead_task(consumer):
            raise ConsumerBroken(f"Kafka: {self._group}: the client's {task} task is dead")
        if now - self._checked_at < _EVERY_S:
            return
        if now - self._checked_at > 3 * _EVERY_S:
            self._seen.clear()  # nobody polled meanwhile: that nothing moved says nothing
        self._checked_at = now
        if self._unassigned_since is not None and now - self._unassigned_since > _STALLED_S:
            self._unassigned_since = now
            raise ConsumerBroken(f"Kafka: {self._group}: no assignment for {_STALLED_S:.0f} s")
        self._check_progress({partition: membership.progress(consumer, partition) for partition in ready}, now)

    def _check_progress(self, current: dict[TopicPartition, Progress], now: float) -> None:
        self._seen = {
            partition: seen
            if (seen := self._seen.get(partition)) and not _moved(seen[0], progress)
            else (progress, now)
            for partition, progress in current.items()
        }
        stalled = sorted(partition for partition, (_, since) in self._seen.items() if now - since > _STALLED_S)
        if stalled:
            self._seen.clear()
            names = ", ".join(f"{partition.topic}/{partition.partition}" for partition in stalled)
            raise ConsumerBroken(f"Kafka: {self._group}: nothing came for {_STALLED_S:.0f} s of {names}")


def _moved(before: Progress, now: Progress) -> bool:
    if before.position != now.position:
        return True
    return not now.behind and before.answered != now.answered
