"""What the relay tells about itself: messages of a source of its own, for receivers that subscribe to it by name. Pure.

Each owner's events are a feed of its own: a receiver that has an owner hears of receivers of the same owner only, one
without hears of all.

No event brings about another one, round after round: a failed delivery of an event is no event; nobody hears of itself;
and that a receiver which hears of others went offline, or came back, is told upwards only, from one that has an owner
to those that have none. Its equals hear what ends until a person resumes it.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypedDict, get_args
from urllib.parse import quote

import msgspec

from relay.domain.coordinate import Coordinate
from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.identity import OWN_SOURCE, is_receiver_name
from relay.domain.message import Message
from relay.domain.receiver import Receiver

Turn = Literal["receiver.offline", "receiver.back", "receiver.disabled", "receiver.gone"]
FAILED: Final = "message.failed"
_BY_ITSELF: Final = frozenset({"receiver.offline", "receiver.back"})
"""They come and go without a person."""
_TYPES: Final = frozenset({*get_args(Turn), FAILED})
_CONTENT_TYPE: Final = "application/json"


class ReceiverEvent(TypedDict):
    """A receiver is another one than before. `since`: when its outage began, or since when it is held; `at`: when that
    was noticed. `path`: of the API, where to look; `page`: of the pages for people, likewise."""

    type: Turn
    receiver: str
    owner: str | None
    since: str | None
    at: str | None
    detail: str
    path: str
    page: str


class FailedExample(TypedDict):
    """One of the messages that failed. `attempts`: that it took. `path`: of the API, its dead letter; `page`: of the
    pages for people, its way."""

    source_id: str
    message_id: str
    reason: str
    attempts: int
    path: str
    page: str


class MessagesFailed(TypedDict):
    """Messages that failed for good, as one process gathered them. `receiver` null: nobody that is known."""

    type: Literal["message.failed"]
    receiver: str | None
    owner: str | None
    count: int
    reasons: dict[str, int]
    first_failed_at: str | None
    last_failed_at: str | None
    at: str | None
    examples: list[FailedExample]


_DETAILS: Final[dict[Turn, str]] = {
    "receiver.offline": "It takes no requests. It is sent nothing but a ping from time to time, until it answers one.",
    "receiver.back": "It has answered a ping; what was waiting for it follows.",
    "receiver.disabled": "It was down for too long, and is sent nothing until somebody resumes it.",
    "receiver.gone": "It has said that it is gone, and is sent nothing until somebody resumes it.",
}


def turn_of(turn: Turn, name: str, owner: str | None, since: str | None, at: str | None) -> ReceiverEvent:
    """What is told of a receiver."""
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
    """What is told of a message that failed. `at`: of its dead letter. Without ids it has no page but the list's."""
    known = source_id and message_id
    return {
        "source_id": source_id,
        "message_id": message_id,
        "reason": reason,
        "attempts": attempts,
        "path": f"/v1/failed/{at.partition}/{at.offset}",
        "page": f"/ui/messages/{quote(source_id, safe='')}/{quote(message_id, safe='')}" if known else "/ui/failed",
    }


def message_of(event: ReceiverEvent | MessagesFailed, mark: str) -> Message:
    """The event as a message. `mark`: tells it from all others of its type and receiver; the same wherever it is
    noticed, so that it is told once."""
    id = f"{event['type']}:{event['receiver'] or '-'}:{mark}"
    body = msgspec.json.encode(event)
    return Message(OWN_SOURCE, id, None, event["type"], event["at"], _CONTENT_TYPE, body)


# who hears them


def feed(owner: str | None) -> str:
    """What stands for our source in an index of subscriptions. No id has a NUL in it."""
    return f"{OWN_SOURCE}\0{owner or ''}"


def is_feed(source_id: str) -> bool:
    """Whether it is one: no pattern matches it, it has to be named."""
    return "\0" in source_id


def subscribed(sources: Iterable[str], owner: str | None) -> Iterator[str]:
    """The patterns of a receiver for an index: in place of our source's name the owner's feed."""
    for source in sources:
        if source == OWN_SOURCE:
            yield feed(owner)
        elif not is_feed(source):
            yield source


def hearers(directory: Directory, event_type: str, name: str | None) -> tuple[str, ...]:
    """Names of the receivers that an event about the receiver `name` goes to. Raises InvalidRecord where there are too
    many, and what the directory does."""
    about = None if name is None else _receiver(directory, name)
    owner = None if about is None else about.owner
    equals = feed(owner)
    feeds = {feed(None), equals}
    if event_type in _BY_ITSELF and about is not None and OWN_SOURCE in about.sources:
        feeds.discard(equals)
    found = {each for one in feeds for each in directory.subscribers(one, event_type)}
    return tuple(sorted(found - {name}))


def hearers_of(directory: Directory, message: Message) -> tuple[str, ...]:
    """As `hearers`, of what came as a message of our source. Raises InvalidRecord for what we cannot have said."""
    if message.receivers is not None or message.event_type not in _TYPES:
        raise _not_ours("its events name no receiver, and are of types of its own")
    try:
        said = _decode(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _not_ours("this is none of its events") from None
    if said.type != message.event_type or not (said.receiver is None or is_receiver_name(said.receiver)):
        raise _not_ours("this is none of its events")
    return hearers(directory, said.type, said.receiver)


class _Said(msgspec.Struct):
    type: str
    receiver: str | None


_decode: Final = msgspec.json.Decoder(_Said).decode


def _receiver(directory: Directory, name: str) -> Receiver | None:
    return directory.receiver(name) or directory.removed(name)


def _not_ours(why: str) -> InvalidRecord:
    return InvalidRecord("invalid", f"{OWN_SOURCE!r} is the relay's own source: {why}")
