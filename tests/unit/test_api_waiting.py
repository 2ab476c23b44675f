"""Why a delivery does not go on: each kind, and which of several counts."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from relay.api.waiting import (
    Around,
    DeliveryWait,
    Head,
    HeldEndpoint,
    LaneSeen,
    before_routing,
    next_attempt,
    of_callback,
    of_delivery,
)
from relay.domain.hold import Hold
from relay.domain.identity import MessageId
from relay.domain.receiver import Coalescing, Endpoint, Receiver
from relay.state.port import EndpointHealth
from relay.state.read_model import UNSERVED_S, Openings, RowDetails
from relay.state.rows import Row, Stage
from tests.expecting import present

NOW = 1_700_000_000.0
RECEIVED = NOW - 100
POST = Endpoint("https://ci.example/hooks", rate_limit=1, window_size=5)
CI = Receiver("ci", POST, status_endpoint="https://ci.example/hooks/{message_id}")
SERVED = LaneSeen("to_receiver_ci", 0, 1.0)
UNSERVED = LaneSeen("to_receiver_ci", 0, UNSERVED_S + 30)
NEVER_SERVED = LaneSeen("to_receiver_ci", 0, None)
UP = EndpointHealth("closed", 0.0, 0)
FREE = Openings(0.0, 0.0)

NEW = RowDetails(Row())
UNDER_WAY = RowDetails(Row(Stage.SENDING, attempts=2), since_s=4.0, under_way=True)
FAILED = RowDetails(
    Row(Stage.ENQUEUED, attempts=2, due_in_s=50.0, reason="refused"), since_s=10.0, detail="refused: no"
)
IN_DOUBT = RowDetails(Row(Stage.SENDING, attempts=2, reason="timeout"), since_s=POST.settle_s + 1)
UNSETTLED = replace(IN_DOUBT, since_s=POST.settle_s - 5)
AWAITING = RowDetails(Row(Stage.AWAITING, polls=3), since_s=60.0)


def hindrance(
    seen: RowDetails,
    *,
    lane: LaneSeen = SERVED,
    health: EndpointHealth = UP,
    openings: Openings = FREE,
    head: Head | None = None,
    receiver: Receiver = CI,
    is_due: bool = False,
) -> DeliveryWait | None:
    held = HeldEndpoint(receiver.post, health, openings)
    return of_delivery(seen, Around(receiver, lane, held, head, is_due=is_due), RECEIVED, NOW)


def waits(seen: RowDetails, **around: Any) -> DeliveryWait:
    return present(hindrance(seen, **around))


def test_nothing_is_in_the_way_of_what_has_just_come() -> None:
    assert hindrance(replace(NEW, since_s=0.5)) is None
    assert before_routing(SERVED, NOW - 0.5, NOW) is None


def test_what_nothing_is_known_to_hold_up_is_queued() -> None:
    for wait in (waits(NEW), before_routing(SERVED, RECEIVED, NOW)):
        assert wait == DeliveryWait(
            "queued", RECEIVED, None, "queued on to_receiver_ci/0; its worker takes it in its turn"
        )
    assert hindrance(RowDetails(Row(Stage.ACCEPTED))) is None


def test_one_that_is_parked_until_it_is_due() -> None:
    """What keeps its endpoint counts first."""
    wait = waits(replace(NEW, due_in_s=90.0))
    assert wait == DeliveryWait("delayed", RECEIVED, NOW + 90, "it is not due yet")
    assert next_attempt(NEW.row, wait, NOW) == NOW + 90
    assert waits(replace(NEW, due_in_s=90.0), health=EndpointHealth("closed", 5.0, 0)).kind == "paused"


def test_one_that_is_parked_although_its_sender_asked_for_no_time() -> None:
    """As after a loss of the state, which had its attempts."""
    parked = replace(NEW, due_in_s=90.0)
    wait = waits(parked, is_due=True)
    assert wait == DeliveryWait("retry", RECEIVED, NOW + 90, "it is parked until then; no attempt of it is known")
    assert next_attempt(NEW.row, wait, NOW) == NOW + 90
    collecting = replace(CI, coalesce=Coalescing("/key", 100.0))
    assert waits(parked, receiver=collecting, is_due=True).kind == "delayed"
    assert waits(parked, openings=Openings(3.0, 0.0), is_due=True).kind == "rate"


def test_a_receiver_that_moves_to_another_lane() -> None:
    """Its new lane has no worker yet, on purpose."""
    moving = replace(CI, moving=True)
    assert waits(NEW, receiver=moving, lane=UNSERVED).kind == "order"
    assert waits(FAILED, receiver=moving, lane=UNSERVED).kind == "retry"
    assert waits(AWAITING, receiver=moving).kind == waits(AWAITING).kind


def test_a_receiver_that_is_switched_off() -> None:
    off = replace(CI, enabled=False)
    for seen in (NEW, FAILED, AWAITING):
        wait = waits(seen, receiver=off, lane=UNSERVED)
        assert (wait.kind, wait.until) == ("switched_off", None)


def test_a_receiver_that_has_yet_to_be_verified() -> None:
    unproven = replace(CI, verification="hmac", verified=False)
    for seen in (NEW, FAILED, AWAITING):
        wait = waits(seen, receiver=unproven, lane=UNSERVED)
        assert (wait.kind, wait.until) == ("verification", None)
        assert "verification: hmac" in wait.detail


@pytest.mark.parametrize("seen", [NEW, FAILED, IN_DOUBT, AWAITING, UNDER_WAY, RowDetails(Row(Stage.ACCEPTED))])
def test_a_lane_that_nobody_serves(seen: RowDetails) -> None:
    wait = waits(seen, lane=UNSERVED)
    assert (wait.kind, wait.since, wait.until) == ("no_worker", NOW - UNSERVED_S - 30, None)
    assert "to_receiver_ci/0" in wait.detail
    assert waits(seen, lane=NEVER_SERVED).kind == "no_worker"


def test_a_lane_that_was_never_served_has_waited_since_the_message_came() -> None:
    assert waits(NEW, lane=NEVER_SERVED).since == RECEIVED
    unrouted = present(before_routing(UNSERVED, RECEIVED, NOW))
    assert unrouted.kind == "no_worker"


def test_a_retry_says_until_when_and_what_happened() -> None:
    wait = waits(FAILED)
    assert wait == DeliveryWait("retry", NOW - 10, NOW + 50, "attempt 2 did not succeed: refused: no")
    assert next_attempt(FAILED.row, wait, NOW) == NOW + 50


def test_a_first_post_that_does_not_count_as_an_attempt_has_no_number() -> None:
    wait = waits(RowDetails(Row(Stage.ENQUEUED, due_in_s=50.0), since_s=10.0, detail="429"))
    assert wait == DeliveryWait("retry", NOW - 10, NOW + 50, "the request did not succeed: 429")


def test_a_post_under_way_waits_for_its_answer() -> None:
    wait = waits(UNDER_WAY)
    assert wait == DeliveryWait("answer", NOW - 4, NOW + 11, "attempt 2 is in progress")
    assert next_attempt(UNDER_WAY.row, wait, NOW) is None


def test_after_its_time_it_settles_and_then_is_in_doubt() -> None:
    assert waits(replace(UNDER_WAY, since_s=POST.timeout + 1)).kind == "settling"
    settling = waits(UNSETTLED)
    assert (settling.kind, settling.until) == ("settling", NOW + 5)
    assert waits(IN_DOUBT).kind == "in_doubt"
    assert waits(replace(UNDER_WAY, since_s=POST.settle_s + 1)).kind == "in_doubt"


def test_a_pause_and_its_end() -> None:
    wait = waits(NEW, health=EndpointHealth("closed", inf, 0))
    assert (wait.kind, wait.until) == ("paused", None)
    assert next_attempt(NEW.row, wait, NOW) is None
    wait = waits(NEW, health=EndpointHealth("closed", 20.0, 0))
    assert (wait.kind, wait.until) == ("paused", NOW + 20)
    assert next_attempt(NEW.row, wait, NOW) == NOW + 20
    assert waits(AWAITING, health=EndpointHealth("closed", inf, 0)).kind == "paused"


def test_a_hold_says_since_when_and_why() -> None:
    hold = Hold("gone", NOW - 500, "410 to attempt 3")
    wait = waits(NEW, health=EndpointHealth("closed", inf, 0, hold=hold))
    told = "paused, as it said that it is gone (410 to attempt 3), until an operator resumes it"
    assert wait == DeliveryWait("paused", NOW - 500, None, told)


def test_an_open_breaker_and_a_long_outage() -> None:
    open_ = EndpointHealth("open", 0.0, 10, 30.0)
    wait = waits(NEW, health=open_, openings=Openings(0.0, 12.0))
    assert (wait.kind, wait.since, wait.until) == ("breaker", NOW - 30, NOW + 12)
    assert next_attempt(NEW.row, wait, NOW) == NOW + 12
    wait = waits(NEW, health=replace(open_, failing_for_s=POST.breaker.offline.after))
    assert (wait.kind, wait.since) == ("offline", NOW - POST.breaker.offline.after)
    wait = waits(NEW, health=replace(open_, failing_for_s=7_500.0))
    assert wait.detail == "down for 2 h 5 min; only pings are sent"


def test_of_its_own_wait_and_its_endpoints_the_later_end_counts() -> None:
    openings = Openings(0.0, 12.0)
    assert waits(FAILED, health=EndpointHealth("open", 0.0, 10, 30.0), openings=openings).kind == "retry"
    soon = replace(FAILED, row=replace(FAILED.row, due_in_s=5.0))
    assert waits(soon, health=EndpointHealth("open", 0.0, 10, 30.0), openings=openings).kind == "breaker"
    assert waits(FAILED, health=EndpointHealth("closed", inf, 0)).kind == "paused"
    assert waits(IN_DOUBT, health=EndpointHealth("closed", 20.0, 0)).kind == "paused"


def test_a_rate_that_is_used_up() -> None:
    wait = waits(NEW, openings=Openings(3.0, 0.0))
    assert wait == DeliveryWait("rate", RECEIVED, NOW + 3, "the receiver takes 1 in 5 s")
    slot = waits(replace(UNDER_WAY, starts_in_s=0.5))
    assert (slot.kind, slot.until) == ("rate", NOW + 0.5)
    unlimited = replace(CI, post=replace(POST, rate_limit=None))
    assert waits(NEW, openings=Openings(3.0, 0.0), receiver=unlimited).kind == "queued"


@pytest.mark.parametrize("head", [FAILED, UNDER_WAY, IN_DOUBT, NEW])
def test_another_that_heads_the_order_key(head: RowDetails) -> None:
    wait = waits(NEW, head=Head("github", "m-0", head))
    first = MessageId("github", "m-0")
    assert wait == DeliveryWait("order", RECEIVED, None, "message 'm-0' of source 'github' comes first", first)


def test_a_head_that_has_been_delivered_is_in_nobodys_way() -> None:
    assert waits(NEW, head=Head("github", "m-0", AWAITING)).kind == "queued"


def test_a_head_that_waits_for_the_rate_as_all_do_is_not_what_is_waited_for() -> None:
    used_up = Openings(3.0, 0.0)
    assert waits(NEW, head=Head("github", "m-0", NEW), openings=used_up).kind == "rate"
    assert waits(NEW, head=Head("github", "m-0", FAILED), openings=used_up).kind == "order"


def test_an_answer_that_comes_later_has_a_deadline() -> None:
    wait = waits(AWAITING)
    assert (wait.kind, wait.since, wait.until) == ("answer", NOW - 60, NOW - 60 + CI.answer_deadline)
    assert "3 status checks" in wait.detail
    by_callback = waits(replace(AWAITING, row=Row(Stage.AWAITING)), receiver=replace(CI, status_endpoint=None))
    assert "POST" in by_callback.detail
    assert waits(RowDetails(Row(Stage.AWAITING))).kind == "answer"  # since when is not known after a loss of the state


def test_a_callback_says_what_keeps_it() -> None:
    up, down = HeldEndpoint(POST, UP, FREE), HeldEndpoint(POST, EndpointHealth("closed", inf, 0), FREE)
    first = of_callback(RowDetails(Row()), up, SERVED, NOW - 9, NOW)
    assert first == DeliveryWait("callback", NOW - 9, None, "the result is on its way to the sender")
    retry = of_callback(FAILED, up, SERVED, None, NOW)
    assert retry == DeliveryWait("callback", NOW - 10, NOW + 50, "attempt 2 did not succeed: refused: no")
    paused = of_callback(FAILED, down, SERVED, NOW - 9, NOW)
    assert (paused.kind, paused.until, paused.detail) == ("callback", None, "paused until an operator resumes it")
    assert of_callback(FAILED, up, UNSERVED, NOW - 9, NOW).kind == "no_worker"
    assert of_callback(RowDetails(Row()), None, SERVED, NOW - 9, NOW).kind == "callback"
