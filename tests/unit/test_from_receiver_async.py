"""FromReceiverAsync: the wait for an answer, and what ends it."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from msgspec import structs

from relay.domain.errors import InvalidRecord
from relay.domain.exchange import NoResponse, Response
from relay.domain.hop import Hop, encode_hop
from relay.domain.receiver import Endpoint, PollPolicy, Receiver, Source, StatusMap
from relay.engine.decision import Dead, Decision, Done, Later
from relay.state.attempts import Change
from relay.state.rows import Result, Stage
from tests.expecting import expect
from tests.fakes.state import MemoryState
from tests.fakes.steps import (
    DELIVERY,
    NOW,
    TOPICS,
    Rig,
    headers_of,
    hop_of,
    hop_record,
    letter_of,
    only,
    record,
    stepped,
)
from workers.from_receiver_async import LATE_S, Awaited, FromReceiverAsync

PENDING = TOPICS.pending("ci")
URL = "https://ci.example/jobs/5"
POST = Endpoint("https://ci.example/hooks")
ASKED = Receiver("ci", POST, status_endpoint="https://ci.example/jobs/{message_id}", answer_deadline=600)
UNASKED = replace(ASKED, status_endpoint=None)
HOP = Hop(DELIVERY, attempt=2, accepted_ms=int((NOW - 100) * 1000), status_url=URL)
CALLBACK_ONLY = structs.replace(HOP, status_url=None)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def worker(rig: Rig, receiver: Receiver = ASKED) -> FromReceiverAsync:
    rig.know(receiver)
    return FromReceiverAsync(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside)


def admitted(
    rig: Rig, receiver: Receiver = ASKED, hop: Hop = HOP, age_s: float = 0
) -> tuple[FromReceiverAsync, Awaited]:
    """The step, and its work for a record that is `age_s` old."""
    step = worker(rig, receiver)
    return step, step.admit(hop_record(PENDING, hop, age_s=age_s))


GET = "GET https://ci.example/jobs/5"


async def heard(
    rig: Rig,
    status: int,
    body: bytes = b"",
    *,
    receiver: Receiver = ASKED,
    polls: int = 1,
    age_s: float = 0,
    **headers: str,
) -> Decision:
    """What follows the reply to GET number `polls`, when the 202 was `age_s` ago."""
    rig.reply(status, body, **headers)
    step, work = admitted(rig, receiver, age_s=age_s)
    work.polls = polls
    return await stepped(step, work)


def at_deadline(rig: Rig, receiver: Receiver, hop: Hop = HOP) -> Dead | Done | Later | None:
    step, work = admitted(rig, receiver, hop, age_s=599)
    rig.clock.now = NOW + 1
    return step.overdue(work)


# asking


async def test_200_is_the_answer(rig: Rig) -> None:
    decision = await heard(rig, 200, b"built", content_type="text/plain")
    assert decision == Done(stage=Stage.PUBLISHED, result=Result("answered", 200, "text/plain", b"built"), up=True)
    (request,) = rig.http.requests
    assert (request.method, request.url) == ("GET", URL)
    assert rig.meter.told == [("answered", "ci", "poll", 100)]


@pytest.mark.parametrize("status", [202, 204])
async def test_still_working_is_asked_less_and_less_often(rig: Rig, status: int) -> None:
    waits = [await heard(rig, status, polls=polls) for polls in (1, 2, 3, 100)]
    assert waits == [Later(wait_s, "still working", up=True) for wait_s in (3, 4.5, 6.75, 60)]


async def test_the_receiver_says_when_to_ask_again(rig: Rig) -> None:
    assert await heard(rig, 202, polls=100, retry_after="9") == Later(9, "still working", up=True)
    assert await heard(Rig(), 202, retry_after="0") == Later(2, "still working", up=True)


async def test_404_is_asked_again(rig: Rig) -> None:
    assert await heard(rig, 404) == Later(3, "the receiver says that it never saw it", up=True)


async def test_410_pauses_the_receiver_and_is_the_end(rig: Rig) -> None:
    decision = expect(Dead, await heard(rig, 410))
    assert (decision.reason, decision.last_status, decision.pause_s) == ("gone", 410, inf)


@pytest.mark.parametrize("status", [429, 503])
async def test_not_now_is_for_the_whole_receiver(rig: Rig, status: int) -> None:
    said = f"{GET}: {status}"
    assert await heard(rig, status, retry_after="45") == Later(45, "not_now", pause_s=45, detail=said)
    assert await heard(Rig(), status) == Later(3, "not_now", pause_s=3, detail=said)
    decision = await heard(Rig(), status, age_s=590, retry_after="45")
    assert decision == Later(8, "not_now", pause_s=45, detail=said)


@pytest.mark.parametrize("status", [301, 400, 401, 500, 502])
async def test_anything_else_is_asked_again(rig: Rig, status: int) -> None:
    said = f"{GET}: {status}" + (" (redirects are not followed; give the final URL)" if status == 301 else "")
    assert await heard(rig, status) == Later(3, "status", detail=said)
    assert await heard(Rig(), status, retry_after="20") == Later(20, "status", detail=said)


async def test_no_response_is_asked_again(rig: Rig) -> None:
    rig.http.replies = [NoResponse("refused", "", sent=False)]
    decision = await stepped(*admitted(rig))
    assert decision == Later(2, "refused", detail=f"{GET}: refused")


STATUS_MAP = StatusMap("/status", frozenset({"success"}), frozenset({"running"}), result="/result")


@pytest.mark.parametrize(
    ("body", "decision"),
    [
        (b'{"status":"running"}', Later(3, "still working", up=True)),
        (
            b'{"status":"lost"}',
            Later(
                3,
                "unknown_word",
                detail=f'its value at /status is in none of done, running and unknown; {GET}: 200: {{"status":"lost"}}',
            ),
        ),
        (b"{}", Later(3, "no_word", detail=f"it has no state at /status; {GET}: 200: {{}}")),
        (b"<html>", Later(3, "not_json", detail=f"{GET}: 200: <html>")),
        (
            b'{"status":"success","result":{"n": 1.0}}',
            Done(stage=Stage.PUBLISHED, result=Result("answered", 200, "application/json", b'{"n": 1.0}'), up=True),
        ),
        (
            b'{"status":"success"}',
            Done(stage=Stage.PUBLISHED, result=Result("answered", 200, None, b'{"status":"success"}'), up=True),
        ),
    ],
)
async def test_an_api_that_always_says_200(rig: Rig, body: bytes, decision: Decision) -> None:
    assert await heard(rig, 200, body, receiver=replace(ASKED, status_map=STATUS_MAP)) == decision


# when


@pytest.mark.parametrize(
    ("hop", "age_s", "first_s"),
    [
        (HOP, 0, 2),
        (HOP, 0.5, 1.5),
        (HOP, 30, 0),
        (structs.replace(HOP, ask_after_s=40.0), 10, 30),
        (structs.replace(HOP, ask_after_s=0.0), 0, 0),
        (structs.replace(HOP, ask_after_s=4000.0), 0, 598),
        (CALLBACK_ONLY, 100, 500),
        (HOP, -3600, 2),
        (structs.replace(HOP, ask_after_s=40.0), -3600, 40),
        (CALLBACK_ONLY, -3600, 600),
        (structs.replace(CALLBACK_ONLY, ask_after_s=5.0), 100, 500),
    ],
)
def test_the_first_question(rig: Rig, hop: Hop, age_s: float, first_s: float) -> None:
    _, work = admitted(rig, hop=hop, age_s=age_s)
    assert work.due - rig.clock.monotonic() == first_s


async def test_no_question_is_put_off_beyond_the_deadline(rig: Rig) -> None:
    rig.clock.now = NOW + 1
    decision = await heard(rig, 202, polls=100, age_s=595)
    assert decision == Later(4, "still working", up=True)


@pytest.mark.parametrize(("age_s", "wait_s"), [(540, 60), (541, 57), (595, 3), (596, 4)])
async def test_a_poll_that_would_come_too_late_comes_right_before_the_deadline(
    rig: Rig, age_s: float, wait_s: float
) -> None:
    """Once: an answer that is ready in time is not taken for missing because of a long interval."""
    assert await heard(rig, 202, polls=100, age_s=age_s) == Later(wait_s, "still working", up=True)


async def test_a_timestamp_of_a_clock_that_is_ahead_puts_nothing_off(rig: Rig) -> None:
    """The 202 cannot have come in the future: whatever a clock says, no wait is longer than the deadline."""
    assert await heard(rig, 202, age_s=-86_400) == Later(3, "still working", up=True)
    waits = expect(Later, await stepped(*admitted(rig, UNASKED, CALLBACK_ONLY, age_s=-86_400)))
    assert waits.due_in_s == UNASKED.answer_deadline


async def test_without_a_url_it_waits_for_the_callback_until_the_deadline(rig: Rig) -> None:
    assert expect(Later, await stepped(*admitted(rig, UNASKED, CALLBACK_ONLY, age_s=100))).due_in_s == 500
    assert rig.http.requests == []


FORGED = [
    "https://evil.example/jobs/5",
    "http://ci.example/jobs/5",
    "https://ci.example:8443/x",
    "https://ci.example@evil",
]


@pytest.mark.parametrize("url", FORGED)
async def test_a_forged_place_to_ask_at_gets_no_credentials(rig: Rig, url: str) -> None:
    rig.reply(404)
    hop = structs.replace(HOP, status_url=url)
    await stepped(*admitted(rig, hop=hop))
    [request] = rig.http.requests
    assert request.url == "https://ci.example/jobs/m-1", "the template knows better"

    only_its_answer_knows = replace(ASKED, status_endpoint="https://ci.example/jobs/{response.id}")
    await stepped(*admitted(rig, only_its_answer_knows, hop))
    assert len(rig.http.requests) == 1
    dead = expect(Dead, at_deadline(rig, only_its_answer_knows, hop))
    assert (dead.reason, "is not the receiver's" in dead.detail) == ("answer_timeout", True)


def test_why_nobody_was_asked_is_told_at_the_deadline(rig: Rig) -> None:
    dead = at_deadline(rig, ASKED, structs.replace(CALLBACK_ONLY, not_asked="{response.id} would be '..'"))
    assert dead == Dead("answer_timeout", "no answer within 600 s; {response.id} would be '..'")


@pytest.mark.parametrize("settings", [{"enabled": False}, {"verification": "challenge", "verified": False}])
async def test_a_receiver_that_is_switched_off_or_unverified_is_not_asked(rig: Rig, settings: dict[str, Any]) -> None:
    decision = expect(Later, await heard(rig, 200, receiver=replace(ASKED, **settings)))
    assert decision.change is Change.RELEASED
    assert decision.pause_s > 0
    assert rig.http.requests == []


async def test_a_replay_has_a_deadline_of_its_own(rig: Rig) -> None:
    step, work = admitted(rig, hop=structs.replace(HOP, generation=1, accepted_ms=1))
    assert step.overdue(work) is None


# the deadline


def test_before_the_deadline_nothing_is_over(rig: Rig) -> None:
    step, work = admitted(rig, age_s=599)
    assert step.overdue(work) is None
    rig.clock.now = NOW + 1
    assert step.overdue(work) is not None


@pytest.mark.parametrize("receiver", [ASKED, UNASKED])
async def test_one_that_is_read_after_its_deadline_is_polled_once(rig: Rig, receiver: Receiver) -> None:
    rig.reply(500)
    step, work = admitted(rig, receiver, age_s=601)
    assert step.overdue(work) is None
    assert expect(Later, await stepped(step, work)).due_in_s == 0
    assert step.overdue(work) is not None


def test_one_that_is_read_after_its_deadline_waits_only_so_long_for_a_receiver_that_is_closed(rig: Rig) -> None:
    step, work = admitted(rig, age_s=601)
    rig.clock.now = NOW + LATE_S
    assert step.overdue(work) == Dead("answer_timeout", "no answer within 600 s")


def test_one_without_a_url_ends_at_once_if_it_is_read_after_its_deadline(rig: Rig) -> None:
    step, work = admitted(rig, UNASKED, CALLBACK_ONLY, age_s=600)
    assert isinstance(step.overdue(work), Done)


def test_who_has_a_status_endpoint_has_to_answer(rig: Rig) -> None:
    dead = at_deadline(rig, ASKED)
    assert dead == Dead("answer_timeout", "no answer within 600 s")


async def test_at_the_deadline_it_is_told_what_was_said_last(rig: Rig) -> None:
    rig.reply(500)
    step, work = admitted(rig, ASKED, age_s=599)
    await stepped(step, work)
    work.polls = 7
    rig.clock.now = NOW + 1
    told = f"no answer within 600 s; asked 7 times; the last: {GET}: 500"
    assert step.overdue(work) == Dead("answer_timeout", told)


def test_a_status_endpoint_that_came_later_makes_no_failure_of_what_waits_for_a_callback(rig: Rig) -> None:
    """It was never asked there."""
    assert at_deadline(rig, ASKED, CALLBACK_ONLY) == Done(stage=Stage.PUBLISHED, result=Result("delivered", 202))


@pytest.mark.parametrize("hop", [CALLBACK_ONLY, HOP])
def test_who_has_none_may_leave_it_at_that(rig: Rig, hop: Hop) -> None:
    assert at_deadline(rig, UNASKED, hop) == Done(stage=Stage.PUBLISHED, result=Result("delivered", 202))


def test_unless_an_answer_is_required(rig: Rig) -> None:
    assert expect(Dead, at_deadline(rig, replace(UNASKED, answer="required"), CALLBACK_ONLY)).reason == "answer_timeout"


async def test_a_receiver_that_forgot(rig: Rig) -> None:
    step, work = admitted(rig)
    rig.reply(404)
    await stepped(step, work)
    rig.clock.now = NOW + 600
    dead = expect(Dead, step.overdue(work))
    assert (dead.reason, dead.last_status) == ("receiver_forgot", 404)


async def test_a_receiver_that_forgot_while_the_record_was_parked(rig: Rig) -> None:
    step, work = admitted(rig)
    rig.reply(404)
    await stepped(step, work)
    again = step.admit(work.record)  # what a parked copy is made of
    rig.clock.now = NOW + 600
    dead = expect(Dead, step.overdue(again))
    assert dead.reason == "receiver_forgot"
    assert "relay-original-reason" not in headers_of(step.dead_letter(again.record, again, dead))


async def test_a_receiver_that_remembered(rig: Rig) -> None:
    step, work = admitted(rig)
    given = work.record
    rig.http.replies = [Response(404, {}, b""), Response(202, {}, b"")]
    await stepped(step, work)
    await stepped(step, work)
    assert work.record == given
    rig.clock.now = NOW + 600
    assert expect(Dead, step.overdue(work)).reason == "answer_timeout"


def test_a_receiver_that_was_removed_ends_the_wait(rig: Rig) -> None:
    step = worker(rig)
    waiting = step.admit(hop_record(PENDING, HOP))
    rig.known.receivers.clear()
    for work in (waiting, step.admit(hop_record(PENDING, HOP))):
        assert expect(Dead, step.overdue(work)).reason == "unknown_receiver"


def test_a_longer_deadline_counts_for_what_waits_already(rig: Rig) -> None:
    step, work = admitted(rig, age_s=600)
    rig.know(replace(ASKED, answer_deadline=900, poll=PollPolicy(base=7)))
    assert step.overdue(work) is None
    assert work.receiver.poll.base == 7


# the end


def test_the_answer_goes_to_the_sender(rig: Rig) -> None:
    rig.known.sources["github"] = Source("github", Endpoint("https://sender.example/results"))
    step, work = admitted(rig, hop=structs.replace(HOP, generation=2, reason="receiver_forgot"))
    done = expect(Done, step.resume(work, Result("answered", 201, "text/plain", b"built", truncated=True)))
    assert done.stage is Stage.PUBLISHED
    answer = only(done.records)
    assert (answer.topic, answer.key, answer.value) == (TOPICS.to_sender, b"github", b"built")
    told = hop_of(answer)
    assert (told.delivery, told.generation, told.attempt) == (DELIVERY, 2, 2)
    assert (told.outcome, told.answer_status) == ("answered", 201)
    assert (told.answer_truncated, told.reason, told.status_url, told.ask_after_s) == (True, None, None, None)


def test_no_answer_is_told_too(rig: Rig) -> None:
    step, work = admitted(rig)
    done = expect(Done, step.resume(work, Result("delivered", 202)))
    assert (only(done.records).value, hop_of(only(done.records)).outcome) == (b"", "delivered")


def test_a_stored_end_is_taken_up_again(rig: Rig) -> None:
    step, work = admitted(rig)
    stored = Result("dead", 404, reason="receiver_forgot", detail="why")
    assert step.resume(work, stored) == Dead("receiver_forgot", "why", 404)


def test_a_dead_letter_holds_the_record_of_this_stage(rig: Rig) -> None:
    step = worker(rig)
    given = hop_record(PENDING, HOP)
    work: Awaited = step.admit(given)
    buried = step.dead_letter(given, work, Dead("answer_timeout", "why"))
    letter = letter_of(buried)
    assert (letter.reason, letter.stage, letter.attempts, buried.value) == ("answer_timeout", PENDING, 2, b"payload")
    assert dict(encode_hop(HOP)).items() <= headers_of(buried).items()


def test_what_cannot_be_read_is_a_dead_letter(rig: Rig) -> None:
    step = worker(rig)
    unreadable = record(PENDING)
    with pytest.raises(InvalidRecord):
        step.admit(unreadable)
    assert letter_of(step.dead_letter(unreadable, None, Dead("invalid"))).stage == PENDING
