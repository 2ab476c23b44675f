"""Receivers with `request` and `outcomes`: the request that is sent, where credentials go, and the result of each
rule."""

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from relay.config.receivers_file import parse_receivers_file
from relay.domain.egress import Egress, OAuth2, Tls
from relay.domain.errors import ExpressionError
from relay.domain.exchange import Response
from relay.domain.hop import Hop
from relay.domain.receiver import Receiver
from relay.domain.requests import post_request
from relay.domain.signing import verify_standard
from relay.domain.template import UrlRefused
from relay.engine.decision import Dead, Decision, Done, Later
from relay.state.attempts import Change
from relay.state.rows import Result, Stage
from tests.expecting import expect
from tests.fakes.state import MemoryState
from tests.fakes.steps import DELIVERY, NOW, TOPICS, Rig, hop_record, letter_of, stepped
from workers.to_receiver import ToReceiver

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOP = Hop(DELIVERY, event_type="push", content_type="text/x-event", accepted_ms=int((NOW - 60) * 1000))
PUSH = {"ref": "refs/heads/main", "after": "abc", "user": "Zoë & co", "url": "https://other.example/jobs/7"}
SECRETS = {"SIGN": SECRET, "TOKEN": "hunter2/+x"}


def receiver(entry: str) -> Receiver:
    file = parse_receivers_file(f"receivers:\n  ci: {{post_endpoint: 'https://ci.example/jobs', {entry}}}\n")
    return file.resolve(SECRETS)[0]["ci"]


ANSWER_URL = "https://relay.example/v1/answers/t"


def post(to: Receiver, payload: object = PUSH, hop: Hop = HOP, answer_url: str | None = ANSWER_URL) -> Any:
    value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return post_request(to, hop, value, attempt=3, sequence=7, now=NOW, answer_url=answer_url, user_agent="relay/1")


@pytest.fixture
def rig() -> Rig:
    return Rig()


# the request


def test_a_request_in_json_with_method_query_and_headers() -> None:
    to = receiver(
        "request: {method: PUT, query: {id: '${{ message.id }}', who: '${{ payload.user }}'},"
        " headers: {x-attempt: '${{ delivery.attempt }}', x-from: 'relay ${{ message.source }}'},"
        " json: {branch: '${{ payload.ref.replace(\"refs/heads/\", \"\") }}', n: '${{ payload.size() }}',"
        " deep: [1, null]}}"
    )
    request = post(to)
    headers = dict(request.headers)
    assert (request.method, request.url) == ("PUT", "https://ci.example/jobs?id=m-1&who=Zo%C3%AB%20%26%20co")
    assert (headers["x-attempt"], headers["x-from"]) == ("3", "relay github")
    assert headers["content-type"] == "application/json"
    assert json.loads(request.body) == {"branch": "main", "n": 4, "deep": [1, None]}
    assert (headers["ce-id"], headers["relay-attempt"]) == ("m-1", "3")


@pytest.mark.parametrize(
    ("body", "content_type", "sent"),
    [
        ("form: {BRANCH: '${{ payload.ref }}', tag: [a, '${{ payload.user }}'], DRY: true}",
         "application/x-www-form-urlencoded", b"BRANCH=refs%2Fheads%2Fmain&tag=a&tag=Zo%C3%AB+%26+co&DRY=true"),
        ("text: 'build ${{ payload.after }}'", "text/plain; charset=utf-8", b"build abc"),
        ("text: '<a/>', headers: {Content-Type: application/xml}", "application/xml", b"<a/>"),
        ("method: PATCH", "text/x-event", json.dumps(PUSH).encode()),
    ],
)  # fmt: skip
def test_bodies(body: str, content_type: str, sent: bytes) -> None:
    request = post(receiver(f"request: {{{body}}}"))
    assert [value for name, value in request.headers if name.lower() == "content-type"] == [content_type]
    assert request.body == sent


