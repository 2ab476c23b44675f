"""The table of responses, code by code, and what each says about the receiver's health."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.expression import OUTCOME, Document, Expression
from relay.domain.outcome import (
    Accepted,
    Ambiguous,
    Answered,
    Delivered,
    Gone,
    NotNow,
    NotProcessed,
    Outcome,
    Rejected,
    Ruling,
    classify,
    healthy,
    judge,
)
from relay.domain.receiver import CodeClasses, OutcomeClass, OutcomeRule
from relay.domain.variables import response_variables

NOW = 1_700_000_000.0

EXPECTED: dict[type, set[int]] = {
    Accepted: {202},
    Delivered: set(range(200, 300)) - {202},
    NotNow: {429, 503},
    Ambiguous: {500, 502, 504, 408} | set(range(600, 1000)) | {100, 101, 103},
    Gone: {410},
    Rejected: {400, 413, 415, 422},
}
EXPECTED[NotProcessed] = set(range(300, 600)) - set().union(*EXPECTED.values())


def outcome(exchange: Exchange, codes: CodeClasses | None = None) -> Outcome:
    return classify(exchange, codes=codes or {}, now=NOW)


def response(status: int, body: bytes = b"", *, truncated: bool = False, **headers: str) -> Response:
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, body, truncated)


@pytest.mark.parametrize("expected", EXPECTED)
def test_each_code_has_its_class(expected: type) -> None:
    assert {status for status in EXPECTED[expected] if type(outcome(response(status))) is not expected} == set()


def test_a_body_is_the_answer_also_if_it_was_cut_before_its_first_byte() -> None:
    whole = response(201, b"{}", content_type="application/json")
    assert outcome(whole) == Answered(201, "application/json", b"{}", truncated=False)
    for came in (b"ab", b""):
        assert outcome(response(200, came, truncated=True)) == Answered(200, None, came, truncated=True)


def test_accepted_carries_the_receivers_wishes() -> None:
    assert outcome(response(202, b"{}", retry_after="7", location="/jobs/1")) == Accepted(202, b"{}", 7.0, "/jobs/1")


def test_only_503_counts_as_an_attempt() -> None:
    assert outcome(response(429, retry_after="Tue, 14 Nov 2023 22:15:20 GMT")) == NotNow(120.0, 429, counted=False)
    assert outcome(response(503)) == NotNow(None, 503, counted=True)


@pytest.mark.parametrize("status", [500, 425, 404])
def test_retry_after_is_heeded_on_every_failure(status: int) -> None:
    result = outcome(response(status, retry_after="30"))
    assert isinstance(result, Ambiguous | NotProcessed)
    assert result.retry_after_s == 30


def test_a_rate_limit_without_retry_after_is_waited_for() -> None:
    """GitHub's, which ends up to an hour later: a commit status must not use up its attempts until then."""
    limited = response(403, x_ratelimit_remaining="0", x_ratelimit_reset=f"{NOW + 3000:.0f}")
    assert outcome(limited) == NotProcessed(3000.0, 403, "client_error")


@pytest.mark.parametrize(("status", "kind"), [(302, "redirect"), (401, "client_error"), (501, "server_error")])
def test_faults_are_named(status: int, kind: str) -> None:
    assert outcome(response(status)) == NotProcessed(None, status, kind)


def test_bytes_written_without_a_status_line_are_ambiguous() -> None:
    assert outcome(NoResponse("timeout", "", sent=True)) == Ambiguous(None, None, "timeout")
    assert outcome(NoResponse("refused", "", sent=False)) == NotProcessed(None, None, "refused")


