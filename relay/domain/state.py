"""Statuses and states of deliveries and messages: one vocabulary for API, command line and pages. Pure.

A state follows from what the API says of a delivery: its status, its reason, what it waits for, and its callback. The
history stores no waits, so it never finds a delivery `blocked`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, get_args

from relay.domain.reasons import ON_PURPOSE, reason_words

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
    over = [one.status not in _UNFINISHED and one.callback not in _UNDER_WAY for one in each]
    return all(over) if over else message_status in _OVER_FOR_NOBODY


def has_failed(message_status: str, deliveries: Iterable[DeliveryProgress]) -> bool:
    """Whether a delivery, or the delivery of its result to the sender, has failed permanently."""
    return message_status == "failed" or any("failed" in one for one in deliveries)


# --- states -------------------------------------------------------------------------------------------------------

State = Literal[
    "blocked",
    "retrying",
    "queued",
    "awaiting_answer",
    "failed",
    "discarded",
    "returning",
    "returned",
    "delivered",
]
"""In the order in which they count for a message: its state is the first one that a delivery of it has."""
StoredState = Literal[
    "queued", "retrying", "awaiting_answer", "returning", "returned", "delivered", "failed", "discarded"
]
Tone = Literal["good", "warn", "bad", "live", "plain"]

STATES: Final[tuple[State, ...]] = get_args(State)
STORED: Final[tuple[StoredState, ...]] = get_args(StoredState)
"""States by which the history can be searched."""
UNSTORED: Final = "which the history does not store: search for queued or retrying, whose items say what blocks"
"""Why it cannot be searched by the state `blocked`."""


class StateLabel(NamedTuple):
    """How a state is presented. `word`: its name for people; `sentence`: its meaning; `icon`: one character."""

    word: str
    sentence: str
    tone: Tone
    icon: str


_DISCARDED: Final = "It was discarded, or cancelled or replaced before it was sent, or excluded by filters."
STATE_LABELS: Final[Mapping[State, StateLabel]] = {
    "queued": StateLabel("Queued", "It waits for its turn, or is being sent for the first time.", "live", "○"),
    "retrying": StateLabel("Retrying", "The last attempt did not succeed. The relay tries again.", "warn", "↻"),
    "blocked": StateLabel("Blocked", "Nothing is sent until the cause is gone.", "warn", "⊘"),
    "awaiting_answer": StateLabel("Awaiting answer", "The receiver accepted it and has not answered yet.", "live", "◔"),
    "returning": StateLabel("Returning", "The result is on its way to the sender.", "live", "←"),
    "returned": StateLabel("Returned", "The sender has the result.", "good", "✓"),
    "delivered": StateLabel("Delivered", "The receiver has it, and nothing is sent back.", "good", "→"),
    "failed": StateLabel("Failed", "The relay gave up. A replay sends it again.", "bad", "✕"),
    "discarded": StateLabel("Discarded", _DISCARDED, "plain", "–"),
}

BLOCKS: Final[Mapping[WaitKind, str]] = {
    "rate": "rate limit",
    "paused": "paused",
    "switched_off": "switched off",
    "breaker": "circuit breaker",
    "offline": "receiver down",
    "order": "message order",
    "configuration": "settings",
    "no_worker": "no worker",
    "verification": "verification",
}
"""The waits that block a delivery, each in a word or two."""
_OUTCOME_OPEN: Final[frozenset[WaitKind]] = frozenset({"retry", "settling", "in_doubt"})


def delivery_state(
    status: Status,
    *,
    attempts: int = 0,
    reason: str | None = None,
    wait: WaitKind | None = None,
    callback: CallbackStatus | None = None,
) -> State:
    """The state of a delivery. `attempts`: those begun, also one in flight (`wait` is `answer` then). `wait`: None if
    it does not wait, or if that is not known. `callback`: as in `CallbackView`."""
    if "failed" in (status, callback):
        return "discarded" if reason in ON_PURPOSE else "failed"
    if status == "response_delivered_to_sender" or callback == "delivered":
        return "returned"
    if status == "done" or (status == "response_received_from_receiver" and callback is None):
        return "delivered"
    if wait in BLOCKS:
        return "blocked"
    if status == "response_received_from_receiver":
        return "returning"
    if status == "delivered_to_receiver":
        return "awaiting_answer"
    has_failed = wait in _OUTCOME_OPEN or attempts > (wait == "answer")
    return "retrying" if has_failed else "queued"


def message_state(deliveries: Iterable[State], without: Status) -> State:
    """The state of a message with deliveries in these states. `without`: its status if it has no delivery; `done`: all
    filters excluded it."""
    return min(deliveries, key=STATES.index, default="discarded" if without == "done" else delivery_state(without))


def label_of(state: State) -> StateLabel:
    """How a state is presented; one of a newer relay by its own word."""
    return STATE_LABELS.get(state) or StateLabel(state.replace("_", " ").capitalize(), "", "plain", "·")


def state_text(state: State, *, wait: WaitKind | None = None, reason: str | None = None) -> str:
    """The state's word, with what blocks it, or why it failed: `Blocked: rate limit`."""
    word = label_of(state).word
    if state == "blocked" and wait is not None and wait in BLOCKS:
        return f"{word}: {BLOCKS[wait]}"
    if state == "failed" and reason:
        return f"{word}: {reason_words(reason)}"
    return word
