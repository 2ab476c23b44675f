"""A look at everything, for all who want one: it is made anew a second after the last at the earliest."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf
from typing import Final, TypeVar

from relay.api.context import ApiContext
from relay.api.overview.alerts import EndpointNow, FailedNow
from relay.api.overview.head_of_line import StuckLine, stuck_lines
from relay.api.receivers import condition
from relay.domain.reasons import DISCARDED
from relay.domain.receiver import Endpoint
from relay.log.port import TopicPartition
from relay.state.lanes import STAGES, LaneNow, lanes_of, oldest, to_be_read
from relay.state.port import Counts, EndpointHealth, FailedEntry

K = TypeVar("K")

FRESH_S: Final = 1.0
COST: Final = 10.0
"""A look that took long is good for so many times as long: looking never takes more than a tenth of the time."""
RATE_SPAN_S: Final = 5.0
"""Rates are over at least so long, as soon as there are looks that far apart."""
MOST_ENDPOINTS: Final = 2_000
MOST_SHARED: Final = 200
"""Receivers in the shared lane: each costs a look into its index."""
MOST_FAILED_RECEIVERS: Final = 100
MOST_LETTERS: Final = 500
"""Of a receiver."""
FAILED_SPAN_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Passed:
    """At `at` (monotonic), by stage: how many records there had been (`ends`), and were finished (`done`)."""

    at: float
    ends: Mapping[str, int]
    done: Mapping[str, int]
    of_lanes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Finished in each."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Records a second by stage, over `span_s`: `come` in, and `done`; and those that were done in each lane."""

    span_s: float
    come: Mapping[str, float]
    done: Mapping[str, float]
    of_lanes: Mapping[TopicPartition, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OverviewSnapshot:
    """What was seen at `now` (Unix seconds). `rates` None: there was no look before. `failed_more`: there are more dead
    letters than were looked at."""

    now: float
    lanes: Sequence[LaneNow]
    endpoints: Sequence[EndpointNow]
    parked: Counts
    parked_of: Mapping[str, Counts]
    failed: Sequence[FailedNow]
    failed_more: bool
    stuck: Sequence[StuckLine] = ()
    rates: Rates | None = field(default=None)


def passed(lanes: Sequence[LaneNow], at: float) -> Passed:
    ends: Counter[str] = Counter(dict.fromkeys(STAGES.values(), 0))
    done: Counter[str] = Counter(dict.fromkeys(STAGES.values(), 0))
    for lane in lanes:
        ends[lane.stage] += lane.backlog.end
        done[lane.stage] += lane.backlog.readable - lane.lag
    return Passed(at, ends, done, {lane.key: lane.backlog.readable - lane.lag for lane in lanes})


def rates(before: Passed, now: Passed) -> Rates | None:
    """None where no time passed in between. A topic that was made anew counts as nothing, not as less."""
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
    """One for all who ask a process."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        self._last: OverviewSnapshot | None = None
        self._good_until = 0.0
        self._before: list[Passed] = []

    async def look(self) -> OverviewSnapshot:
        """One that is fresh. Raises what the two ports do."""
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
        ages, endpoints, parked, (failed, more), stuck = await asyncio.gather(
            oldest(context.log, to_be_read(lanes), now),
            self._endpoints(now),
            context.state.parked_total(),
            self._failed(now),
            stuck_lines(context.log, context.state, lanes),
        )
        lanes = [replace(lane, oldest_s=ages.get(lane.key)) for lane in lanes]
        counted = await self._parked_of({lane.receiver for lane in lanes if lane.receiver is not None})
        return OverviewSnapshot(now, lanes, endpoints, parked, counted, failed, more, stuck, self._rates(lanes))

    def _rates(self, lanes: Sequence[LaneNow]) -> Rates | None:
        now = passed(lanes, self._context.clock.monotonic())
        self._before.append(now)
        while len(self._before) > 2 and now.at - self._before[1].at >= RATE_SPAN_S:
            del self._before[0]
        return rates(self._before[0], now)

    async def _parked_of(self, receivers: Iterable[str]) -> dict[str, Counts]:
        names = sorted(receivers)[:MOST_ENDPOINTS]
        found = await self._context.state.parked([f"r:{name}" for name in names]) if names else []
        return {name: count for name, count in zip(names, found, strict=True) if isinstance(count, Counts)}

    # endpoints that are sent nothing

    async def _endpoints(self, now: float) -> list[EndpointNow]:
        known = self._known()
        health = await self._context.state.endpoints(list(known)) if known else []
        found = []
        for (owner, (endpoint, verified)), one in zip(known.items(), health, strict=True):
            now_of_it = _now_of(owner, endpoint, one, verified=verified, now=now)
            if now_of_it is not None:
                found.append(now_of_it)
        return found

    def _known(self) -> dict[str, tuple[Endpoint, bool]]:
        """By owner in the state; with whether it is verified."""
        registrar = self._context.registrar
        if registrar is None:
            return {}
        registry = registrar.registry
        receivers = [*list(registry.receivers().items())[:MOST_ENDPOINTS], *registry.shared.some(MOST_SHARED).items()]
        found = {f"r:{name}": (one.post, one.verified) for name, one in receivers if one.enabled}
        for source_id, source in list(registry.sources().items())[:MOST_ENDPOINTS]:
            if source.callback is not None and source_id != "*":
                found[f"s:{source_id}"] = (source.callback, True)
        return found

    # dead letters

    async def _failed(self, now: float) -> tuple[list[FailedNow], bool]:
        names = await self._context.state.failed_receivers()
        some = names[:MOST_FAILED_RECEIVERS]
        each = await asyncio.gather(*(self._context.state.failed(name, limit=MOST_LETTERS) for name in some))
        more = len(names) > len(some) or any(len(entries) == MOST_LETTERS for entries in each)
        return counted([entry for entries in each for entry in entries], now - FAILED_SPAN_S), more


def counted(entries: Iterable[FailedEntry], since: float) -> list[FailedNow]:
    """By receiver and reason, the most first."""
    found: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        if entry.failed_at >= since and entry.reason != DISCARDED:
            found.setdefault((entry.receiver, entry.reason), []).append(entry.failed_at)
    groups = [FailedNow(*key, len(moments), max(moments)) for key, moments in found.items()]
    return sorted(groups, key=lambda group: (-group.letters, group.receiver, group.reason))


def _now_of(
    owner: str, endpoint: Endpoint, health: EndpointHealth, *, verified: bool, now: float
) -> EndpointNow | None:
    """None: it is sent what there is, or will be in a moment."""
    state = condition(health, endpoint, verified)
    if state in ("up", "backing_off"):
        return None
    held = health.hold
    since = held.since if held is not None else (now - health.failing_for_s if health.failing_for_s else None)
    words = {
        "offline": "down for long: it is sent a ping now and then, until it answers",
        "failing": f"its breaker is {health.breaker.replace('_', ' ')} after {health.failures} failures in a row",
        "unverified": "it is sent nothing before its URL has proved that it wants this",
        "disabled": "switched off after it was down for too long",
        "paused": "paused until somebody resumes it" if isinf(health.paused_for_s) else "paused",
    }[state]
    is_gone = held is not None and held.reason == "gone"
    if is_gone:
        words = "it said that it is gone (410)"
    detail = f"{words}: {held.detail}" if held is not None and held.detail else words
    return EndpointNow(owner[2:], owner.startswith("s:"), state, since, detail, is_gone)
