"""Reasons of dead letters: a closed list. `advice.py` has what to do about each."""

import json
import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

ReasonClass = Literal["sender", "receiver", "system"]
"""The party that has to act. Only `system` pages an operator."""


class Reason(NamedTuple):
    """`code`: in finished rows, one byte. Rows live for days, so it is never reused for another reason. `title`: of the
    failure notice."""

    party: ReasonClass
    code: int
    title: str


REASONS: Final[Mapping[str, Reason]] = {
    "invalid": Reason("sender", 1, "The message is not valid"),
    "unknown_receiver": Reason("sender", 2, "There is no such receiver"),
    "id_conflict": Reason("sender", 3, "The message id is taken by another message"),
    "too_large": Reason("sender", 4, "The message is too large"),
    "rejected": Reason("receiver", 5, "The receiver refused the message"),
    "gone": Reason("receiver", 6, "The receiver is gone"),
    "exhausted": Reason("receiver", 7, "Every attempt to deliver the message failed"),
    "expired": Reason("receiver", 8, "The message could not be delivered in time"),
    "ambiguous": Reason("receiver", 9, "The message may or may not have reached the receiver"),
    "backlog_full": Reason("receiver", 10, "Too many messages wait for the receiver"),
    "answer_timeout": Reason("receiver", 11, "The receiver did not answer in time"),
    "receiver_forgot": Reason("receiver", 12, "The receiver accepted the message, and then forgot it"),
    "callback_rejected": Reason("sender", 13, "The sender rejected the result"),
    "callback_exhausted": Reason("sender", 14, "Every attempt to deliver the result to the sender failed"),
    "poison": Reason("system", 15, "The message could not be processed"),
    "lost": Reason("system", 17, "The log lost the message while it waited"),
    "discarded": Reason("system", 16, "The message was discarded"),
    "cancelled": Reason("sender", 18, "The message was cancelled before it was sent"),
    "replaced": Reason("sender", 19, "A newer message took the place of the message before it was sent"),
}
UNKNOWN: Final = Reason("system", 0, "The message could not be delivered")
"""Stands for a reason of a newer release. It counts as `system`, so that an operator sees it."""
REASON_CODES: Final[Mapping[str, int]] = {reason: one.code for reason, one in REASONS.items()}
REASON_OF_CODE: Final[Mapping[int, str]] = {code: reason for reason, code in REASON_CODES.items()}

DISCARDED: Final = "discarded"
CANCELLED: Final = "cancelled"
REPLACED: Final = "replaced"
ON_PURPOSE: Final = frozenset({DISCARDED, CANCELLED, REPLACED})
"""Reasons of deliveries that were ended on purpose, and need no attention."""
NO_ANSWER: Final = frozenset({"answer_timeout", "receiver_forgot"})
"""Reasons of deliveries that the receiver had accepted."""

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
    return REASONS.get(reason, UNKNOWN).party


_WORDS: Final = {"exhausted": "retries exhausted", "callback_exhausted": "callback retries exhausted"}


def reason_words(reason: str) -> str:
    """The reason as people read it."""
    return _WORDS.get(reason, reason.replace("_", " "))
