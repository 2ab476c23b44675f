"""A job that replays or discards many: its records on `receiver_config`, which whoever goes on with it reads.

Three keys, each with one writer, so that nobody's word overwrites another's: the order (whoever asked for it), how far
it is (whoever has the lease), and that it is to stop. What it is about is fixed when it is made: a dead letter says
which life of its delivery failed, replayed it begins the one after that, and only letters before `ends` count. So
whoever does part of it again sends the same records again, which the rows of the deliveries absorb.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, get_args

from relay.domain.errors import InvalidRecord
from relay.domain.selection import Selection, as_fields, from_fields

ORDER_PREFIX: Final = "replay:"
PROGRESS_PREFIX: Final = "replay-progress:"
STOP_PREFIX: Final = "replay-stop:"
_PREFIXES: Final = (ORDER_PREFIX, PROGRESS_PREFIX, STOP_PREFIX)

Action = Literal["replay", "discard"]
JobState = Literal["waiting", "counting", "running", "done", "stopped", "failed"]
OVER: Final = frozenset({"done", "stopped", "failed"})


class OffsetSpan(NamedTuple):
    """Offsets from `start` to before `end` of a partition."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """What was asked for. `rate`: deliveries a second at most; None: as fast as the lanes take them. `made_at`: Unix
    seconds.

    `letters`: the spans of `failed_messages`. `lanes`: those of `to_receiver_*`, where deliveries that did not fail are
    replayed, too. `by`: whose share of the jobs it takes; empty: one that an older release has made.
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
    """How far it is. `counted`: what is meant, once that is known. `skipped`: how many were not sent, by why.

    `group`: of what it reads: 0 is all of `letters`, each of `lanes` is one more. `positions`: the next offset in each
    partition of the group; `upto`: what lies before these, from `positions` on, may have been sent already.
    `begun_at`, `ended_at`: Unix seconds. `detail`: why it failed.
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
        """So many more."""
        total = dict(self.skipped)
        for why, count in skipped.items():
            total[why] = total.get(why, 0) + count
        return replace(self, sent=self.sent + sent, skipped=total)


def eta_s(progress: ReplayProgress, now: float) -> float | None:
    """Seconds until it is over, if it goes on as fast as it has so far. `now`: Unix seconds. None: nobody can tell."""
    if progress.state != "running" or progress.counted is None or progress.begun_at is None:
        return None
    rest, elapsed_s = max(0, progress.counted - progress.done), now - progress.begun_at
    if not rest:
        return 0.0
    return rest * elapsed_s / progress.done if progress.done and elapsed_s > 0 else None


def order_key(id: str) -> bytes:
    return (ORDER_PREFIX + id).encode()


def progress_key(id: str) -> bytes:
    return (PROGRESS_PREFIX + id).encode()


def stop_key(id: str) -> bytes:
    return (STOP_PREFIX + id).encode()


def is_of_job(key: bytes) -> bool:
    """Whether a key of `receiver_config` is one of these: a receiver's has no colon, a source's another word."""
    return key.startswith(b"replay") and key.startswith(tuple(prefix.encode() for prefix in _PREFIXES))


def job_of(key: bytes) -> tuple[str, str]:
    """(Prefix, id) of a key that `is_of_job`."""
    prefix, _, id = key.decode(errors="replace").partition(":")
    return f"{prefix}:", id


def decode_order(value: bytes) -> ReplayOrder:
    """Raises InvalidRecord unless `value` is what `ReplayOrder.encode` makes."""
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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRecord("invalid", "a job's order that is none of ours") from error


def decode_progress(value: bytes) -> ReplayProgress:
    """Raises InvalidRecord unless `value` is what `ReplayProgress.encode` makes; fields that a newer version adds are
    ignored."""
    try:
        known: dict[str, Any] = json.loads(value)
        known["positions"], known["upto"] = tuple(known["positions"]), tuple(known["upto"])
        return ReplayProgress(**{name: known[name] for name in ReplayProgress.__dataclass_fields__ if name in known})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRecord("invalid", "a job's progress that is none of ours") from error
