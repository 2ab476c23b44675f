"""How far a message is: the words for it, in order, and when nothing more will happen. The same for the API that says
them and for whoever reads them."""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

Status = Literal[
    "arrived",
    "delivered_to_receiver",
    "failed",
    "response_received_from_receiver",
    "response_delivered_to_sender",
    "done",
]
CallbackStatus = Literal["pending", "retrying", "delivered", "failed"]
"""How a result's way to the sender's callback is going."""
WaitKind = Literal[
    "retry",
    "rate",
    "paused",
    "offline",
    "breaker",
    "order",
    "in_doubt",
    "answer",
    "callback",
    "no_worker",
    "configuration",
    "settling",
    "switched_off",
    "verification",
    "queued",
]
"""What a delivery waits for, or its result."""

PROGRESS: Final[tuple[Status, ...]] = (
    "arrived",
    "delivered_to_receiver",
    "failed",
    "response_received_from_receiver",
    "response_delivered_to_sender",
    "done",
)
"""Least advanced first. A failed delivery stopped before its answer: so a message of several counts as failed once
none of its deliveries still waits for its receiver, and one failed among answered ones is not hidden by them."""
ON_RECORD: Final = tuple(status for status in PROGRESS if status != "done")
"""What a history can tell apart: that no answer is wanted stands in no record."""

_UNFINISHED: Final = frozenset({"arrived", "delivered_to_receiver"})
_OVER_FOR_NOBODY: Final = frozenset({"failed", "done"})
"""Of a message without deliveries, once it was routed: nobody subscribes, or the filters of all who do left it out."""
_UNDER_WAY: Final = frozenset({"pending", "retrying"})


class DeliveryProgress(NamedTuple):
    """Where a delivery is. `callback`: how its result's way to the sender is going; None: there is none to go (any
    more), or nothing to bring yet."""

    status: str
    callback: str | None


def least_advanced(statuses: Iterable[Status]) -> Status:
    """The status of a message with deliveries of these; there is one at least."""
    return min(statuses, key=PROGRESS.index)


def was_answered(message_status: str, deliveries: Iterable[DeliveryProgress]) -> bool:
    """Whether each delivery of a message has ended, wherever its result is on its way to the sender."""
    each = list(deliveries)
    return all(one.status not in _UNFINISHED for one in each) if each else message_status in _OVER_FOR_NOBODY


def is_over(message_status: str, deliveries: Iterable[DeliveryProgress]) -> bool:
    """Whether nothing more will happen to a message: each of its deliveries has ended, and each result that the
    sender is owed (an answer, or a failure notice) was taken or given up."""
    each = list(deliveries)
    return all(_is_over(one) for one in each) if each else message_status in _OVER_FOR_NOBODY


def has_failed(message_status: str, deliveries: Iterable[DeliveryProgress]) -> bool:
    """Whether anything went wrong for good: a delivery, or the way of its result to the sender."""
    return message_status == "failed" or any("failed" in one for one in deliveries)


def _is_over(delivery: DeliveryProgress) -> bool:
    return delivery.status not in _UNFINISHED and delivery.callback not in _UNDER_WAY
