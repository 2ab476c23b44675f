"""Replay jobs, which replay, discard or cancel many deliveries: their selection, and records on `receiver_config`.

A job has three keys with one writer each, so that no process overwrites another's record: the order (the process that
accepted the request), the progress (the process with the lease), and the request to stop. Its scope is fixed when it is
created: a dead letter names the generation that failed, a replay begins the next one, and only dead letters before the
ends of the job's spans count. So a process that repeats a part of it sends the same records again, which the rows of
the deliveries deduplicate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, get_args

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


# --- jobs ---------------------------------------------------------------------------------------------------------

Action = Literal["replay", "discard", "cancel"]
JobState = Literal["waiting", "counting", "running", "done", "stopped", "failed"]
OVER: Final = frozenset({"done", "stopped", "failed"})
KNOWN: Final = frozenset(get_args(JobState))


class OffsetSpan(NamedTuple):
    """Offsets of a partition from `start`, inclusive, to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int


class ReplayOrder(Struct, frozen=True, omit_defaults=True):
    """The request. `rate`: deliveries per second at most; None for as fast as the lanes allow. `made_at`: Unix seconds.

    `letters`: spans of `failed_messages`. `lanes`: spans of `to_receiver_*`, if deliveries that did not fail are
    replayed, too; and of `parked_messages`, if they are cancelled. `by`: the party on whose share of the jobs it
    counts; empty if an older release created it.
    """

    id: str
    action: Action
    selection: Selection
    made_at: float
    letters: tuple[OffsetSpan, ...]
    lanes: tuple[OffsetSpan, ...]
    rate: float | None
    by: str = ""

    @property
    def only_failed(self) -> bool:
        return not self.lanes


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Progress of a job. `state`: a JobState, or a word that only a newer release knows: that release continues the
    job. `counted`: selected deliveries, once known. `skipped`: the number not sent, by cause.

    `group`: the group of spans that it reads: 0 is all of `letters`, then one for each of `lanes`. `positions`: the
    next offset in each partition of the group; `upto`: deliveries from `positions` up to these offsets may already have
    been sent. `begun_at`, `ended_at`: Unix seconds. `detail`: why it failed.
    """

    state: str = "waiting"
    counted: int | None = None
    sent: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    group: int = 0
    positions: tuple[int, ...] = ()
    upto: tuple[int, ...] = ()
    begun_at: float | None = None
    ended_at: float | None = None
    detail: str | None = None

    @property
    def done(self) -> int:
        return self.sent + sum(self.skipped.values())

    def after(self, sent: int, skipped: Mapping[str, int]) -> "ReplayProgress":
        """The progress with these numbers added."""
        total = dict(self.skipped)
        for why, count in skipped.items():
            total[why] = total.get(why, 0) + count
        return replace(self, sent=self.sent + sent, skipped=total)


def eta_s(progress: ReplayProgress, now: float) -> float | None:
    """Estimated seconds until it is done, at its average speed so far; None if unknown. `now`: Unix seconds."""
    if progress.state != "running" or progress.counted is None or progress.begun_at is None:
        return None
    rest, elapsed_s = max(0, progress.counted - progress.done), now - progress.begun_at
    if not rest:
        return 0.0
    return rest * elapsed_s / progress.done if progress.done and elapsed_s > 0 else None
