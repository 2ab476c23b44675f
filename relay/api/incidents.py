"""Incidents over HTTP: listed, with evidence and history, acknowledged and resolved."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Final, NamedTuple

from aiohttp import web
from msgspec import structs

from relay.api.access import LETTERS, access_of, is_admin, may_read, may_see, may_see_of
from relay.api.audit import newest_lines, quoted_name
from relay.api.context import ApiContext
from relay.api.overview.snapshot import Looker
from relay.api.paging import NewestFirstPages, Rank
from relay.api.parameter import PageLimit, cursor_of, id_of
from relay.api.problems import NOT_FOUND, Problem
from relay.api.responses import view_as
from relay.api.route import Example, json_of, route
from relay.domain.audit import AuditLine
from relay.domain.errors import HistoryUnavailable, Unavailable
from relay.domain.incident import (
    MOST,
    NO_MARKS,
    SAME_S,
    Facts,
    Incident,
    Marks,
    Observation,
    Party,
    PersonMark,
    State,
    Verb,
    acknowledgement,
    advance,
    is_listed,
    resolution,
    state_of,
)
from relay.domain.incident_kinds import KINDS, action, cause, replay_selection, summary
from relay.domain.times import rfc3339
from relay.history.lag import Behind
from relay.schema.incidents import (
    EvidenceView,
    HistoryNowView,
    IncidentActionView,
    IncidentDetail,
    IncidentPage,
    IncidentParty,
    IncidentView,
    NoWords,
    TriedStep,
)
from relay.schema.messages import MessageRef
from relay.state.port import StoredIncidents

PAGES: Final = NewestFirstPages("inc_[a-z2-7]{16}")
_LINES: Final = 500
"""Newest lines of the audit that are read for the history of an incident."""
_TRIED: Final = 50
_EARLIER_S: Final = 60.0
LATE_S: Final = 60.0
"""A history that lags by more than this is reported."""
IncidentId = Annotated[str, id_of("incident", "inc_[a-z2-7]{16}", "inc_aaaaaaaaaaaaaaaa")]


class IncidentsNow(NamedTuple):
    """All incidents, at one moment. `listed`: by id, each of them readable in every process. `known`: also those that
    are not listed. `history`: its lag, None without one."""

    listed: Mapping[str, Incident]
    known: Mapping[str, Incident]
    marks: Mapping[str, Marks]
    left_out: int
    history: HistoryNowView | None


class IncidentList:
    """The incidents as of now: those that are stored, and what this process observes, which is at most a second old.
    While the log or the state is unavailable, the last ones known, with that as an incident."""

    def __init__(self, context: ApiContext, looker: Looker) -> None:
        self._context = context
        self._looker = looker
        self._stored = StoredIncidents({}, {})
        self._own: Mapping[str, Incident] = {}
        """Occurrences that are observed here, and not stored yet."""
        history = context.history
        self._behind = None if history is None else Behind(history, context.log, context.topics, context.clock)

    async def now(self) -> IncidentsNow:
        history = await self._history()
        try:
            self._stored = await self._context.state.incidents()
            look = (await self._looker.look()).causes
        except Unavailable:
            look = self._looker.reader.away()
        stored, marks = self._stored
        own = {id: one for id, one in self._own.items() if _is_own(one, stored.get(id))}
        newer = {id: one for id, one in stored.items() if max(one.opened_at, one.last_at) > look.now}
        look = replace(look, observations=[*look.observations, *lag_of_history(history, look.now)])
        found = advance({**stored, **own}, marks, look)
        known = {**stored, **found.incidents, **newer}
        self._own = {
            id: structs.replace(one, reported=False)
            for id, one in found.incidents.items()
            if _is_own(one, stored.get(id))
        }
        listed = {id: one for id, one in known.items() if is_listed(one, look)}
        await self._store([self._own[id] for id in listed if id not in stored])
        return IncidentsNow(listed, known, marks, found.left_out, history)

    async def _store(self, new: Sequence[Incident]) -> None:
        """Stores them before they are listed: their links may be opened in other processes, and after their end."""
        with suppress(Unavailable):
            if new:
                await self._context.state.add_incidents(new)

    async def _history(self) -> HistoryNowView | None:
        """The lag of the history; unknown while its store is unavailable."""
        if self._behind is None:
            return None
        try:
            behind_s = await self._behind.seconds()
        except HistoryUnavailable:
            behind_s = None
        return {"behind_s": None if behind_s is None else round(behind_s, 3)}


def lag_of_history(history: HistoryNowView | None, now: float) -> list[Observation]:
    """That the history lags, which only a process that queries its store knows. `now`: Unix seconds."""
    if history is None:
        return []
    behind_s = history["behind_s"]
    if behind_s is not None and behind_s < LATE_S:
        return []
    why = "it is unknown how far it is behind: its store or the log does not answer"
    if behind_s is not None:
        why = f"it is {behind_s:.0f} s behind: messages and attempts of since then are not in lists yet"
    return [Observation("lag", Party("relay", "history"), now, facts=Facts(detail=why))]


class IncidentsResource:
    """`/v1/incidents`. Callers with limited rights see those of their own receivers and sources."""

    noun = "incidents"

    def __init__(self, context: ApiContext, incidents: IncidentList) -> None:
        self._context = context
        self._incidents = incidents

    @route(
        "GET",
        "/v1/incidents",
        scope=LETTERS,
        answer="A page, newest first.",
        example=Example(200, query={"state": "open"}),
    )
    async def list_incidents(
        self,
        request: web.Request,
        state: Annotated[list[State], "Only incidents in these states."],
        party: Annotated[list[str], "Only incidents of these receivers, sources, or parts of the relay."],
        limit: PageLimit,
        cursor: Annotated[Rank | None, cursor_of(PAGES)],
    ) -> IncidentPage:
        """List incidents: causes of failures, each with the party at fault, a sentence and one action.

        An incident opens with the first failure, and resolves without help once its cause has been absent for a while.
        If the cause returns soon, it is reopened. Incidents are hints: at most 1,000 are kept, resolved ones for a
        week.
        """
        found = await self._incidents.now()
        marks = found.marks
        chosen = sorted(
            (
                one
                for one in found.listed.values()
                if (not state or state_of(one, marks.get(one.id, NO_MARKS)) in state)
                and (not party or one.party.name in party)
                and _sees(request, one)
            ),
            key=_rank,
            reverse=True,
        )
        some, following = PAGES.page(limit, cursor, chosen, _rank)
        now = self._context.clock.time()
        items = [view_of(one, marks.get(one.id, NO_MARKS), now) for one in some]
        left_out = found.left_out if is_admin(request) else 0
        return IncidentPage(items=items, left_out=left_out, cursor=following)

    @route(
        "GET", "/v1/incidents/{id}", scope=LETTERS, answer="The incident.", problems=(NOT_FOUND,), example=Example(404)
    )
    async def get_incident(self, request: web.Request, id: IncidentId) -> IncidentDetail:
        """Get an incident with its evidence and what was tried."""
        incident, marks = await self._find(request, id)
        return await self._detail(request, incident, marks)

    @route(
        "POST",
        "/v1/incidents/{id}/acknowledge",
        scope=LETTERS,
        audit="incident.acknowledged",
        body=json_of(NoWords, required=False),
        answer="The incident, with the caller that acknowledged it first.",
        problems=(NOT_FOUND,),
        example=Example(404),
    )
    async def acknowledge_incident(self, request: web.Request, id: IncidentId) -> IncidentDetail:
        """Acknowledge an incident.

        The first caller counts: a later call returns who that was. The next occurrence has to be acknowledged again.
        """
        return await self._mark(request, id, "acknowledge")

    @route(
        "POST",
        "/v1/incidents/{id}/resolve",
        scope=LETTERS,
        audit="incident.resolved",
        body=json_of(NoWords, required=False),
        answer="The incident.",
        problems=(NOT_FOUND,),
        example=Example(404),
    )
    async def resolve_incident(self, request: web.Request, id: IncidentId) -> IncidentDetail:
        """Resolve an incident by hand.

        Its dead letters stay. It is reopened if its cause is observed again.
        """
        return await self._mark(request, id, "resolve")

    async def _mark(self, request: web.Request, id: str, verb: Verb) -> IncidentDetail:
        incident, _ = await self._find(request, id)
        now = self._context.clock.time()
        mark = PersonMark(incident.opened_at, access_of(request).who, now)
        await self._context.state.mark_incident(id, verb, mark)
        return await self._detail(request, *await self._find(request, id))

    async def _find(self, request: web.Request, id: str) -> tuple[Incident, Marks]:
        found = await self._incidents.now()
        incident = found.known.get(id)
        if incident is None or not _sees(request, incident):
            kept = f"resolved ones are kept for a week, and at most {MOST:,} in all"
            raise Problem(NOT_FOUND, f"There is no incident {id}: {kept}.")
        return incident, found.marks.get(id, NO_MARKS)

    async def _detail(self, request: web.Request, incident: Incident, marks: Marks) -> IncidentDetail:
        facts, tried = incident.facts, await self._tried(request, incident)
        return {
            **view_of(incident, marks, self._context.clock.time()),
            "host": facts.host or None,
            "receivers": [name for name in facts.receivers if may_see(request, [name]) or incident.kind == "callback"],
            "letters": facts.letters,
            "replay": replay_selection(incident),
            "evidence": await self._evidence(incident),
            "tried": tried,
        }

    async def _evidence(self, incident: Incident) -> EvidenceView:
        facts, last, response = incident.facts, None, None
        if incident.party.type == "receiver":
            owner = f"r:{incident.party.name}"
            try:
                [last] = await self._context.state.last_attempts([owner])
                response = await self._context.last_response(incident.party.name)
            except Unavailable:
                pass  # the rest is known without the state
        known = bool(facts.source_id and facts.message_id)
        is_last = response is not None and last is not None and last.status == response.status
        return {
            "at": rfc3339(last.at if last is not None else incident.last_at),
            "status": facts.status if last is None else last.status,
            "failure": None if last is None else last.failure,
            "detail": facts.detail or None,
            "headers": response.headers if response is not None and is_last else None,
            "body": response.body if response is not None and is_last else None,
            "truncated": response is not None and is_last and response.truncated,
            "message": MessageRef(source_id=facts.source_id, message_id=facts.message_id) if known else None,
        }

    async def _tried(self, request: web.Request, incident: Incident) -> list[TriedStep]:
        """From the audit: what was done about the party since it opened. For operators."""
        if not is_admin(request):
            return []
        try:
            lines = await newest_lines(self._context.log, self._context.topics, _LINES)
        except Unavailable:
            return []
        since = rfc3339(incident.opened_at - _EARLIER_S) or ""
        found = [line for line in lines if line.at >= since and line.outcome == "done" and _is_about(line, incident)]
        return [view_as(TriedStep, line, who=line.who_name or line.who) for line in found[:_TRIED]]


def view_of(incident: Incident, marks: Marks, now: float) -> IncidentView:
    """`now`: Unix seconds."""
    known, ended = acknowledgement(incident, marks), resolution(incident, marks)
    return view_as(
        IncidentView,
        incident,
        severity=KINDS[incident.kind].severity,
        party=view_as(IncidentParty, incident.party),
        state=state_of(incident, marks),
        opened_at=rfc3339(incident.opened_at),
        last_at=rfc3339(incident.last_at),
        cleared_at=rfc3339(incident.cleared_at),
        resolved_at=None if ended is None else rfc3339(ended.at),
        resolved_by=None if ended is None else ended.who or None,
        acknowledged_at=None if known is None else rfc3339(known.at),
        acknowledged_by=None if known is None else known.who,
        summary=summary(incident, now),
        cause=cause(incident),
        action=view_as(IncidentActionView, action(incident)),
    )


def _is_own(one: Incident, stored: Incident | None) -> bool:
    """Whether the process that stores incidents does not know of this occurrence."""
    return stored is None or one.opened_at > stored.opened_at + SAME_S


def _sees(request: web.Request, one: Incident) -> bool:
    match one.party.type:
        case "receiver":
            return may_see_of(request, one.party.name, one.life)
        case "source":
            return may_read(request, one.party.name)
        case "relay":
            return is_admin(request)


def _rank(one: Incident) -> Rank:
    return round(one.opened_at, 3), one.id


def _is_about(line: AuditLine, incident: Incident) -> bool:
    name = incident.party.name
    if quoted_name(name) in line.whom.split("/") or incident.id in line.whom:
        return True
    whole = [line.whom, *(str(value) for value in line.facts.values())]
    return name in whole or f"['{name}']" in whole
