"""Erasures: payloads that are not to be shown, sent or kept any longer. Pure."""

from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from relay.domain.coordinate import Headers
from relay.domain.identity import MessageId
from relay.domain.text import whole_number
from relay.domain.topics import DAY_S

ACCEPTED_HEADER: Final = "relay-accepted-at"
"""Header of a record: when its message was received (Unix ms)."""
ERASURE_KEPT_S: Final = 90 * DAY_S
"""An erasure is in force for so long, which is longer than topics keep payloads."""
LATEST: Final = 4_102_444_800.0
"""The year 2100: a later time stems from a wrong clock."""
MOST_ERASURES: Final = 20_000
"""Maximum number of erasures in force: each process keeps them in memory."""


class Erasure(Struct, frozen=True, omit_defaults=True):
    """The payloads of a source, of one of its messages, or of all deliveries to a receiver: of the messages that were
    received until `made_at` (Unix seconds). `by`: the caller."""

    id: str
    made_at: Annotated[float, Meta(ge=0, le=LATEST)]
    by: str = ""
    source_id: str | None = None
    message_id: str | None = None
    receiver: str | None = None

    @property
    def target(self) -> tuple[str | None, str | None, str | None]:
        return self.source_id, self.message_id, self.receiver


class Erasures:
    """The erasures in force. A check takes constant time, whatever their number."""

    def __init__(self, known: Iterable[Erasure] = ()) -> None:
        self._until: dict[tuple[str | None, str | None, str | None], dict[str, float]] = {}
        self.known: dict[str, Erasure] = {}
        """By id."""
        for erasure in known:
            self.add(erasure)

    def add(self, erasure: Erasure) -> None:
        self.drop(erasure.id)
        self.known[erasure.id] = erasure
        self._until.setdefault(erasure.target, {})[erasure.id] = erasure.made_at

    def drop(self, id: str) -> None:
        if (known := self.known.pop(id, None)) is None:
            return
        of_target = self._until[known.target]
        del of_target[id]
        if not of_target:
            del self._until[known.target]

    def all(self) -> list[Erasure]:
        """The erasures, newest first."""
        return sorted(self.known.values(), key=lambda each: (each.made_at, each.id), reverse=True)

    def has(self, message: MessageId, receivers: Iterable[str], received_at: float) -> bool:
        """Whether the message's payload is erased for all of these receivers; without any, for the source itself.
        `received_at`: Unix seconds."""
        if not self.known:
            return False
        if self._covers((message.source_id, None, None), received_at) or self._covers((*message, None), received_at):
            return True
        names = list(receivers)
        return bool(names) and all(self._covers((None, None, name), received_at) for name in names)

    def has_delivery(self, receiver: str | None, source_id: str, message_id: str, received_at: float) -> bool:
        """As `has`, for a delivery; without a receiver, for the source."""
        return self.has(MessageId(source_id, message_id), () if receiver is None else (receiver,), received_at)

    def _covers(self, target: tuple[str | None, str | None, str | None], received_at: float) -> bool:
        return any(received_at <= made_at for made_at in self._until.get(target, {}).values())


def received_at(headers: Headers, timestamp_ms: int) -> float:
    """When the message of a record was received (Unix seconds). `timestamp_ms`: of the record, which counts if it is
    the first one."""
    text = next((value for name, value in headers if name == ACCEPTED_HEADER), b"")
    accepted_ms = whole_number(text)
    return (timestamp_ms if accepted_ms is None else accepted_ms) / 1000
