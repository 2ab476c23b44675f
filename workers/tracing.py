"""What the steps need of traces, which are wired in from outside, or not at all."""

from collections.abc import Callable
from typing import Protocol

from relay.domain.attempt import AttemptKind
from relay.domain.coordinate import Coordinate
from relay.domain.hop import Hop
from relay.domain.message import Message
from relay.engine.work import Dead, Done


class Tracing(Protocol):
    """Told of what happens beside the requests, which a `workers.journal.Journal` is told of; must not raise, and must
    not block."""

    def traced(self, hop: Hop, kind: AttemptKind, attempt: int) -> Hop:
        """`hop` with the trace context that a request for it carries. `attempt`: 1-based, counted per kind."""
        ...

    def sending(self, message: Message) -> tuple[Message, Callable[[Coordinate | None], None]]:
        """`message` as it goes to the log, in the context of its being sent; and whom to tell where it is then (None:
        the log did not take it)."""
        ...

    def routed(self, message: Message, accepted_ms: int, decision: Done | Dead) -> None:
        """Just now. `accepted_ms`: when the log took the message (Unix ms)."""
        ...
