"""Entries of receivers.yaml with expressions: accepted ones, and the error for each mistake."""

import pytest

from relay.config.receivers_file import ReceiversFile, parse_receivers_file, raw_entry, receivers_schema
from relay.domain.errors import UserError
from relay.domain.receiver import Receiver, Source
from tests.expecting import present

JENKINS = """
receivers:
  jenkins:
    post_endpoint: https://ci.example/job/app/buildWithParameters
    headers: {authorization: "Basic ${JENKINS}"}
    request: {method: PUT, query: {a: "${{ message.id }}"}, headers: {x-token: "${JENKINS}"},
              form: {B: "${{ payload.ref }}"}}
    outcomes:
      - {when: "response.status == 201", is: accepted}
    codes: {accepted: [200], answered: [204]}
    status_steps:
      - {url: "${{ response.headers.location }}api/json", until: "has(body.executable)", poll: {base: 1s}}
      - {url: "${{ steps[0].body.executable.url }}api/json", until: "!body.building",
         answer: {json: {r: "${{ body.result }}"}}}
sources:
  github:
    keep: {url: "payload.repository.statuses_url", sha: "payload.after"}
    callback:
      url: "${{ keep.url.replace('{sha}', keep.sha) }}"
      allow_origins: [https://api.github.com]
      request: {json: {state: "${{ answer.body.r }}", context: relay}}
      progress: [accepted]
"""


def resolved(text: str = JENKINS) -> tuple[Receiver, Source]:
    file: ReceiversFile = parse_receivers_file(text)
    receivers, sources = file.resolve({"JENKINS": "hunter2"})
    return receivers["jenkins"], sources["github"]


def test_expressions_are_in_effect() -> None:
    receiver, source = resolved()
    assert present(receiver.post.request).method == "PUT"
    assert [rule.is_ for rule in receiver.outcomes] == ["accepted"]
    assert receiver.post.codes == {200: "accepted", 204: "answered"}
    assert [step.poll is not None for step in receiver.status_steps] == [True, False]
    assert source.callback is not None
    assert source.callback.url == "https://api.github.com"
    assert source.callback.allow_origins == ("https://api.github.com",)
    assert sorted(present(source.keep)) == ["sha", "url"]
    assert source.progress == {"accepted"}


def test_only_references_are_secrets() -> None:
    receiver, _ = resolved()
    assert set(receiver.post.secrets) == {"hunter2", "Basic hunter2"}


def test_an_entry_survives_its_way_over_the_log() -> None:
    file = parse_receivers_file(JENKINS)
    raw = raw_entry(file.receivers["jenkins"])
    assert raw["outcomes"] == [{"when": "response.status == 201", "is": "accepted"}]
    assert raw["request"]["form"] == {"B": "${{ payload.ref }}"}  # type: ignore[index]
    assert raw["status_steps"][1]["answer"] == {"json": {"r": "${{ body.result }}"}}  # type: ignore[index]


def test_an_endpoint_with_its_own_requests_gets_no_pings() -> None:
    receiver, source = resolved()
    assert receiver.post.breaker.offline.after == present(source.callback).breaker.offline.after == 315_360_000.0


