"""Incidents: causes of failures, each with the party at fault, and their life from the first failure on. Pure.

An incident is a hint, folded from observations of rows that exist anyway: no delivery depends on it, and after a loss
of the state it is opened again by the next observation. Its id names the cause (party, kind and scope), so that a link
to it stays valid when it is reopened. An occurrence is named by `opened_at`.
"""

import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from relay.domain.identity import base32

PartyType = Literal["receiver", "source", "relay"]
State = Literal["open", "acknowledged", "resolved"]
Verb = Literal["acknowledge", "resolve"]
Kind = Literal[
    "store_away",
    "retention",
    "no_worker",
    "relay_fault",
    "configuration",
    "callback",
    "credentials",
    "address_blocked",
    "tls",
    "dns",
    "wrong_url",
    "gone",
    "disabled",
    "failing",
    "head_of_line",
    "rejected",
    "no_answer",
    "backlog",
    "lag",
    "invalid_messages",
    "warning",
    "unverified",
    "paused",
]
"""The most urgent first."""
URGENCY: Final[tuple[Kind, ...]] = Kind.__args__  # type: ignore[attr-defined]

MOST: Final = 1_000
"""Incidents that are kept, resolved ones included."""
HOLD_S: Final = 30.0
"""An incident resolves after it was not observed for so long; twice as long after each time that it was reopened."""
LONGEST_HOLD_S: Final = 1_800.0
_NO_HOLD: Final = frozenset[Kind]({"store_away", "gone", "disabled", "configuration", "unverified", "paused"})
"""Kinds that end by an action, or are smoothed where they are observed."""
_SETTLING: Final[frozenset[Kind]] = frozenset({"no_worker", "lag", "warning"})
"""Kinds that occur for a moment whenever a process starts or ends: they count once they have lasted..."""
SETTLE_S: Final = 10.0
"""... for so long."""
REOPEN_S: Final = 3_600.0
"""A cause that is observed again within this time reopens its incident; later it is a new occurrence."""
SAME_S: Final = 60.0
"""Differences of `opened_at` within one occurrence."""
KEPT_S: Final = 7 * 86_400.0
"""Of a resolved incident."""
_ID_BYTES: Final = 10


class Party(NamedTuple):
    """The party at fault. `name`: a receiver, a source id, or a part or role of the relay."""

    type: PartyType
    name: str


def party_of(owner: str) -> Party:
    """The receiver or source whose endpoint is `owner` (`r:NAME`, `s:ID`) in the state."""
    return Party("source" if owner.startswith("s:") else "receiver", owner[2:])


class Facts(Struct, frozen=True, omit_defaults=True):
    """Details of an observation, for its sentence and its action.

    `host`: of the endpoint. `why`: the last result in a few words. `detail`: the same in full, without secrets.
    `receivers`: of the messages concerned, at most 20, of `receivers_all`. `letters`: dead letters that
    can be replayed, at least, by `reasons`; `letters_more`: the index has more than were counted. `condition`: a clause
    about the endpoint. `source_id`, `message_id`: the newest message, or the one that holds up others. `every`: nothing
    has succeeded since. `items`: topics, or the like. `since`: begin of the oldest of `letters`, Unix seconds.
    """

    host: str = ""
    why: str = ""
    detail: str = ""
    status: int | None = None
    receivers: tuple[str, ...] = ()
    receivers_all: int = 0
    reasons: tuple[str, ...] = ()
    letters: int = 0
    letters_more: bool = False
    condition: str = ""
    source_id: str = ""
    message_id: str = ""
    every: bool = False
    items: tuple[str, ...] = ()
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """A cause that is in effect. `since`: its begin, if known; `last`: the newest failure. Unix seconds. `count`:
    failures known; `waiting`: messages or results that it holds up. `merges`: kinds of the same party that are the same
    cause, and are resolved. `life`: of the receiver's name, an id."""

    kind: Kind
    party: Party
    last: float
    scope: str = ""
    since: float | None = None
    count: int = 1
    waiting: int = 0
    facts: Facts = Facts()
    merges: tuple[Kind, ...] = ()
    life: str = ""

    @property
    def id(self) -> str:
        return incident_id(self.party, self.kind, self.scope)


