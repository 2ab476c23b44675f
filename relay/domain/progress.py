"""Progress of a message: its statuses in order, and when it has ended. Shared by the API and its clients."""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, get_args

Status = Literal[
    "arrived",
    "delivered_to_receiver",
    "failed",
    "response_received_from_receiver",
    "response_delivered_to_sender",
    "done",
]
CallbackStatus = Literal["pending", "retrying", "delivered", "failed"]
"""State of a result's delivery to the sender's callback."""
StageName = Literal["from_sender", "to_receiver", "pending", "to_sender", "failed_messages"]
WaitKind = Literal[
    "retry",
    "delayed",
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
"""What a delivery, or its result, waits for."""

PROGRESS: Final[tuple[Status, ...]] = get_args(Status)
"""Least advanced first. A failed delivery stopped before its answer. So a message with several deliveries counts as
failed once no delivery waits for its receiver any more, and answered deliveries do not hide a failed one."""
ON_RECORD: Final = tuple(status for status in PROGRESS if status != "done")
"""Statuses that the history can distinguish: no record says that no answer is expected."""

_UNFINISHED: Final = frozenset({"arrived", "delivered_to_receiver"})
_OVER_FOR_NOBODY: Final = frozenset({"failed", "done"})
"""Of a routed message without deliveries: it has no subscriber, or no subscriber's filter matches."""
_UNDER_WAY: Final = frozenset({"pending", "retrying"})


class DeliveryProgress(NamedTuple):
    """Status of a delivery. `callback`: state of its result's delivery to the sender; None if there is no result yet,
    or if none is (or is no longer) to be delivered."""

    status: str
    callback: str | None


def least_advanced(statuses: Iterable[Status]) -> Status:
    """The status of a message whose deliveries have these statuses, of which there is at least one."""
    return min(statuses, key=PROGRESS.index)


def was_answered(message_status: str, deliveries: Iterable[DeliveryProgress]) -> bool:
    """Whether each delivery of a message has ended, even if its result has not reached the sender yet."""
    each = list(deliveries)
    return all(one.status not in _UNFINISHED for one in each) if each else message_status in _OVER_FOR_NOBODY


def is_over(message_status: str, deliveries: Iterable[DeliveryProgress]) -> bool:
    """Whether a message is over: each of its deliveries has ended, and each result for the sender (an answer, or a
    failure notice) was delivered or given up."""
    each = list(deliveries)
    return all(_is_over(one) for one in each) if each else message_status in _OVER_FOR_NOBODY


def has_failed(message_status: str, deliveries: Iterable[DeliveryProgress]) -> bool:
    """Whether a delivery, or the delivery of its result to the sender, has failed permanently."""
    return message_status == "failed" or any("failed" in one for one in deliveries)


def _is_over(delivery: DeliveryProgress) -> bool:
    return delivery.status not in _UNFINISHED and delivery.callback not in _UNDER_WAY
