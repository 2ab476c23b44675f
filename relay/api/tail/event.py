"""The tail event of a record: a message, an attempt, an answer, or a dead letter. Pure.

A record that cannot be read has no event: it becomes a dead letter, which has one.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, cast

import msgspec

from relay.api.failed import letter_view
from relay.api.history.shapes import ListedDelivery, attempt_item, delivery_item, message_item
from relay.api.responses import view_as
from relay.domain.attempt import OF_SENDER, Attempt, decode_attempt
from relay.domain.coordinate import Coordinate, Headers
from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.hop import NO_RECEIVER, hop_of
from relay.domain.identity import MessageId
from relay.domain.message import message_of
from relay.domain.recipients import valid_recipients
from relay.domain.times import rfc3339
from relay.domain.topics import Topics
from relay.history.port import ArrivalFact, AttemptFound, DeliveryFound
from relay.log.port import Record
from relay.replay.letter import read_dead_letter
from relay.schema.attempts import AttemptItem
from relay.schema.messages import MessageItem
from relay.schema.replays import LetterView
from relay.schema.streams import AnswerItem

SHOWN_BODY: Final = 1_024
"""Bytes of an answer's body in an event."""
TYPES_KNOWN: Final = 10_000
SHOWN_DELIVERIES: Final = 50
"""Receivers of a message in an event, at most."""

Kind = Literal["message", "attempt", "answer", "failed"]
_LEADS_TO: Final[tuple[Kind, ...]] = ("message", "attempt", "answer", "failed")
"""A callback's attempt has the place of `failed`: both end a message."""


View = MessageItem | AttemptItem | AnswerItem | LetterView


@dataclass(frozen=True, slots=True)
class TailedEvent:
    """What happened to a message, for one record.

    `source_id`: None if not known. `receivers`: those it is about. `failed`: it is a failure. `of_sender`: only readers
    of its source may see it, not its receivers. `life`, `origin`: of the receiver's name, and of the message, as
    `Life.has` takes them.
    """

    kind: Kind
    at_ms: int
    source_id: str | None
    receivers: tuple[str, ...]
    event_type: str | None
    failed: bool
    view: View
    of_sender: bool = False
    life: str = ""
    origin: Coordinate | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The sort key: the time; within one millisecond, the cause before its effect."""
        return self.at_ms, _LEADS_TO.index(self.kind) + 2 * (self.kind == "attempt" and self.of_sender)

    def only_for(self, receivers: Collection[str]) -> "TailedEvent":
        """The part for callers that may see data about `receivers`."""
        if self.kind != "message":
            return self
        own = tuple(name for name in self.receivers if name in receivers)
        item = cast(MessageItem, self.view)
        view: MessageItem = {**item, "deliveries": [delivery_item(each) for each in _arrived(own, self.at_ms)]}
        return replace(self, receivers=own, view=view)

    def encoded(self) -> bytes:
        """The event in the format of server-sent events."""
        return encoded_event(self.kind, self.view)


def encoded_event(name: str, data: object) -> bytes:
    """JSON has no line breaks of its own, which would end the event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


Read = Callable[[Record], TailedEvent | None]


def readers(topics: Topics, directory: Directory) -> Mapping[str, Read]:
    """The reader of a record, by topic, in the order in which a message passes them."""
    types = _Types()
    return {
        topics.from_sender: lambda record: types.noted(_message(record, directory)),
        topics.delivery_attempts: lambda record: _attempt(record, types),
        topics.to_sender: _answer,
        topics.failed_messages: lambda record: _letter(record, topics),
    }


class _Types:
    """The types of the newest messages: an attempt's record does not have its message's type."""

    def __init__(self) -> None:
        self._known: OrderedDict[MessageId, str | None] = OrderedDict()

    def noted(self, event: TailedEvent | None) -> TailedEvent | None:
        """The event. Stores the type of a message."""
        if event is not None and event.kind == "message":
            item = cast(MessageItem, event.view)
            self._known[MessageId(item["source_id"], item["message_id"])] = item["type"]
            if len(self._known) > TYPES_KNOWN:
                self._known.popitem(last=False)
        return event

    def of(self, message: MessageId | None) -> str | None:
        return None if message is None else self._known.get(message)