def test_a_ci_gets_the_answer_url_where_it_reads_it() -> None:
    to = receiver("request: {query: {notify: '${{ delivery.answer_url }}'}, json: {to: '${{ delivery.answer_url }}'}}")
    request = post(to)
    assert request.url == "https://ci.example/jobs?notify=https%3A%2F%2Frelay.example%2Fv1%2Fanswers%2Ft"
    assert json.loads(request.body) == {"to": ANSWER_URL}
    without = post(to, answer_url=None)
    assert json.loads(without.body) == {"to": ""}


def test_the_signature_is_over_what_is_sent() -> None:
    request = post(receiver("secret: '${SIGN}', request: {json: {a: '${{ payload.after }}'}}"))
    assert request.body == b'{"a":"abc"}'
    verify_standard((SECRET,), dict(request.headers), request.body, now=NOW)


def test_its_headers_replace_others_of_the_same_name() -> None:
    to = receiver("headers: {Private-Token: a}, forward_headers: [x-team],"
                  " request: {headers: {private-token: b, X-Team: c}}")  # fmt: skip
    headers = post(to, hop=structs.replace(HOP, headers=(("x-team", "core"),))).headers
    assert [pair for pair in headers if pair[0].lower() in ("private-token", "x-team")] == [
        ("private-token", "b"), ("X-Team", "c"),
    ]  # fmt: skip


# where it goes

CREDENTIALS = "headers: {x-key: k}, bearer_token: '${TOKEN}', allow_origins: ['https://other.example']"


def test_credentials_go_only_to_the_origin_of_its_endpoint() -> None:
    egress = Egress(Tls("ca", "certificate", "key", (b"pin",)), "none", OAuth2("https://id.example", "id", "s"))
    to = receiver(f"{CREDENTIALS}, request: {{url: '${{{{ payload.url }}}}'}}")
    to = replace(to, post=replace(to.post, egress=egress))
    abroad, at_home = post(to), post(to, PUSH | {"url": "https://ci.example/jobs/8"})
    assert abroad.url == "https://other.example/jobs/7"
    assert not {"x-key", "authorization"} & set(dict(abroad.headers))
    assert abroad.egress == Egress(Tls("ca"), "none")
    assert at_home.url == "https://ci.example/jobs/8"
    assert dict(at_home.headers)["authorization"] == "Bearer hunter2/+x"
    assert at_home.egress == egress


@pytest.mark.parametrize(
    "url",
    ["https://attacker.example/", "http://ci.example/", "https://ci.example@attacker.example/", "//attacker.example/x",
     "https://ci.example:8443/", "file:///etc/passwd", "https://ci.example/\r\nx: y", ""],
)  # fmt: skip
def test_a_url_of_the_payload_leads_to_no_other_origin(url: str) -> None:
    to = receiver(f"{CREDENTIALS}, request: {{url: '${{{{ payload.url }}}}'}}")
    with pytest.raises(UrlRefused, match=r"request\.url: "):
        post(to, {"url": url})


@pytest.mark.parametrize("part", ["..", "../admin", "a/b", "%2e%2e", "", "a\\b", "a\nb"])
def test_a_value_stays_one_segment_of_the_path(part: str) -> None:
    to = receiver("request: {url: 'https://ci.example/jobs/${{ payload.job }}/build'}")
    with pytest.raises(UrlRefused, match=r"request\.url: a part of the URL's path"):
        post(to, {"job": part})
    assert post(to, {"job": "a b?c#d"}).url == "https://ci.example/jobs/a%20b%3Fc%23d/build"


@pytest.mark.parametrize("value", ["a\r\nx-admin: 1", "a\nb", "\x00", "Zoë", " a", "a" * 9_000])
def test_no_value_of_the_payload_breaks_out_of_a_header(value: str) -> None:
    with pytest.raises(ExpressionError, match=r"request\.headers\.x-who: "):
        post(receiver("request: {headers: {x-who: '${{ payload.who }}'}}"), {"who": value})


