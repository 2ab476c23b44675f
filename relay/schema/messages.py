"""Messages, their deliveries and event types, as the API takes and shows them, and bodies of inbound webhooks."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from relay.domain.state import CallbackStatus, State, Status, WaitKind


@dataclass(frozen=True, slots=True)
class AnswerView:
    """The receiver's answer. `body`: its text if it is UTF-8, else `body_base64`. `received_at`: when the relay put it
    on the log; null before. `truncated`, only if true: its end was not received, or many large answers are cut, and
    `?receiver=` returns one of them whole."""

    status: int | None
    content_type: str | None
    body: str | None
    body_base64: str | None
    received_at: str | None = None
    truncated: bool | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class CallbackView:
    """How the result's way to the sender's callback is going; `attempts` of a finished one: at most 63 are counted.
    `last_status`, `detail`: of what went wrong last; not kept of one that was delivered. A caller who may see the
    receiver's side alone is shown the `status`."""

    status: CallbackStatus
    attempts: int | None
    last_status: int | None = None
    detail: str | None = None


class MessageRef(TypedDict):
    """A message, by its ids."""

    source_id: str
    message_id: str


@dataclass(frozen=True, slots=True)
class WaitView:
    """Why a delivery waits, since when, and until when (RFC 3339; null: unknown, or no such end): at the earliest, or
    with `answer` at the latest.
    `message`, only with `order`: the message ahead."""

    kind: WaitKind
    since: str | None
    until: str | None
    detail: str
    message: MessageRef | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """One delivery. `state`: how it is, in the words of the pages; `status`: how far it is. `waiting_for`: null if it
    is over, or was not determined. `reason`: if it failed, why; before that, the `reason` of its last attempt, as in
    the attempt log. `detail`: the last failure, in words. `advice`: what to do if it waits or failed, or its callback
    did. `callback`: null if there is none. `next_at`, which `next_attempt_at` repeats: when it goes on at the earliest
    (RFC 3339). `replaced_by`, only if it was replaced: the id of the newer message, of the same source."""

    receiver: str
    status: Status
    state: State
    generation: int
    attempts: int
    next_attempt_at: str | None
    waiting_for: WaitView | None
    last_status: int | None
    reason: str | None
    detail: str | None
    advice: str | None
    answer: AnswerView | None
    callback: CallbackView | None
    replaced_by: str | UnsetType = UNSET
    next_at: str | None = None


@dataclass(frozen=True, slots=True)
class PlaceView:
    """The coordinate of a record on the log."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """A message and its deliveries. `state`: that of the delivery that needs the most attention; `failed` counts only
    once no delivery waits for its receiver. `received_at`: when the log took it (RFC 3339), and `at`: where it has it.
    `rebuilding`, only where it is so: the state lost its memory, and more than this may be known of the deliveries when
    it has been read back. `warnings`, only in the response that accepts it: what its sender should correct. `copy_of`,
    only of a copy: the id of its original, of the same source. `reason` and `detail`, only if it failed without a
    receiver: why.
    """

    source_id: str
    message_id: str
    webhook_id: str
    type: str | None
    status: Status
    state: State
    received_at: str | None
    at: PlaceView | None
    duplicate: bool
    rebuilding: bool | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET
    copy_of: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    deliveries: tuple[DeliveryView, ...]


class CopyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a copy has in place of the original's; null: the same. `payload` is text, `payload_base64` any bytes.
    `headers`: all of its own headers, by their names at the receiver. `receivers`: names; the copy of a message to all
    subscribers goes to the subscribers of its type."""

    payload: str | None = None
    payload_base64: bytes | None = None
    headers: dict[str, str] | None = None
    type: str | None = None
    content_type: str | None = None
    receivers: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None


class Recorded(msgspec.Struct, frozen=True):
    """The response to an answer. `duplicate`: an earlier answer exists, and that one counts."""

    status: Literal["recorded"]
    duplicate: bool


_OF_PROBLEM: Final = msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/ProblemView"})


class ItemView(msgspec.Struct):
    """What became of one item. `index`: 0-based. `message_id`: null where none could be read.

    `status` and `problem`: those that a request for this message alone would have been answered with.
    """

    index: int
    message_id: str | None
    status: int
    duplicate: bool
    problem: Annotated[dict[str, object], _OF_PROBLEM] | msgspec.UnsetType = msgspec.UNSET
    warnings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """What its sender should correct."""


