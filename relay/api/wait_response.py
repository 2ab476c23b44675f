"""A delivery that is over, as the answer to the request that waited for it: pure.

200 is the receiver's answer itself, with the headers that a callback with it has; 502 says why there is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from relay.api.problems import Problem, ProblemKind
from relay.domain.dead_letter import parse_dead_letter
from relay.domain.errors import InvalidRecord
from relay.domain.headers import header_value
from relay.domain.hop import decode_hop
from relay.domain.identity import DeliveryId, callback_id
from relay.domain.notice import TITLES
from relay.domain.reasons import REASON_CODES
from relay.domain.requests import attribute_value
from relay.log.port import Record
from relay.state.rows import Row, Stage

ANSWER_GONE: Final = ProblemKind("answer-gone", 410, "The answer is not kept any more")
_FAILED: Final = "delivery-failed"
_REASONS: Final = {code: reason for reason, code in REASON_CODES.items()}


@dataclass(frozen=True, slots=True)
class AnswerGiven:
    """The receiver's answer as it is; `headers` are ours. `content_type` None: it has none."""

    body: bytes
    content_type: str | None
    headers: Mapping[str, str]


def _kind(reason: str, title: str) -> ProblemKind:
    return ProblemKind(reason.replace("_", "-"), 502, title)


DELIVERY_FAILED: Final = _kind(_FAILED, "The message could not be delivered")
FAILURES: Final = (DELIVERY_FAILED, *(_kind(reason, title) for reason, title in TITLES.items()))
"""Why there is no answer; the first is for a reason that is not known."""


def is_over(row: Row) -> bool:
    """Whether the log has what became of the delivery: its answer, or its dead letter."""
    return row.stage >= Stage.PUBLISHED


def ended(delivery: DeliveryId, row: Row, record: Record | None) -> AnswerGiven:
    """The answer that `record` holds, which the row of a delivery that is over points at.

    Raises a Problem: 502 where it failed for good, 410 where the record is gone.
    """
    if row.stage is Stage.FAILED:
        raise _failed(delivery, row, record)
    answer = None if record is None else _answer(delivery, record)
    if answer is None:
        raise Problem(ANSWER_GONE, "The message was delivered, so long ago that its answer is gone from the log.")
    return answer


def _answer(delivery: DeliveryId, record: Record) -> AnswerGiven | None:
    try:
        hop = decode_hop(record.headers)
    except InvalidRecord:
        return None
    if hop.delivery != delivery:
        return None  # the topic was made anew, and this is another one's record
    headers = _named(delivery, hop.generation, failed=False) | {"relay-outcome": hop.outcome or "answered"}
    if hop.attempt:
        headers["relay-attempt"] = str(hop.attempt)
    if hop.answer_status is not None:
        headers["relay-answer-status"] = str(hop.answer_status)
    if hop.answer_truncated:
        headers["relay-answer-truncated"] = "true"
    content_type = None if hop.content_type is None else header_value(hop.content_type)
    return AnswerGiven(record.value or b"", content_type, headers)


def _failed(delivery: DeliveryId, row: Row, record: Record | None) -> Problem:
    letter = None if record is None else parse_dead_letter(record.headers)
    reason = _REASONS.get(row.code) or (letter.reason if letter else None)
    title = TITLES.get(reason or "", DELIVERY_FAILED.title)
    more: dict[str, object] = {
        "reason": reason,
        "attempts": letter.attempts if letter else row.attempts,
        "last_status": letter.last_status if letter else row.last_status,
        "source_id": delivery.source_id,
        "message_id": delivery.message_id,
        "receiver": delivery.receiver,
        "dead_letter": f"/v1/failed/{row.at[0]}/{row.at[1]}" if row.at else None,
    }
    headers = _named(delivery, row.generation, failed=True) | {"relay-outcome": "failed"}
    if reason is not None:
        headers["relay-reason"] = reason
    kind = _kind(reason or _FAILED, title)
    return Problem(kind, (letter.detail if letter else "") or title, headers=headers, more=more)


def _named(delivery: DeliveryId, generation: int, *, failed: bool) -> dict[str, str]:
    return {
        "webhook-id": callback_id(delivery, generation, failed=failed),
        "relay-source": attribute_value(delivery.source_id),
        "relay-message-id": attribute_value(delivery.message_id),
        "relay-receiver": header_value(delivery.receiver),
        "relay-generation": str(generation),
    }
