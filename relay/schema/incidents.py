"""Incidents: causes of failures, each with the party at fault, a sentence and one action; and the overview of a relay
and its lanes."""

from typing import Literal, TypedDict

import msgspec

from relay.domain.incident import Kind, PartyType, State
from relay.domain.incident_kinds import ActionKind, Severity
from relay.domain.state import StageName
from relay.schema.messages import MessageRef
from relay.schema.statistics import HealthView


class IncidentParty(TypedDict):
    """The party at fault: a receiver; a source, for its callback or messages; or a part or role of the relay."""

    type: PartyType
    name: str


class IncidentActionView(TypedDict):
    """The one action that fixes it, and the page where it is done."""

    kind: ActionKind
    label: str
    href: str


class IncidentView(TypedDict):
    """A cause. `opened_at`: its begin; `last_at`: its newest failure; `cleared_at`: since when it is not observed any
    more, which resolves it after a while; `resolved_by`: null if that was without help. `reopened`: how often since
    `opened_at`. `merged_into`: id of the incident that has its cause now. `count`: failures known; `waiting`: messages
    or results that it holds up, dead letters included."""

    id: str
    kind: Kind
    severity: Severity
    party: IncidentParty
    state: State
    opened_at: str | None
    last_at: str | None
    cleared_at: str | None
    resolved_at: str | None
    resolved_by: str | None
    acknowledged_at: str | None
    acknowledged_by: str | None
    reopened: int
    merged_into: str | None
    count: int
    waiting: int
    summary: str
    cause: str
    action: IncidentActionView


class EvidenceView(TypedDict):
    """The last exchange, secrets masked. `status` null: there was no response, and `failure` says why. `headers`,
    `body`: of the last response of a receiver; null if unknown. `message`: one that is concerned."""

    at: str | None
    status: int | None
    failure: str | None
    detail: str | None
    headers: dict[str, str] | None
    body: str | None
    truncated: bool
    message: MessageRef | None


class TriedStep(TypedDict):
    """A step that was taken since the incident opened. `what`: a verb of the audit, such as `receiver.updated`; `whom`:
    its subject."""

    at: str | None
    who: str
    what: str
    whom: str


class IncidentDetail(IncidentView):
    """`host`: of the endpoint. `receivers`: of the messages concerned, by name; of many, some. `replay`: the selection
    of its dead letters for `POST /v1/replays`; null if there are none. `tried`: the newest first."""

    host: str | None
    receivers: list[str]
    letters: int
    replay: dict[str, object] | None
    evidence: EvidenceView
    tried: list[TriedStep]


class IncidentPage(TypedDict):
    """Newest first. `left_out`: incidents beyond the number that is kept. `cursor`: of the next page; null on the last
    one."""

    items: list[IncidentView]
    left_out: int
    cursor: str | None


class NoWords(msgspec.Struct, forbid_unknown_fields=True):
    """An empty body, or an empty object."""


AlertKind = Literal[
    "part_away",
    "no_worker",
    "unread_lost",
    "refused",
    "disabled",
    "gone",
    "offline",
    "failing",
    "held_up",
    "failed",
    "unverified",
    "paused",
    "warning",
]


class StageView(TypedDict):
    """One step of the way. `topics`: how many it reads. `lag`: records that are not finished; `oldest_s`: age of the
    oldest; `rate`: finished a second, `come`: received a second, null in the first snapshot; `parked`: waiting for
    their next attempt, null if that is not counted by stage; `in_flight`: requests in progress; `unserved`: partitions
    that no process reads."""

    name: StageName
    topics: int
    lag: int
    oldest_s: float | None
    rate: float | None
    come: float | None
    parked: int | None
    in_flight: int
    unserved: int


class RatesView(TypedDict):
    """Rates per second over the last `span_s`: messages received, deliveries started, answers returned, dead
    letters."""

    span_s: float
    received: float
    routed: float
    answered: float
    failed: float


class ReasonCountView(TypedDict):
    """The number of dead letters of a receiver (`-`: unknown) and a reason."""

    receiver: str
    reason: str
    count: int
    newest: str | None


class FailuresView(TypedDict):
    """Dead letters since that time, by receiver and reason. `more`: there are more than were counted."""

    since: str | None
    count: int
    more: bool
    by: list[ReasonCountView]


class ActionView(TypedDict):
    """A call of this API that may help."""

    label: str
    method: str
    path: str
    body: dict[str, object] | None


class AttentionView(TypedDict):
    """An unresolved incident. `subject`: a receiver, `source/callback`, a source, or a part or role of the relay, which
    is the `party`.
    `message`: that it is about, as with `held_up`: others wait behind it, and it keeps failing. `incident`: its id;
    `cause`: its title; `label`: of the action that fixes it, and `page`: where that is done."""

    kind: AlertKind
    severity: Literal["error", "warning"]
    subject: str
    party: IncidentParty
    since: str | None
    detail: str
    action: ActionView | None
    message: MessageRef | None
    incident: str
    cause: str
    label: str
    page: str


class NotWellView(TypedDict):
    """An unhealthy endpoint: a receiver, or the callback of a source."""

    type: Literal["receiver", "source"]
    name: str
    health: HealthView


class HistoryNowView(TypedDict):
    """The history's lag. `behind_s`: seconds behind the log; null if unknown."""

    behind_s: float | None


class OverviewView(TypedDict):
    """As of `at`. `rates`: null at the first look. `attention`: the most urgent first. `not_well`: at most 20
    endpoints that are not well, the worst first; of very many a part is looked at. `history`: null without."""

    at: str | None
    stages: list[StageView]
    parked: int
    rates: RatesView | None
    failures: FailuresView
    attention: list[AttentionView]
    not_well: list[NotWellView]
    history: HistoryNowView | None


class LaneItem(TypedDict):
    """A partition that a group reads. `receiver`: of a dedicated lane, otherwise null. `rate`: finished a second, null
    in the first snapshot. `committed`: the next offset to read, null if the group has none. `process`: that serves it,
    host and process id first; `seen_s`: since its last heartbeat; `in_flight`: its requests in progress. `parked`: of
    its receiver, in all its partitions; null in a shared lane."""

    topic: str
    partition: int
    group: str
    role: str
    receiver: str | None
    lag: int
    oldest_s: float | None
    rate: float | None
    committed: int | None
    end: int
    served: bool
    process: str | None
    in_flight: int
    seen_s: float | None
    parked: int | None


class LanePage(TypedDict):
    """`cursor`: of the next page; null on the last one."""

    items: list[LaneItem]
    cursor: str | None