class Incident(Struct, frozen=True, omit_defaults=True):
    """`last_at`: the newest failure. `cleared_at`: since when it is not observed any more. `resolved_by`: None if it
    was resolved without help. `reopened`: how often in this occurrence. `reported`: its opening was published.
    `merged_into`: id of the incident that has its cause now. `unlisted`: it did not last, or was merged before it was
    published; it is kept for links to it. `life`: as in Observation. Times: Unix seconds."""

    id: str
    kind: Kind
    party: Party
    scope: str
    opened_at: float
    last_at: float
    count: int = 1
    waiting: int = 0
    facts: Facts = Facts()
    cleared_at: float | None = None
    resolved_at: float | None = None
    resolved_by: str | None = None
    reopened: int = 0
    reported: bool = False
    merged_into: str | None = None
    unlisted: bool = False
    life: str = ""

    @property
    def hold_s(self) -> float:
        """How long its cause has to be absent."""
        return 0.0 if self.kind in _NO_HOLD else min(LONGEST_HOLD_S, HOLD_S * 2.0 ** min(self.reopened, 10))


class PersonMark(Struct, frozen=True):
    """What a person did about an occurrence: the first one counts. `opened_at`: of the occurrence."""

    opened_at: float
    who: str
    at: float


class Marks(NamedTuple):
    acknowledged: PersonMark | None = None
    resolved: PersonMark | None = None


NO_MARKS: Final = Marks()


def incident_id(party: Party, kind: Kind, scope: str = "") -> str:
    """The id of this cause, the same in every process and after a loss of the state."""
    digest = hashlib.sha256("\0".join((party.type, party.name, kind, scope)).encode(errors="replace")).digest()
    return "inc_" + base32(digest[:_ID_BYTES])


def state_of(incident: Incident, marks: Marks = NO_MARKS) -> State:
    """Its state, with the marks that people made."""
    if resolution(incident, marks) is not None:
        return "resolved"
    return "acknowledged" if acknowledgement(incident, marks) is not None else "open"


def acknowledgement(incident: Incident, marks: Marks) -> PersonMark | None:
    """The acknowledgement of this occurrence."""
    return _of_occurrence(incident, marks.acknowledged)


def resolution(incident: Incident, marks: Marks) -> PersonMark | None:
    """Its end; `who` is empty if it was resolved without help. None while it is not resolved, also if its cause was
    observed again after a person resolved it."""
    if incident.resolved_at is not None:
        return PersonMark(incident.opened_at, incident.resolved_by or "", incident.resolved_at)
    mark = _of_occurrence(incident, marks.resolved)
    return mark if mark is not None and mark.at >= incident.last_at else None


def _of_occurrence(incident: Incident, mark: PersonMark | None) -> PersonMark | None:
    """The mark, if it is of this occurrence: processes that observe it at the same time may differ a little."""
    return mark if mark is not None and abs(mark.opened_at - incident.opened_at) <= SAME_S else None


def rank(incident: Incident) -> tuple[int, float, str]:
    """The most urgent first, then the oldest."""
    return URGENCY.index(incident.kind), incident.opened_at, incident.id


# --- the fold -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advance:
    """The incidents after a look, by id, and those whose opening or end is to be published. `left_out`: causes beyond
    `MOST`."""

    incidents: Mapping[str, Incident]
    opened: Sequence[Incident] = ()
    resolved: Sequence[Incident] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class IncidentSnapshot:
    """What was observed at `now` (Unix seconds). `unseen`: kinds that could not be observed, whose incidents stay as
    they are. `patience_s`: by kind, how long a cause has to last, and the looks since `begun_at` (Unix seconds), before
    its opening is published."""

    now: float
    observations: Sequence[Observation]
    unseen: Collection[Kind] = ()
    patience_s: Mapping[Kind, float] = field(default_factory=dict)
    begun_at: float = 0.0


