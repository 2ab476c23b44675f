"""Replay jobs, which replay, discard or cancel many deliveries: their records on `receiver_config`.

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

from relay.domain.selection import Selection

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
