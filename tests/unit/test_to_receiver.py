"""ToReceiver: what each response of a receiver leads to, and what ends a delivery."""

import json
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from msgspec import structs

from relay.domain.coordinate import Coordinate
from relay.domain.errors import InvalidRecord
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.receiver import CodeClasses, Endpoint, Receiver, RetryPolicy, SigningPolicy, Source
from relay.domain.result_delivery import Handed, Handover, from_code
from relay.engine.decision import Dead, Decision, Done, Later, Resend
from relay.log.port import Record
from relay.state.attempts import Change
from relay.state.rows import Result, Stage
from tests.expecting import expect, present
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
from workers.delivery import Delivery, rules_of
from workers.records import FOR_CONSUMER, NO_CALLBACK
from workers.to_receiver import ToReceiver

POST = "https://ci.example/hooks"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STATUS = "https://ci.example/hooks/{message_id}"
POLICY = RetryPolicy(base=10, factor=2, cap=1000, max_attempts=4, max_age=3600)
CALLED = Source("github", Endpoint("https://sender.example/results"))
PLAIN = Receiver("ci", Endpoint(POST, retry=POLICY))
ASKED = replace(PLAIN, status_endpoint=STATUS)
HOP = Hop(DELIVERY, event_type="push", content_type="application/json", accepted_ms=int((NOW - 60) * 1000))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TO_CI = TOPICS.to_receiver("ci")


@pytest.fixture
def rig() -> Rig:
    return Rig()


def worker(rig: Rig, receiver: Receiver = PLAIN) -> ToReceiver:
    rig.know(receiver)
    return ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, rig.known)


def admitted(rig: Rig, receiver: Receiver = PLAIN, hop: Hop = HOP, **named: Any) -> tuple[ToReceiver, Delivery]:
    """The step, and its work for a record of this delivery; `named`: of the record."""
    step = worker(rig, receiver)
    return step, step.admit(hop_record(TO_CI, hop, **named))


async def posted(
    rig: Rig, receiver: Receiver = PLAIN, hop: Hop = HOP, attempt: int = 1, *, status: int | None = None, **reply: Any
) -> Decision:
    """What follows this reply, or the one that was set, as that of POST number `attempt`."""
    if status is not None:
        rig.reply(status, **reply)
    return await stepped(*admitted(rig, receiver, hop), attempt)


async def asked(
    rig: Rig, receiver: Receiver = ASKED, attempt: int = 1, *, status: int | None = None, **reply: Any
) -> Decision:
    """What follows for a delivery whose attempt number `attempt` is in doubt."""
    if status is not None:
        rig.reply(status, **reply)
    step, work = admitted(rig, receiver)
    work.in_doubt = True
    return await stepped(step, work, attempt)


# success


async def test_a_success_with_a_body_is_the_answer(rig: Rig) -> None:
    rig.http.seconds = 0.25
    decision = await posted(rig, status=201, body=b'{"id":1}', content_type="application/json")
    result = Result("answered", 201, "application/json", b'{"id":1}')
    assert decision == Done(stage=Stage.PUBLISHED, result=result, healthy=True)
    answered = ("answered", "ci", "response", 60.25)
    assert rig.meter.told == [("posted", "ci", 0.25), ("delivered", "ci", 60.25), answered]


async def test_a_cut_body_is_an_answer_that_says_so(rig: Rig) -> None:
    rig.http.replies = [Response(200, {}, b"half", truncated=True)]
    decision = expect(Done, await posted(rig))
    assert decision.result == Result("answered", 200, None, b"half", truncated=True)
    step, work = admitted(rig)
    resumed = expect(Done, step.resume(work, decision.result))
    assert headers_of(only(resumed.records))["relay-answer-truncated"] == b"true"


@pytest.mark.parametrize("status", [200, 204, 206])
async def test_a_success_without_a_body_is_delivered_without_an_answer(rig: Rig, status: int) -> None:
    decision = await posted(rig, status=status)
    assert decision == Done(stage=Stage.PUBLISHED, result=Result("delivered", status), healthy=True)
    assert [told[0] for told in rig.meter.told] == ["posted", "delivered"]


def test_an_answer_goes_to_the_sender_with_all_that_belongs_to_it(rig: Rig) -> None:
    rig.known.sources["github"] = CALLED
    origin = Coordinate("from_sender", 1, 5)
    step, work = admitted(rig, hop=structs.replace(HOP, origin=origin, traceparent=TRACE, generation=0))
    work.attempts = 3
    done = expect(Done, step.resume(work, Result("answered", 200, "text/plain", b"ok")))
    assert done.stage is Stage.PUBLISHED
    answer = only(done.records)
    assert (answer.topic, answer.key, answer.value) == (TOPICS.to_sender, b"github", b"ok")
    told = hop_of(answer)
    assert (told.delivery, told.outcome, told.answer_status) == (DELIVERY, "answered", 200)
    assert (told.content_type, told.attempt, told.origin, told.traceparent) == ("text/plain", 3, origin, TRACE)