def advance(before: Mapping[str, Incident], marks: Mapping[str, Marks], look: IncidentSnapshot) -> Advance:
    """The incidents after this look."""
    now, seen = look.now, _merged(_steady(before, look.observations))
    merged = {(one.party, kind): one.id for one in seen.values() for kind in one.merges}
    causes = {one.party: one.id for one in seen.values() if one.kind != "store_away"}
    after = {id: _observed(before.get(id), marks.get(id, NO_MARKS), one, now) for id, one in seen.items()}
    for id, incident in before.items():
        if id in seen or incident.kind in look.unseen:
            after.setdefault(id, incident)
            continue
        merged_into = merged.get((incident.party, incident.kind))
        if _is_superseded(incident, causes) or not has_lasted(incident, look):
            merged_into = merged_into or causes.get(incident.party)
            after[id] = replace(incident, resolved_at=now, waiting=0, merged_into=merged_into, unlisted=True)
        else:
            after[id] = _absent(incident, marks.get(id, NO_MARKS), now, merged_into)
    kept, left_out = bounded(after.values(), now)
    opened = [one for one in kept if _is_to_be_reported(one, look)]
    was_open = {id for id, incident in before.items() if incident.resolved_at is None}
    resolved = [one for one in kept if one.resolved_at is not None and one.id in was_open and one.reported]
    reported = {one.id for one in opened}
    incidents = {one.id: replace(one, reported=True) if one.id in reported else one for one in kept}
    return Advance(incidents, [incidents[id] for id in reported], resolved, left_out)


def _steady(before: Mapping[str, Incident], observations: Sequence[Observation]) -> Iterator[Observation]:
    """A receiver that fails with one message stays that: between two attempts its line may look as if it moved."""
    heads = [one for one in before.values() if one.kind == "head_of_line" and one.resolved_at is None]
    stuck = {(one.party, one.life): one for one in heads}
    held = {one.party for one in observations if one.kind == "head_of_line"}
    for one in observations:
        known = stuck.get((one.party, one.life))
        if one.kind not in ("failing", "wrong_url") or one.facts.condition or known is None or one.party in held:
            yield one
        else:
            yield Observation(
                known.kind, one.party, one.last, known.scope, waiting=known.waiting, facts=known.facts, life=one.life
            )
            stuck[one.party, one.life] = replace(known, waiting=0)  # observations of one cause are added up


def is_listed(one: Incident, look: IncidentSnapshot) -> bool:
    """Whether it is in lists. `look`: the current one."""
    return not one.unlisted and has_lasted(one, look)


def has_lasted(one: Incident, look: IncidentSnapshot) -> bool:
    """Whether it counts: it is listed, also once it is resolved. `look`: the current one."""
    if one.kind not in _SETTLING or one.reported or one.resolved_at is not None:
        return True
    ended_at = one.cleared_at if one.cleared_at is not None else look.now
    return ended_at - one.opened_at >= SETTLE_S


def _is_superseded(one: Incident, parties: Collection[Party]) -> bool:
    """Whether it is not listed any more, as its opening was not published: its cause is known better now, or it was a
    part that recovered at once, as each start has."""
    if one.reported or one.resolved_at is not None:
        return False
    return one.kind == "store_away" or (one.kind == "failing" and one.party in parties)


def _is_to_be_reported(one: Incident, look: IncidentSnapshot) -> bool:
    is_news = one.resolved_at is None and one.cleared_at is None and not one.reported
    lasts_s = look.now - max(one.opened_at, look.begun_at)
    return is_news and one.kind not in look.unseen and lasts_s >= look.patience_s.get(one.kind, 0.0)


def _merged(observations: Iterable[Observation]) -> dict[str, Observation]:
    """By id. The first of several observations of one cause gives its facts."""
    found: dict[str, Observation] = {}
    for one in observations:
        found[one.id] = _joined(found[one.id], one) if one.id in found else one
    return found