@pytest.mark.parametrize(
    ("codes", "status", "expected"),
    [
        ({409: "delivered"}, 409, Delivered(409)),
        ({202: "delivered"}, 202, Delivered(202)),
        ({420: "not_now"}, 420, NotNow(None, 420, counted=True)),
        ({520: "ambiguous"}, 520, Ambiguous(None, 520, "status")),
        ({500: "not_processed"}, 500, NotProcessed(None, 500, "server_error")),
        ({200: "not_processed"}, 200, NotProcessed(None, 200, "unwanted")),
        ({404: "rejected"}, 404, Rejected(404)),
        ({404: "gone"}, 404, Gone(404)),
    ],
)
def test_a_receiver_moves_codes(codes: CodeClasses, status: int, expected: Outcome) -> None:
    assert outcome(response(status), codes) == expected


@pytest.mark.parametrize(
    ("exchange", "verdict"),
    [
        (response(200, b"x"), True),
        (response(204), True),
        (response(202), True),
        (response(400), True),
        (response(410), True),
        (response(429), None),
        (response(503), False),
        (response(500), False),
        (response(302), False),
        (response(404), False),
        (NoResponse("timeout", "", sent=True), False),
        (NoResponse("refused", "", sent=False), False),
        (NoResponse("dns", "", sent=False), False),
        (NoResponse("blocked", "", sent=False), None),
        (NoResponse("invalid_url", "", sent=False), None),
        (NoResponse("invalid_header", "", sent=False), None),
    ],
)
def test_health(exchange: Exchange, verdict: bool | None) -> None:
    assert healthy(outcome(exchange)) is verdict


@given(
    st.builds(
        Response,
        st.integers(0, 999),
        st.dictionaries(st.sampled_from(["retry-after", "location", "content-type"]), st.text()),
        st.binary(),
        st.booleans(),
    )
    | st.builds(NoResponse, st.text(), st.text(), st.booleans()),
    st.dictionaries(st.integers(200, 599), st.sampled_from(get_args(OutcomeClass)), max_size=40),
)
def test_every_exchange_means_something(exchange: Exchange, codes: CodeClasses) -> None:
    assert healthy(outcome(exchange, codes)) in (True, False, None)


# rules


def rule(when: str, is_: OutcomeClass, at: int = 0) -> OutcomeRule:
    return OutcomeRule(Expression(when, OUTCOME, f"outcomes[{at}].when"), is_)


def judged(
    given: Response, *rules: OutcomeRule, codes: CodeClasses | None = None, payload: bytes = b"{}"
) -> tuple[Outcome, Ruling | None]:
    variables = {"payload": Document(payload, "the payload"), **response_variables(given)}
    return judge(given, rules, variables, codes=codes or {}, now=NOW)


@pytest.mark.parametrize(
    ("is_", "expected", "recorded"),
    [
        ("accepted", Accepted(201, b'{"state":"pending"}', 7.0, None), "accepted"),
        ("answered", Answered(201, None, b'{"state":"pending"}', truncated=False), "delivered"),
        ("delivered", Delivered(201), "delivered"),
        ("not_now", NotNow(7.0, 201, counted=True), "not_now"),
        ("ambiguous", Ambiguous(7.0, 201, "status"), "ambiguous"),
        ("not_processed", NotProcessed(7.0, 201, "unwanted"), "not_processed"),
        ("rejected", Rejected(201), "rejected"),
        ("gone", Gone(201), "gone"),
    ],
)
def test_a_rule_decides(is_: OutcomeClass, expected: Outcome, recorded: str) -> None:
    given = response(201, b'{"state":"pending"}', retry_after="7", location="/jobs/1")
    outcome, ruling = judged(given, rule("body.state == 'pending'", is_))
    assert outcome == expected
    assert ruling is not None
    assert (ruling.rule, ruling.code_class) == ("outcomes[0]: body.state == 'pending'", recorded)