@pytest.mark.parametrize(
    ("source", "how", "header"),
    [
        (Source("github"), Handover.KEPT, NO_CALLBACK),
        (Source("github", kafka=True), Handover.DELIVERED, FOR_CONSUMER),
        (replace(CALLED, answers="none"), Handover.UNWANTED, NO_CALLBACK),
        (Source("github", kafka=True, answers="none"), Handover.UNWANTED, NO_CALLBACK),
    ],
)
def test_where_nobody_is_to_be_called_the_answer_has_arrived_when_it_is_written(
    rig: Rig, source: Source, how: Handover, header: tuple[str, bytes]
) -> None:
    rig.known.sources["github"] = source
    step, work = admitted(rig)
    done = expect(Done, step.resume(work, Result("answered", 200, "text/plain", b"ok")))
    assert (done.stage, from_code(done.code)) == (Stage.DONE, Handed(how, 0))
    assert only(done.records).headers[-1] == header


def test_without_an_answer_an_empty_one_goes_to_the_sender(rig: Rig) -> None:
    step, work = admitted(rig)
    done = expect(Done, step.resume(work, Result("delivered", 204)))
    answer = only(done.records)
    assert (answer.value, hop_of(answer).outcome, hop_of(answer).content_type) == (b"", "delivered", None)


# 202


@pytest.mark.parametrize(
    ("receiver", "headers", "body", "url"),
    [
        (PLAIN, {}, b"{}", None),
        (ASKED, {}, b"{}", "https://ci.example/hooks/m-1"),
        (ASKED, {"location": "/jobs/5"}, b"{}", "https://ci.example/jobs/5"),
        (PLAIN, {"location": "https://ci.example:443/jobs/5"}, b"{}", "https://ci.example:443/jobs/5"),
        (ASKED, {"location": "https://evil.example/5"}, b"{}", "https://ci.example/hooks/m-1"),
        (PLAIN, {"location": "https://evil.example/5"}, b"{}", None),
        (PLAIN, {"location": "http://ci.example/5"}, b"{}", None),
        (replace(PLAIN, status_endpoint=POST + "/{response.id}"), {}, b'{"id":5}', "https://ci.example/hooks/5"),
    ],
)
async def test_202_says_where_to_ask(
    rig: Rig, receiver: Receiver, headers: dict[str, str], body: bytes, url: str | None
) -> None:
    rig.http.replies = [Response(202, headers, body)]
    decision = await posted(rig, receiver)
    fault = "its Location leads to no URL at the origin of post_endpoint" if headers and url is None else None
    result = Result("accepted", 202, status_url=url, detail=fault)
    assert decision == Done(stage=Stage.AWAITING, result=result, healthy=True)
    unpolled = [("unpolled", "ci", fault)] if fault else []
    assert rig.meter.told[1:] == [("delivered", "ci", 60), *unpolled]


@pytest.mark.parametrize("body", [b'{"number":5}', b"", b'{"id":".."}', b'{"id":"a/b"}', b'{"id":"%252e%252e"}'])
async def test_a_202_that_names_no_place_fit_to_ask_at_is_waited_for_all_the_same(rig: Rig, body: bytes) -> None:
    rig.http.replies = [Response(202, {}, body)]
    decision = expect(Done, await posted(rig, replace(PLAIN, status_endpoint=POST + "/{response.id}")))
    assert (decision.stage, decision.result is not None) == (Stage.AWAITING, True)
    result = decision.result or Result("dead")
    assert result.status_url is None
    assert "{response.id}" in (result.detail or "")
    assert rig.meter.told[-1] == ("unpolled", "ci", result.detail)
    step, work = admitted(rig)
    resumed = expect(Done, step.resume(work, result))
    assert hop_of(only(resumed.records)).not_asked == result.detail


@pytest.mark.parametrize("message_id", ["..", ".", "../admin", "a%2Fb", "%2e%2e", "%252E.", "..;x", "a\\b", "%00"])
def test_ids_that_must_not_go_into_its_status_path_end_before_the_post(rig: Rig, message_id: str) -> None:
    hop = structs.replace(HOP, delivery=DeliveryId("ci", "github", message_id))
    step, work = admitted(rig, ASKED, hop)
    dead = expect(Dead, step.overdue(work))
    assert dead.reason == "invalid"
    assert "{message_id}" in dead.detail
    for unconcerned in (PLAIN, replace(PLAIN, status_endpoint=POST + "?id={message_id}")):
        step, work = admitted(rig, unconcerned, hop)
        assert step.overdue(work) is None


