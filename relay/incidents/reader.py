"""Reads the rows of a look: endpoints' health and last attempts, dead letters, stuck lines, each a bounded number."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from relay.clock import Clock
from relay.control.registry import Registry
from relay.domain.dead_letter import parse_dead_letter
from relay.domain.errors import LogUnavailable
from relay.domain.hop import NO_RECEIVER
from relay.domain.incident import URGENCY, IncidentSnapshot, Observation, Party
from relay.domain.incident_kinds import PATIENCE_S
from relay.domain.receiver import Endpoint
from relay.domain.sliced import sliced
from relay.domain.topics import Topics
from relay.domain.urls import host_of
from relay.incidents.observations import EndpointSeen, LetterGroup, Rows, failure_of, groups_of, observations
from relay.incidents.stuck import ParkedLines, parked_lines, stuck_lines
from relay.log.port import Coordinate, Log, Record, read_each
from relay.state.lanes import LONG_S, LaneNow
from relay.state.port import Counts, EndpointHealth, FailedEntry, State
from relay.state.read_model import LastAttempt
from workers.failed_messages import life_of

MOST_ENDPOINTS: Final = 10_000
MOST_SHARED: Final = 200
"""Receivers in the shared lane that are looked at only because they exist: each is a read of its index."""
MOST_FAILED_RECEIVERS: Final = 2_000
MOST_LETTERS: Final = 20_000
"""Entries of dead letters, of all receivers."""
LEAST_LETTERS: Final = 10
MOST_LETTERS_OF_ONE: Final = 10_000
MOST_GROUPS: Final = 1_000
"""Groups of dead letters whose newest one is read for its detail."""
MOST_REFUSED: Final = 100
"""Entries that cannot be used, by name; the others as a number."""
_AT_ONCE: Final = 500
"""Endpoints in one call: some milliseconds of the server."""
_RECEIVERS_AT_ONCE: Final = 200
MOST_WAITING: Final = 1_000
"""Endpoints whose oldest message is published, those with the oldest."""
OLD_S: Final = 3_600.0
"""Age of an unread record from which its topic's retention is read."""

Problems = Callable[[], Mapping[str, str | None]]
KnownEndpoints = Mapping[str, tuple[Endpoint, bool]]
"""Endpoints by their owner in the state, and whether each is verified."""


@dataclass(frozen=True, slots=True)
class FailedEntries:
    """Dead letters of the index, and the receivers that have more than were read. `more`: not all receivers were
    read."""

    entries: Sequence[FailedEntry]
    truncated: frozenset[str]
    more: bool


