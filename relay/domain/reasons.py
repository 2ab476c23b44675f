"""Why a delivery failed: the closed list of reasons of a dead letter, who has to act on each, and its code in a row."""

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
}
"""Reason -> class. Only `system` pages a person. Source: design, section 9."""

DISCARDED: Final = "discarded"
"""Somebody decided that it ends: nobody has to look at it."""

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
}
"""How a finished row remembers its reason, in one byte. Rows live for days: a code is never given to another reason."""


def is_of_callback(reason: str | None) -> bool:
    """Whether it was the sender's callback that failed."""
    return reason is not None and reason.startswith("callback_")


def reason_class(reason: str) -> ReasonClass:
    """The class of `reason`; an unknown reason (a newer writer) counts as `system`, so that a person looks at it."""
    return REASONS.get(reason, "system")