_FIRST_KNOWN: Final = ("host", "why", "detail", "letters_more", "condition", "source_id", "message_id", "receivers")
"""Facts of which the first known value counts."""


def _joined(one: Observation, other: Observation) -> Observation:
    began = [each.since for each in (one, other) if each.since is not None]
    facts, more = one.facts, other.facts
    return dataclasses.replace(
        one,
        last=max(one.last, other.last),
        since=min(began, default=None),
        count=one.count + other.count if facts.letters and more.letters else max(one.count, other.count),
        waiting=one.waiting + other.waiting,
        facts=replace(
            facts,
            status=more.status if facts.status is None else facts.status,
            reasons=tuple(dict.fromkeys((*facts.reasons, *more.reasons))),
            letters=facts.letters + more.letters,
            every=facts.every and more.every,
            since=min((at for at in (facts.since, more.since) if at is not None), default=None),
            receivers_all=max(facts.receivers_all, more.receivers_all),
            **{name: getattr(facts, name) or getattr(more, name) for name in _FIRST_KNOWN},
        ),
        merges=(*one.merges, *other.merges),
    )


def _observed(before: Incident | None, marks: Marks, seen: Observation, now: float) -> Incident:
    if before is None or before.unlisted or before.life not in ("", seen.life):
        return new_incident(seen, now)
    if before.resolved_at is None:
        by_hand = resolution(before, marks)
        if by_hand is not None and seen.last <= by_hand.at:
            return replace(before, resolved_at=by_hand.at, resolved_by=by_hand.who, waiting=seen.waiting)
        return _updated(before, seen)
    if seen.last <= before.resolved_at:  # only the dead letters that it had when it was resolved
        return before
    if now - before.resolved_at > REOPEN_S:
        return new_incident(seen, now, not_before=before.resolved_at)
    again = replace(before, resolved_at=None, resolved_by=None, merged_into=None, reported=False)
    return _updated(replace(again, reopened=before.reopened + 1), seen)


def new_incident(one: Observation, now: float, *, not_before: float = 0.0) -> Incident:
    """The first occurrence of a cause, or one that begins after `not_before`. `now`: Unix seconds."""
    began = round(now if one.since is None else min(now, max(one.since, not_before)), 3)
    return Incident(
        one.id, one.kind, one.party, one.scope, began, one.last, one.count, one.waiting, one.facts, life=one.life
    )


def _updated(before: Incident, seen: Observation) -> Incident:
    return replace(
        before,
        last_at=max(before.last_at, seen.last),
        count=max(before.count, seen.count),
        waiting=seen.waiting,
        facts=seen.facts,
        cleared_at=None,
        life=seen.life,
    )


def _absent(before: Incident, marks: Marks, now: float, merged_into: str | None) -> Incident:
    if before.resolved_at is not None:
        return before
    if (by_hand := resolution(before, marks)) is not None:
        return replace(before, resolved_at=by_hand.at, resolved_by=by_hand.who, waiting=0)
    cleared = before.cleared_at if before.cleared_at is not None else now
    facts = replace(before.facts, letters=0, letters_more=False)
    resolved_at = now if merged_into is not None or now - cleared >= before.hold_s else None
    return replace(before, cleared_at=cleared, resolved_at=resolved_at, waiting=0, facts=facts, merged_into=merged_into)


def bounded(incidents: Collection[Incident], now: float) -> tuple[list[Incident], int]:
    """At most `MOST` (unlisted ones go first, then the oldest resolved, then the least urgent), and how many went."""
    alive = sorted((one for one in incidents if one.resolved_at is None), key=rank)
    over = [one for one in incidents if one.resolved_at is not None and now - one.resolved_at < KEPT_S]
    over.sort(key=lambda one: (one.unlisted, -(one.resolved_at or 0.0), one.id))
    return [*alive[:MOST], *over[: max(0, MOST - len(alive))]], max(0, len(alive) - MOST)
