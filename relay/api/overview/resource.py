"""`GET /v1/overview`: throughput, failures, and what needs attention first: unresolved incidents, with a call of this
API that may help. `GET /v1/lanes`: every partition. `GET /v1/settings`: the settings that the process has in force."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal
from urllib.parse import quote

from relay.api.access import ADMIN
from relay.api.context import ApiContext
from relay.api.failed import IndexGroup
from relay.api.incidents import IncidentList
from relay.api.overview.snapshot import FAILED_SPAN_S, EndpointNow, Looker, OverviewSnapshot
from relay.api.paging import cursor_behind
from relay.api.parameter import PageCursor, PageLimit, Parameter, ReceiverName
from relay.api.responses import view_as
from relay.api.route import Example, route
from relay.domain.incident import NO_MARKS, Incident, Kind, Marks, rank, state_of
from relay.domain.incident_kinds import KINDS, action, behind_words, cause, replay_selection, summary
from relay.domain.state import StageName
from relay.domain.times import rfc3339
from relay.schema.incidents import (
    ActionView,
    AlertKind,
    AttentionView,
    IncidentParty,
    LaneItem,
    LanePage,
    NotWellView,
    OverviewView,
    RatesView,
    ReasonCountView,
    StageView,
)
from relay.schema.messages import MessageRef
from relay.schema.operation import SettingItem, SettingsView
from relay.state.lanes import STAGES, LaneNow

MOST_ATTENTION: Final = 100
MOST_SHOWN_NOT_WELL: Final = 20
_ROUND: Final = 3
_ROLE: Final = Parameter("role", list[Literal[*STAGES]], "Only lanes that these roles read.")  # type: ignore[valid-type]


class OverviewResource:
    """The routes for administrators; see the module's first lines."""

    noun = "overview"

    def __init__(self, context: ApiContext, looker: Looker, incidents: IncidentList) -> None:
        self._context = context
        self._looker = looker
        self._incidents = incidents

    @route("GET", "/v1/overview", scope=ADMIN, answer="The overview.")
    async def get_overview(self) -> OverviewView:
        """Get throughput, failures, and what needs attention.

        For operators. A new snapshot is taken at most once a second, for all callers. With very many receivers or dead
        letters, only a part is read. `attention` has the most urgent item first, with a call of this API that may help,
        if there is one.
        """
        look = await self._looker.look()
        since = rfc3339(look.now - FAILED_SPAN_S)
        found = await self._incidents.now()
        alive = [one for one in found.listed.values() if needs_attention(one, found.marks.get(one.id, NO_MARKS))]
        return {
            "at": rfc3339(look.now),
            "stages": _stages(look),
            "parked": look.parked.retries + look.parked.polls,
            "rates": _rates(look),
            "failures": {
                "since": since,
                "count": sum(group.number for group in look.failed),
                "more": look.failed_more,
                "by": [_failure(one) for one in look.failed],
            },
            "attention": [attention_of(one, look.now) for one in sorted(alive, key=rank)[:MOST_ATTENTION]],
            "not_well": [_not_well(one) for one in look.not_well[:MOST_SHOWN_NOT_WELL]],
            "history": found.history,
        }

    @route("GET", "/v1/lanes", scope=ADMIN, answer="The lanes.", example=Example(200, query={"served": "false"}))
    async def list_lanes(
        self,
        receiver: Annotated[list[ReceiverName], "Only lanes of these receivers."],
        role: Annotated[list[str], _ROLE],
        served: Annotated[bool | None, "Only those that a process serves; `false`: only the others."],
        limit: PageLimit,
        cursor: PageCursor,
    ) -> LanePage:
        """List the lanes: each partition with its committed offset, its lag, and the process that serves it.

        Sorted by topic and partition, from the last snapshot, like the overview.
        """
        look = await self._looker.look()
        chosen = sorted(
            (_key(lane), lane)
            for lane in look.lanes
            if (not receiver or lane.receiver in receiver)
            and (not role or lane.role in role)
            and (served is None or lane.served == served)
            and _key(lane) > cursor
        )
        some = chosen[:limit]
        further = cursor_behind(some[-1][0]) if len(chosen) > len(some) else None
        return {"items": [_lane(lane, look) for _, lane in some], "cursor": further}

    @route("GET", "/v1/settings", scope=ADMIN, answer="The settings.")
    async def list_settings(self) -> SettingsView:
        """Get the settings in effect, and the origin of each.

        Those of the process that answers; another one may have others. Secrets are masked. `relay config show` prints
        the same for a shell.
        """
        return {"items": [view_as(SettingItem, one) for one in self._context.settings]}


def _stages(look: OverviewSnapshot) -> list[StageView]:
    results = min(look.parked_results, look.parked.retries)  # read apart
    parked = {"to_receiver": look.parked.retries - results, "pending": look.parked.polls, "to_sender": results}
    return [
        _stage(stage, [lane for lane in look.lanes if lane.stage == stage], look, parked) for stage in STAGES.values()
    ]