async def test_202_says_when_to_ask_first(rig: Rig) -> None:
    decision = expect(Done, await posted(rig, ASKED, status=202, retry_after="30"))
    assert present(decision.result).ask_after_s == 30


@pytest.mark.parametrize(
    ("lane", "topic", "key"),
    [("dedicated", TOPICS.pending("ci"), b"github"), ("shared", TOPICS.pending("shared"), b"ci")],
)
def test_the_wait_goes_to_pending_with_the_payload(rig: Rig, lane: str, topic: str, key: bytes) -> None:
    step, work = admitted(rig, replace(ASKED, lane=lane), value=b"\x00raw", offset=11)  # type: ignore[arg-type]
    work.attempts = 2
    accepted = Result("accepted", 202, status_url="https://ci.example/jobs/5", ask_after_s=1.5)
    done = expect(Done, step.resume(work, accepted))
    assert done.stage is Stage.AWAITING
    pending = only(done.records)
    assert (pending.topic, pending.key, pending.value) == (topic, key, b"\x00raw")
    told = hop_of(pending)
    assert (told.attempt, told.sequence, told.status_url, told.ask_after_s) == (2, 11, "https://ci.example/jobs/5", 1.5)


# not now


async def test_429_is_not_counted_and_pauses_the_whole_receiver(rig: Rig) -> None:
    rig.reply(429, retry_after="120")
    decision = await posted(rig, attempt=4)  # the last that may be counted
    assert decision == Later(
        120, "not now", Change.RETRY, counted=False, last_status=429, pause_s=120, detail=f"POST {POST}: 429"
    )


async def test_503_is_counted_and_pauses_the_whole_receiver(rig: Rig) -> None:
    decision = await posted(rig, attempt=2, status=503)
    assert decision == Later(
        10, "not now", Change.RETRY, last_status=503, healthy=False, pause_s=10, detail=f"POST {POST}: 503"
    )


async def test_the_last_503_still_pauses_the_receiver(rig: Rig) -> None:
    decision = expect(Dead, await posted(rig, attempt=4, status=503, retry_after="300"))
    assert (decision.reason, decision.last_status, decision.pause_s) == ("exhausted", 503, 300)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_is_paused_as_long_as_it_wants_though_this_delivery_has_less_time(
    rig: Rig, status: int
) -> None:
    rig.reply(status, retry_after="600")
    old = structs.replace(HOP, accepted_ms=int((NOW - 3590) * 1000))
    decision = expect(Later, await posted(rig, hop=old))
    assert (decision.due_in_s, decision.pause_s) == (10, 600)


async def test_429_for_ever_ends_by_age(rig: Rig) -> None:
    rig.reply(429)
    old = structs.replace(HOP, accepted_ms=int((NOW - 3600) * 1000))
    decision = expect(Dead, await posted(rig, hop=old, attempt=4))
    assert (decision.reason, decision.pause_s) == ("expired", 20)


# retry


@pytest.mark.parametrize("status", [301, 302, 307, 401, 403, 404, 405, 418, 425, 501, 505])
async def test_not_processed_is_tried_again_with_backoff(rig: Rig, status: int) -> None:
    decision = expect(Later, await posted(rig, ASKED, attempt=3, status=status, location="https://elsewhere.example/"))
    assert (decision.due_in_s, decision.change, decision.counted) == (20, Change.RETRY, True)
    assert (decision.healthy, decision.pause_s) == (False, 0)
    assert len(rig.http.requests) == 1


@pytest.mark.parametrize("kind", ["dns", "refused", "tls", "connect_timeout", "protocol"])
async def test_what_was_never_sent_is_tried_again_without_a_doubt(rig: Rig, kind: str) -> None:
    rig.http.replies = [NoResponse(kind, "why", sent=False)]
    decision = await posted(rig, ASKED)
    detail = f"POST {POST}: {kind.replace('_', ' ')}: why"
    assert decision == Later(5, kind, Change.RETRY, healthy=False, detail=detail)


async def test_a_refusal_of_our_own_guard_says_nothing_about_the_receiver(rig: Rig) -> None:
    rig.http.replies = [NoResponse("blocked", "", sent=False)]
    decision = expect(Later, await posted(rig))
    assert decision.healthy is None


