"""Statuses and states: when a message is over or has failed; each state has a word, a colour and an icon of its own."""

from itertools import product
from pathlib import Path
from typing import cast, get_args

import pytest

from relay.domain.state import (
    BLOCKS,
    STATE_LABELS,
    STATES,
    STORED,
    CallbackStatus,
    DeliveryProgress,
    State,
    Status,
    WaitKind,
    delivery_state,
    has_failed,
    is_over,
    label_of,
    message_state,
    state_text,
)

ANSWERED = "response_received_from_receiver"


@pytest.mark.parametrize(
    ("delivery", "over", "failed"),
    [
        (DeliveryProgress("arrived", None), False, False),
        (DeliveryProgress("delivered_to_receiver", None), False, False),
        (DeliveryProgress(ANSWERED, "pending"), False, False),
        (DeliveryProgress(ANSWERED, "retrying"), False, False),
        (DeliveryProgress(ANSWERED, "failed"), True, True),
        (DeliveryProgress(ANSWERED, None), True, False),  # no callback is due: the answer is kept for GET requests
        (DeliveryProgress("response_delivered_to_sender", "delivered"), True, False),
        (DeliveryProgress("done", None), True, False),
        (DeliveryProgress("failed", "pending"), False, True),  # its notice is still on the way
        (DeliveryProgress("failed", "delivered"), True, True),
        (DeliveryProgress("failed", None), True, True),
    ],
)
def test_one_delivery(delivery: DeliveryProgress, over: bool, failed: bool) -> None:
    assert is_over(delivery.status, [delivery]) is over
    assert has_failed(delivery.status, [delivery]) is failed


def test_a_message_is_over_when_all_its_deliveries_are() -> None:
    ended, waiting = DeliveryProgress("done", None), DeliveryProgress("arrived", None)
    assert is_over("done", [ended, ended])
    assert not is_over("arrived", [ended, waiting])
    assert has_failed("arrived", [waiting, DeliveryProgress("failed", None)])


def test_a_message_without_deliveries_is_under_way_until_it_was_routed_to_nobody() -> None:
    assert not is_over("arrived", [])
    assert is_over("failed", [])
    assert has_failed("failed", [])


GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
WAITS: tuple[WaitKind, ...] = get_args(WaitKind)
CALLBACKS: tuple[CallbackStatus, ...] = get_args(CallbackStatus)


@pytest.mark.parametrize(
    ("status", "attempts", "reason", "wait", "callback", "state"),
    [
        ("arrived", 0, None, None, None, "queued"),
        ("arrived", 0, None, "queued", None, "queued"),
        ("arrived", 1, None, "answer", None, "queued"),  # its first attempt is in flight
        ("arrived", 2, None, "answer", None, "retrying"),
        ("arrived", 1, "not_processed", "retry", None, "retrying"),
        ("arrived", 1, None, "settling", None, "retrying"),
        ("arrived", 1, None, "in_doubt", None, "retrying"),
        ("arrived", 1, "not_processed", None, None, "retrying"),  # as the history has it
        ("arrived", 0, None, "rate", None, "blocked"),
        ("arrived", 3, "not_processed", "breaker", None, "blocked"),
        ("delivered_to_receiver", 1, None, "answer", None, "awaiting_answer"),
        ("delivered_to_receiver", 1, None, None, None, "awaiting_answer"),
        ("delivered_to_receiver", 1, None, "paused", None, "blocked"),
        ("response_received_from_receiver", 1, None, None, "pending", "returning"),
        ("response_received_from_receiver", 1, None, "callback", "retrying", "returning"),
        ("response_received_from_receiver", 1, None, "no_worker", "pending", "blocked"),
        ("response_received_from_receiver", 1, None, None, "delivered", "returned"),
        ("response_received_from_receiver", 1, None, None, "failed", "failed"),
        ("response_received_from_receiver", 1, None, None, None, "delivered"),
        ("response_delivered_to_sender", 1, None, None, None, "returned"),
        ("done", 1, None, None, None, "delivered"),
        ("failed", 9, "exhausted", None, None, "failed"),
        ("failed", 9, "exhausted", "callback", "pending", "failed"),  # its notice is on its way
        ("failed", 1, "callback_rejected", None, None, "failed"),
        ("failed", 9, "discarded", None, "delivered", "discarded"),
    ],
)
def test_the_state_of_a_delivery(
    status: Status,
    attempts: int,
    reason: str | None,
    wait: WaitKind | None,
    callback: CallbackStatus | None,
    state: State,
) -> None:
    assert delivery_state(status, attempts=attempts, reason=reason, wait=wait, callback=callback) == state


def test_what_has_ended_is_never_blocked_and_what_failed_is_never_anything_else() -> None:
    for status, wait, callback in product(get_args(Status), (None, *WAITS), (None, *CALLBACKS)):
        state = delivery_state(status, wait=wait, callback=callback)
        assert (state == "failed") == (status == "failed" or callback == "failed")
        if status in ("response_delivered_to_sender", "done"):
            assert state in ("returned", "delivered", "failed")
        if state == "blocked":
            assert wait in BLOCKS


def test_each_state_has_one_look() -> None:
    assert set(STATE_LABELS) == set(STATES) == {*STORED, "blocked"}
    assert (
        len({look.word for look in STATE_LABELS.values()})
        == len({look.icon for look in STATE_LABELS.values()})
        == len(STATES)
    )
    assert {state for state, look in STATE_LABELS.items() if look.tone == "good"} == {"returned", "delivered"}
    assert {state for state, look in STATE_LABELS.items() if look.tone == "bad"} == {"failed"}


def test_the_state_of_a_message_is_that_of_its_delivery_that_needs_the_most_attention() -> None:
    assert message_state(["returned", "failed", "blocked"], "arrived") == "blocked"
    assert message_state(["returned", "failed"], "arrived") == "failed"
    assert message_state(["returned", "returning"], "arrived") == "returning"
    assert message_state([], "arrived") == "queued"
    assert message_state([], "failed") == "failed"
    assert message_state([], "done") == "discarded"


def test_a_state_in_words() -> None:
    assert state_text("blocked", wait="rate") == "Blocked: rate limit"
    assert state_text("blocked") == "Blocked"
    assert state_text("failed", reason="callback_rejected") == "Failed: callback rejected"
    assert state_text("retrying", reason="not_processed") == "Retrying"


def test_the_glossary_has_each_state() -> None:
    text = GLOSSARY.read_text()
    for state, look in STATE_LABELS.items():
        assert f"| `{state}` | {look.icon} {look.word} | {look.sentence} |" in text


def test_a_state_of_a_newer_relay_is_called_by_its_own_word() -> None:
    newer = cast(State, "half_way")
    assert (label_of(newer).word, label_of(newer).tone, state_text(newer)) == ("Half way", "plain", "Half way")
