"""The export of a receiver's deliveries, as the API writes it."""

from typing import Literal, TypedDict

from relay.schema.messages import DeliveryItem

PayloadKept = Literal["whole", "truncated", "gone", "encrypted", "erased"]


class ExportLine(TypedDict):
    """A message with its delivery to the receiver. `payload`: as the sender gave it, its text where it is UTF-8, else
    `payload_base64`. `payload_kept`: `whole`; `truncated`, if only its beginning is kept; without a payload `gone`, if
    nothing of it is kept, `encrypted`, if it is encrypted for its receiver, or `erased`, if that was requested.
    `cursor`: what follows this line."""

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
    cursor: str


class ExportEnd(TypedDict):
    """The last line. `exported`: the lines before it. `complete`: false if the export stopped early, for the reason in
    `detail`; it continues with `?after=` and `cursor`. A response without this line was cut off."""

    exported: int
    complete: bool
    detail: str | None
    cursor: str | None
