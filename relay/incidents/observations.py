"""Observations of causes, from the rows of a look. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf
from typing import Final

from msgspec import structs

from relay.domain.incident import Facts, Kind, Observation, Party, party_of
from relay.domain.incident_kinds import kind_of_attempt, kind_of_letter, party_of_letter, result_words
from relay.domain.reasons import ON_PURPOSE, reason_words
from relay.domain.receiver import Endpoint
from relay.domain.urls import host_of
from relay.incidents.stuck import StuckLine
from relay.log.checks import RISK
from relay.state.lanes import LaneNow
from relay.state.port import EndpointHealth, FailedEntry
from relay.state.read_model import LastAttempt
from relay.telemetry.redaction import escape_control

LETTERS_S: Final = 86_400.0
"""Older dead letters are no sign of a cause that is in effect; the list of dead letters still has them."""
LAG_S: Final = 600.0
"""Age of a lane's first unread record that needs attention, if nothing else explains it."""
_MOST_RECEIVERS: Final = 20
_TEXT: Final = 300
"""Characters of a detail."""
_OURS: Final[frozenset[Kind]] = frozenset({"address_blocked", "wrong_url", "credentials", "dns"})
"""Kinds whose attempts may not count for the endpoint's health: nothing was sent."""
_OF_ENDPOINT: Final[frozenset[Kind]] = frozenset({*_OURS, "tls", "gone", "no_answer", "callback"})
_OF_MESSAGE: Final = frozenset({*range(400, 500), 500}) - {429}
"""Statuses that a server returns for one message; others, such as 503, are about the server."""


@dataclass(frozen=True, slots=True)
class EndpointSeen:
    """An endpoint, by its owner in the state (`r:` and `s:`). `last`: its latest attempt, if known. `queued`: messages
    or results that wait for it, dead letters apart."""

    owner: str
    endpoint: Endpoint
    health: EndpointHealth
    last: LastAttempt | None = None
    verified: bool = True
    queued: int = 0

    @property
    def party(self) -> Party:
        return party_of(self.owner)


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Dead letters of one party and reason; of a receiver, those of one life of its name. `first`, `newest`: when they
    failed; `detail`, `status`: of the newest. `more`: there are others that were not read."""

    party: Party
    reason: str
    letters: int
    first: float
    newest: FailedEntry
    receivers: frozenset[str]
    detail: str = ""
    status: int | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a look at `now` (Unix seconds). `away`: part -> problem; `warnings`: the same for parts that still
    work. `refused`: key of an entry -> why it cannot be used. `retention_s`: by topic, of those with old records.
    `hosts`: of the endpoints at fault for dead letters."""

    now: float
    lanes: Sequence[LaneNow] = ()
    endpoints: Sequence[EndpointSeen] = ()
    letters: Sequence[LetterGroup] = ()
    stuck: Sequence[StuckLine] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    retention_s: Mapping[str, float] = field(default_factory=dict)
    hosts: Mapping[Party, str] = field(default_factory=dict)


def observations(rows: Rows) -> list[Observation]:
    """The causes that are in effect; several of one cause are merged later."""
    letters = [_of_letters(group) for group in rows.letters]
    endpoints = {one.party: one for each in rows.endpoints for one in _of_endpoint(each, rows.now)}
    lines = [_of_stuck(line, rows.now) for line in rows.stuck]
    stuck = [one for one in lines if _is_cause(endpoints.get(one.party))]
    for one in stuck:
        endpoints.pop(one.party, None)
    found = [
        *_of_away(rows.away, rows.now),
        *_of_lanes(rows),
        *_of_refused(rows),
        *(_refined(one, letters) for one in endpoints.values()),
        *stuck,
        *(_with_host(one, rows.hosts) for one in letters),
    ]
    return [*found, *_of_lag(rows, {one.party for one in found}), *_of_warnings(rows)]


def _is_cause(endpoint: Observation | None) -> bool:
    """Whether a stuck message is a cause of its own: the receiver accepts requests, and fails with this message."""
    if endpoint is None:
        return True
    facts = endpoint.facts
    return endpoint.kind in ("failing", "wrong_url") and not facts.condition and facts.status in _OF_MESSAGE


def _refined(one: Observation, letters: Sequence[Observation]) -> Observation:
    """With the cause that newer dead letters have, while the latest attempt is not known yet."""
    if one.kind != "failing" or one.facts.why:
        return one
    known = [each for each in letters if each.party == one.party and each.kind in _OF_ENDPOINT]
    return one if not known else replace(one, kind=max(known, key=lambda each: each.last).kind, merges=("failing",))


