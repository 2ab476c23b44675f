"""The log line of an attempt: everything that the developer of a receiver needs, and no empty fields."""

from typing import Any

import pytest

from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Endpoint, Receiver
from relay.engine.decision import Dead, Decision, Done, Later, Resend
from relay.log.port import Record
from relay.state.attempts import Change
from relay.state.rows import Result
from relay.telemetry.attempts import facts_of, poll_facts
from workers.delivery import Delivery

HOP = Hop(DeliveryId("ci", "github", "m-1"), accepted_ms=1)
RECORD = Record("to_receiver_ci", 0, 1, b"github", b"{}", (), 0)


@pytest.mark.parametrize(
    ("decision", "facts"),
    [
        (Done(result=Result("answered", 200)), {"outcome": "answered", "status": 200}),
        (Done(result=Result("accepted", 202)), {"outcome": "accepted", "status": 202}),
        (
            Done(result=Result("accepted", 202, detail="{response.id} would be 'a/b'")),
            {"outcome": "accepted", "status": 202, "detail": "{response.id} would be 'a/b'"},
        ),
        (Later(1.26, "refused", last_status=None), {"outcome": "retry", "reason": "refused", "again_in_s": 1.3}),
        (
            Later(2.0, "status", Change.DOUBT, last_status=500),
            {"outcome": "in doubt", "reason": "status", "status": 500, "again_in_s": 2.0},
        ),
        (
            Dead("rejected", "it says no", 422),
            {"outcome": "dead", "reason": "rejected", "detail": "it says no", "status": 422},
        ),
        (Resend(), {"outcome": "sent again"}),
    ],
)
def test_what_the_line_of_an_attempt_says(decision: Decision, facts: dict[str, Any]) -> None:
    work = Delivery(RECORD, HOP, Receiver("ci", Endpoint("https://ci.example/")))
    work.attempts = 2
    ids = {"receiver": "ci", "source_id": "github", "message_id": "m-1", "attempt": 2}
    assert facts_of(work, decision) == ids | facts


@pytest.mark.parametrize(
    ("decision", "facts"),
    [
        (Done(result=Result("answered", 200)), {"outcome": "answered", "status": 200}),
        (Later(3.0, "still working"), {"outcome": "still working", "again_in_s": 3.0}),
        (
            Later(4.0, "refused", detail="GET https://ci.example/1: connection refused"),
            {
                "outcome": "not answered",
                "reason": "refused",
                "detail": "GET https://ci.example/1: connection refused",
                "again_in_s": 4.0,
            },
        ),
        (Dead("gone", "it says so", 410), {"outcome": "dead", "reason": "gone", "detail": "it says so", "status": 410}),
    ],
)
def test_what_the_line_of_a_poll_says(decision: Decision, facts: dict[str, Any]) -> None:
    """It is no attempt at the delivery, and that there is no answer yet is no retry."""
    work = Delivery(RECORD, HOP, Receiver("ci", Endpoint("https://ci.example/")))
    work.attempts, work.polls = 1, 5
    ids = {"receiver": "ci", "source_id": "github", "message_id": "m-1", "poll": 5}
    assert poll_facts(work, decision) == ids | facts
