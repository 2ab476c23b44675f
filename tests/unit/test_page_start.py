"""The first steps on an empty relay: which are done, and when they are gone."""

from typing import Any, cast

import pytest

from relay.domain.identity import PROBE
from relay.pages.overview import start
from relay.schema.messages import MessageItem


def sent(state: str, *receivers: str, source: str = "shop") -> MessageItem:
    """A listed message whose deliveries are all in this state."""
    deliveries = [{"receiver": name, "state": state} for name in receivers]
    return cast(MessageItem, cast(Any, {"source_id": source, "message_id": "m", "deliveries": deliveries}))


OWN = sent("returned", PROBE, source=PROBE)
"""What `relay dev` sends at its start."""


def test_the_own_receiver_and_its_message_are_no_step() -> None:
    found = start([PROBE], [OWN])
    assert found == (True, None, None, None)


def test_a_sample_to_the_own_receiver_is_the_first_step_alone() -> None:
    sample = sent("delivered", PROBE)
    assert start([PROBE], [OWN, sample]) == (True, None, sample, None)
    assert start(["ci", PROBE], [OWN, sample]) == (True, "ci", sample, None)


@pytest.mark.parametrize("state", ["queued", "retrying", "blocked", "awaiting_answer", "failed"])
def test_a_message_without_an_answer_is_not_the_last_step(state: str) -> None:
    own = sent(state, PROBE, "ci")
    assert start(["ci"], [own]) == (False, "ci", own, own)


@pytest.mark.parametrize("state", ["returning", "returned", "delivered"])
def test_an_answer_of_another_receiver_is_the_end(state: str) -> None:
    assert start(["ci", PROBE], [OWN, sent(state, "ci")]) is None
    assert start([PROBE], [sent(state, "ci")]) is not None, "the receiver was removed"


def test_a_relay_with_many_messages_is_not_new() -> None:
    assert start(["ci"], [sent("failed", "ci")] * 20) is not None
    assert start(["ci"], [sent("failed", "ci")] * 21) is None
    assert start([PROBE], [OWN] * 40) is not None


def test_without_a_history_a_receiver_is_the_end() -> None:
    assert start([], None) == (False, None, None, None)
    assert start(["ci"], None) is None
