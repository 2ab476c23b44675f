"""The overview of a relay and its lanes."""

from typing import Literal, TypedDict

from relay.domain.state import StageName
from relay.schema.incidents import IncidentParty
from relay.schema.messages import MessageRef
from relay.schema.statistics import HealthView

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