async def test_retry_after_lengthens_a_retry(rig: Rig) -> None:
    decision = expect(Later, await posted(rig, status=404, retry_after="90"))
    assert (decision.due_in_s, decision.pause_s) == (90, 0)


async def test_attempts_end_it_first(rig: Rig) -> None:
    decision = await posted(rig, attempt=4, status=404)
    told = f"given up after 4 attempts; the last: POST {POST}: 404"
    assert decision == Dead("exhausted", told, 404, healthy=False)


async def test_age_ends_it_first(rig: Rig) -> None:
    step, work = admitted(rig)
    rig.clock.now = NOW + 3539.9
    assert step.overdue(work) is None
    rig.clock.now = NOW + 3540
    assert step.overdue(work) == Dead("expired", "not delivered within max_age")


def test_no_message_is_younger_than_new(rig: Rig) -> None:
    """Whatever a clock says, it has no longer than `max_age` from here on."""
    _, work = admitted(rig, hop=structs.replace(HOP, accepted_ms=int((NOW + 86_400) * 1000)))
    assert work.age_s(NOW) == 0
    assert work.rest_s(NOW) == 3600


@pytest.mark.parametrize("off_s", [-86_400, 86_400])
async def test_the_machines_own_clock_signs_and_the_shared_one_judges(rig: Rig, off_s: float) -> None:
    rig.clock.off_s = off_s
    rig.reply(204)
    step, work = admitted(rig, replace(ASKED, post=replace(ASKED.post, signing=SigningPolicy(secrets=(SECRET,)))))
    assert step.overdue(work) is None
    await stepped(step, work, 1)
    headers = dict(rig.http.requests[0].headers)
    assert headers["webhook-timestamp"] == str(int(NOW + off_s))
    assert headers["relay-deadline"] == str(int(NOW - 60 + 3600))


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_a_rejected_message_is_dead_at_once(rig: Rig, status: int) -> None:
    decision = await posted(rig, status=status, body=b"no such\nbranch")
    assert decision == Dead("rejected", f"POST {POST}: {status}: no such branch", status, healthy=True)


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (500, "abort-message", ("rejected", 0.0)),
        (429, " Abort-Message ", ("rejected", 0.0)),
        (404, "disable", ("gone", inf)),
        (400, "disable", ("gone", inf)),
        (410, "abort-message", ("rejected", 0.0)),
    ],
)
async def test_a_response_may_end_the_delivery(rig: Rig, status: int, said: str, expected: tuple[str, float]) -> None:
    decision = expect(Dead, await posted(rig, status=status, webhook_delivery=said))
    assert (decision.reason, decision.pause_s) == expected
    assert decision.ruling is not None
    assert decision.ruling.rule == f"webhook-delivery: {said.strip().lower()}"
    assert rig.journal.attempts[-1].rule == decision.ruling.rule


async def test_a_response_may_take_the_message_and_no_further_one(rig: Rig) -> None:
    decision = expect(Done, await posted(rig, status=200, body=b"ok", webhook_delivery="disable"))
    assert (decision.result, decision.pause_s) == (Result("answered", 200, None, b"ok"), inf)


@pytest.mark.parametrize(("status", "said"), [(500, "pause"), (500, ""), (200, "abort-message")])
async def test_other_values_of_that_header_mean_nothing(rig: Rig, status: int, said: str) -> None:
    decision = await posted(rig, status=status, webhook_delivery=said)
    assert decision.ruling is None if not isinstance(decision, Resend) else False
    assert decision == await posted(rig)
    assert not isinstance(decision, Dead)


def url_of(hop: Hop) -> str:
    return f"https://us/{hop.delivery.message_id}"


async def test_a_thin_event_has_a_url_of_its_payload(rig: Rig) -> None:
    rig.outside = replace(rig.outside, payload_url=url_of)
    await posted(rig, replace(PLAIN, payload="thin"), status=204)
    await posted(rig, replace(PLAIN, payload="metadata", respond_async=9.0))
    thin, metadata = rig.http.requests
    assert json.loads(thin.body)["payload_url"] == dict(thin.headers)["relay-payload-url"] == url_of(HOP)
    assert "payload_url" not in json.loads(metadata.body)
    assert "relay-payload-url" not in dict(metadata.headers)
    assert dict(metadata.headers)["prefer"] == "respond-async, wait=9"


def test_a_thin_event_waits_until_a_url_can_be_made(rig: Rig) -> None:
    step, work = admitted(rig, replace(PLAIN, payload="thin"))
    wait = expect(Later, step.overdue(work))
    assert wait.pause_s > 0
    assert "RELAY_ANSWER_SECRET" in wait.reason