def test_a_url_is_bounded() -> None:
    with pytest.raises(UrlRefused, match="more than 2048 characters"):
        post(receiver("request: {query: {a: '${{ payload.a }}'}}"), {"a": "x" * 3_000})


# what cannot be filled in


def works(rig: Rig, to: Receiver, payload: bytes = b"{}") -> tuple[ToReceiver, Any]:
    rig.know(to)
    worker = ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, rig.known)
    return worker, worker.admit(hop_record(TOPICS.to_receiver("ci"), HOP, payload))


async def heard(rig: Rig, to: Receiver, *, payload: bytes = b"{}") -> Decision:
    worker, work = works(rig, to, payload)
    assert worker.overdue(work) is None
    return await stepped(worker, work, 1)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"not json", "the payload is not JSON"),
        (b"", "the payload is not JSON"),
        (b"[]", "request.json.b: `payload.ref`: "),
        (b"{}", "request.json.b: `payload.ref`: there is no field 'ref'"),
    ],
)
async def test_a_request_that_cannot_be_filled_in_ends_the_delivery_before_any_attempt(
    rig: Rig, payload: bytes, error: str
) -> None:
    worker, work = works(rig, receiver("request: {json: {b: '${{ payload.ref }}'}}"), payload)
    dead = expect(Dead, worker.overdue(work))
    assert dead.reason == "invalid"
    assert error in dead.detail
    letter = letter_of(worker.dead_letter(work.record, work, dead))
    assert (letter.reason, letter.attempts) == ("invalid", 0)
    work.attempts = 2  # the settings have changed since an attempt: it is not a crash either
    assert worker.overdue(work) is None
    assert await stepped(worker, work, 2) == dead
    assert rig.http.requests == []


async def test_a_url_that_is_refused_ends_the_delivery(rig: Rig) -> None:
    worker, work = works(rig, receiver("request: {url: '${{ payload.url }}'}, allow_origins: ['https://a.example']"),
                         b'{"url": "https://attacker.example/"}')  # fmt: skip
    dead = expect(Dead, worker.overdue(work))
    assert (dead.reason, "attacker.example is no origin" in dead.detail) == ("invalid", True)


# what its responses mean

RULES = "outcomes: [{when: \"response.status == 201 && body.state == 'pending'\", is: accepted}]"
ASKED = RULES + ", status_endpoint: 'https://ci.example/jobs/{response.id}'"


async def test_a_rule_says_that_the_answer_follows(rig: Rig) -> None:
    rig.reply(201, b'{"id": 7, "state": "pending"}')
    decision = expect(Done, await heard(rig, receiver(ASKED)))
    assert decision.result == Result("accepted", 201, status_url="https://ci.example/jobs/7")
    assert decision.stage is Stage.AWAITING
    [attempt] = rig.journal.attempts
    assert (attempt.code_class, attempt.rule) == (
        "accepted", "outcomes[0]: response.status == 201 && body.state == 'pending'",
    )  # fmt: skip


async def test_delivered_by_a_rule_brings_no_body_back(rig: Rig) -> None:
    rig.reply(200, b"queued")
    decision = expect(Done, await heard(rig, receiver("outcomes: [{when: 'true', is: delivered}]")))
    assert decision.result == Result("delivered", 200)


async def test_an_answer_by_a_rule_may_be_empty(rig: Rig) -> None:
    rig.reply(204)
    decision = expect(Done, await heard(rig, receiver("outcomes: [{when: 'true', is: answered}]")))
    assert decision.result == Result("answered", 204)
    assert rig.journal.attempts[0].code_class == "delivered"


async def test_not_now_by_a_rule_pauses_the_receiver(rig: Rig) -> None:
    rig.reply(200, b'{"busy": true}', retry_after="90")
    decision = expect(Later, await heard(rig, receiver("outcomes: [{when: body.busy, is: not_now}]")))
    assert (decision.change, decision.pause_s) == (Change.RETRY, 90)
    assert decision.detail == 'by outcomes[0]: body.busy; POST https://ci.example/jobs: 200: {"busy": true}'


