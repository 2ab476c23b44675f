"""What the engine tells about itself: for logs, metrics and Sentry, which are wired in from outside."""

from typing import Protocol

from relay.domain.errors import Unavailable
from relay.log.port import TopicPartition


class Observer(Protocol):
    """Told what happens; must not raise, and must not block."""

    def waiting(self, what: str, error: Unavailable) -> None:
        """A port call found its server away and will be repeated."""
        ...

    def state_recovering(self, tags: frozenset[int]) -> None:
        """The state asks for a recovery pass."""
        ...

    def recovered(self, tags: frozenset[int], put_back: int, in_doubt: bool) -> None: ...

    def step_crashed(self, stage: str, error: Exception) -> None:
        """A worker's step raised something unexpected: a bug."""
        ...

    def attempt(self, stage: str, gate: str, outcome: str) -> None:
        """An attempt ended: `done`, `retry`, `doubt`, `released` or `dead`."""
        ...

    def duplicate(self, stage: str, count: int) -> None:
        """Records whose output was proved to be acknowledged already, and were skipped."""
        ...

    def dead(self, stage: str, gate: str, reason: str) -> None: ...

    def parked(self, topic: str, count: int) -> None: ...

    def fenced(self, partition: TopicPartition) -> None:
        """A newer owner has this lane."""
        ...

    def lane(self, partition: TopicPartition, *, unfinished: int) -> None:
        """Level of a lane's window, told about once a second."""
        ...


class SilentObserver:
    """Tells nobody."""

    def waiting(self, what: str, error: Unavailable) -> None: ...

    def state_recovering(self, tags: frozenset[int]) -> None: ...

    def recovered(self, tags: frozenset[int], put_back: int, in_doubt: bool) -> None: ...

    def step_crashed(self, stage: str, error: Exception) -> None: ...

    def attempt(self, stage: str, gate: str, outcome: str) -> None: ...

    def duplicate(self, stage: str, count: int) -> None: ...

    def dead(self, stage: str, gate: str, reason: str) -> None: ...

    def parked(self, topic: str, count: int) -> None: ...

    def fenced(self, partition: TopicPartition) -> None: ...

    def lane(self, partition: TopicPartition, *, unfinished: int) -> None: ...
