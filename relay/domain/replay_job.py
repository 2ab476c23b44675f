"""Replay jobs, which replay, discard or cancel many deliveries: their records on `receiver_config`.

A job has three keys with one writer each, so that no process overwrites another's record: the order (the process that
accepted the request), the progress (the process with the lease), and the request to stop. Its scope is fixed when it is
created: a dead letter names the generation that failed, a replay begins the next one, and only dead letters before the
ends of the job's spans count. So a process that repeats a part of it sends the same records again, which the rows of
the deliveries deduplicate.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, get_args

from relay.domain.errors import InvalidRecord
from relay.domain.selection import Selection, as_fields, from_fields

Action = Literal["replay", "discard", "cancel"]
JobState = Literal["waiting", "counting", "running", "done", "stopped", "failed"]
OVER: Final = frozenset({"done", "stopped", "failed"})


class OffsetSpan(NamedTuple):
    """Offsets of a partition from `start`, inclusive, to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReplayOrder:
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
    lanes: tuple[OffsetSpan, ...] = ()
    rate: float | None = None
    by: str = ""

    @property
    def only_failed(self) -> bool:
        return not self.lanes

    def encode(self) -> bytes:
        known = {
            "id": self.id,
            "action": self.action,
            "selection": as_fields(self.selection),
            "made_at": self.made_at,
            "letters": self.letters,
            "lanes": self.lanes,
            "rate": self.rate,
        } | ({"by": self.by} if self.by else {})
        return json.dumps(known, sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Progress of a job. `counted`: selected deliveries, once known. `skipped`: the number not sent, by cause.

    `group`: the group of spans that it reads: 0 is all of `letters`, then one for each of `lanes`. `positions`: the
    next offset in each partition of the group; `upto`: deliveries from `positions` up to these offsets may already have
    been sent. `begun_at`, `ended_at`: Unix seconds. `detail`: why it failed.
    """

    state: JobState = "waiting"
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

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

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


def decode_order(value: bytes) -> ReplayOrder:
    """The reverse of `ReplayOrder.encode`. Raises InvalidRecord."""
    try:
        known: dict[str, Any] = json.loads(value)
        if known["action"] not in get_args(Action):
            raise ValueError(known["action"])
        return ReplayOrder(
            str(known["id"]),
            known["action"],
            from_fields(known["selection"]),
            float(known["made_at"]),
            tuple(OffsetSpan(*span) for span in known["letters"]),
            tuple(OffsetSpan(*span) for span in known["lanes"]),
            known["rate"],
            str(known.get("by", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidRecord("invalid", "not a valid record of a replay job's order") from error


def decode_progress(value: bytes) -> ReplayProgress:
    """The reverse of `ReplayProgress.encode`; unknown fields, of a newer version, are ignored. Raises InvalidRecord."""
    try:
        known: dict[str, Any] = json.loads(value)
        known["positions"], known["upto"] = tuple(known["positions"]), tuple(known["upto"])
        return ReplayProgress(**{name: known[name] for name in ReplayProgress.__dataclass_fields__ if name in known})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidRecord("invalid", "not a valid record of a replay job's progress") from error
