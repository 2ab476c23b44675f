"""Snapshots of lanes, endpoints and dead letters, shared by all callers, at most one a second."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf
from typing import Final, TypeVar

from relay.api.context import ApiContext
from relay.api.overview.alerts import EndpointNow, FailedNow, StuckLine
from relay.api.receivers import condition
from relay.api.wait_context import named
from relay.domain.reasons import DISCARDED
from relay.domain.receiver import Endpoint
from relay.engine.parked_copy import parked_key
from relay.log.port import LogReader, TopicPartition, read_each
from relay.state.lanes import STAGES, LaneNow, lanes_of, oldest, to_be_read
from relay.state.port import Counts, EndpointHealth, FailedEntry, State
from relay.state.read_model import LineHead, Watched
from relay.state.rows import RowKey, Stage

K = TypeVar("K")

FRESH_S: Final = 1.0
COST: Final = 10.0
"""A snapshot that took long is valid for so many times as long: snapshots take a tenth of the time at most."""
RATE_SPAN_S: Final = 5.0
"""Rates are over at least so long, once there are snapshots that far apart."""
MOST_ENDPOINTS: Final = 2_000
MOST_SHARED: Final = 200
"""Receivers in the shared lane, at most: each is a read of its index."""
MOST_FAILED_RECEIVERS: Final = 100
MOST_LETTERS: Final = 500
"""Of a receiver."""
FAILED_SPAN_S: Final = 3_600.0
MOST_LINES: Final = 200
"""Lines of each kind that are read: those in memory, and those that are parked."""
FAILED: Final = 2
"""Failed attempts of a head from which its line counts as stuck, unless..."""
LONG_S: Final = 60.0
"""... the next attempt is that far off, which makes it stuck after the first failure."""
_STAGE: Final = "to_receiver"
_TO_BE_SENT: Final = frozenset({Stage.ENQUEUED, Stage.SENDING})


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

    # endpoints to which nothing is sent

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
        """Endpoints by their owner in the state, and whether each is verified."""
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
    """Dead letters by receiver and reason, the largest number first."""
    found: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        if entry.failed_at >= since and entry.reason != DISCARDED:
            found.setdefault((entry.receiver, entry.reason), []).append(entry.failed_at)
    groups = [FailedNow(*key, len(moments), max(moments)) for key, moments in found.items()]
    return sorted(groups, key=lambda group: (-group.letters, group.receiver, group.reason))


def _now_of(
    owner: str, endpoint: Endpoint, health: EndpointHealth, *, verified: bool, now: float
) -> EndpointNow | None:
    """None if messages are sent to it, or will be in a moment."""
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
        "paused": "paused until an operator resumes it" if isinf(health.paused_for_s) else "paused",
    }[state]
    is_gone = held is not None and held.reason == "gone"
    if is_gone:
        words = "it said that it is gone (410)"
    detail = f"{words}: {held.detail}" if held is not None and held.detail else words
    return EndpointNow(owner[2:], owner.startswith("s:"), state, since, detail, is_gone)


async def stuck_lines(log: LogReader, state: State, lanes: Sequence[LaneNow]) -> list[StuckLine]:
    """Lines whose head fails again and again; of very many, a part is read. Raises the errors of the two ports."""
    served = [lane for lane in lanes if lane.stage == _STAGE and lane.served and lane.sign is not None]
    found = [head for lane in served if lane.sign is not None for head in lane.sign.heads if head.owner][:MOST_LINES]
    found += await _parked_heads(log, state, served)
    rows = [RowKey(head.owner, head.row) for head in found]
    seen = await state.watch(rows) if rows else []
    reasons = ((head, why_stuck(one)) for head, one in zip(found, seen, strict=True))
    return [
        StuckLine(head.owner[2:], head.source_id, head.message_id, head.behind, why)
        for head, why in reasons
        if why is not None and head.message_id
    ]


def why_stuck(head: Watched) -> str | None:
    """The result of the attempts of a line's head. None if the line moves, or if that is unknown."""
    row = head.row
    over = row.attempts - head.under_way
    if row.stage not in _TO_BE_SENT or over < 1 or (over < FAILED and row.due_in_s < LONG_S):
        return None
    words = head.detail or row.reason
    said = f": {words}" if words else ""
    if row.stage is Stage.SENDING and not head.under_way:
        return f"it is unknown whether attempt {over} arrived{said}"
    return f"attempt {over} did not succeed{said}"


async def _parked_heads(log: LogReader, state: State, lanes: Sequence[LaneNow]) -> list[LineHead]:
    asked = [(lane.key, list(lane.sign.parked)) for lane in lanes if lane.sign is not None and lane.sign.parked][
        :MOST_LINES
    ]
    each = await asyncio.gather(*(state.parked_heads(key, lines) for key, lines in asked))
    found = [
        (line, head)
        for (_, lines), heads in zip(asked, each, strict=True)
        for line, head in zip(lines, heads, strict=True)
        if head is not None and head.behind > 0
    ][:MOST_LINES]
    wanted = [(head.at, parked_key(_STAGE, RowKey(line.owner, head.row))) for line, head in found]
    names = await read_each(log, wanted, named)
    return [
        LineHead(line.queue, head.row, *name)._replace(owner=line.owner, behind=head.behind)
        for (line, head), name in zip(found, names, strict=True)
    ]