def test_the_first_rule_that_is_true_decides_then_the_codes_then_the_table() -> None:
    codes: CodeClasses = {409: "rejected"}
    rules = (rule("response.status == 409 && body.code == 1", "delivered"), rule("body.code < 3", "not_now", 1))
    assert judged(response(409, b'{"code":1}'), *rules, codes=codes)[0] == Delivered(409)
    second = judged(response(409, b'{"code":2}'), *rules, codes=codes)
    assert second == (NotNow(None, 409, counted=True), Ruling("outcomes[1]: body.code < 3", "not_now"))
    assert judged(response(409, b'{"code":3}'), *rules, codes=codes) == (Rejected(409), None)
    assert judged(response(404, b'{"code":3}'), *rules, codes=codes) == (NotProcessed(None, 404, "client_error"), None)


def test_an_answer_may_be_empty() -> None:
    assert judged(response(204), rule("true", "answered"))[0] == Answered(204, None, b"", truncated=False)
    assert outcome(response(204), {204: "answered"}) == Answered(204, None, b"", truncated=False)
    assert outcome(response(201, b"{}"), {201: "accepted"}) == Accepted(201, b"{}", None, None)


def test_only_the_location_of_a_202_leads_to_the_answer() -> None:
    """That of a 201 is what was created, and a GET of it succeeds in every state."""
    codes: CodeClasses = {201: "accepted"}
    assert outcome(response(201, location="/jobs/1"), codes) == Accepted(201, b"", None, None)
    assert outcome(response(202, location="/jobs/1"), codes) == Accepted(202, b"", None, "/jobs/1")


BROKEN = [response(0, b"<html>"), response(0), response(0, b'{"state":', truncated=True), response(0, b'["state"]')]


@pytest.mark.parametrize("given", BROKEN)
def test_a_rule_that_cannot_be_evaluated_is_not_true_of_a_failure(given: Response) -> None:
    rules = rule("body.state == 'pending'", "accepted"), rule("response.status == 500", "not_processed", 1)
    for status, expected in ((503, NotNow(None, 503, counted=True)), (500, NotProcessed(None, 500, "server_error"))):
        assert judged(structs.replace(given, status=status), *rules)[0] == expected


@pytest.mark.parametrize("given", BROKEN)
@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_a_success_that_no_rule_can_read_is_not_guessed_at(given: Response, status: int) -> None:
    rules = rule("body.state == 'pending'", "accepted"), rule("true", "delivered", 1)
    found, ruling = judged(structs.replace(given, status=status), *rules)
    assert isinstance(found, Ambiguous)
    assert (found.status, found.kind) == (status, "unclear")
    assert "outcomes[0].when: `body.state == 'pending'`: " in found.error
    assert ruling == Ruling("outcomes[0]: body.state == 'pending'", "ambiguous")
    assert healthy(found) is True


def test_a_body_that_is_not_json_matters_only_where_a_rule_reads_it() -> None:
    rules = rule("response.status == 201 && body.state == 'pending'", "accepted"), rule("true", "delivered", 1)
    assert judged(response(200, b"ok"), *rules)[0] == Delivered(200)
    assert judged(response(201, b"ok"), rule("response.body == 'ok'", "delivered"))[0] == Delivered(201)


def test_the_beginning_of_a_number_is_not_the_number() -> None:
    found, _ = judged(response(200, b"12", truncated=True), rule("body == 12", "delivered"))
    assert isinstance(found, Ambiguous)
    assert "which was cut" in found.error


def test_the_patterns_of_all_rules_have_one_budget() -> None:
    """Each of them alone is within it."""
    texts = [*(f"body.text.matches('[ab]{{400}}{number}z')" for number in range(8)), "body.text.matches('^ab')"]
    rules = tuple(OutcomeRule(Expression(text, OUTCOME), "gone") for text in texts)
    said = response(500, b'{"text": "%s"}' % (b"ab" * 10_000))
    variables = response_variables(said)
    assert judge(said, rules[-2:], variables, codes={}, now=NOW)[0] == Gone(500)
    assert judge(said, rules, variables, codes={}, now=NOW)[0] == Ambiguous(None, 500, "status")
