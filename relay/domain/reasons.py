"""Why a delivery failed: the closed list of reasons of a dead letter, and who has to act on each."""

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
    "discarded": "system",
}
"""Reason -> class. Only `system` pages a person. Source: design, section 9."""


def reason_class(reason: str) -> ReasonClass:
    """The class of `reason`; an unknown reason (a newer writer) counts as `system`, so that a person looks at it."""
    return REASONS.get(reason, "system")
