"""What a sender gets in the end: how its source wants a result, how the delivery ended, in the one byte that a finished
row keeps; and the failure notice that takes the place of an answer, as problem details (RFC 9457)."""

from enum import IntEnum
from typing import Final, NamedTuple, NotRequired, TypedDict

import msgspec

from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import DeliveryId, webhook_id
from relay.domain.json_pointer import NOT_JSON
from relay.domain.reasons import REASONS, UNKNOWN, replaced_by
from relay.domain.receiver import Source

MEDIA_TYPE: Final = "application/problem+json"
_MOST_ATTEMPTS: Final = 63


class Handover(IntEnum):
    """DELIVERED: the callback accepted it, or a Kafka consumer reads it from `to_sender`. UNWANTED: the source wants no
    such results. KEPT: the source has no callback and queries the API. FAILED: the callback was given up."""

    DELIVERED = 0
    UNWANTED = 1
    KEPT = 2
    FAILED = 3


class Handed(NamedTuple):
    """How a result was handed over to its sender. `attempts`: callback requests made, counted up to 63."""

    how: Handover
    attempts: int


def to_code(how: Handover, attempts: int) -> int:
    """0-255."""
    return how | min(attempts, _MOST_ATTEMPTS) << 2


def from_code(code: int) -> Handed:
    return Handed(Handover(code & 3), code >> 2)


def handover(source: Source, *, failed: bool, empty: bool) -> Handover:
    """How a source wants an answer, or a failure notice, to be delivered."""
    answers_wanted = source.answers == "all" or (source.answers == "non_empty" and not empty)
    if not (source.failures if failed else answers_wanted):
        return Handover.UNWANTED
    if source.callback is None and not source.kafka:
        return Handover.KEPT
    return Handover.DELIVERED


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
    except NOT_JSON:
        return ""
