"""Snapshots of lanes, dead letters and causes of failures, shared by all callers, at most one a second."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from relay.api.context import ApiContext
from relay.domain.incident import IncidentLook
from relay.domain.reasons import ON_PURPOSE
from relay.incidents.reader import IncidentReader
from relay.log.port import TopicPartition
from relay.state.lanes import STAGES, LaneNow, lanes_of, oldest, to_be_read
from relay.state.port import Counts, FailedEntry

K = TypeVar("K")

FRESH_S: Final = 1.0
COST: Final = 10.0
"""A snapshot that took long is valid for so many times as long: snapshots take a tenth of the time at most."""
RATE_SPAN_S: Final = 5.0
"""Rates are over at least so long, once there are snapshots that far apart."""
MOST_PARKED_OF: Final = 2_000
"""Receivers whose parked records are counted, at most."""
FAILED_SPAN_S: Final = 3_600.0


class FailedNow(NamedTuple):
    """Dead letters of one receiver and reason in the last hour. `newest`: Unix seconds."""

    receiver: str
    reason: str
    letters: int
    newest: float


@dataclass(frozen=True, slots=True)
class Passed:
    """Numbers of records by stage, at `at` (monotonic): written (`ends`), and finished (`done`)."""

    at: float
    ends: Mapping[str, int]
    done: Mapping[str, int]
    of_lanes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Finished in each."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Records a second over `span_s`: received (`come`) and finished (`done`) by stage, and finished in each lane."""

    span_s: float
    come: Mapping[str, float]
    done: Mapping[str, float]
    of_lanes: Mapping[TopicPartition, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OverviewSnapshot:
    """The state at `now` (Unix seconds). `rates`: None in the first snapshot. `failed_more`: there are more dead
    letters than were read."""

    now: float
    lanes: Sequence[LaneNow]
    parked: Counts
    parked_of: Mapping[str, Counts]
    failed: Sequence[FailedNow]
    failed_more: bool
    causes: IncidentLook
    rates: Rates | None = field(default=None)


def passed(lanes: Sequence[LaneNow], at: float) -> Passed:
    ends: Counter[str] = Counter(dict.fromkeys(STAGES.values(), 0))
    done: Counter[str] = Counter(dict.fromkeys(STAGES.values(), 0))
    for lane in lanes:
        ends[lane.stage] += lane.backlog.end
        done[lane.stage] += lane.backlog.readable - lane.lag
    return Passed(at, ends, done, {lane.key: lane.backlog.readable - lane.lag for lane in lanes})


def rates(before: Passed, now: Passed) -> Rates | None:
    """None if no time passed in between. A topic that was created again counts as 0, not as negative."""
    span_s = now.at - before.at
    if span_s <= 0:
        return None
    return Rates(
        span_s,
        _per_s(before.ends, now.ends, span_s),
        _per_s(before.done, now.done, span_s),
        _per_s(before.of_lanes, now.of_lanes, span_s),
    )


def _per_s(before: Mapping[K, int], now: Mapping[K, int], span_s: float) -> dict[K, float]:
    return {key: max(count - before.get(key, count), 0) / span_s for key, count in now.items()}


class Looker:
    """Takes the snapshots of a process."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        registry = None if context.registrar is None else context.registrar.registry
        self.reader = IncidentReader(
            context.log, context.state, context.topics, registry, context.clock, context.ready, context.warnings
        )
        self._turn = asyncio.Lock()
        self._last: OverviewSnapshot | None = None
        self._good_until = 0.0
        self._before: list[Passed] = []

    async def look(self) -> OverviewSnapshot:
        """A fresh snapshot. Raises the errors of the two ports."""
        clock = self._context.clock
        async with self._turn:
            if self._last is None or clock.monotonic() >= self._good_until:
                begun = clock.monotonic()
                self._last = await self._look()
                took_s = clock.monotonic() - begun
                self._good_until = begun + max(FRESH_S, COST * took_s)
            return self._last

    async def _look(self) -> OverviewSnapshot:
        context, now = self._context, self._context.clock.time()
        backlogs = await context.log.backlogs(context.topics.groups(context.lanes()))
        signs = await context.state.signs([backlog.partition for backlog in backlogs])
        lanes = lanes_of(context.topics, backlogs, signs)
        ages, parked, failed = await asyncio.gather(
            oldest(context.log, to_be_read(lanes), now), context.state.parked_total(), self.reader.failed()
        )
        lanes = [replace(lane, oldest_s=ages.get(lane.key)) for lane in lanes]
        parked_of = await self._parked_of({lane.receiver for lane in lanes if lane.receiver is not None})
        causes = await self.reader.look(lanes, failed)
        more = failed.more or bool(failed.truncated)
        letters = counted(failed.entries, now - FAILED_SPAN_S)
        return OverviewSnapshot(now, lanes, parked, parked_of, letters, more, causes, self._rates(lanes))

    def _rates(self, lanes: Sequence[LaneNow]) -> Rates | None:
        now = passed(lanes, self._context.clock.monotonic())
        self._before.append(now)
        while len(self._before) > 2 and now.at - self._before[1].at >= RATE_SPAN_S:
            del self._before[0]
        return rates(self._before[0], now)

    async def _parked_of(self, receivers: Iterable[str]) -> dict[str, Counts]:
        names = sorted(receivers)[:MOST_PARKED_OF]
        found = await self._context.state.parked([f"r:{name}" for name in names]) if names else []
        return {name: count for name, count in zip(names, found, strict=True) if isinstance(count, Counts)}


def counted(entries: Iterable[FailedEntry], since: float) -> list[FailedNow]:
    """Dead letters by receiver and reason, the largest number first."""
    found: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        if entry.failed_at >= since and entry.reason not in ON_PURPOSE:
            found.setdefault((entry.receiver, entry.reason), []).append(entry.failed_at)
    groups = [FailedNow(*key, len(moments), max(moments)) for key, moments in found.items()]
    return sorted(groups, key=lambda group: (-group.letters, group.receiver, group.reason))
