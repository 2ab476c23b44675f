"""Selects the dead letters or deliveries of a replay or discard. Pure."""

from typing import Literal, NamedTuple

from msgspec import Struct

from relay.domain.hop import NO_RECEIVER
from relay.domain.reasons import ON_PURPOSE
from relay.domain.scope import Scope

Stage = Literal["from_sender", "to_receiver", "pending", "to_sender"]
"""Steps that create dead letters, by the topic that each reads."""


class LetterFacts(NamedTuple):
    """Properties by which dead letters are selected. `receiver`: None if the message never had one. `failed_ms`: Unix
    ms. `life`: of the receiver's name. `number`: of the delivery to its receiver."""

    receiver: str | None
    source_id: str | None
    message_id: str | None
    reason: str
    last_status: int | None
    stage: Stage | None
    failed_ms: int
    life: str = ""
    number: int | None = None


class Selection(Struct, frozen=True, omit_defaults=True):
    """An empty or None field does not restrict. The receiver of messages that never had one is `-`. `since_ms`
    (inclusive), `until_ms` (exclusive): Unix ms. `first_number`, `last_number` (both inclusive): of deliveries to their
    receivers.

    Deliveries that were ended on purpose are selected only if `reasons` names that reason. `lives`: of the names in
    `receivers`, as `name=id`, without empty ones. `only_own`: requested with a key that may see only these receivers;
    then only deliveries of these lives are selected, and results for a sender only if `reads` covers their source.
    """

    receivers: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    stages: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    lives: frozenset[str] = frozenset()
    only_own: bool = False
    reads: frozenset[str] = frozenset()
    first_number: int | None = None
    last_number: int | None = None

    def has_life(self, receiver: str, life: str) -> bool:
        """Whether the receiver's name had this life when the selection was made."""
        if life:
            return f"{receiver}={life}" in self.lives
        return not any(each.startswith(f"{receiver}=") for each in self.lives)

    def _may_take(self, facts: LetterFacts) -> bool:
        return facts.stage != "to_sender" or any(
            Scope("read", one).covers("read", facts.source_id or "") for one in self.reads
        )

    def takes(self, facts: LetterFacts) -> bool:
        """Whether a dead letter with these properties is selected."""
        return (
            self.takes_delivery(facts.receiver, facts.source_id, facts.message_id, facts.failed_ms, facts.life)
            and (not self.only_own or self._may_take(facts))
            and (facts.reason in self.reasons if self.reasons else facts.reason not in ON_PURPOSE)
            and (not self.statuses or facts.last_status in self.statuses)
            and (not self.stages or facts.stage in self.stages)
            and (self.first_number is None or (facts.number is not None and facts.number >= self.first_number))
            and (self.last_number is None or (facts.number is not None and facts.number <= self.last_number))
        )

    def takes_delivery(
        self, receiver: str | None, source_id: str | None, message_id: str | None, moment_ms: int, life: str
    ) -> bool:
        """Whether a delivery is selected by its ids and time (Unix ms); other restrictions are not checked."""
        return (
            (not self.receivers or (receiver or NO_RECEIVER) in self.receivers)
            and (not self.sources or source_id in self.sources)
            and (not self.ids or message_id in self.ids)
            and (self.since_ms is None or moment_ms >= self.since_ms)
            and (self.until_ms is None or moment_ms < self.until_ms)
            and (not self.only_own or self.has_life(receiver or NO_RECEIVER, life))
        )
