"""The relay's own events: messages of the source `relay`, for receivers that subscribe to it by name. Pure.

Each owner has a feed of its own: a receiver with an owner gets events about receivers of the same owner, a receiver
without an owner gets all events.

Events must not cause each other in a loop. A failed delivery of an event is not an event, and no receiver gets events
about itself. If a subscriber of these events goes offline or comes back, only receivers without an owner get that
event, and only if the subscriber has an owner; likewise of incidents about it. Subscribers of the same feed get only
the events that end when an operator resumes the receiver.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypedDict, get_args
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from relay.domain.coordinate import Coordinate
from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.identity import OWN_SOURCE, is_receiver_name
from relay.domain.incident import Incident, Kind, PartyType
from relay.domain.incident_kinds import cause, page_of, summary
from relay.domain.json_pointer import NOT_JSON
from relay.domain.message import Message
from relay.domain.times import rfc3339

Turn = Literal[
    "receiver.offline", "receiver.back", "receiver.disabled", "receiver.gone", "receiver.moved", "receiver.returned"
]
Change = Literal["incident.opened", "incident.resolved"]
FAILED: Final = "message.failed"
_BY_ITSELF: Final = frozenset(
    {"receiver.offline", "receiver.back", "receiver.moved", "receiver.returned", *get_args(Change)}
)
"""Types of events that occur and end without an operator."""
_TYPES: Final = frozenset({*get_args(Turn), *get_args(Change), FAILED})
_CONTENT_TYPE: Final = "application/json"


class ReceiverEvent(TypedDict):
    """A receiver's state has changed. `since`: when its outage or hold began; `at`: when that was noticed. `path`: the
    receiver in the API; `page`: the receiver in the web UI."""

    type: Turn
    receiver: str
    owner: str | None
    since: str | None
    at: str | None
    detail: str
    path: str
    page: str


class FailedExample(TypedDict):
    """One of the failed messages. `attempts`: the number made. `path`: its dead letter in the API; `page`: the message
    in the web UI."""

    source_id: str
    message_id: str
    reason: str
    attempts: int
    path: str
    page: str


class MessagesFailed(TypedDict):
    """Messages that failed permanently, aggregated by one process. `receiver`: null if not known."""

    type: Literal["message.failed"]
    receiver: str | None
    owner: str | None
    count: int
    reasons: dict[str, int]
    first_failed_at: str | None
    last_failed_at: str | None
    at: str | None
    examples: list[FailedExample]


class EventParty(TypedDict):
    """The party at fault."""

    type: PartyType
    name: str


class IncidentEvent(TypedDict):
    """An incident was opened or resolved. `receiver`: null unless it is the party at fault. `resolved_by`: null if it
    was resolved without help. `path`: the incident in the API; `page`: the incident in the web UI."""

    type: Change
    receiver: str | None
    owner: str | None
    id: str
    kind: Kind
    party: EventParty
    summary: str
    cause: str
    opened_at: str | None
    resolved_at: str | None
    resolved_by: str | None
    count: int
    waiting: int
    at: str | None
    path: str
    page: str


_DETAILS: Final[dict[Turn, str]] = {
    "receiver.offline": "It does not answer. The relay sends it only a ping from time to time, until it answers one.",
    "receiver.back": "It has answered a ping; waiting messages are now sent.",
    "receiver.disabled": "It was down for too long. Nothing is sent to it until an operator resumes it.",
    "receiver.gone": "It has returned 410 Gone. Nothing is sent to it until an operator resumes it.",
    "receiver.moved": "It took more than its share of the shared lane, and gets a lane of its own until it is calm.",
    "receiver.returned": "It returns to the shared lane, which it had left because it took more than its share.",
}


def turn_of(turn: Turn, name: str, owner: str | None, since: str | None, at: str | None) -> ReceiverEvent:
    """The event about a change of a receiver."""
    return {
        "type": turn,
        "receiver": name,
        "owner": owner,
        "since": since,
        "at": at,
        "detail": _DETAILS[turn],
        "path": f"/v1/receivers/{name}",
        "page": f"/ui/receivers/{name}",
    }


def example_of(source_id: str, message_id: str, reason: str, attempts: int, at: Coordinate) -> FailedExample:
    """An example in an event about failed messages. `at`: of its dead letter. Without ids, `page` is that of the
    list."""
    known = source_id and message_id
    return {
        "source_id": source_id,
        "message_id": message_id,
        "reason": reason,
        "attempts": attempts,
        "path": f"/v1/failed/{at.partition}/{at.offset}",
        "page": f"/ui/messages/{quote(source_id, safe='')}/{quote(message_id, safe='')}" if known else "/ui/failed",
    }


def change_of(change: Change, one: Incident, owner: str | None, now: float) -> IncidentEvent:
    """The event about an incident. `now`: Unix seconds."""
    return {
        "type": change,
        "receiver": receiver_of(one),
        "owner": owner,
        "id": one.id,
        "kind": one.kind,
        "party": {"type": one.party.type, "name": one.party.name},
        "summary": summary(one, now),
        "cause": cause(one),
        "opened_at": rfc3339(one.opened_at),
        "resolved_at": None if one.resolved_at is None else rfc3339(one.resolved_at),
        "resolved_by": one.resolved_by,
        "count": one.count,
        "waiting": one.waiting,
        "at": rfc3339(now),
        "path": f"/v1/incidents/{one.id}",
        "page": page_of(one.id),
    }


def receiver_of(one: Incident) -> str | None:
    """The receiver at fault, if it is one."""
    return one.party.name if one.party.type == "receiver" and is_receiver_name(one.party.name) else None


def message_of(event: ReceiverEvent | MessagesFailed | IncidentEvent, mark: str) -> Message:
    """The event as a message. `mark`: unique among events of its type and receiver, and the same in every process that
    notices it, so that it is published once."""
    id = f"{event['type']}:{event['receiver'] or '-'}:{mark}"
    body = msgspec.json.encode(event)
    return Message(OWN_SOURCE, id, None, event["type"], event["at"], _CONTENT_TYPE, body)


# subscribers of the events


def feed(owner: str | None) -> str:
    """The source id by which receivers of `owner` subscribe to the relay's own events, in an index of subscriptions;
    None: receivers without an owner, which get the events of all. It has a NUL, which no sender's id has."""
    return f"{OWN_SOURCE}\0{owner or ''}"


