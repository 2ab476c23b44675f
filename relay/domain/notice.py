"""Failure notices, which a sender gets instead of an answer, as problem details (RFC 9457)."""

from typing import Final, NotRequired, TypedDict

import msgspec

from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import DeliveryId, webhook_id
from relay.domain.reasons import REASONS, UNKNOWN, replaced_by

MEDIA_TYPE: Final = "application/problem+json"


class Notice(TypedDict):
    """A failure notice. `receiver`: null if the message never had one. `attempts`: the number of POSTs. `replaced_by`:
    the id of the newer message that took its place, only if it was replaced."""

    type: str
    title: str
    detail: str
    reason: str
    attempts: int
    last_status: int | None
    source_id: str
    message_id: str
    webhook_id: str
    receiver: str | None
    generation: int
    replaced_by: NotRequired[str]


def notice_body(
    delivery: DeliveryId, generation: int, *, reason: str, detail: str, attempts: int, last_status: int | None
) -> bytes:
    """The notice of a failed `delivery` as JSON. `type` is `/problems/<reason>`, as in the API's own problems."""
    title = REASONS.get(reason, UNKNOWN).title
    notice: Notice = {
        "type": f"/problems/{reason.replace('_', '-')}",
        "title": title,
        "detail": detail or title,
        "reason": reason,
        "attempts": attempts,
        "last_status": last_status,
        "source_id": delivery.source_id,
        "message_id": delivery.message_id,
        "webhook_id": webhook_id(delivery.source_id, delivery.message_id),
        "receiver": None if delivery.receiver == NO_RECEIVER else delivery.receiver,
        "generation": generation,
    }
    if (newer := replaced_by(reason, detail)) is not None:
        notice["replaced_by"] = newer
    return msgspec.json.encode(notice)


class _Detail(msgspec.Struct):
    detail: str = ""


def detail_in(notice: bytes) -> str:
    """The `detail` of a notice; empty if it is not readable."""
    try:
        return msgspec.json.decode(notice, type=_Detail).detail
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
