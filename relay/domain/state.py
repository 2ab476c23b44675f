"""States of deliveries and messages: one vocabulary for API, command line and pages. Pure.

A state follows from what the API says of a delivery: its status, its reason, what it waits for, and its callback. The
history stores no waits, so it never finds a delivery `blocked`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, get_args

from relay.domain.progress import CallbackStatus, Status, WaitKind
from relay.domain.reasons import ON_PURPOSE, reason_words

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


class StateLook(NamedTuple):
    """How a state is presented. `word`: its name for people; `sentence`: its meaning; `icon`: one character."""

    word: str
    sentence: str
    tone: Tone
    icon: str


LOOKS: Final[Mapping[State, StateLook]] = {
    "queued": StateLook("Queued", "It waits for its turn, or is being sent for the first time.", "live", "○"),
    "retrying": StateLook("Retrying", "The last attempt did not succeed. The relay tries again.", "warn", "↻"),
    "blocked": StateLook("Blocked", "Nothing is sent until the cause is gone.", "warn", "⊘"),
    "awaiting_answer": StateLook("Awaiting answer", "The receiver accepted it and has not answered yet.", "live", "◔"),
    "returning": StateLook("Returning", "The result is on its way to the sender.", "live", "←"),
    "returned": StateLook("Returned", "The sender has the result.", "good", "✓"),
    "delivered": StateLook("Delivered", "The receiver has it, and nothing is sent back.", "good", "→"),
    "failed": StateLook("Failed", "The relay gave up. A replay sends it again.", "bad", "✕"),
    "discarded": StateLook("Discarded", "It was discarded, or cancelled or replaced before it was sent.", "plain", "–"),
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
    if status == "failed":
        return "discarded" if reason in ON_PURPOSE else "failed"
    if callback == "failed":
        return "failed"
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
    """The state of a message with deliveries in these states. `without`: its status if it has no delivery."""
    return min(deliveries, key=STATES.index, default=delivery_state(without))


def look_of(state: State) -> StateLook:
    """How a state is presented; one of a newer relay by its own word."""
    return LOOKS.get(state) or StateLook(state.replace("_", " ").capitalize(), "", "plain", "·")


def state_text(state: State, *, wait: WaitKind | None = None, reason: str | None = None) -> str:
    """The state's word, with what blocks it, or why it failed: `Blocked: rate limit`."""
    word = look_of(state).word
    if state == "blocked" and wait is not None and wait in BLOCKS:
        return f"{word}: {BLOCKS[wait]}"
    if state == "failed" and reason:
        return f"{word}: {reason_words(reason)}"
    return word
