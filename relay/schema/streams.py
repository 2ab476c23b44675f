"""Responses that are streams: live events, the export of a receiver's deliveries, and what it missed."""

from typing import Annotated, Literal, TypedDict, final

from msgspec import Meta, Struct

from relay.schema.messages import DeliveryItem


class AnswerItem(TypedDict):
    """An answer on its way to the sender, which was published `at`. `body`: its beginning, as text."""

    at: str | None
    source_id: str
    message_id: str
    receiver: str
    status: int | None
    content_type: str | None
    body: str


class TailEvent(TypedDict):
    """A server-sent event. `data`: JSON."""

    event: Literal["message", "attempt", "answer", "failed", "listening", "away", "skipped", "ended"]
    data: str


PayloadKept = Literal["whole", "truncated", "gone", "encrypted", "withheld", "erased"]


class ExportedMessage(TypedDict):
    """A message with its delivery to the receiver. `payload`: as the sender gave it, its text where it is UTF-8, else
    `payload_base64`. `payload_kept`: `whole`; `truncated`, if only its beginning is kept; without a payload `gone`, if
    nothing of it is kept, `encrypted`, if it is encrypted for its receiver, `withheld`, if its receiver gets none
    (`payload: metadata`), or `erased`, if that was requested."""

    source_id: str
    message_id: str
    webhook_id: str
    type: str | None
    received_at: str | None
    content_type: str | None
    size: int
    delivery: DeliveryItem
    payload: str | None
    payload_base64: str | None
    payload_kept: PayloadKept


class ExportLine(ExportedMessage):
    """A message of an export. `cursor`: what follows this line."""

    cursor: str


class ExportEnd(TypedDict):
    """The last line. `exported`: the lines before it. `complete`: false if the export stopped early, for the reason in
    `detail`; it continues with `?after=` and `cursor`. A response without this line was cut off."""

    exported: int
    complete: bool
    detail: str | None
    cursor: str | None


@final
class NumberedLine(ExportedMessage):
    """A message that was sent with this number in `relay-sequence`."""

    sequence: int


@final
class MissingLine(TypedDict):
    """Numbers from `first` to `last` of which no message is known to be delivered. `reason`: of the dead letters, or of
    the gap; `in_progress`; or `unknown`, if the history does not have them any more."""

    first: int
    last: int
    reason: str


class CatchUpEnd(TypedDict):
    """The last line. `delivered`: the messages before it. `complete`: false if more follow, or if it stopped early, for
    the reason in `detail`; it continues with `last` as `after`. `last`: the highest number in this response. A response
    without this line was cut off."""

    delivered: int
    complete: bool
    detail: str | None
    last: int


class CatchUp(Struct, forbid_unknown_fields=True):
    """`after`: the last number that the receiver has."""

    after: Annotated[int, Meta(ge=0, lt=10**18)]