def _stage(stage: StageName, lanes: list[LaneNow], look: OverviewSnapshot, parked: Mapping[str, int]) -> StageView:
    return {
        "name": stage,
        "topics": len({lane.key.topic for lane in lanes}),
        "lag": sum(lane.lag for lane in lanes),
        "oldest_s": _rounded(max((lane.oldest_s for lane in lanes if lane.oldest_s is not None), default=None)),
        "rate": None if look.rates is None else _rounded(look.rates.done[stage]),
        "come": None if look.rates is None else _rounded(look.rates.come[stage]),
        "parked": parked.get(stage),
        "in_flight": sum(lane.in_flight for lane in lanes),
        "unserved": sum(not lane.served for lane in lanes),
    }


def _rates(look: OverviewSnapshot) -> RatesView | None:
    if look.rates is None:
        return None
    come = look.rates.come
    return {
        "span_s": round(look.rates.span_s, _ROUND),
        "received": round(come["from_sender"], _ROUND),
        "routed": round(come["to_receiver"], _ROUND),
        "answered": round(come["to_sender"], _ROUND),
        "failed": round(come["failed_messages"], _ROUND),
    }


def _failure(one: IndexGroup) -> ReasonCountView:
    return view_as(ReasonCountView, one.newest, count=one.number, newest=rfc3339(one.newest.failed_at))


def _not_well(one: EndpointNow) -> NotWellView:
    return view_as(NotWellView, one.party, health=one.health)


def _lane(lane: LaneNow, look: OverviewSnapshot) -> LaneItem:
    counts = look.parked_of.get(lane.receiver) if lane.receiver is not None else None
    parked = None if counts is None else counts.polls if lane.stage == "pending" else counts.retries
    return view_as(
        LaneItem,
        lane,
        topic=lane.key.topic,
        partition=lane.key.partition,
        group=lane.backlog.group,
        oldest_s=_rounded(lane.oldest_s),
        rate=None if look.rates is None else _rounded(look.rates.of_lanes.get(lane.key)),
        committed=lane.backlog.committed,
        end=lane.backlog.end,
        seen_s=_rounded(None if lane.heartbeat is None else lane.heartbeat.ago_s),
        parked=parked,
    )


def _key(lane: LaneNow) -> str:
    """The sort key: topic and partition."""
    return f"{lane.key.topic}/{lane.key.partition:05}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _ROUND)


_KINDS: Final[Mapping[Kind, AlertKind]] = {
    "store_away": "part_away",
    "retention": "unread_lost",
    "no_worker": "no_worker",
    "configuration": "refused",
    "disabled": "disabled",
    "gone": "gone",
    "head_of_line": "held_up",
    "unverified": "unverified",
    "paused": "paused",
    "warning": "warning",
    "lag": "warning",
}
_PLAIN: Final = frozenset({"part_away", "warning", "refused"})
"""Alerts whose detail is the problem alone."""


def needs_attention(one: Incident, marks: Marks) -> bool:
    """Whether its cause is still observed, and no person has resolved it."""
    return one.cleared_at is None and state_of(one, marks) != "resolved"


def attention_of(one: Incident, now: float) -> AttentionView:
    kind = _kind(one)
    about, mend = one.facts if one.kind == "head_of_line" else None, action(one)
    return {
        "kind": kind,
        "severity": KINDS[one.kind].severity,
        "subject": f"{one.party.name}/callback" if _is_of_callback(one) else one.party.name,
        "party": view_as(IncidentParty, one.party),
        "since": None if kind == "part_away" else rfc3339(one.opened_at),
        "detail": _detail(one, kind, now),
        "action": _action(one),
        "message": None if about is None else MessageRef(source_id=about.source_id, message_id=about.message_id),
        "incident": one.id,
        "cause": cause(one),
        "label": mend.label,
        "page": mend.href,
    }


def _detail(one: Incident, kind: AlertKind, now: float) -> str:
    if one.kind == "head_of_line":
        return f"{behind_words(one)}: {one.facts.detail}"
    return one.facts.detail if kind in _PLAIN and one.facts.detail else summary(one, now)


def _is_of_callback(one: Incident) -> bool:
    return one.party.type == "source" and one.kind in ("callback", "paused")


def _kind(one: Incident) -> AlertKind:
    if one.kind in _KINDS:
        return _KINDS[one.kind]
    if one.facts.letters:
        return "failed"
    return "offline" if "ping" in one.facts.condition else "failing"


def _action(one: Incident) -> ActionView | None:
    name, facts = one.party.name, one.facts
    base = f"/v1/receivers/{name}"
    if one.party.type == "source":
        base = f"/v1/sources/{quote(name, safe='')}/callback"
    match KINDS[one.kind].action:
        case "verify":
            return _call("Verify", f"{base}/verify")
        case "discard":
            return _call("Test", f"{base}/test")
        case "worker" | "look" | "configure":
            return None
    if one.kind in ("gone", "disabled", "paused"):
        return _call("Resume", f"{base}/resume")
    if (selection := replay_selection(one)) is not None:
        since = {} if facts.since is None else {"since": rfc3339(facts.since)}
        return _call("Replay", "/v1/replays", {**selection, **since})
    return None if one.party.type == "relay" else _call("Try now", f"{base}/resume")


def _call(label: str, path: str, body: dict[str, object] | None = None) -> ActionView:
    return {"label": label, "method": "POST", "path": path, "body": body}