def _with_host(one: Observation, hosts: Mapping[Party, str]) -> Observation:
    host = hosts.get(one.party, "")
    return one if not host else replace(one, facts=structs.replace(one.facts, host=host))


def groups_of(entries: Iterable[FailedEntry], now: float, *, more: Iterable[str] = ()) -> list[LetterGroup]:
    """The recent dead letters by party, reason and life. `more`: receivers that have further ones."""
    found: dict[tuple[Party, str, str | None], list[FailedEntry]] = {}
    for entry in entries:
        if entry.reason not in ON_PURPOSE and entry.failed_at >= now - LETTERS_S:
            party = party_of_letter(entry.receiver, entry.source_id, entry.reason, came_late=entry.came_late)
            life = entry.life if party.type == "receiver" else None
            found.setdefault((party, entry.reason, life), []).append(entry)
    truncated = frozenset(more)
    return [_group(party, reason, letters, truncated) for (party, reason, _), letters in found.items()]


def _group(party: Party, reason: str, letters: Sequence[FailedEntry], truncated: frozenset[str]) -> LetterGroup:
    receivers = frozenset(one.receiver for one in letters)
    newest = max(letters, key=lambda one: (one.failed_at, one.at))
    first = min(one.failed_at for one in letters)
    return LetterGroup(party, reason, len(letters), first, newest, receivers, more=bool(receivers & truncated))


# --- parts of the relay -------------------------------------------------------------------------------------------


def _of_away(away: Mapping[str, str], now: float) -> Iterator[Observation]:
    for part, why in away.items():
        yield Observation("store_away", Party("relay", part), now, facts=Facts(detail=text(why)))


def _of_refused(rows: Rows) -> Iterator[Observation]:
    waiting: Counter[str | None] = Counter()
    for lane in rows.lanes:
        if not lane.served:
            waiting[lane.receiver] += lane.lag
    for key, why in rows.refused.items():
        kind, _, id = key.partition(":")
        party = Party("source", id) if kind == "source" and id else Party("receiver", key)
        yield Observation("configuration", party, rows.now, waiting=waiting[key], facts=Facts(detail=text(why)))


def _of_warnings(rows: Rows) -> Iterator[Observation]:
    for part, why in rows.warnings.items():
        if part != "configuration" or not rows.refused:
            kind: Kind = "lag" if part == "history" else "warning"
            yield Observation(kind, Party("relay", part), rows.now, facts=Facts(detail=text(why)))


def _of_lanes(rows: Rows) -> Iterator[Observation]:
    unserved: dict[str, list[LaneNow]] = {}
    for lane in rows.lanes:
        # Another worker would not serve the lane of a receiver whose settings cannot be used either.
        if not lane.served and lane.receiver not in rows.refused:
            unserved.setdefault(lane.role, []).append(lane)
        if (why := _at_risk(lane, rows.retention_s)) is not None:
            waiting, topic = lane.lag, lane.key.topic
            facts = Facts(detail=f"partition {lane.key.partition}: {why}")
            yield Observation("retention", Party("relay", topic), rows.now, waiting=waiting, facts=facts)
    for role, lanes in unserved.items():
        ages = [lane.heartbeat.ago_s for lane in lanes if lane.heartbeat is not None]
        topics = tuple(dict.fromkeys(lane.key.topic for lane in lanes))
        since = rows.now - max(ages) if ages else None
        waiting = sum(lane.lag for lane in lanes)
        yield Observation(
            "no_worker", Party("relay", role), rows.now, since=since, waiting=waiting, facts=Facts(items=topics)
        )


def _at_risk(lane: LaneNow, retention_s: Mapping[str, float]) -> str | None:
    if lane.is_broken:
        return f"the log has deleted what {lane.backlog.group} had not read"
    kept_s = retention_s.get(lane.key.topic)
    if kept_s is None or lane.oldest_s is None or lane.oldest_s <= RISK * kept_s:
        return None
    return f"the oldest unread record is {lane.oldest_s / 3600:.0f} h old, and is deleted after {kept_s / 3600:.0f} h"


