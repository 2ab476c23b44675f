"""A message's round trip, as steps in time."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from relay.pages.message import mends
from relay.pages.round_trip import WIDTH, Step, Trip, exchange_name, moment, stations, took, trips_of
from relay.schema.attempts import AttemptItem
from relay.schema.messages import DeliveryView, MessageView
from tests.browser.told import AT, BEGUN, at, attempt, delivery, message, round_trip

NOW = BEGUN + 100.0


def trips(one: dict[str, Any], attempts: Sequence[dict[str, Any]] = ()) -> tuple[Trip, ...]:
    return trips_of(msgspec.convert(one, MessageView), msgspec.convert(list(attempts), list[AttemptItem]), NOW)


def steps_of(one: dict[str, Any], *attempts: dict[str, Any]) -> list[Step]:
    [trip] = trips(message(one), attempts)
    return [step for life in trip.lives for step in life.steps]


def titles(steps: list[Step]) -> list[str]:
    return [step.title for step in steps]


def wait(kind: str, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "since": at(50), "until": None, "detail": "so it is", **values}


def test_the_whole_way_is_told_in_order() -> None:
    told = round_trip()
    [trip] = trips(told[AT], told[f"{AT}/attempts"]["items"])
    [life] = trip.lives
    assert titles(list(life.steps)) == [
        "Arrived",
        "Attempt 1: 503 Service Unavailable",
        "Waited to try again",
        "Attempt 2: No response in time",
        "Waited to try again",
        "Attempt 3: 202 Accepted",
        "The receiver was processing it",
        "Status checks 1 to 2: 202 Accepted",
        "The receiver was processing it",
        "Status check 3: 200 OK",
        "Answered: 200 OK, application/json",
        "On its way to the sender",
        "Callback 1: 502 Bad Gateway",
        "Waited to try again",
        "Callback 2: 204 No Content",
        "Back at the sender",
    ]
    assert took([trip], moment(told[AT]["received_at"])) == pytest.approx(45.131)


def test_a_rule_may_say_that_the_answer_follows() -> None:
    rule = "outcomes[0]: response.status == 201"
    steps = steps_of(
        delivery(status="response_received_from_receiver", attempts=1),
        attempt(1, 12, 201, code_class="accepted", rule=rule),
        attempt(3, 12, 200, kind="status"),
    )
    [posted] = [step for step in steps if step.title.startswith("Attempt 1")]
    assert titles(steps)[steps.index(posted) :][:3] == [
        "Attempt 1: 201 Created",
        "The receiver was processing it",
        "Status check 1: 200 OK",
    ]
    assert (posted.tone, posted.detail) == ("live", f"accepted by {rule}")


def test_a_status_endpoint_that_always_returns_200_says_itself_that_the_receiver_is_working() -> None:
    working = {"kind": "status", "outcome": "working", "reason": "still working"}
    steps = steps_of(
        delivery(attempts=1, answer=ANSWER),
        attempt(1, 12, 201, code_class="accepted"),
        attempt(3, 1, 200, **working),
        attempt(6, 1, 200, **working, attempt=2),
        attempt(9, 1, 200, kind="status", attempt=3),
        attempt(9.1, 1, 200, kind="callback"),
    )
    assert titles(steps)[2:] == [
        "Attempt 1: 201 Created",
        "The receiver was processing it",
        "Status checks 1 to 2: 200 OK",
        "The receiver was processing it",
        "Status check 3: 200 OK",
        "Answered: 200 OK, application/json",
        "On its way to the sender",
        "Callback 1: 200 OK",
    ]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "Attempt 2 at ci"),
        ({"kind": "status"}, "Status check 2 at ci"),
        ({"kind": "callback"}, "Callback 2"),  # its receiver is that of the message, which is not asked here
    ],
)
def test_an_exchange_is_named_by_its_kind(values: dict[str, Any], name: str) -> None:
    assert exchange_name(msgspec.convert(attempt(1, 1, attempt=2, **values), AttemptItem)) == name


ANSWER = {"status": 200, "content_type": "application/json", "body": "{}", "body_base64": None}


def test_an_answer_that_the_receiver_posted_itself_has_the_time_at_which_it_was_stored() -> None:
    accepted = attempt(1, 12, 202, code_class="accepted")
    at = attempt(7, 0, 200)["started_at"]
    one = delivery(status="response_received_from_receiver", answer=ANSWER | {"received_at": at})
    assert [(step.kind, step.at) for step in steps_of(one, accepted)[3:]] == [
        ("answer", BEGUN + 7),
        ("done", BEGUN + 7),
    ]
    assert took(trips(message(one), [accepted]), BEGUN) == 7
    returned = delivery(answer=ANSWER | {"received_at": at}, callback={"status": "delivered", "attempts": 1})
    [said] = [
        step for step in steps_of(returned, accepted, attempt(9, 5, 204, kind="callback")) if step.kind == "answer"
    ]
    assert said.at == BEGUN + 7


@pytest.mark.parametrize("returned", [False, True])
def test_an_answer_that_the_receiver_posted_itself_is_a_step(returned: bool) -> None:
    accepted = attempt(1, 12, 202, code_class="accepted")
    if not returned:
        one = delivery(status="response_received_from_receiver", answer=ANSWER)
        steps = steps_of(one, accepted)
        assert titles(steps)[2:] == ["Attempt 1: 202 Accepted", "Answered: 200 OK, application/json", "Done"]
        assert [step.at for step in steps[3:]] == [None, None], "an earlier release does not return the time"
        assert took(trips(message(one), [accepted]), BEGUN) is None
        return
    one = delivery(answer=ANSWER, callback={"status": "delivered", "attempts": 1})
    assert titles(steps_of(one, accepted, attempt(9, 5, 204, kind="callback")))[2:] == [
        "Attempt 1: 202 Accepted",
        "The receiver was processing it",
        "Answered: 200 OK, application/json",
        "Callback 1: 204 No Content",
        "Back at the sender",
    ]


def test_a_deadline_passes_later_than_the_last_exchange() -> None:
    one = delivery(status="failed", last_status=202, reason="answer_timeout")
    end = steps_of(one, attempt(1, 12, 202, code_class="accepted"))[-1]
    assert (end.title.partition(":")[0], end.at) == ("Given up", None)


@pytest.mark.parametrize("reason", ["cancelled", "replaced", "expired"])
@pytest.mark.parametrize("tried", [False, True])
def test_what_no_request_has_ended_was_given_up_at_an_unknown_time(reason: str, *, tried: bool) -> None:
    one = delivery(status="failed", last_status=None, reason=reason)
    steps = steps_of(one, *([attempt(1, 12, 503, outcome="retry")] if tried else []))
    assert (steps[-1].kind, steps[-1].at) == ("end", None)


def test_bars_are_in_order_inside_the_drawing_and_all_to_be_seen() -> None:
    told = round_trip()
    [trip] = trips(told[AT], told[f"{AT}/attempts"]["items"])
    bars = [step.bar for step in trip.lives[0].steps if step.bar is not None]
    assert len(bars) == len(trip.lives[0].steps)
    assert all(bar.x >= 0 and bar.width > 0 and bar.x + bar.width <= WIDTH + 0.1 for bar in bars)
    assert [bar.x for bar in bars] == sorted(bar.x for bar in bars)


def test_only_the_last_of_what_was_tried_again_has_advice() -> None:
    refused = {"outcome": "retry", "reason": "client_error"}
    steps = steps_of(
        delivery(status="arrived", attempts=2, waiting_for=wait("retry")),
        attempt(1, 5, 401, **refused),
        attempt(4, 5, 401, attempt=2, **refused),
    )
    advised = [step.title for step in steps if step.kind == "attempt" and "secret" in step.advice]
    assert advised == ["Attempt 2: 401 Unauthorized"]


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("breaker", "The circuit breaker is open"),
        ("no_worker", "No worker serves its lane"),
        ("order", "Behind another message"),
        ("paused", "The receiver is paused"),
    ],
)
def test_what_is_waited_for_goes_on_until_now(kind: str, title: str) -> None:
    *_, last = steps_of(delivery(status="arrived", attempts=0, last_status=None, waiting_for=wait(kind)))
    assert (last.title, last.ongoing, last.at, last.detail) == (title, True, BEGUN + 50, "so it is")
    assert last.bar is not None


def test_the_api_s_own_advice_comes_first() -> None:
    steps = steps_of(delivery(status="arrived", attempts=0, waiting_for=wait("paused"), advice="Do this."))
    assert steps[-1].advice == "Do this."


def test_the_notice_of_a_failure_has_the_advice_of_the_callback() -> None:
    given_up: dict[str, Any] = {
        "status": "failed",
        "last_status": 422,
        "reason": "rejected",
        "advice": "Fix the receiver.",
    }
    waits = steps_of(delivery(**given_up, waiting_for=wait("callback"), callback={"status": "retrying", "attempts": 1}))
    failed = steps_of(delivery(**given_up, callback={"status": "failed", "attempts": 20}))
    assert [sum("Fix the receiver" in step.advice for step in steps) for steps in (waits, failed)] == [1, 1]
    assert all("callback" in advice for advice in (next(s for s in waits if s.ongoing).advice, failed[-1].advice))


def test_without_a_history_attempts_are_counted() -> None:
    steps = steps_of(delivery(status="failed", attempts=20, last_status=503, reason="exhausted", detail="503"))
    assert titles(steps) == [
        "Arrived",
        "20 attempts; the last one got 503 Service Unavailable",
        "Given up: retries exhausted",
    ]
    assert "replay" in steps[-1].advice


def test_without_a_history_it_is_done_no_earlier_than_it_was_answered() -> None:
    received_at = attempt(7, 0, 200)["started_at"]
    one = delivery(status="response_received_from_receiver", attempts=1, answer=ANSWER | {"received_at": received_at})
    assert [(step.kind, step.at) for step in steps_of(one)[-2:]] == [("answer", BEGUN + 7), ("done", BEGUN + 7)]


def test_without_a_history_it_is_back_at_the_sender_no_earlier_either() -> None:
    received_at = attempt(7, 0, 200)["started_at"]
    one = delivery(answer=ANSWER | {"received_at": received_at}, callback={"status": "delivered", "attempts": 1})
    assert [(step.title, step.at) for step in steps_of(one)[-1:]] == [("Back at the sender", BEGUN + 7)]


def test_a_replay_is_a_life_of_its_own() -> None:
    one = delivery(status="response_received_from_receiver", generation=1)
    given_up = {"outcome": "dead", "reason": "rejected", "detail": "422"}
    first, second = attempt(1, 5, 422, **given_up), attempt(60, 5, 200, generation=1)
    [trip] = trips(message(one), [second, first])
    assert [life.generation for life in trip.lives] == [0, 1]
    assert trip.lives[0].steps[-1].title == "Given up: rejected"
    assert trip.lives[1].steps[0].title == "Attempt 1: 200 OK"


def test_the_message_is_given_up_before_its_sender_is_notified() -> None:
    given_up = {"outcome": "dead", "reason": "exhausted", "detail": "given up after 1 attempt"}
    failed = delivery(
        status="failed",
        reason="exhausted",
        detail="given up after 1 attempt",
        callback={"status": "delivered", "attempts": 1},
    )
    steps = steps_of(failed, attempt(1, 5, 500, **given_up), attempt(4, 5, 204, kind="callback"))
    assert titles(steps)[2:] == [
        "Attempt 1: 500 Internal Server Error",
        "Given up: retries exhausted",
        "On its way to the sender",
        "Callback 1: 204 No Content",
        "The sender was notified of the failure",
    ]
    posted, end = steps[2:4]
    assert (posted.detail, posted.advice) == ("", ""), "the end has the same detail and advice"
    assert end.detail == "given up after 1 attempt"
    assert "replay" in end.advice


def test_a_former_life_shows_its_end_and_the_callback_after_it() -> None:
    given_up = {"outcome": "dead", "reason": "rejected", "detail": "422"}
    attempts = attempt(1, 5, 422, **given_up), attempt(4, 5, 204, kind="callback"), attempt(60, 5, 200, generation=1)
    [trip] = trips(message(delivery(status="response_received_from_receiver", generation=1)), attempts)
    assert titles(list(trip.lives[0].steps))[-3:] == [
        "Given up: rejected",
        "On its way to the sender",
        "Callback 1: 204 No Content",
    ]


def test_a_discarded_message_was_given_up_first() -> None:
    given_up = {"outcome": "dead", "reason": "exhausted", "detail": "given up after 1 attempt"}
    steps = steps_of(delivery(status="failed", reason="discarded"), attempt(1, 5, 500, **given_up))
    assert titles(steps)[3:] == ["Given up: retries exhausted", "Given up: discarded"]


@pytest.mark.parametrize("told", [(), (attempt(90, 5, 204, kind="callback", generation=1),)])
def test_a_discard_is_no_replay(told: Sequence[dict[str, Any]]) -> None:
    given_up = attempt(1, 5, 422, outcome="dead", reason="rejected", detail="422")
    view = delivery(status="failed", reason="discarded", generation=1, attempts=1, last_status=422)
    [trip] = trips(message(view), [given_up, *told])
    [life] = trip.lives
    assert titles(list(life.steps))[-1] == "Given up: discarded"
    assert life.steps[-1].at is None, "nobody knows when"


def test_what_has_no_time_is_not_drawn() -> None:
    [trip] = trips(message(delivery(status="failed", reason="expired"), received_at=None))
    assert {step.bar for step in trip.lives[0].steps} == {None}
    assert took([trip], None) is None


@pytest.mark.parametrize(
    ("values", "states"),
    [
        ({"status": "arrived", "attempts": 0}, ["sent it", "not tried yet", "not yet", "not yet"]),
        (
            {
                "status": "response_received_from_receiver",
                "attempts": 0,
                "callback": {"status": "retrying", "attempts": 1},
            },
            ["sent it", "delivered", "none", "callback tried 1 time"],
        ),  # a replay of the result alone
        ({"status": "delivered_to_receiver"}, ["sent it", "accepted, 1 attempt", "still to come", "not yet"]),
        ({"status": "failed", "reason": "gone"}, ["sent it", "given up: gone", "none", "no callback"]),
        (
            {"status": "response_received_from_receiver", "callback": {"status": "failed", "attempts": 3}},
            ["sent it", "delivered, 1 attempt", "none", "its callback refused it"],
        ),
        ({"status": "response_delivered_to_sender"}, ["sent it", "delivered, 1 attempt", "none", "has the answer"]),
    ],
)
def test_four_stations_tell_it_at_one_glance(values: dict[str, Any], states: list[str]) -> None:
    assert [
        station.state for station in stations(msgspec.convert(delivery(**values), DeliveryView), "github")
    ] == states


@pytest.mark.parametrize(("until", "is_due"), [(at(99), True), (at(101), False), (None, False)])
def test_a_time_that_has_passed_is_due(until: str | None, is_due: bool) -> None:
    step = steps_of(delivery(status="arrived", waiting_for=wait("retry", until=until)))[-1]
    assert (step.is_due, step.next_at) == (is_due, moment(until))


def test_an_answer_is_waited_for_until_its_deadline_at_the_latest() -> None:
    waiting = wait("answer", until=at(101))
    step = steps_of(delivery(status="delivered_to_receiver", last_status=202, waiting_for=waiting))[-1]
    assert (step.deadline, step.next_at, step.is_due) == (moment(at(101)), None, False)


@pytest.mark.parametrize(("count", "folded"), [(1, None), (8, None), (9, 5), (90, 86)])
def test_of_many_attempts_the_first_and_the_last_are_shown(count: int, folded: int | None) -> None:
    tried = [attempt(1.0 * n, 5, 503, attempt=n, outcome="retry") for n in range(1, count + 1)]
    [trip] = trips(message(delivery(status="arrived", attempts=count)), tried)
    life = trip.lives[0]
    if folded is None:
        assert life.fold is None
        return
    assert life.fold is not None
    begin, end, attempts = life.fold
    shown = [step.title.partition(":")[0] for step in (*life.steps[:begin], *life.steps[end:]) if step.attempts]
    assert shown == ["Attempt 1", *(f"Attempt {n}" for n in range(count - 2, count + 1))]
    assert attempts == folded


def test_what_mends_a_wait_is_a_button() -> None:
    def first(kind: str, **values: Any) -> tuple[str, str, str]:
        [trip] = trips(message(delivery(status="arrived", waiting_for=wait(kind, **values))))
        return mends(msgspec.convert(message(), MessageView), trip)[0]

    assert first("paused") == ("Resume ci", "POST", "/v1/receivers/ci/resume")
    assert first("verification")[1:] == ("POST", "/v1/receivers/ci/verify")
    front = {"source_id": "it's", "message_id": 'a "b"'}
    assert first("order", message=front)[2] == "/ui/messages/it%27s/a%20%22b%22"
    assert first("order")[2] == "/ui/receivers/ci"
    assert first("no_worker")[1] == ""
    assert first("breaker") == ("Settings of ci", "", "/ui/receivers/ci")