async def test_gone_pauses_the_receiver_until_somebody_resumes_it(rig: Rig) -> None:
    decision = expect(Dead, await posted(rig, status=410))
    assert (decision.reason, decision.last_status, decision.pause_s) == ("gone", 410, inf)


async def test_a_receiver_may_read_its_codes_differently(rig: Rig) -> None:
    rig.reply(404)
    codes: CodeClasses = {404: "gone"}
    decision = expect(Dead, await posted(rig, replace(PLAIN, post=replace(PLAIN.post, codes=codes))))
    assert decision.reason == "gone"


# ambiguity


async def test_a_token_that_had_ended_is_nobodys_attempt_and_leaves_a_doubt_a_doubt(rig: Rig) -> None:
    ended = NoResponse("unauthorized", "it answered 401", sent=False)
    for decided in (posted, asked):
        rig.http.replies = [ended]
        assert await decided(rig) == Later(0.0, "it answered 401", Change.RELEASED)


async def test_that_there_is_no_token_is_an_attempt_that_failed(rig: Rig) -> None:
    rig.http.replies = [NoResponse("no_token", "the token endpoint answered 500", sent=False)]
    decision = expect(Later, await posted(rig))
    assert (decision.change, decision.counted, decision.healthy) == (Change.RETRY, True, False)
    assert decision.detail == f"POST {POST}: no token: the token endpoint answered 500"


LOST = NoResponse("disconnected", "", sent=True)
NEEDS_RESPONSE = replace(PLAIN, status_endpoint=POST + "/{response.id}")


@pytest.mark.parametrize("reply", [LOST, *(Response(status, {}, b"") for status in (408, 500, 502, 504))])
@pytest.mark.parametrize("receiver", [PLAIN, NEEDS_RESPONSE], ids=["no status endpoint", "no way to ask"])
async def test_who_cannot_be_asked_gets_it_again(rig: Rig, reply: NoResponse | Response, receiver: Receiver) -> None:
    rig.http.replies = [reply]
    decision = expect(Later, await posted(rig, receiver))
    assert (decision.due_in_s, decision.change, decision.healthy) == (5, Change.RETRY, False)


@pytest.mark.parametrize("reply", [LOST, Response(504, {}, b"")])
@pytest.mark.parametrize("receiver", [PLAIN, NEEDS_RESPONSE])
async def test_or_not_if_it_wants_each_message_at_most_once(
    rig: Rig, reply: NoResponse | Response, receiver: Receiver
) -> None:
    rig.http.replies = [reply]
    decision = expect(Dead, await posted(rig, replace(receiver, on_ambiguous="dead_letter")))
    assert (decision.reason, decision.healthy) == ("ambiguous", False)


@pytest.mark.parametrize(
    ("reply", "attempt", "wait_s"),
    [
        (LOST, 1, 5),
        (Response(500, {}, b""), 3, 20),
        (Response(502, {"retry-after": "77"}, b""), 1, 77),
        (Response(500, {}, b""), 4, 40),  # the last one: it is asked about, and only then given up
    ],
)
async def test_who_can_be_asked_is_asked_after_the_backoff(
    rig: Rig, reply: NoResponse | Response, attempt: int, wait_s: float
) -> None:
    rig.http.replies = [reply]
    decision = expect(Later, await posted(rig, ASKED, attempt=attempt))
    assert (decision.due_in_s, decision.change, decision.healthy) == (wait_s, Change.DOUBT, False)


async def test_a_question_is_not_put_off_beyond_max_age(rig: Rig) -> None:
    decision = expect(Later, await posted(rig, ASKED, status=500, retry_after="7200"))
    assert decision.due_in_s == 3540


async def test_in_doubt_the_receiver_has_the_answer(rig: Rig) -> None:
    decision = await asked(rig, status=200, body=b"built", content_type="text/plain")
    assert decision == Done(stage=Stage.PUBLISHED, result=Result("answered", 200, "text/plain", b"built"), healthy=True)
    (request,) = rig.http.requests
    assert (request.method, request.url, request.timeout_s) == ("GET", "https://ci.example/hooks/m-1", 15)
    assert rig.meter.told == [("delivered", "ci", 60), ("answered", "ci", "poll", 60)]


@pytest.mark.parametrize("status", [202, 204])
async def test_in_doubt_the_receiver_is_at_work(rig: Rig, status: int) -> None:
    decision = await asked(rig, status=status, retry_after="9")
    result = Result("accepted", 202, status_url="https://ci.example/hooks/m-1", ask_after_s=9)
    assert decision == Done(stage=Stage.AWAITING, result=result, healthy=True)


async def test_in_doubt_the_receiver_never_saw_it(rig: Rig) -> None:
    assert await asked(rig, status=404) == Resend()


