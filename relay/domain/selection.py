"""Which dead letters, or deliveries, a replay or a discard is about. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from relay.domain.hop import NO_RECEIVER
from relay.domain.reasons import DISCARDED
from relay.domain.scope import Scope

Stage = Literal["from_sender", "to_receiver", "pending", "to_sender"]
"""Of the steps that give something up, by the topic that each reads."""


class LetterFacts(NamedTuple):
    """What a dead letter is chosen by. `receiver` None: the message never got one. `failed_ms`: Unix ms. `life`: of the
    receiver's name."""

    receiver: str | None
    source_id: str | None
    message_id: str | None
    reason: str
    last_status: int | None
    stage: Stage | None
    failed_ms: int
    life: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is empty or None chooses nothing by it. The receiver of who never got one is `-`. `since_ms`, `until_ms`:
    Unix ms, the first included, the second not.

    Who was discarded is chosen only where its reason is named. `lives`: of the names in `receivers`, as `name=id`, for
    those that are not empty. `only_own`: asked for with a key that may see these receivers alone: then only what is of
    these lives is meant, and of what was on its way back to a sender, only what is of a source in `reads`.
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

    def has_life(self, receiver: str, life: str) -> bool:
        """Whether it was made while the receiver's name had this life."""
        if life:
            return f"{receiver}={life}" in self.lives
        return not any(each.startswith(f"{receiver}=") for each in self.lives)

    def _may_take(self, facts: LetterFacts) -> bool:
        return facts.stage != "to_sender" or any(
            Scope("read", one).covers("read", facts.source_id or "") for one in self.reads
        )

    def takes(self, facts: LetterFacts) -> bool:
        """Whether a dead letter with these facts is meant."""
        return (
            self.takes_delivery(facts.receiver, facts.source_id, facts.message_id, facts.failed_ms, facts.life)
            and (not self.only_own or self._may_take(facts))
            and (facts.reason in self.reasons if self.reasons else facts.reason != DISCARDED)
            and (not self.statuses or facts.last_status in self.statuses)
            and (not self.stages or facts.stage in self.stages)
        )

    def takes_delivery(
        self, receiver: str | None, source_id: str | None, message_id: str | None, moment_ms: int, life: str
    ) -> bool:
        """Whether a delivery is meant, as far as it can be told by who, and when (Unix ms)."""
        return (
            (not self.receivers or (receiver or NO_RECEIVER) in self.receivers)
            and (not self.sources or source_id in self.sources)
            and (not self.ids or message_id in self.ids)
            and (self.since_ms is None or moment_ms >= self.since_ms)
            and (self.until_ms is None or moment_ms < self.until_ms)
            and (not self.only_own or self.has_life(receiver or NO_RECEIVER, life))
        )


def as_fields(selection: Selection) -> dict[str, Any]:
    """For JSON; what chooses nothing is left out."""
    said = {each.name: getattr(selection, each.name) for each in fields(selection)}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in said.items()
        if value is not None and value is not False and value != frozenset()
    }


def from_fields(known: Mapping[str, Any]) -> Selection:
    """The reverse of `as_fields`; of a newer version's fields, those that are known here. Raises TypeError."""
    names = {each.name for each in fields(Selection)}
    return Selection(**{name: _read(value) for name, value in known.items() if name in names})


def _read(value: Any) -> Any:
    return frozenset(value) if isinstance(value, Collection) and not isinstance(value, str) else value
