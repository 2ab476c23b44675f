"""The steps' port to tracing; optional."""

from collections.abc import Callable
from typing import Protocol

from relay.domain.attempt import AttemptKind
from relay.domain.coordinate import Coordinate
from relay.domain.hop import Hop
from relay.domain.message import Message
from relay.engine.work import Dead, Done


class Tracing(Protocol):
    """Records events other than requests, which a `workers.journal.Journal` records; must not raise, and must not
    block."""

    def traced(self, hop: Hop, kind: AttemptKind, attempt: int) -> Hop:
        """`hop` with the trace context that a request for it carries. `attempt`: 1-based, counted per kind."""
        ...

    def sending(self, message: Message) -> tuple[Message, Callable[[Coordinate | None], None]]:
        """`message` as it goes to the log, with the trace context of its send; and a callback that takes its
        coordinate (None: the log did not accept it)."""
        ...

    def routed(self, message: Message, accepted_ms: int, decision: Done | Dead) -> None:
        """The message was routed just now. `accepted_ms`: when the log took it (Unix ms)."""
        ...
