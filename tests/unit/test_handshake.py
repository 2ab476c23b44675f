"""The verification request to a receiver, and which responses prove that it accepts messages."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from relay.domain.egress import Egress
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.receiver import Endpoint, FormerSecret, Receiver, SigningPolicy, Verification
from relay.domain.signing import verify_standard
from relay.domain.verification import MOST_BYTES, Handshake, Verdict, handshake
from relay.sink.app import signed_answer

URL = "https://ci.example/hooks"
NONCE = "ours-0123456789abcdef0123456789abcdef"
THEIRS = "theirs-0123456789"
NOW = 1_700_000_000.0
SECRET = "the-secret-of-both"


def asked(kind: Verification, **fields: Any) -> Handshake:
    post = replace(Endpoint(URL, SigningPolicy(secrets=(SECRET,)), headers=(("x-team", "ci"),)), **fields)
    receiver = Receiver("ci", post, verification=kind, verified=False)
    return handshake(receiver, NONCE, now=NOW, user_agent="relay/1", origin="relay.example")


def said(body: bytes | str, content_type: str | None = "text/plain", status: int = 200, **more: str) -> Response:
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    if content_type is not None:
        headers["content-type"] = content_type
    return Response(status, headers, body.encode() if isinstance(body, str) else body)


@pytest.mark.parametrize("kind", ["challenge", "hmac", "cloudevents"])
def test_it_goes_the_way_that_messages_will_go(kind: Verification) -> None:
    request = asked(kind, egress=Egress(proxy="none")).request
    assert request.egress == Egress(proxy="none")
    assert ("x-team", "ci") in request.headers
    assert request.timeout_s == 10.0


# challenge


def test_a_challenge_goes_into_the_query_with_what_is_there() -> None:
    request = asked("challenge", url=f"{URL}?tenant=1").request
    assert (request.method, request.timeout_s, request.body) == ("GET", 10.0, b"")
    assert parse_qs(urlsplit(request.url).query) == {"tenant": ["1"], "challenge": [NONCE]}
    assert dict(request.headers) == {"user-agent": "relay/1", "x-team": "ci"}


@pytest.mark.parametrize(
    "answer",
    [
        said(NONCE),
        said(f" {NONCE}\r\n", "text/plain; charset=utf-8"),
        said(NONCE, None),
        said(json.dumps({"challenge": NONCE, "more": 1}), "application/json"),
    ],
)
def test_an_echo_is_a_proof(answer: Response) -> None:
    assert asked("challenge").judge(answer) == Verdict(None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (said("something"), "not the challenge"),
        (said(""), "not the challenge"),
        (said(NONCE[:-1]), "not the challenge"),
        (said(NONCE.upper()), "not the challenge"),
        (said(f"you asked for {NONCE}"), "not the challenge"),
        (said(NONCE, "text/html"), "'text/html'"),
        (said(json.dumps({"challenge": [NONCE]}), "application/json"), "not the challenge"),
        (said(json.dumps([NONCE]), "application/json"), "not the challenge"),
        (said(NONCE, "application/json"), "not the challenge"),
        (said("[" * 4000, "application/json"), "not the challenge"),
        (said(b"\xff\xfe"), "not the challenge"),
        (said(NONCE + " " * MOST_BYTES), "bytes"),
        (Response(200, {}, NONCE.encode(), truncated=True), "cut"),
        (said(NONCE, status=201), "201"),
        (said(NONCE, status=404), "404"),
        (said("", status=302, location="https://elsewhere.example/"), "Location: https://elsewhere.example/"),
        (NoResponse("blocked", "10.0.0.1 is private", sent=False), "blocked"),
        (NoResponse("timeout", "no answer within 10 s", sent=True), "no answer within 10 s"),
    ],
)
def test_nothing_else_is(answer: Exchange, why: str) -> None:
    assert why in (asked("challenge").judge(answer).fault or "")


# hmac


def answered(nonce: str, own: str = THEIRS, secret: str = SECRET, *, encoded: str = "hex") -> str:
    mac = hmac.new(secret.encode(), f"relay-verification-answer\n{nonce}\n{own}".encode(), hashlib.sha256)
    signature = mac.hexdigest() if encoded == "hex" else base64.b64encode(mac.digest()).decode()
    return json.dumps({"nonce": own, "signature": signature})


def test_a_nonce_is_posted_signed_as_messages_are() -> None:
    request = asked("hmac").request
    headers = dict(request.headers)
    assert (request.method, request.url, request.timeout_s) == ("POST", URL, 10.0)
    assert json.loads(request.body) == {"type": "relay.verification", "nonce": NONCE}
    assert headers["ce-type"] == "relay.verification"
    assert verify_standard([SECRET], headers, request.body, NOW)


@pytest.mark.parametrize("encoded", ["hex", "base64"])
def test_a_signature_of_both_nonces_is_a_proof(encoded: str) -> None:
    assert asked("hmac").judge(said(answered(NONCE, encoded=encoded), "application/json")) == Verdict(None)


def test_the_sink_answers_so() -> None:
    shaken = asked("hmac")
    answer = signed_answer(shaken.request.body, SECRET, THEIRS)
    assert answer is not None
    assert shaken.judge(said(answer, "application/json")) == Verdict(None)


def test_while_a_secret_is_rotated_both_prove_it() -> None:
    rotating = SigningPolicy(secrets=("new",), former=(FormerSecret(SECRET, NOW + 60), FormerSecret("older", NOW - 1)))
    judge = asked("hmac", signing=rotating).judge
    for secret, proves in (("new", True), (SECRET, True), ("older", False)):
        verdict = judge(said(answered(NONCE, secret=secret), "application/json"))
        assert (verdict.fault is None) is proves


def _reflected() -> str:
    """Our own signature, of the POST, and our nonce."""
    headers = dict(asked("hmac").request.headers)
    return json.dumps({"nonce": NONCE, "signature": headers["webhook-signature"].removeprefix("v1,")})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (_reflected(), "its nonce is ours, or not 16"),
        (answered(NONCE, NONCE), "its nonce is ours, or not 16"),
        (answered(NONCE, "short"), "its nonce is ours, or not 16"),
        (answered(NONCE, "with a line\nbreak-0123456789"), "its nonce is ours, or not 16"),
        (answered(NONCE, secret="another"), "its signature"),
        (answered("another-nonce-0123456789"), "its signature"),
        (json.dumps({"nonce": THEIRS, "signature": "zz" * 32}), "its signature"),
        (json.dumps({"nonce": THEIRS, "signature": ""}), "its signature"),
        (json.dumps({"nonce": THEIRS, "signature": "é"}), "its signature"),
        (json.dumps({"nonce": THEIRS}), "not JSON"),
        (asked("hmac").request.body.decode(), "not JSON"),
        ("no JSON", "not JSON"),
    ],
)
def test_no_other_signature_is(body: str, why: str) -> None:
    assert why in (asked("hmac").judge(said(body, "application/json")).fault or "")


def test_without_secrets_nothing_is_proved() -> None:
    judge = asked("hmac", signing=SigningPolicy()).judge
    assert judge(said(answered(NONCE, secret=""), "application/json")).fault is not None


# cloudevents


@pytest.mark.parametrize(
    ("limit", "rate"), [({}, None), ({"rate_limit": 2}, "120"), ({"rate_limit": 1, "window_size": 3600.0}, "1")]
)
def test_consent_is_asked_for_at_the_receivers_rate(limit: Mapping[str, Any], rate: str | None) -> None:
    request = asked("cloudevents", **limit).request
    headers = dict(request.headers)
    assert (request.method, request.url) == ("OPTIONS", URL)
    assert (headers["webhook-request-origin"], headers.get("webhook-request-rate")) == ("relay.example", rate)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"webhook_allowed_origin": "relay.example", "webhook_allowed_rate": "120"}, 120),
        ({"webhook_allowed_origin": "Relay.Example", "webhook_allowed_rate": "*"}, None),
        ({"webhook_allowed_origin": "*"}, None),
    ],
)
def test_consent_is_in_the_headers(headers: dict[str, str], allowed: int | None) -> None:
    for status in (200, 204):
        assert asked("cloudevents").judge(said("", None, status, **headers)) == Verdict(None, allowed)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (said("", allow="POST"), "no WebHook-Allowed-Origin"),
        (said("", webhook_allowed_origin="other.example"), "it allows 'other.example'"),
        (said("", webhook_allowed_origin="*", webhook_allowed_rate="0"), "WebHook-Allowed-Rate"),
        (said("", webhook_allowed_origin="*", webhook_allowed_rate="many"), "WebHook-Allowed-Rate"),
        (said("", status=405, webhook_allowed_origin="*"), "405"),
        (said("", status=301, webhook_allowed_origin="*"), "301"),
    ],
)
def test_no_other_answer_is_consent(answer: Response, why: str) -> None:
    assert why in (asked("cloudevents").judge(answer).fault or "")