@pytest.mark.parametrize("field", ["request: {url: /jobs}", "status_steps: [{url: 'jobs?last=1', until: body.done}]"])
def test_a_url_without_expressions_may_be_relative_to_that_of_the_endpoint(field: str) -> None:
    text = "receivers:\n  ci:\n    post_endpoint: https://ci.example/hooks\n    " + field
    assert "ci" in parse_receivers_file(text).receivers


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("request: {method: GET}", "receivers.a.request.method: GET delivers nothing; use POST, PUT or PATCH"),
        ("request: {json: 1, text: a}", "json and text: a request has one body"),
        ("request: {form: {a: {b: 1}}}", "'a' is no text, number, true or false"),
        ("request: {headers: {host: x}}", "'host' is set by the relay itself"),
        ("request: {url: 'https://${{ payload.host }}/'}", "an expression belongs after the host and its slash"),
        ("request: {json: {a: '${{ payload. }}'}}", "request.json.a: line 1, column"),
        ("request: {text: '${{ payload.a'}", "is not closed"),
        ("outcomes: [{when: '${{ response.status == 201 }}', is: accepted}]", "write it without ${{ and }}"),
        ("outcomes: [{when: response.statuss == 1, is: gone}]", "outcomes[0].when: line 1, column 1: response has no"),
        ("outcomes: [{when: 'true', is: maybe}]", "outcomes[0].is: 'maybe' is not allowed"),
        ("request: {url: 'ftp://x/'}", "not a URL; write it as https://host/path"),
        ("request: {url: ''}", "not a URL; write it as https://host/path"),
        ("request: {url: '//evil.example/x'}", "its origin is neither that of post_endpoint nor in allow_origins"),
        ("status_steps: [{url: 'https://x/', until: body}]\n    status_endpoint: https://x/", "leave one of the two"),
        ("status_steps: [{url: 'https://x/', until: \"'a'\"}]", "the result is string, not true or false"),
        (
            "status_steps: [{url: 'https://x/', until: body, answer: {json: 1}}, {url: 'https://x/', until: body}]",
            "only the last step has an answer",
        ),
        ("answer: required\n    codes: {answered: [202]}", "contradicts 'answer: required'"),
        ("answer: required\n    outcomes: [{when: 'true', is: answered}]", "contradicts 'answer: required'"),
        (
            "answer: required\n    codes: {accepted: [201], delivered: [202]}\n"
            "    outcomes: [{when: response.status < 300, is: answered}]",
            "contradicts 'answer: required'",
        ),
        ("allow_origins: [http://evil.example]", "plain http is only allowed for this machine"),
        ("allow_origins: ['https://a.example/path']", "is more than an origin"),
        ("codes: {accepted: [201], answered: [201]}", "201 is listed under accepted as well"),
    ],
)
def test_mistakes_are_named(entry: str, error: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_receivers_file(f"receivers:\n  a:\n    post_endpoint: https://x.example/\n    {entry}\n")
    assert error in str(raised.value)


def test_a_url_in_place_of_an_origin_is_not_repeated_because_its_path_may_be_secret() -> None:
    entry = "{post_endpoint: 'https://a.example/', allow_origins: ['https://a.example/hooks/s3cret']}"
    with pytest.raises(UserError) as raised:
        parse_receivers_file(f"receivers:\n  a: {entry}\n")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "outcomes",
    [
        "[{when: response.status == 200, is: answered}]",
        "[{when: response.status / 0 == 1, is: answered}]",
        "[{when: '!has(body.job)', is: answered}]",
        "[{when: response.status == 202, is: answered}, {when: response.status == 201, is: accepted}]",
    ],
)
def test_a_required_answer_may_follow_where_the_rules_leave_a_response_for_it(outcomes: str) -> None:
    entry = f"{{post_endpoint: 'https://x.example/', answer: required, outcomes: {outcomes}}}"
    assert parse_receivers_file(f"receivers: {{a: {entry}}}")


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("keep: {a: 'payload.'}", "sources.s.keep.a: line 1"),
        ("keep: {a-b: payload}", "keep"),
        ("callback: {url: '${{ keep.a }}'}", "list the origins that it may lead to in allow_origins"),
        ("callback: {url: 'https://x/${{ keep.a }}'}", "uses keep.a, which keep does not have"),
        ("callback: {url: 'https://x/', request: {json: '${{ payload.a }}'}}", "undeclared reference to 'payload.a'"),
        ("callback: {url: 'https://x/', progress: [done]}", "'done' is not allowed"),
    ],
)
def test_mistakes_of_a_source_are_named(entry: str, error: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_receivers_file(f"sources:\n  s:\n    {entry}\n")
    assert error in str(raised.value)


def test_the_schema_knows_the_fields() -> None:
    definitions = receivers_schema()["$defs"]
    assert isinstance(definitions, dict)
    assert {"json", "form", "text"} <= definitions["RequestEntry"]["properties"].keys()
    assert definitions["OutcomeEntry"]["required"] == ["when", "is"]