class BatchView(msgspec.Struct):
    """The result of a batch. Each item is `accepted` or `rejected`; the accepted ones include `duplicates`."""

    items: list[ItemView]
    accepted: int
    rejected: int
    duplicates: int


class BatchLine(msgspec.Struct):
    """The JSON envelope of `from_sender`, and fields for the headers of such a record. `type` is short for
    `event_type`."""

    payload: msgspec.Raw
    source_id: str | None = None
    message_id: str | None = None
    receiver: str | list[str] | None = None
    event_type: str | None = None
    type: str | None = None
    content_type: str | None = None
    time: str | None = None
    headers: dict[str, str] | None = None
    deliver_at: str | float | None = None
    delay: str | float | None = None
    deadline: str | float | None = None
    supersede: str | None = None
    coalesce: dict[str, str | float] | None = None
    endpoint: str | None = None
    signing_secret: str | None = None


class CloudEvent(msgspec.Struct):
    """A structured CloudEvent. `receiver` is an extension of the relay, `traceparent` and `tracestate` are those of
    distributed tracing."""

    specversion: str = "1.0"
    id: str | None = None
    source: str | None = None
    type: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    receiver: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data_base64: bytes | None = None


class DeliveryItem(TypedDict):
    """A delivery in its newest generation. `receiver`: `-` if it never had one. `waiting_for`: null if it is over, or
    was not determined; a list does not determine its order. `next_at`, `replaced_by`: as for a single message. Times
    are RFC 3339."""

    receiver: str
    status: Status
    state: State
    generation: int
    attempts: int
    last_status: int | None
    reason: str | None
    detail: str | None
    next_attempt_at: str | None
    next_at: NotRequired[str | None]
    waiting_for: WaitView | None
    updated_at: str | None
    replaced_by: NotRequired[str]


class MessageItem(TypedDict):
    """A message as it is listed. `status`: the least advanced of its deliveries that are shown; `state`: as for a
    single message. `size`: bytes of its payload. `preview`: the beginning of a payload that is text, in one line; null
    where bodies are not kept, and in the live tail."""

    source_id: str
    message_id: str
    webhook_id: str
    type: str | None
    status: Status
    state: State
    received_at: str | None
    size: int
    content_type: str | None
    preview: str | None
    deliveries: list[DeliveryItem]


class MessagePage(TypedDict):
    """Newest first. `cursor`: of the next page; null on the last one. `behind_s`: so many seconds ago happened what
    the history takes up next; 0: it has everything, null: not known."""

    items: list[MessageItem]
    cursor: str | None
    behind_s: float | None


class DeliveryState(msgspec.Struct, frozen=True):
    """The state of a delivery. `reason`: of its failure."""

    receiver: str
    status: str
    generation: int
    reason: str | None


class WebhookView(msgspec.Struct, frozen=True):
    """The result of a webhook, for its sender. `deliveries`: those of the first one, if this is a `duplicate`.
    `detail`: more about it."""

    source_id: str
    message_id: str
    status: str
    duplicate: bool
    detail: str | None
    deliveries: list[DeliveryState]


class BatchTaken(msgspec.Struct, frozen=True):
    """All events of a batch were accepted; `duplicates` of them had arrived before."""

    accepted: int
    duplicates: int


class Probed(msgspec.Struct, frozen=True):
    """The response to a sender's probe."""

    status: str


class Nonce(TypedDict):
    """The body of a verification. `nonce`: generated for this one."""

    type: Literal["relay.verification"]
    nonce: str


class Ping(TypedDict):
    """The body of a ping. `test`: an operator requested it; `receiver`: its name in that case."""

    type: Literal["relay.ping"]
    test: NotRequired[Literal[True]]
    receiver: NotRequired[str]


class EventVersionView(TypedDict):
    """A version of an event type. `schema`: JSON Schema (2020-12) of the payload. `examples`: payloads that match
    it."""

    version: int
    schema: dict[str, Any]
    examples: list[Any]


class EventTypeView(TypedDict):
    """An event type. `deprecated`: still sent, but not to be subscribed to any more. `versions`: in ascending order; a
    payload is valid if it is valid by any of them."""

    type: str
    description: str
    deprecated: bool
    versions: list[EventVersionView]


class EventTypePage(TypedDict):
    """In the order of their names. `cursor`: of the next page; null on the last one."""

    items: list[EventTypeView]
    cursor: str | None
