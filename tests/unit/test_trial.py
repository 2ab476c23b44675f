"""Trials of a delivery: the same requests and meanings as the steps', and every field that cannot be made."""

import json
from typing import Any

import pytest

from relay.api.problems import Problem
from relay.api.trial import response_of
from relay.config.receivers_file import parse_receivers_file
from relay.domain.exchange import NoResponse, Response
from relay.domain.message import Message
from relay.domain.outcome import Accepted, Ambiguous, Answered, Delivered, Gone, NotNow, NotProcessed, Rejected
from relay.domain.receiver import Receiver, Source
from relay.domain.requests import post_request
from tests.expecting import present
from workers.trial import DeliveryTrial, TrialFault

NOW = 1_700_000_000.0
ENVIRON = {"KEY": "whsec_Y2FuYXJ5LTQ3MTEtY2FuYXJ5LTQ3MTEtY2FuYXJ5ISE=", "TOKEN": "canary-token-4711"}
JENKINS = """
receivers:
  ci:
    post_endpoint: https://ci.example/job/app/buildWithParameters
    secret: ${KEY}
    headers: {authorization: "Bearer ${TOKEN}"}
    request: {headers: {x-id: "${{ message.id }}"}, form: {BRANCH: "${{ payload.ref }}", BY: "${{ payload.by }}"}}
    outcomes:
      - {when: "response.status == 201", is: accepted}
      - {when: "body.error == 'full'", is: not_now}
    status_steps:
      - {url: "${{ response.headers.location }}api/json", until: "has(body.executable)"}
      - url: "${{ steps[0].body.executable.url }}api/json"
        until: "!body.building"
        answer: {json: {result: "${{ body.result }}"}}
sources:
  github:
    keep: {sha: "payload.after"}
    callback:
      url: https://api.github.example/statuses/${{ keep.sha }}
      secret: ${KEY}
      request: {json: {state: "${{ delivery.outcome == 'failed' ? 'error' : answer.body.result }}"}}
"""
PLAIN = "receivers: {ci: {post_endpoint: https://ci.example/hooks, status_endpoint: https://ci.example/jobs}}"
PAYLOAD = {"ref": "main", "by": "me", "after": "abc"}
QUEUED = Response(201, {"location": "https://ci.example/queue/7/"}, b"")
STARTED = Response(200, {}, b'{"executable": {"url": "https://ci.example/job/app/5/"}}')
BUILT = Response(200, {}, b'{"building": false, "result": "success"}')


def entries(file: str) -> tuple[Receiver, Source]:
    receivers, sources = parse_receivers_file(file).resolve(ENVIRON)
    return receivers["ci"], sources.get("github", Source("github"))


def begun(file: str = JENKINS, payload: Any = PAYLOAD) -> DeliveryTrial:
    receiver, source = entries(file)
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    message = Message("github", "m-1", ("ci",), "push", content_type="application/json", payload=content)
    return DeliveryTrial(receiver, source, message, now=NOW, user_agent="relay")


def test_the_request_is_the_one_of_the_first_attempt() -> None:
    found = begun()
    sent = present(found.trial.request)
    assert (sent.method, sent.url, sent.body) == (
        "POST",
        "https://ci.example/job/app/buildWithParameters",
        b"BRANCH=main&BY=me",
    )
    hop = found._work.hop
    assert sent == post_request(
        found.receiver, hop, found.message.payload, attempt=1, sequence=0, now=NOW, answer_url=None, user_agent="relay"
    )
    assert found.trial.faults == []


def test_every_field_that_cannot_be_made_is_named() -> None:
    found = begun(payload={}).trial
    assert found.request is None
    assert [each.place for each in found.faults] == ["keep.sha", "request.form.BRANCH", "request.form.BY"]
    assert found.faults[1].detail == "`payload.ref`: there is no field 'ref'"


def test_a_payload_that_is_no_json_is_named() -> None:
    found = begun(payload=b"<xml/>").trial
    assert TrialFault("request.form.BY", "`payload.by`: the payload is not JSON") in found.faults


def test_a_chain_is_followed_to_the_callback() -> None:
    found = begun()
    found.respond(QUEUED)
    assert isinstance(found.trial.outcome, Accepted)
    assert found.trial.rule == "outcomes[0]: response.status == 201"
    assert found.trial.next is not None
    assert found.trial.next.url == "https://ci.example/queue/7/api/json"
    assert ("authorization", "Bearer canary-token-4711") in found.trial.next.headers
    assert found.trial.callback is None

    further = begun()
    further.respond(QUEUED, [Response(200, {}, b"{}"), STARTED])
    assert [type(each).__name__ for each in further.trial.readings] == ["StillRunning", "StepFinished"]
    assert present(further.trial.next).url == "https://ci.example/job/app/5/api/json"

    ended = begun()
    ended.respond(QUEUED, [STARTED, BUILT])
    assert ended.trial.next is None
    assert ended.trial.callback is not None
    assert ended.trial.callback.url == "https://api.github.example/statuses/abc"
    assert json.loads(ended.trial.callback.body) == {"state": "success"}