def _of_lag(rows: Rows, explained: set[Party]) -> Iterator[Observation]:
    worst: dict[Party, list[LaneNow]] = {}
    for lane in rows.lanes:
        if lane.served and not lane.is_broken and (lane.oldest_s or 0.0) >= LAG_S:
            party = Party("relay", lane.role) if lane.receiver is None else Party("receiver", lane.receiver)
            waits_for = party if lane.oldest is None else party_of(lane.oldest.owner)
            if explained.isdisjoint((party, waits_for)):
                worst.setdefault(party, []).append(lane)
    for party, lanes in worst.items():
        oldest_s = max(lane.oldest_s or 0.0 for lane in lanes)
        facts = Facts(detail=f"the oldest record has waited for {oldest_s / 60:.0f} minutes")
        waiting = sum(lane.lag for lane in lanes)
        yield Observation("lag", party, rows.now, since=rows.now - oldest_s, waiting=waiting, facts=facts)


# --- endpoints ----------------------------------------------------------------------------------------------------


def _of_endpoint(seen: EndpointSeen, now: float) -> Iterator[Observation]:
    """At most one cause: the reason why nothing is sent, or why attempts fail."""
    health, party, last = seen.health, seen.party, failure_of(seen.last)
    held = _held_kind(seen)
    failing = health.failing_for_s > 0 or health.breaker != "closed" or health.failures > 0
    kind = kind_of_attempt(last.status, last.failure) if last is not None else "failing"
    if held is None and not failing and (kind not in _OURS or not _is_recent(last, now)):
        return
    if party.type == "source" and held not in ("paused", "unverified"):
        kind = "callback"
    elif held is not None:
        kind = held
    elif kind in ("rejected", "gone"):  # of one message; its dead letters are the sign of that
        kind = "failing"
    since = now - health.failing_for_s if health.failing_for_s else None if last is None else last.at
    at = now if held is not None or health.breaker != "closed" or last is None else last.at
    facts = Facts(
        host=host_of(seen.endpoint.url),
        why="" if last is None else result_words(last.status, last.failure),
        detail="" if health.hold is None else text(health.hold.detail),
        status=None if last is None else last.status,
        condition=_condition(seen),
        every=True,
    )
    merges: tuple[Kind, ...] = ("head_of_line",) if kind == "failing" else ("head_of_line", "failing")
    begin = health.hold.since if health.hold is not None else since
    yield Observation(kind, party, at, "", begin, max(1, health.failures), seen.queued, facts, merges)


def _held_kind(seen: EndpointSeen) -> Kind | None:
    """Why it is sent nothing, if that ends by a person or a handshake only."""
    health = seen.health
    if health.hold is not None and health.hold.reason in ("gone", "disabled"):
        return "gone" if health.hold.reason == "gone" else "disabled"
    if isinf(health.paused_for_s):
        return "paused"
    return None if seen.verified else "unverified"


def _condition(seen: EndpointSeen) -> str:
    health = seen.health
    if health.hold is not None:
        return "nothing is sent until it is resumed"
    if health.breaker == "closed":
        return ""
    if health.failing_for_s >= seen.endpoint.breaker.offline.after:
        return "it is sent a ping now and then, until it answers"
    return f"its circuit breaker is {health.breaker.replace('_', ' ')}"


def failure_of(last: LastAttempt | None) -> LastAttempt | None:
    """The latest attempt, unless it succeeded."""
    return None if last is None or (last.status is not None and last.status < 300) else last


def _is_recent(last: LastAttempt | None, now: float) -> bool:
    return last is not None and (last.status is None) and now - last.at < LETTERS_S


def _of_stuck(line: StuckLine, now: float) -> Observation:
    facts = Facts(detail=text(line.detail), source_id=line.source_id, message_id=line.message_id)
    party = Party("receiver", line.receiver)
    return Observation(
        "head_of_line", party, now, line.source_id, waiting=line.behind, facts=facts, merges=("failing",)
    )


# --- dead letters -------------------------------------------------------------------------------------------------


def _of_letters(group: LetterGroup) -> Observation:
    newest, party = group.newest, group.party
    kind = kind_of_letter(party, group.reason, group.status, group.detail)
    named = sorted(name for name in group.receivers if name != "-")
    facts = Facts(
        why=result_words(group.status, None) or reason_words(group.reason),
        detail=text(group.detail),
        status=group.status,
        receivers=tuple(named[:_MOST_RECEIVERS]),
        receivers_all=len(named),
        reasons=(group.reason,),
        letters=group.letters,
        letters_more=group.more,
        source_id=newest.source_id,
        message_id=newest.message_id,
        every=True,
        since=group.first,
    )
    return Observation(kind, party, newest.failed_at, "", group.first, group.letters, group.letters, facts)


def text(detail: str) -> str:
    """A detail for people: bounded, without control characters."""
    return escape_control(" ".join(detail.split()))[:_TEXT]
