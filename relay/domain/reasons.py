"""Reasons of dead letters: a closed list, with the party that has to act on each, and its code in a row."""

import json
import re
from typing import Final, Literal

ReasonClass = Literal["sender", "receiver", "system"]

REASONS: Final[dict[str, ReasonClass]] = {
    "invalid": "sender",
    "unknown_receiver": "sender",
    "id_conflict": "sender",
    "too_large": "sender",
    "rejected": "receiver",
    "gone": "receiver",
    "exhausted": "receiver",
    "expired": "receiver",
    "ambiguous": "receiver",
    "backlog_full": "receiver",
    "answer_timeout": "receiver",
    "receiver_forgot": "receiver",
    "callback_rejected": "sender",
    "callback_exhausted": "sender",
    "poison": "system",
    "lost": "system",
    "discarded": "system",
    "cancelled": "sender",
    "replaced": "sender",
}
"""Reason -> class. Only `system` pages an operator. Source: design, section 9."""

DISCARDED: Final = "discarded"
CANCELLED: Final = "cancelled"
REPLACED: Final = "replaced"
ON_PURPOSE: Final = frozenset({DISCARDED, CANCELLED, REPLACED})
"""Reasons of deliveries that were ended on purpose, and need no attention."""

REASON_CODES: Final[dict[str, int]] = {
    "invalid": 1,
    "unknown_receiver": 2,
    "id_conflict": 3,
    "too_large": 4,
    "rejected": 5,
    "gone": 6,
    "exhausted": 7,
    "expired": 8,
    "ambiguous": 9,
    "backlog_full": 10,
    "answer_timeout": 11,
    "receiver_forgot": 12,
    "callback_rejected": 13,
    "callback_exhausted": 14,
    "poison": 15,
    "discarded": 16,
    "lost": 17,
    "cancelled": 18,
    "replaced": 19,
}
"""One-byte codes of reasons in finished rows. Rows live for days, so a code is never reused for another reason."""


_REPLACED: Final = re.compile(r'replaced by the newer message (".*") of its key')


def replaced_detail(message_id: str) -> str:
    """The detail of a delivery that was replaced; `replaced_by` reads the id from it."""
    return f"replaced by the newer message {json.dumps(message_id, ensure_ascii=False)} of its key"


def replaced_by(reason: str | None, detail: str | None) -> str | None:
    """The id of the newer message that took its place; None if it was not replaced."""
    found = _REPLACED.fullmatch(detail or "") if reason == REPLACED else None
    return None if found is None else str(json.loads(found[1]))


def is_of_callback(reason: str | None) -> bool:
    """Whether the sender's callback failed, not the receiver."""
    return reason is not None and reason.startswith("callback_")


def reason_class(reason: str) -> ReasonClass:
    """The class of `reason`. An unknown reason, of a newer release, counts as `system`, so that an operator sees it."""
    return REASONS.get(reason, "system")


_WORDS: Final = {"exhausted": "retries exhausted", "callback_exhausted": "callback retries exhausted"}


def reason_words(reason: str) -> str:
    """The reason as people read it."""
    return _WORDS.get(reason, reason.replace("_", " "))