async def test_a_resend_after_doubt_keeps_to_max_attempts(rig: Rig) -> None:
    decision = expect(Dead, await asked(rig, attempt=4, status=404))
    assert decision.reason == "exhausted"


@pytest.mark.parametrize(
    ("status", "headers", "wait_s", "pause_s"),
    [
        (500, {}, 3, 0),
        (500, {"retry-after": "0"}, 2, 0),
        (401, {"retry-after": "40"}, 40, 0),
        (429, {"retry-after": "40"}, 40, 40),
        (503, {}, 3, 3),
    ],
)
async def test_in_doubt_anything_else_is_no_reason_to_post(
    rig: Rig, status: int, headers: dict[str, str], wait_s: float, pause_s: float
) -> None:
    rig.http.replies = [Response(status, headers, b"")]
    decision = expect(Later, await asked(rig))
    assert (decision.due_in_s, decision.change, decision.pause_s) == (wait_s, Change.DOUBT, pause_s)


async def test_in_doubt_the_next_question_is_not_put_off_beyond_max_age(rig: Rig) -> None:
    decision = expect(Later, await asked(rig, status=429, retry_after="7200"))
    assert (decision.due_in_s, decision.pause_s) == (3540, 7200)


async def test_in_doubt_until_its_end_it_says_what_the_receiver_was_asked(rig: Rig) -> None:
    step, work = admitted(rig, ASKED)
    rig.http.replies = [LOST, Response(302, {}, b""), Response(401, {}, b""), Response(401, {}, b"")]
    await stepped(step, work, 1)
    work.in_doubt = True
    for _ in range(2):
        await stepped(step, work)
    rig.clock.now = NOW + 3540
    told = "not delivered within max_age after 1 attempt; the last: "
    asked_about = "; asked about it: GET https://ci.example/hooks/m-1: 401"
    assert step.overdue(work) == Dead("expired", f"{told}POST {POST}: disconnected{asked_about}")
    restarted = step.admit(hop_record(TO_CI, HOP))
    restarted.in_doubt = True
    await stepped(step, restarted, 1)
    assert step.overdue(restarted) == Dead("expired", f"{told}its outcome is unknown{asked_about}")


async def test_in_doubt_no_response_is_asked_for_less_and_less_often(rig: Rig) -> None:
    rig.http.replies = [LOST]
    step, work = admitted(rig, ASKED)
    work.in_doubt = True
    waits = [(await stepped(step, work)) for _ in range(3)]
    assert [later.due_in_s for later in waits if isinstance(later, Later)] == [3, 4.5, 6.75]


async def test_in_doubt_the_endpoint_may_be_gone(rig: Rig) -> None:
    decision = expect(Dead, await asked(rig, status=410))
    assert (decision.reason, decision.pause_s) == ("gone", inf)


@pytest.mark.parametrize("receiver", [PLAIN, NEEDS_RESPONSE])
async def test_in_doubt_who_cannot_be_asked_gets_it_again_or_not(rig: Rig, receiver: Receiver) -> None:
    assert await asked(rig, receiver) == Resend()
    exhausted = expect(Dead, await asked(rig, receiver, attempt=4))
    assert exhausted.reason == "exhausted"
    once = expect(Dead, await asked(rig, replace(receiver, on_ambiguous="dead_letter")))
    assert once.reason == "ambiguous"
    assert rig.http.requests == []


# headers of the request


async def test_the_request_says_which_attempt_of_what_it_is(rig: Rig) -> None:
    await posted(rig, attempt=3, status=204)
    (request,) = rig.http.requests
    headers = dict(request.headers)
    assert (request.method, request.url, request.body, request.timeout_s) == ("POST", POST, b"payload", 15)
    assert (headers["relay-attempt"], headers["relay-generation"], headers["relay-sequence"]) == ("3", "0", "7")
    assert headers["relay-deadline"] == str(int(NOW - 60 + 3600))
    assert headers["relay-answer-url"] == "https://us/0"


@pytest.mark.parametrize(("ordering", "sequence"), [("source", 4), ("receiver", 4), ("none", None)])
def test_a_replay_falls_back_to_the_sequence_of_the_first_life(rig: Rig, ordering: str, sequence: int | None) -> None:
    hop = structs.replace(HOP, sequence=4, generation=1)
    assert admitted(rig, replace(PLAIN, ordering=ordering), hop, offset=90)[1].sequence == sequence