def test_until_there_is_a_result_the_callback_is_that_of_the_progress() -> None:
    wanted = "progress: [accepted, running]\n      request: {json: {now: '${{ delivery.outcome }}'}}\n"
    file = JENKINS.partition("request: {json: {state")[0] + wanted
    for statuses, progress in (((), "accepted"), ((Response(200, {}, b"{}"), STARTED), "running")):
        found = begun(file)
        found.respond(QUEUED, statuses)
        assert found.trial.callback is not None
        assert json.loads(found.trial.callback.body) == {"now": progress}
        assert ("relay-outcome", progress) in found.trial.callback.headers
    ended = begun(file)
    ended.respond(QUEUED, [STARTED, BUILT])
    assert json.loads(present(ended.trial.callback).body) == {"now": "answered"}
    called = begun("receivers: {ci: {post_endpoint: https://ci.example/hooks}}\n" + file[file.index("sources:") :])
    called.respond(Response(202, {}, b""))
    assert json.loads(present(called.trial.callback).body) == {"now": "accepted"}


def test_a_ticket_that_is_missing_or_elsewhere_is_named() -> None:
    missing = begun()
    missing.respond(Response(201, {}, b""))
    assert [each.place for each in missing.trial.faults] == ["status_steps[0].url"]
    assert missing.trial.next is None
    elsewhere = begun()
    elsewhere.respond(Response(201, {"location": "https://attacker.example/7/"}, b""))
    assert "no origin" in elsewhere.trial.faults[0].detail
    assert elsewhere.trial.next is None


def test_a_failure_becomes_a_notice_in_the_sender_s_form() -> None:
    found = begun()
    found.respond(Response(422, {}, b'{"error": ""}'))
    assert (type(found.trial.outcome), found.trial.rule) == (Rejected, "the usual meaning of 422")
    assert found.trial.callback is not None
    assert json.loads(found.trial.callback.body) == {"state": "error"}
    assert ("relay-outcome", "failed") in found.trial.callback.headers


@pytest.mark.parametrize(
    ("exchange", "outcome"),
    [
        (Response(200, {}, b"done"), Answered),
        (Response(204, {}, b""), Delivered),
        (Response(202, {}, b""), Accepted),
        (Response(410, {}, b""), Gone),
        (Response(429, {}, b""), NotNow),
        (Response(500, {}, b""), Ambiguous),
        (Response(302, {}, b""), NotProcessed),
        (NoResponse("refused", "", sent=False), NotProcessed),
    ],
)
def test_responses_mean_what_they_mean_to_the_step(exchange: Response | NoResponse, outcome: type) -> None:
    found = begun(PLAIN)
    found.respond(exchange)
    assert type(found.trial.outcome) is outcome
    assert (found.trial.rule is None) is isinstance(exchange, NoResponse)
    assert (found.trial.next is not None) is (outcome is Accepted)
    assert found.trial.callback is None


def test_codes_are_named_as_the_rule() -> None:
    found = begun("receivers: {ci: {post_endpoint: https://ci.example/hooks, codes: {accepted: [201]}}}")
    found.respond(Response(201, {}, b""))
    assert found.trial.rule == "codes.accepted: 201"
    assert found.trial.notes == ["no status URL is known: the relay waits for the receiver's answer at the answer URL"]


def test_a_rule_that_cannot_be_evaluated_is_named() -> None:
    found = begun()
    found.respond(Response(200, {}, b"no json"))
    assert isinstance(found.trial.outcome, Ambiguous)
    assert found.trial.faults == [
        TrialFault("outcomes[1].when", "`body.error == 'full'`: the response's body is not JSON")
    ]
    assert found.trial.callback is None


def test_a_callback_that_cannot_be_made_names_its_field() -> None:
    found = begun(JENKINS.replace("answer: {json: {result: ", "answer: {json: {other: "))
    found.respond(QUEUED, [STARTED, BUILT])
    assert [each.place for each in found.trial.faults] == ["callback.request.json.state"]
    assert found.trial.callback is None


def test_a_source_without_callback_says_so() -> None:
    found = begun(PLAIN)
    found.respond(Response(200, {}, b"done"))
    assert found.trial.notes == ["the source has no callback: it queries the API"]


BATCH = """
receivers: {ci: {post_endpoint: "https://ci.example/hooks", secret: "${KEY}", batch: {format: list}}}
"""


def test_the_request_to_a_receiver_of_batches_is_a_batch_of_one() -> None:
    at = begun(BATCH)
    assert at.trial.request is not None
    (event,) = json.loads(at.trial.request.body)
    assert (event["id"], event["payload"]) == ("m-1", PAYLOAD)
    assert dict(at.trial.request.headers)["relay-batch"] == "1"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'[{"id": "m-1", "status": 202}]', Accepted(202, b"", None, None)),
        (b'[{"id": "m-1", "status": 422}]', Rejected(422)),
        (b"", Delivered(200)),
        (b"[]", None),
    ],
)
def test_a_response_with_a_list_means_what_it_says_of_the_message(body: bytes, outcome: object) -> None:
    at = begun(BATCH)
    at.respond(Response(200, {}, body))
    assert at.trial.outcome == outcome
    assert any("batch is ambiguous" in note for note in at.trial.notes) == (outcome is None)


@pytest.mark.parametrize("body", ["[" * 100_000, "?"])
def test_a_pasted_response_that_is_no_json_is_named(body: str) -> None:
    with pytest.raises(Problem, match="has to begin with the status line"):
        response_of('{"status": 200, "body": ' + body, "/response")


def test_what_follows_any_number_of_interim_responses_is_the_response() -> None:
    pasted = "HTTP/1.1 100 Continue\r\n\r\n" * 3_000 + "HTTP/1.1 201 Created\r\nX-A: b\r\n\r\nok"
    assert response_of(pasted, "/response") == Response(201, {"x-a": "b"}, b"ok")
