"""Alerts of a snapshot, the most urgent first. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from relay.domain.reasons import reason_class
from relay.schema.overview import AlertKind
from relay.schema.receivers import Condition
from relay.state.lanes import LaneNow
from relay.telemetry.redaction import escape_control

URGENCY: Final[tuple[AlertKind, ...]] = (
    *("part_away", "unread_lost", "no_worker", "refused", "disabled", "gone", "offline", "failing"),
    *("held_up", "failed", "warning", "unverified", "paused"),
)
ERRORS: Final = frozenset(URGENCY[: URGENCY.index("failing")])
MANY_FAILED: Final = 5
"""Dead letters of a receiver and reason within an hour; of a reason of class `system`, one is enough."""
MOST: Final = 100
_SHOWN: Final = 300
"""Characters of a detail."""


class Action(NamedTuple):
    """A call of this API that may help. `label`: for a button."""

    label: str
    method: str
    path: str
    body: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """An alert. `subject`: a receiver, `source/callback`, topic or part. `since`: Unix seconds; None: unknown.
    `message`: source and id of the message that it is about."""

    kind: AlertKind
    subject: str
    since: float | None
    detail: str
    action: Action | None = None
    message: tuple[str, str] | None = None

    @property
    def severity(self) -> Literal["error", "warning"]:
        return "error" if self.kind in ERRORS else "warning"


class EndpointNow(NamedTuple):
    """A receiver, or the callback of a source (`is_source`), to which nothing is sent."""

    name: str
    is_source: bool
    condition: Condition
    since: float | None
    detail: str
    gone: bool = False


class StuckLine(NamedTuple):
    """A message that holds up others for `receiver`: `behind` of them at least. `detail`: the result of its attempts,
    in words."""

    receiver: str
    source_id: str
    message_id: str
    behind: int
    detail: str


class FailedNow(NamedTuple):
    """Dead letters of one receiver and reason in the last hour. `newest`: Unix seconds."""

    receiver: str
    reason: str
    letters: int
    newest: float


@dataclass(frozen=True, slots=True)
class AlertInput:
    """`away`: part -> problem; `warnings`: the same for parts that still work. `refused`: entry -> reason. `since`: the
    begin of the hour of `failed`, RFC 3339."""

    now: float
    lanes: Sequence[LaneNow] = ()
    endpoints: Sequence[EndpointNow] = ()
    failed: Sequence[FailedNow] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    since: str = ""
    stuck: Sequence[StuckLine] = ()


def attention(seen: AlertInput) -> list[Item]:
    """The alerts of a snapshot, at most `MOST`."""
    items = [
        *(Item("part_away", part, None, _text(why)) for part, why in seen.away.items()),
        *_of_lanes(seen),
        *(Item("refused", name, None, _text(why)) for name, why in seen.refused.items()),
        *map(_of_endpoint, seen.endpoints),
        *_of_stuck(seen),
        *_of_failed(seen),
        *(Item("warning", part, None, _text(why)) for part, why in seen.warnings.items()),
    ]
    items.sort(key=lambda item: (URGENCY.index(item.kind), -(item.since or 0.0), item.subject))
    return items[:MOST]


def _of_lanes(seen: AlertInput) -> Iterator[Item]:
    unserved: dict[tuple[str, str], list[LaneNow]] = {}
    for lane in seen.lanes:
        if lane.is_broken:
            detail = f"partition {lane.key.partition}: the log has deleted what {lane.backlog.group} had not read"
            yield Item("unread_lost", lane.key.topic, None, detail)
        if not lane.served:
            unserved.setdefault((lane.role, lane.key.topic), []).append(lane)
    for (role, topic), lanes in unserved.items():
        yield _unserved(role, topic, lanes, seen)


def _unserved(role: str, topic: str, lanes: Sequence[LaneNow], seen: AlertInput) -> Item:
    all_of_it = len(lanes) == sum(lane.key.topic == topic for lane in seen.lanes)
    which = "" if all_of_it else f" {len(lanes)} of its partitions:"
    lag = sum(lane.lag for lane in lanes)
    waits = f"{lag} records wait" if lag != 1 else "1 record waits"
    ages = [lane.seen_s for lane in lanes if lane.seen_s is not None]
    detail = f"{which} no process serves it; {waits}. Start a process with the role {role} (relay run --roles {role})."
    return Item("no_worker", topic, seen.now - max(ages) if ages else None, detail.strip())


def _of_endpoint(one: EndpointNow) -> Item:
    base = f"/v1/sources/{quote(one.name, safe='')}/callback" if one.is_source else f"/v1/receivers/{one.name}"
    subject = f"{one.name}/callback" if one.is_source else one.name
    kind: AlertKind
    match one.condition:
        case "disabled" | "paused":
            kind = "gone" if one.gone else one.condition
            action = Action("Resume", "POST", f"{base}/resume")
        case "unverified":
            kind, action = "unverified", Action("Verify", "POST", f"{base}/verify")
        case "offline":
            kind, action = "offline", Action("Try now", "POST", f"{base}/resume")
        case _:
            kind, action = "failing", Action("Try now", "POST", f"{base}/resume")
    return Item(kind, subject, one.since, _text(one.detail), action)


def _of_stuck(seen: AlertInput) -> Iterable[Item]:
    """For receivers that accept requests; the others have alerts of their own."""
    held = {one.name for one in seen.endpoints if not one.is_source}
    for one in seen.stuck:
        if one.receiver not in held:
            base = f"/v1/sources/{quote(one.source_id, safe='')}/messages/{quote(one.message_id, safe='')}"
            wait = "1 message waits" if one.behind == 1 else f"{one.behind} messages wait"
            detail = f"{wait} behind {one.message_id!r} of source {one.source_id!r}: {one.detail}"
            discard = Action("Discard", "POST", f"{base}/deliveries/{one.receiver}/discard")
            yield Item("held_up", one.receiver, None, _text(detail), discard, (one.source_id, one.message_id))


def _of_failed(seen: AlertInput) -> Iterable[Item]:
    for one in seen.failed:
        if one.letters >= (1 if reason_class(one.reason) == "system" else MANY_FAILED):
            body = {"receiver": one.receiver, "reason": one.reason, "since": seen.since}
            known = Action("Replay", "POST", "/v1/replays", body) if one.receiver != "-" else None
            detail = f"{one.letters} dead letters within an hour: {one.reason}"
            yield Item("failed", one.receiver, one.newest, detail, known)


def _text(text: str) -> str:
    return escape_control(text)[:_SHOWN]