def test_order_is_kept_per_source_per_receiver_or_not_at_all(rig: Rig) -> None:
    def queue(ordering: str, source: str, order: str | None = None) -> bytes | None:
        hop = structs.replace(HOP, delivery=DELIVERY._replace(source_id=source), order=order)
        return admitted(rig, replace(PLAIN, ordering=ordering), hop)[1].queue

    assert queue("source", "a") == queue("source", "a") != queue("source", "b")
    assert queue("receiver", "a") == queue("receiver", "b") is not None
    assert queue("none", "a") is None
    assert queue("source", "a", "0a") == queue("source", "a")
    assert queue("/repo", "a", "0a") == queue("/repo", "a", "0a")
    assert len({queue("/repo", *of) for of in (("a", "0a"), ("a", "0b"), ("b", "0a"), ("a", None))}) == 4


def test_the_engine_is_told_the_limits() -> None:
    post = Endpoint(POST, rate_limit=10, window_size=2, max_in_flight=9, timeout=5)
    rules = rules_of(Receiver("ci", post, partitions=4))
    assert rules.limits.interval_s == pytest.approx(0.21)
    assert rules.late_s == pytest.approx(0.06)
    assert (rules.limits.settle_s, rules.limits.probe_s) == (15, 15)
    assert (rules.limits.max_in_flight, rules.max_in_flight, rules.has_share) == (9, 2, True)
    assert not rules_of(Receiver("ci", post, partitions=10)).has_share
    assert not rules.ask_first
    assert rules_of(ASKED).ask_first
    assert not rules_of(NEEDS_RESPONSE).ask_first
    assert rules_of(PLAIN).limits.interval_s == 0


# a replay


async def test_the_age_of_a_replay_counts_from_the_replay(rig: Rig) -> None:
    rig.reply(204)
    step = worker(rig)
    old = structs.replace(HOP, accepted_ms=int((NOW - 1_000_000) * 1000))
    assert step.overdue(step.admit(hop_record(TO_CI, old))) is not None
    work = step.admit(hop_record(TO_CI, structs.replace(old, generation=1), age_s=5))
    assert step.overdue(work) is None
    await stepped(step, work, 1)
    assert dict(rig.http.requests[0].headers)["relay-deadline"] == str(int(NOW - 5 + 3600))
    rig.clock.now = NOW + 3595
    assert step.overdue(work) is not None


def test_a_record_that_does_not_say_when_it_was_accepted_is_as_old_as_it_is(rig: Rig) -> None:
    _, work = admitted(rig, hop=structs.replace(HOP, accepted_ms=0), age_s=30)
    assert work.age_s(NOW) == 30


# settings that change


@pytest.mark.parametrize("settings", [{"enabled": False}, {"verification": "challenge", "verified": False}])
async def test_a_receiver_that_is_switched_off_or_unverified_waits_without_an_attempt(
    rig: Rig, settings: dict[str, Any]
) -> None:
    off = replace(ASKED, **settings)
    for decision in (await posted(rig, off), await asked(rig, off)):
        assert isinstance(decision, Later)
        assert decision.change is Change.RELEASED
        assert decision.due_in_s == decision.pause_s > 0
    assert rig.http.requests == []


async def test_a_corrected_endpoint_counts_for_what_waits_already(rig: Rig) -> None:
    rig.reply(204)
    step, work = admitted(rig, replace(PLAIN, enabled=False))
    rig.know(replace(PLAIN, post=Endpoint("https://new.example/", max_in_flight=3)))
    assert step.overdue(work) is None
    assert present(work.rules).max_in_flight == 3
    await stepped(step, work, 1)
    assert rig.http.requests[0].url == "https://new.example/"


def test_a_receiver_that_was_removed_ends_what_waits_for_it(rig: Rig) -> None:
    step = worker(rig)
    waiting = step.admit(hop_record(TO_CI, HOP))
    rig.known.receivers.clear()
    for work in (waiting, step.admit(hop_record(TO_CI, HOP))):
        dead = expect(Dead, step.overdue(work))
        assert dead.reason == "unknown_receiver"
        assert work.rules is not None  # it has a row, in which its end is stored


# dead letters


@pytest.mark.parametrize("bad", [record(TO_CI), hop_record(TO_CI, HOP, None), record(TO_CI, (("ce_id", b"\xff"),))])
def test_what_cannot_be_read_is_a_dead_letter(rig: Rig, bad: Record) -> None:
    step = worker(rig)
    with pytest.raises(InvalidRecord) as caught:
        step.admit(bad)
    assert caught.value.reason == "invalid"