async def test_a_rejection_by_a_rule_names_the_rule_and_no_secret(rig: Rig) -> None:
    rig.reply(200, b"no: hunter2/+x")
    to = receiver("request: {method: PUT, query: {t: '${TOKEN}'}, headers: {x-t: '${TOKEN}'}},"
                  " outcomes: [{when: \"response.body != 'hunter2/+x'\", is: rejected}]")  # fmt: skip
    decision = expect(Dead, await heard(rig, to))
    assert (decision.reason, decision.last_status) == ("rejected", 200)
    [attempt] = rig.journal.attempts
    assert attempt.rule == "outcomes[0]: response.body != '********'"
    assert attempt.detail == decision.detail
    assert decision.detail.startswith("by outcomes[0]: response.body != '********'; PUT https://ci.example/jobs?t=")
    shown = repr(attempt)
    assert "hunter2" not in shown
    assert rig.http.requests[0].url == "https://ci.example/jobs?t=hunter2%2F%2Bx"
    assert dict(rig.http.requests[0].headers)["x-t"] == "hunter2/+x"


@pytest.mark.parametrize("entry", ["on_ambiguous: resend", "on_ambiguous: dead_letter"])
@pytest.mark.parametrize(
    "reply",
    [Response(201, {}, b"<html>"), Response(200, {}, b""), Response(201, {}, b'{"id": 7, "sta', truncated=True)],
)
async def test_a_success_that_cannot_be_understood_is_not_sent_again(rig: Rig, entry: str, reply: Response) -> None:
    rig.http.replies = [reply]
    rules = "outcomes: [{when: \"body.state == 'pending'\", is: accepted}]"
    decision = expect(Dead, await heard(rig, receiver(f"{rules}, {entry}")))
    assert (decision.reason, decision.last_status, decision.healthy) == ("invalid", reply.status, True)
    assert decision.detail.startswith("outcomes[0].when: `body.state == 'pending'`: the response's body")
    [attempt] = rig.journal.attempts
    assert (attempt.code_class, attempt.rule) == ("ambiguous", "outcomes[0]: body.state == 'pending'")


async def test_or_the_receiver_is_asked_if_it_can_be(rig: Rig) -> None:
    rig.reply(201, b"<html>")
    rules = "outcomes: [{when: \"body.state == 'pending'\", is: accepted}]"
    decision = await heard(rig, receiver(f"{rules}, status_endpoint: 'https://ci.example/jobs/{{message_id}}'"))
    assert isinstance(decision, Later)
    assert (decision.change, decision.reason, decision.last_status) == (Change.DOUBT, "unclear", 201)
    assert decision.healthy is True


async def test_a_failure_that_a_rule_cannot_read_keeps_its_usual_meaning(rig: Rig) -> None:
    rig.reply(500, b"<html>")
    decision = expect(Later, await heard(rig, receiver(ASKED)))
    assert (decision.change, decision.last_status) == (Change.RETRY, 500)
    assert rig.journal.attempts[0].rule is None


@pytest.mark.parametrize(
    ("status", "rule", "code_class"),
    [(200, "codes.accepted", "accepted"), (204, "codes.answered", "delivered"), (404, None, "not_processed")],
)
async def test_a_code_of_its_own_is_named_and_a_usual_one_is_not(
    rig: Rig, status: int, rule: str | None, code_class: str
) -> None:
    rig.reply(status)
    await heard(rig, receiver("codes: {accepted: [200], answered: [204]}"))
    [attempt] = rig.journal.attempts
    assert (attempt.rule, attempt.code_class) == (rule, code_class)


async def test_rules_see_the_message_and_the_attempt(rig: Rig) -> None:
    rig.reply(409, b'{"ref": "main"}')
    when = "delivery.attempt == 1 && payload.ref == body.ref && message.id == 'm-1' && delivery.receiver == 'ci'"
    to = receiver(f'outcomes: [{{when: "{when}", is: delivered}}]')
    expect(Done, await heard(rig, to, payload=b'{"ref": "main"}'))
