"""OAuth 2.0 client credentials: the request to a token endpoint, and the meaning of its response."""

import base64
import json
from dataclasses import replace
from urllib.parse import parse_qs

import pytest

from relay.delivery.oauth2 import Grant, Refusal, grant_of, token_request
from relay.domain.egress import OAuth2
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.incident_kinds import failure_in, kind_of_attempt
from relay.domain.receiver import Endpoint
from relay.domain.shown_exchange import failure_detail

OAUTH2 = OAuth2("https://idp.example/token?tenant=1", "rel ay:1", "hunter2&", "read write", "https://ci.example")
WHERE = "the token endpoint https://idp.example/token?tenant=1"


def answer(status: int = 200, **said: object) -> Response:
    return Response(status, {}, json.dumps(said).encode())


def test_credentials_in_a_header() -> None:
    request = token_request(OAUTH2)
    headers = dict(request.headers)
    login = base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode()
    assert login == "rel+ay%3A1:hunter2%26"  # RFC 6749, 2.3.1
    assert headers["content-type"] == "application/x-www-form-urlencoded"
    assert (request.method, request.url) == ("POST", OAUTH2.token_url)
    assert parse_qs(request.body.decode()) == {
        "grant_type": ["client_credentials"], "scope": ["read write"], "audience": ["https://ci.example"]
    }  # fmt: skip


def test_credentials_in_the_body() -> None:
    request = token_request(replace(OAUTH2, auth="body", scope=None, audience=None))
    assert "authorization" not in dict(request.headers)
    assert parse_qs(request.body.decode()) == {
        "grant_type": ["client_credentials"], "client_id": ["rel ay:1"], "client_secret": ["hunter2&"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "life_s"),
    [
        ({"expires_in": 300}, 300),
        ({"expires_in": "300"}, 300),
        ({"expires_in": 1e99}, 86_400),
        ({"expires_in": -1}, 0),
        ({"expires_in": float("nan")}, 3600),
        ({"expires_in": "soon"}, 3600),
        ({"expires_in": 10**400}, 3600),
        ({}, 3600),
        ({"token_type": "bearer"}, 3600),
    ],
)
def test_a_grant(said: dict[str, object], life_s: float) -> None:
    assert grant_of(Response(200, {}, json.dumps({"access_token": "t-1", **said}).encode()), OAUTH2) == Grant(
        "t-1", life_s
    )


@pytest.mark.parametrize(
    ("exchange", "detail"),
    [
        (answer(401, error="invalid_client", error_description="x"), f"{WHERE} answered 401 invalid_client"),
        (answer(400, error=["x"]), f"{WHERE} answered 400"),
        (Response(302, {}, b"[1]"), f"{WHERE} answered 302"),
        (Response(200, {}, b"<html>"), f"{WHERE}: its answer has no usable access_token"),
        (answer(access_token="a b"), f"{WHERE}: its answer has no usable access_token"),
        (answer(access_token="a\r\nx: y"), f"{WHERE}: its answer has no usable access_token"),
        (answer(access_token="a", token_type="mac"), f"{WHERE}: its token is not of type Bearer"),
        (
            Response(200, {}, b'{"access_token": "a', truncated=True),
            f"{WHERE}: its answer is longer than RELAY_ANSWER_BODY_CAP, or was cut off",
        ),
    ],
)
def test_no_token(exchange: Exchange, detail: str) -> None:
    assert grant_of(exchange, OAUTH2) == Refusal("no_token", detail)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_token_endpoint_that_fails_does_not_reject_the_credentials(status: int) -> None:
    found = grant_of(answer(status, error="x"), OAUTH2)
    assert found == Refusal("token_unavailable", f"{WHERE} answered {status} x")
    assert kind_of_attempt(None, "token_unavailable") == "failing"
    endpoint = Endpoint("https://ci.example/hooks")
    assert failure_in(failure_detail(NoResponse(found.kind, found.detail, sent=False), endpoint)) == found.kind


@pytest.mark.parametrize(
    ("kind", "is_shown_as", "incident"),
    [
        ("dns", "dns", "dns"),
        ("refused", "refused", "failing"),  # also by a proxy
        ("no_proxy", "no_proxy", "failing"),
        ("connect_timeout", "connect_timeout", "failing"),
        ("blocked", "no_token", "credentials"),
    ],
)
def test_a_token_endpoint_that_is_not_reached_does_not_reject_the_credentials(
    kind: str, is_shown_as: str, incident: str
) -> None:
    found = grant_of(NoResponse(kind, "why", sent=False), OAUTH2)
    assert found == Refusal(is_shown_as, f"{WHERE}: {kind.replace('_', ' ')}: why")
    assert kind_of_attempt(None, is_shown_as) == incident


def test_what_is_our_own_doing_stays_so() -> None:
    found = grant_of(NoResponse("no_resources", "too many open files", sent=False), OAUTH2)
    assert isinstance(found, Refusal)
    assert found.kind == "no_resources"


def test_no_secret_is_shown() -> None:
    assert "hunter2" not in repr(OAUTH2)