def test_an_unreadable_record_is_buried_as_it_is(rig: Rig) -> None:
    unreadable = record(TO_CI, (("x", b"\xff"),), b"raw")
    buried = worker(rig).dead_letter(unreadable, None, Dead("invalid", "why"))
    assert (buried.key, buried.value, headers_of(buried)["x"]) == (b"github", b"raw", b"\xff")
    letter = letter_of(buried)
    assert (letter.reason, letter.detail) == ("invalid", "why")
    assert (letter.stage, letter.origin) == (TO_CI, unreadable.coordinate)


@pytest.mark.parametrize(("first_life", "told"), [(None, b"7"), (0, b"0"), (3, b"3")])
def test_a_dead_letter_tells_all_there_is_to_tell(rig: Rig, first_life: int | None, told: bytes) -> None:
    step = worker(rig)
    origin = Coordinate("from_sender", 1, 5)
    given = hop_record(TO_CI, structs.replace(HOP, origin=origin, sequence=first_life))
    work = step.admit(given)
    work.attempts = 4
    buried = step.dead_letter(given, work, Dead("exhausted", "why", 500))
    letter = letter_of(buried)
    assert (letter.attempts, letter.last_status, letter.origin) == (4, 500, origin)
    assert letter.first_failed_ms == int(NOW * 1000)
    assert headers_of(buried)["relay-sequence"] == told
    assert (buried.key, buried.value) == (b"github", b"payload")


def test_a_stored_end_is_taken_up_again(rig: Rig) -> None:
    step, work = admitted(rig)
    assert step.resume(work, Result("dead", 422, reason="rejected", detail="no")) == Dead("rejected", "no", 422)


# pings


async def pinged(rig: Rig, receiver: Receiver = PLAIN, *, status: int | None = None, **reply: Any) -> Decision:
    """What follows the reply, as that of a ping in place of a delivery that is even in doubt."""
    if status is not None:
        rig.reply(status, **reply)
    step, work = admitted(rig, receiver)
    work.token, work.in_doubt, work.pinging = b"\x00\xff", True, True
    return await stepped(step, work)


@pytest.mark.parametrize(
    ("status", "fine"), [(200, True), (202, True), (422, True), (301, False), (404, False), (429, False), (500, False)]
)
async def test_a_ping_says_whether_the_receiver_takes_requests_and_nothing_else(
    rig: Rig, status: int, fine: bool
) -> None:
    decision = expect(Later, await pinged(rig, ASKED, status=status, body=b"body"))
    assert (decision.change, decision.healthy, decision.last_status) == (Change.RELEASED, fine, status)
    assert (decision.due_in_s, decision.pause_s) == (0.0, 0.0)
    (request,) = rig.http.requests
    assert (request.method, request.url, dict(request.headers)["webhook-id"]) == ("POST", POST, "ping_00ff")
    assert rig.meter.told == [], "it is no delivery"


@pytest.mark.parametrize(
    ("reply", "reason", "detail"),
    [
        (Response(500, {}, b"busy"), "status", f"POST {POST}: 500: busy"),
        (Response(404, {}, b""), "client_error", f"POST {POST}: 404"),
        (NoResponse("refused", "connection refused", sent=False), "refused", f"POST {POST}: connection refused"),
    ],
)
async def test_a_ping_that_fails_says_how(rig: Rig, reply: Exchange, reason: str, detail: str) -> None:
    """Not that there was no answer: the receiver may have answered with an error."""
    rig.http.replies.append(reply)
    decision = expect(Later, await pinged(rig))
    assert (decision.reason, decision.detail) == (reason, detail)


async def test_a_receiver_can_ask_for_a_longer_time_until_the_next_ping(rig: Rig) -> None:
    decision = expect(Later, await pinged(rig, status=503, retry_after="300"))
    assert (decision.healthy, decision.pause_s) == (False, 300.0)


async def test_a_ping_that_finds_nobody_is_not_answered(rig: Rig) -> None:
    rig.http.replies.append(NoResponse("blocked", "the address is private", sent=False))
    decision = expect(Later, await pinged(rig))
    assert (decision.healthy, decision.last_status) == (False, None)


async def test_gone_says_a_receiver_that_is_pinged(rig: Rig) -> None:
    receiver = replace(PLAIN, post=replace(PLAIN.post, codes={404: "gone"}))
    decision = expect(Later, await pinged(rig, receiver, status=404))
    assert (decision.healthy, decision.pause_s) == (True, inf)


@pytest.mark.parametrize("settings", [{"enabled": False}, {"verification": "challenge", "verified": False}])
async def test_a_receiver_that_is_switched_off_or_unverified_gets_no_ping(rig: Rig, settings: dict[str, Any]) -> None:
    decision = expect(Later, await pinged(rig, replace(PLAIN, **settings)))
    assert decision.change is Change.RELEASED
    assert rig.http.requests == []
