"""Snapshots of lanes, dead letters and causes of failures, shared by all callers, at most one a second."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from relay.api.coalesce import Reused
from relay.api.context import ApiContext
from relay.api.failed import IndexGroup, groups_of
from relay.api.receivers import condition, health_view, waited_s
from relay.domain.errors import StateUnavailable
from relay.domain.incident import IncidentSnapshot, Party, party_of
from relay.domain.reasons import ON_PURPOSE
from relay.domain.statistics import NOT_WELL, severity
from relay.incidents.observations import EndpointSeen
from relay.incidents.reader import IncidentReader, RowsSnapshot
from relay.log.port import TopicPartition
from relay.schema.receivers import Condition
from relay.schema.statistics import HealthView
from relay.state.lanes import STAGES, LaneNow, read_lanes, with_oldest
from relay.state.port import Counts, EndpointHealth, FailedEntry
from relay.state.read_model import Statistics

K = TypeVar("K")

RATE_SPAN_S: Final = 5.0
"""Minimum time span of rates, once snapshots are that far apart."""
MOST_PARKED_OF: Final = 2_000
"""Receivers whose parked records are counted, at most."""
_WELL: Final = EndpointHealth("closed", 0.0, 0)
MOST_NOT_WELL: Final = 200
"""Endpoints whose statistics are read, at most, to judge their health."""
FAILED_SPAN_S: Final = 3_600.0
AWAY_WITHIN_S: Final = 3.0
"""A state that is known to be away is not waited for longer: a snapshot asks it several times."""


class EndpointNow(NamedTuple):
    """The health of an endpoint that is not well. `party`: the receiver, or the source whose callback it is."""

    party: Party
    health: HealthView


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
    """The state at `now` (Unix seconds). `parked_results`: how many of the `parked` retries are results. `rates`: None
    in the first snapshot. `failed_more`: there are more dead letters than were read."""

    now: float
    lanes: Sequence[LaneNow]
    parked: Counts
    parked_results: int
    parked_of: Mapping[str, Counts]
    failed: Sequence[IndexGroup]
    failed_more: bool
    causes: IncidentSnapshot
    rates: Rates | None = field(default=None)
    not_well: Sequence["EndpointNow"] = ()
    """The worst first."""


def passed(lanes: Sequence[LaneNow], at: float) -> Passed:
    ends: Counter[str] = Counter(dict.fromkeys(STAGES.values(), 0))
    done: Counter[str] = Counter(dict.fromkeys(STAGES.values(), 0))
    for lane in lanes:
        ends[lane.stage] += lane.backlog.end
        done[lane.stage] += lane.backlog.readable - lane.lag
    return Passed(at, ends, done, {lane.key: lane.backlog.readable - lane.lag for lane in lanes})


def rates(before: Passed, now: Passed) -> Rates | None:
    """Rates between two snapshots; None if no time passed. A topic that was created again counts as 0, not as
    negative."""
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
        self.reader = IncidentReader(
            context.log, context.state, context.topics, context.registry, context.clock, context.ready, context.warnings
        )
        self._fresh = Reused(context.clock, self._look)
        self._before: list[Passed] = []
        self._failed: dict[str, None] = {}
        """Owners of endpoints that may not be well, those of the last snapshot first."""

    async def look(self) -> OverviewSnapshot:
        """Return a fresh snapshot. Raises the errors of the two ports, soon if this process knows that the state is
        away."""
        if self._context.ready().get("state") is None:
            return await self._fresh()
        try:
            async with asyncio.timeout(AWAY_WITHIN_S):
                return await self._fresh()
        except TimeoutError as error:
            raise StateUnavailable("it does not answer") from error

    async def _look(self) -> OverviewSnapshot:
        context, now = self._context, self._context.clock.time()
        groups = context.topics.groups(context.lanes())
        lanes = await read_lanes(context.log, context.state, context.topics, groups)
        lanes, parked, results, failed = await asyncio.gather(
            with_oldest(context.log, lanes, now),
            context.state.parked_total(),
            context.state.parked_results(),
            self.reader.failed(),
        )
        parked_of = await self._parked_of({lane.receiver for lane in lanes if lane.receiver is not None})
        found = await self.reader.look(lanes, failed)
        worst = await self._not_well(found, now)
        more = failed.more or bool(failed.truncated)
        letters = counted(failed.entries, now)
        return OverviewSnapshot(
            now, lanes, parked, results, parked_of, letters, more, found.causes, self._rates(lanes), worst
        )

    async def _not_well(self, found: RowsSnapshot, now: float) -> list[EndpointNow]:
        """Also those that failed in earlier snapshots: of an endpoint that fails now and then, the last attempt may
        have succeeded."""
        seen = {one.owner: one for one in found.endpoints}
        worst = sorted(seen.values(), key=lambda one: (-one.health.failing_for_s, -one.health.failures, one.owner))
        newest = {one.owner: None for one in worst[:MOST_NOT_WELL]} | dict.fromkeys(found.waiting)
        self._failed = dict.fromkeys(list({**newest, **self._failed})[:MOST_NOT_WELL])
        owners = list(self._failed)
        statistics = await self._context.state.statistics(owners) if owners else []
        return not_well(dict(zip(owners, statistics, strict=True)), seen, found.waiting, now)

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


def not_well(
    statistics: Mapping[str, Statistics], seen: Mapping[str, EndpointSeen], waiting: Mapping[str, float], now: float
) -> list[EndpointNow]:
    """Those that are not well, the worst first, by owner. An endpoint that was not `seen` has no failure at present."""
    found = list[EndpointNow]()
    for owner, counts in statistics.items():
        one = seen.get(owner)
        health = _WELL if one is None else one.health
        is_now: Condition = "up" if one is None else condition(one.health, one.endpoint)
        found.append(EndpointNow(party_of(owner), health_view(counts, health, is_now, waited_s(waiting, owner, now))))
    return sorted((one for one in found if one.health["state"] in NOT_WELL), key=_severity)


def _severity(one: EndpointNow) -> tuple[object, ...]:
    health = one.health
    return *severity(health["state"], health["success_rate"], health["oldest_waiting_s"]), one.party


def counted(entries: Iterable[FailedEntry], now: float) -> list[IndexGroup]:
    """Dead letters of the last hour, without those that were ended on purpose."""
    since = now - FAILED_SPAN_S
    recent = (entry for entry in entries if entry.failed_at >= since and entry.reason not in ON_PURPOSE)
    return groups_of(recent, now)