@dataclass(frozen=True, slots=True)
class RowsSnapshot:
    """The result of a look. `endpoints`: those that may not be well. `waiting`: endpoint's owner -> since when its
    oldest message or result waits, in Unix seconds, of those that were read."""

    causes: IncidentSnapshot
    endpoints: Sequence[EndpointSeen] = ()
    waiting: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IncidentReader:
    """Reads all that incidents are made of. `ready`, `warnings`: problems of this process's parts, by name."""

    log: Log
    state: State
    topics: Topics
    registry: Registry
    clock: Clock
    ready: Problems
    warnings: Problems
    _newest: dict[FailedEntry, "NewestLetter"] = field(default_factory=dict)

    def away(self) -> IncidentSnapshot:
        """What this process knows without log and state: the parts that are away."""
        now = self.clock.time()
        unseen = [kind for kind in URGENCY if kind != "store_away"]
        return IncidentSnapshot(now, observations(Rows(now, away=_wrong(self.ready()))), unseen, PATIENCE_S)

    @property
    def is_stopping(self) -> bool:
        """Whether this process finishes its work before it ends, while it no longer serves lanes that are idle."""
        return self.ready().get("stopping") is not None

    async def failed(self) -> FailedEntries:
        """Raises StateUnavailable."""
        names = await self.state.failed_receivers()
        some = names[:MOST_FAILED_RECEIVERS]
        limit = min(MOST_LETTERS_OF_ONE, max(LEAST_LETTERS, MOST_LETTERS // max(1, len(some))))
        found = list[FailedEntry]()
        truncated = set[str]()
        for batch in sliced(some, _RECEIVERS_AT_ONCE):
            each = await asyncio.gather(*(self.state.failed(name, limit=limit) for name in batch))
            found += [entry for entries in each for entry in _without_copies(entries)]
            truncated |= {name for name, entries in zip(batch, each, strict=True) if len(entries) == limit}
        return FailedEntries(found, frozenset(truncated), len(names) > len(some))

    async def look(self, lanes: Sequence[LaneNow], failed: FailedEntries) -> RowsSnapshot:
        """Raises the errors of log and state."""
        now = self.clock.time()
        groups = list(filter(self._may_be_current, groups_of(failed.entries, now, more=failed.truncated)))
        sources = [group.party.name for group in groups if group.party.type == "source"]
        parked = await parked_lines(self.log, self.state, lanes)
        known = self._known(sources, (*queues_of(lanes), *(one.owner for one in parked.waiting)))
        letters, endpoints, retention_s = await asyncio.gather(
            self._letters(groups), self._endpoints(lanes, known), self._retention(lanes)
        )
        stuck = await stuck_lines(self.state, lanes, [head for head in parked.heads if head.behind > 0])
        refused, warnings = self._refused(), _wrong(self.warnings())
        away = _wrong(self.ready())
        rows = Rows(now, lanes, endpoints, letters, stuck, refused, away, warnings, retention_s, _hosts(groups, known))
        causes = IncidentSnapshot(now, [self._with_life(one) for one in observations(rows)], patience_s=PATIENCE_S)
        return RowsSnapshot(causes, endpoints, _waiting(lanes, parked, now))

    # dead letters

    async def _letters(self, unsorted: Sequence[LetterGroup]) -> list[LetterGroup]:
        """The groups, the latest with the details of their newest letter."""
        groups = sorted(unsorted, key=lambda group: group.newest.failed_at, reverse=True)
        some = groups[:MOST_GROUPS]
        await self._read([group.newest for group in some])
        details = [self._newest.get(group.newest) for group in some]
        described = [
            group if one is None else replace(group, detail=one.detail, status=one.status)
            for group, one in zip(some, details, strict=True)
            if one is None or self._is_current(group, one)
        ]
        return [*described, *groups[MOST_GROUPS:]]

    async def _read(self, entries: Sequence[FailedEntry]) -> None:
        """Reads those letters that the last look has not read: each has its whole payload."""
        known = {entry: self._newest[entry] for entry in entries if entry in self._newest}
        unread = [entry for entry in entries if entry not in known]
        with suppress(LogUnavailable):  # the index is a hint: its topic may have been made anew
            found = await read_each(self.log, [(entry.at, None) for entry in unread], _newest_of)
            known |= {entry: one for entry, one in zip(unread, found, strict=True) if one is not None}
        self._newest.clear()
        self._newest.update(known)

    def _may_be_current(self, group: LetterGroup) -> bool:
        """Whether it may be about the receiver that has the name now: a former one may have had another owner. The
        index does not know it of letters without a life, nor of those that an earlier release has indexed."""
        life = group.newest.life
        return not life or group.party.type != "receiver" or self.registry.life_of(group.party.name).has(life)

    def _is_current(self, group: LetterGroup, newest: "NewestLetter") -> bool:
        """The same, by the newest letter itself."""
        if group.party.type != "receiver":
            return True
        return self.registry.life_of(group.party.name).has(newest.life, newest.origin)

    def _with_life(self, one: Observation) -> Observation:
        if one.party.type != "receiver":
            return one
        return replace(one, life=self.registry.life_of(one.party.name).id)

    # endpoints

    async def _endpoints(self, lanes: Sequence[LaneNow], known: KnownEndpoints) -> list[EndpointSeen]:
        found = list[EndpointSeen]()
        for batch in sliced(list(known.items()), _AT_ONCE):
            owners = [owner for owner, _ in batch]
            health, last = await asyncio.gather(self.state.endpoints(owners), self.state.last_attempts(owners))
            found += [
                EndpointSeen(owner, endpoint, one, attempt, verified)
                for (owner, (endpoint, verified)), one, attempt in zip(batch, health, last, strict=True)
                if _may_matter(one, attempt, verified)
            ]
        return await self._with_queues(found, queues_of(lanes))

    async def _with_queues(self, found: Sequence[EndpointSeen], lags: Counter[str]) -> list[EndpointSeen]:
        counted = list[int]()
        for batch in sliced(found, _AT_ONCE):
            each = await self.state.parked([one.owner for one in batch])
            counted += [counts.retries if isinstance(counts, Counts) else 0 for counts in each]
        return [replace(one, queued=parked + lags[one.owner]) for one, parked in zip(found, counted, strict=True)]

    def _known(self, sources: Sequence[str], waited_for: Sequence[str]) -> KnownEndpoints:
        """The endpoints at which this process may look. `sources`: also those of these ids,
        which may have no entry of their own. `waited_for`: owners of endpoints for which messages wait."""
        registry = self.registry
        shared = registry.shared.some(MOST_SHARED)
        for name in (owner[2:] for owner in waited_for[:MOST_ENDPOINTS] if owner.startswith("r:")):
            if name not in shared and (one := registry.shared.receiver(name)) is not None:
                shared[name] = one
        receivers = [*list(registry.receivers().items())[:MOST_ENDPOINTS], *shared.items()]
        found = {
            f"r:{name}": (one.post, one.verified) for name, one in receivers if one.enabled and one.unusable is None
        }
        for source_id in [*list(registry.sources())[:MOST_ENDPOINTS], *sources]:
            callback = registry.source(source_id).callback
            if callback is not None and source_id != "*":
                found[f"s:{source_id}"] = (callback, True)
        return found

    def _refused(self) -> dict[str, str]:
        problems = self.registry.problems
        return {name: problems[name] for name in sorted(problems)[:MOST_REFUSED]}

    async def _retention(self, lanes: Sequence[LaneNow]) -> dict[str, float]:
        """By topic, in seconds, of topics with old unread records."""
        old = sorted({lane.key.topic for lane in lanes if (lane.oldest_s or 0.0) > OLD_S})
        if not old:
            return {}
        states = await self.log.describe(old)
        kept = {topic: state.spec.retention_s for topic, state in states.items()}
        return {topic: float(seconds) for topic, seconds in kept.items() if seconds is not None}


class NewestLetter(NamedTuple):
    """The parts of a group's newest dead letter that say what its cause is, and which receiver it is of."""

    detail: str
    status: int | None
    life: str
    origin: Coordinate | None


def _without_copies(entries: Sequence[FailedEntry]) -> Iterable[FailedEntry]:
    """The newest entry of each delivery and reason: the others are copies, of processes that died before they had
    marked theirs, or of former generations. Letters without a delivery are all kept. `entries`: newest first."""
    ends = dict[tuple[str, ...], FailedEntry]()
    for entry in entries:
        own = entry.receiver != NO_RECEIVER and entry.reason != "id_conflict" and entry.message_id
        end = (entry.source_id, entry.message_id, entry.reason) if own else tuple(map(str, entry.at))
        ends.setdefault(end, entry)
    return ends.values()


def _newest_of(record: Record | None) -> NewestLetter | None:
    """None if the log does not have it any more."""
    if record is None:
        return None
    letter = parse_dead_letter(record.headers)
    return NewestLetter(letter.detail, letter.last_status, life_of(record), letter.origin)


def _hosts(groups: Sequence[LetterGroup], known: KnownEndpoints) -> dict[Party, str]:
    """The hosts of the endpoints at fault, also of those that look well by now."""
    owners = {group.party: f"{group.party.type[0]}:{group.party.name}" for group in groups}
    return {party: host_of(known[owner][0].url) for party, owner in owners.items() if owner in known}


def _waiting(lanes: Sequence[LaneNow], parked: ParkedLines, now: float) -> dict[str, float]:
    found = dict[str, float]()
    first = (lane.oldest for lane in lanes if lane.oldest is not None)
    in_memory = (one for lane in lanes if lane.recent is not None for one in lane.recent.waiting)
    for one in (*parked.waiting, *first, *in_memory):
        if one.since <= now - LONG_S:
            found[one.owner] = min(one.since, found.get(one.owner, one.since))
    return dict(sorted(found.items(), key=lambda item: item[1])[:MOST_WAITING])


def _may_matter(health: EndpointHealth, last: LastAttempt | None, verified: bool) -> bool:
    """Whether it may be part of a cause; most endpoints are not."""
    is_well = health.breaker == "closed" and health.failures == 0 and not health.failing_for_s and verified
    return not (is_well and failure_of(last) is None and health.hold is None and health.paused_for_s == 0)


def queues_of(lanes: Sequence[LaneNow]) -> Counter[str]:
    """Messages and results in lanes, by the endpoint that they are for; in lanes of many only those in memory."""
    found = Counter[str]()
    for lane in lanes:
        if lane.receiver is not None and lane.stage == "to_receiver":
            found[f"r:{lane.receiver}"] += lane.lag
        elif lane.stage in ("to_receiver", "to_sender") and lane.recent is not None:
            found.update(lane.recent.queued)
    return found


def _wrong(parts: Mapping[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in parts.items() if text is not None}
