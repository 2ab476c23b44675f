"""Incidents: causes of failures, each with the party at fault, a sentence and one action."""

from typing import TypedDict

import msgspec

from relay.domain.incident import Kind, PartyType, State
from relay.domain.incident_kinds import ActionKind, Severity
from relay.schema.messages import MessageRef


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
