"""Reasons of dead letters: a closed list, with what to do about each."""

import json
import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

ReasonClass = Literal["sender", "receiver", "system"]
"""The party that has to act. Only `system` pages an operator."""


class Reason(NamedTuple):
    """`code`: in finished rows, one byte. Rows live for days, so it is never reused for another reason. `title`: of the
    failure notice. `advice`: what to do about a delivery that was given up for it."""

    party: ReasonClass
    code: int
    title: str
    advice: str


REASONS: Final[Mapping[str, Reason]] = {
    "invalid": Reason(
        "sender",
        1,
        "The message is not valid",
        "The record is not a message, or the receiver cannot get it: `detail` says why. Correct it and send it with a"
        " new id. If `detail` names an expression or the status endpoint, correct that setting, and replay it.",
    ),
    "unknown_receiver": Reason(
        "sender",
        2,
        "There is no such receiver",
        "No receiver has that name: check its spelling, and that it is declared. Its dead letters can be replayed once"
        " it is declared.",
    ),
    "id_conflict": Reason(
        "sender",
        3,
        "The message id is taken by another message",
        "An earlier message with this id had another payload, type or receivers. Every message needs an id of its own;"
        " send the new one with a new id.",
    ),
    "too_large": Reason(
        "sender",
        4,
        "The message is too large",
        "Send less at once: a smaller payload, or fewer messages in a batch. `detail` has the limit.",
    ),
    "rejected": Reason(
        "receiver",
        5,
        "The receiver refused the message",
        "The receiver permanently rejected this message. See its answer in the dead letter; once the receiver or the"
        " message is fixed, replay it.",
    ),
    "gone": Reason(
        "receiver",
        6,
        "The receiver is gone",
        "The receiver said that it is gone (410), so the relay stopped sending to it. If it is back, resume and"
        " replay.",
    ),
    "exhausted": Reason(
        "receiver",
        7,
        "Every attempt to deliver the message failed",
        "Every attempt that the receiver's settings allow has failed. Once it works again, replay the dead letters.",
    ),
    "expired": Reason(
        "receiver",
        8,
        "The message could not be delivered in time",
        "The delivery became older than the receiver's settings or the message's own deadline allow. Once the receiver"
        " works, replay it.",
    ),
    "ambiguous": Reason(
        "receiver",
        9,
        "The message may or may not have reached the receiver",
        "An attempt may or may not have arrived, and the receiver's settings forbid sending it twice. Check with the"
        " receiver; replay it if it did not arrive.",
    ),
    "backlog_full": Reason(
        "receiver",
        10,
        "Too many messages wait for the receiver",
        "Too many messages waited for the receiver. Once it keeps up again, replay the dead letters.",
    ),
    "answer_timeout": Reason(
        "receiver",
        11,
        "The receiver did not answer in time",
        "The receiver accepted the message but did not answer in time. Check with the receiver. A replay waits for"
        " the answer again; it does not send the message.",
    ),
    "receiver_forgot": Reason(
        "receiver",
        12,
        "The receiver accepted the message, and then forgot it",
        "The receiver accepted the message, but later had no record of it. Replay it.",
    ),
    "callback_rejected": Reason(
        "sender",
        13,
        "The sender rejected the result",
        "The sender's callback permanently rejected the result. Fix the callback, then replay the dead letter: only"
        " the result is sent again.",
    ),
    "callback_exhausted": Reason(
        "sender",
        14,
        "Every attempt to deliver the result to the sender failed",
        "The sender's callback was unreachable for too long, or too many results waited for it. Once it works, replay"
        " the dead letter: only the result is sent again.",
    ),
    "poison": Reason(
        "system",
        15,
        "The message could not be processed",
        "Processing this message failed repeatedly. This is a bug in the relay: report it; a newer version may be able"
        " to process it when it is replayed.",
    ),
    "lost": Reason(
        "system",
        17,
        "The log lost the message while it waited",
        "Kafka lost the record in which the message waited. Its content is gone: have the sender send it again, under"
        " a new id.",
    ),
    "discarded": Reason(
        "system",
        16,
        "The message was discarded",
        "An operator discarded this delivery. A replay undoes that.",
    ),
    "cancelled": Reason(
        "sender",
        18,
        "The message was cancelled before it was sent",
        "This delivery was cancelled before it was sent. A replay undoes that.",
    ),
    "replaced": Reason(
        "sender",
        19,
        "A newer message took the place of the message before it was sent",
        "A newer message of the same key took its place before it was sent. A replay sends it all the same.",
    ),
}
UNKNOWN: Final = Reason(
    "system",
    0,
    "The message could not be delivered",
    "The delivery was given up. Look up its dead letter, fix the cause, and replay it.",
)
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