def _attempt(record: Record, types: _Types) -> TailedEvent | None:
    try:
        attempt = decode_attempt(record.value)
    except InvalidRecord:
        return None
    of_sender = attempt.kind in OF_SENDER or attempt.receiver is None
    about = () if attempt.receiver is None else (attempt.receiver,)
    event_type, failed = types.of(attempt.identity), has_failed(attempt)
    view, source_id = attempt_item(AttemptFound(record.coordinate, attempt)), attempt.source_id
    # Its record is written later. Rounded down as the log's timestamps are, so that its effects sort after it.
    ended_ms = int(attempt.started_at * 1000 + attempt.duration_ms)
    return TailedEvent("attempt", ended_ms, source_id, about, event_type, failed, view, of_sender, attempt.life)


def has_failed(attempt: Attempt) -> bool:
    """Whether the attempt failed. A status GET that returns "not yet" is no failure."""
    if attempt.kind == "status" and attempt.response is not None and attempt.response.status < 300:
        return attempt.outcome == "dead"
    return attempt.outcome != "done"


def _message(record: Record, directory: Directory) -> TailedEvent | None:
    message = message_of(record.value, record.headers)
    if message is None:
        return None
    to, at_ms, origin = valid_recipients(directory, message), record.timestamp_ms, record.coordinate
    size = len(message.payload)
    arrival = ArrivalFact(message.id, origin, at_ms / 1000, message.event_type, message.content_type, size)
    view = message_item(arrival, _arrived(to, at_ms))
    return TailedEvent("message", at_ms, message.source_id, to, message.event_type, False, view, origin=origin)


def _arrived(receivers: Collection[str], at_ms: int) -> list[ListedDelivery]:
    """The deliveries of a message that is not routed yet: one to each of `receivers`."""
    return [
        ListedDelivery(DeliveryFound(name, "arrived", 0, 0, None, None, None, at_ms / 1000), "queued")
        for name in list(receivers)[:SHOWN_DELIVERIES]
    ]


def _answer(record: Record) -> TailedEvent | None:
    """The event of an answer. None for a failure notice, whose dead letter has its own event, and for progress."""
    hop = hop_of(record.headers)
    if hop is None or hop.outcome == "failed" or hop.progress is not None:
        return None
    view = view_as(
        AnswerItem,
        hop.delivery,
        at=rfc3339(record.timestamp_ms / 1000),
        status=hop.answer_status,
        content_type=hop.content_type,
        body=(record.value or b"")[:SHOWN_BODY].decode(errors="replace"),
    )
    at_ms, source_id, own = record.timestamp_ms, hop.delivery.source_id, (hop.delivery.receiver,)
    return TailedEvent("answer", at_ms, source_id, own, hop.event_type, False, view, life=hop.life, origin=hop.origin)


def _letter(record: Record, topics: Topics) -> TailedEvent:
    letter = read_dead_letter(record, topics)
    view = letter_view(letter)
    about = (view["receiver"],) if view["receiver"] != NO_RECEIVER else ()
    source_id, event_type = view["source_id"], _type_of(record.headers)
    failed_at = view["failed_at"]
    at_ms = record.timestamp_ms if failed_at is None else round(datetime.fromisoformat(failed_at).timestamp() * 1000)
    origin = letter.dead.origin
    return TailedEvent(
        "failed", at_ms, source_id, about, event_type, True, view, letter.is_of_sender, letter.life, origin
    )


def _type_of(headers: Headers) -> str | None:
    value = dict(headers).get("ce_type")
    return None if value is None else value.decode(errors="replace")