def is_feed(source_id: str) -> bool:
    """Whether it is a feed: no pattern matches a feed, a subscription has to name it."""
    return "\0" in source_id


def subscribed(sources: Iterable[str], owner: str | None) -> Iterator[str]:
    """A receiver's source patterns for an index, with the owner's feed instead of the name of our source."""
    for source in sources:
        if source == OWN_SOURCE:
            yield feed(owner)
        elif not is_feed(source):
            yield source


def hearers(
    directory: Directory, event_type: str, name: str | None, owner: str | UnsetType | None = UNSET
) -> tuple[str, ...]:
    """Names of the receivers that get an event about the receiver `name`. `owner`: the one at the time of the event;
    UNSET: the present one. Raises InvalidRecord if there are too many, and the directory's errors."""
    about = None if name is None else directory.receiver(name) or directory.removed(name)
    present = None if about is None else about.owner
    feeds = {feed(None), feed(present if owner is UNSET else owner)}
    if event_type in _BY_ITSELF and about is not None and OWN_SOURCE in about.sources:
        feeds.discard(feed(present))
    found = {each for one in feeds for each in directory.subscribers(one, event_type)}
    return tuple(sorted(found - {name}))


def hearers_of(directory: Directory, message: Message) -> tuple[str, ...]:
    """As `hearers`, for a message of our source. Raises InvalidRecord if it cannot be one of our events."""
    if message.receivers is not None or message.event_type not in _TYPES:
        raise _not_ours("its events name no receiver, and have types of their own")
    try:
        body = _decode(message.payload)
    except NOT_JSON:
        raise _not_ours("this is not one of its events") from None
    if body.type != message.event_type or not (body.receiver is None or is_receiver_name(body.receiver)):
        raise _not_ours("this is not one of its events")
    return hearers(directory, body.type, body.receiver, body.owner)


class _EventBody(msgspec.Struct):
    type: str
    receiver: str | None
    owner: str | UnsetType | None = UNSET


_decode: Final = msgspec.json.Decoder(_EventBody).decode


def _not_ours(why: str) -> InvalidRecord:
    return InvalidRecord("invalid", f"{OWN_SOURCE!r} is the relay's own source: {why}")
