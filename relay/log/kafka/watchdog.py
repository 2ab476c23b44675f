"""Notices that a membership of the Kafka library has stopped working: it does not say so itself."""

from typing import Final

from relay.domain.errors import ConsumerBroken

_STALLED_S: Final = 50.0
"""A rebalance is over within 30 s: much longer without an end is a fault."""


class Watchdog:
    """Watches one consumer while it polls. Times are seconds on any monotonic clock."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._unassigned_since: float | None = None

    def unassigned(self, now: float) -> None:
        """The member joins: it has to get an assignment, maybe an empty one."""
        if self._unassigned_since is None:
            self._unassigned_since = now

    def assigned(self) -> None:
        self._unassigned_since = None

    @property
    def is_assigned(self) -> bool:
        """Whether partitions were assigned, be it none, since the member joined."""
        return self._unassigned_since is None

    def check(self, now: float, *, is_dead: bool, is_waiting: bool) -> None:
        """Raises ConsumerBroken when nothing will come of this member any more. `is_waiting`: it may not take part
        yet, and says so."""
        if is_dead:
            raise ConsumerBroken(f"Kafka: {self._group}: the client's coordination task is dead")
        if self._unassigned_since is None:
            return
        if is_waiting:
            self._unassigned_since = now
        elif now - self._unassigned_since > _STALLED_S:
            self._unassigned_since = now
            raise ConsumerBroken(f"Kafka: {self._group}: no assignment for {_STALLED_S:.0f} s")
