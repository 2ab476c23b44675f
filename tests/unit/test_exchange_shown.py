"""What people see of a request and its response: bounded, and nothing that is secret."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from relay.api.trial import SHOWN_BYTES, failure_view, request_view, response_view
from relay.domain.exchange import NoResponse, Request, Response
from relay.domain.receiver import Endpoint
from relay.domain.requests import ping_request
from relay.domain.shown_exchange import MOST_HEADERS, MOST_VALUE, failure_detail
from tests.expecting import present

SECRET = "s3cret-token"
CI = Endpoint(
    f"https://me:pass@ci.example/hooks?token={SECRET}&page=1",
    headers=(("X-Team", "team-1"), ("authorization", f"Bearer {SECRET}")),
    secrets=(SECRET,),
)
SENT = Request("POST", CI.url, ())


def shown(body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({}), *, cut: bool = False) -> dict[str, Any]:
    view = present(response_view(Response(200, headers, body, cut), CI))
    return dict(view)


def test_a_request_is_shown_without_its_secrets() -> None:
    view = request_view(ping_request(CI, "1", now=1, user_agent=f"relay/{SECRET}"), CI)
    assert view["url"] == "https://********@ci.example/hooks?token=********&page=1"
    assert view["headers"]["X-Team"] == view["headers"]["authorization"] == "********"
    assert view["headers"]["webhook-id"] == "ping_1"
    assert SECRET not in str(view)


def test_what_a_message_brought_along_is_masked_by_its_name_and_an_answer_url_has_no_token() -> None:
    headers = (
        ("webhook-signature", "v1,abc"),
        ("relay-answer-url", "https://us.example/relay/v1/answers/dG9rZW4"),
        ("x-api-key", "of the sender"),
        ("x-link", "https://x.example/?token=1"),
        ("x-long", "v" * 10_000),
    )
    shown = request_view(Request("POST", CI.url, headers), CI)["headers"]
    assert list(shown.items()) == [
        ("webhook-signature", "v1,abc"),  # it proves one body, for minutes
        ("relay-answer-url", "https://us.example/relay/v1/answers/********"),
        ("x-api-key", "********"),
        ("x-link", "https://x.example/?token=********"),
        ("x-long", "v" * MOST_VALUE),
    ]


def test_a_response_is_shown_without_the_secrets_that_it_repeats() -> None:
    headers = {"server": "nginx", "location": f"https://x.example/?sig={'a1' * 9}", "echo": SECRET}
    view = shown(b"no " + SECRET.encode(), headers)
    assert (view["status"], view["body"], view["truncated"]) == (200, "no ********", False)
    assert view["headers"] == {"server": "nginx", "location": "https://x.example/?sig=********", "echo": "********"}
    assert shown(b"", {"set-cookie": "session=1"})["headers"] == {"set-cookie": "********"}


def test_a_location_without_an_origin_is_a_url_like_any_other() -> None:
    for location in ("/status/4711?token=abc", "status?key=abc", "//ci.example/?token=abc"):
        assert shown(headers={"location": location})["headers"] == {"location": location.replace("abc", "********")}


@pytest.mark.parametrize("start", [0, SHOWN_BYTES - 5, SHOWN_BYTES - 1, SHOWN_BYTES, 2 * SHOWN_BYTES - 5])
def test_of_a_large_body_the_beginning_is_shown_and_no_part_of_a_secret(start: int) -> None:
    view = shown(b"x" * start + SECRET.encode() + b"y" * 100_000)
    assert len(view["body"].encode()) <= SHOWN_BYTES
    assert "s3c" not in view["body"]
    assert view["truncated"]


def test_bytes_that_are_no_text_and_a_body_that_was_cut() -> None:
    assert shown(b"\xff\x00ok") == {"status": 200, "headers": {}, "body": "\ufffd\x00ok", "truncated": False}
    assert shown(b"{", cut=True)["truncated"] is True


@pytest.mark.parametrize(
    "said",
    [
        '{"relay-answer-url": "https://us.example/relay/v1/answers/dG9rZW4-x_y"}',
        r'{"relay-payload-url": "https:\/\/us.example\/v1\/payloads\/dG9rZW4-x_y"}',
        "/build?back=https%3A%2F%2Fus.example%2Fv1%2Fanswers%2FdG9rZW4-x_y&page=1",
    ],
)
def test_a_response_that_repeats_an_answer_url_is_shown_without_its_token(said: str) -> None:
    response = Response(500, {}, said.encode())
    for text in (shown(said.encode())["body"], failure_detail(response, CI)):
        assert said.replace("dG9rZW4-x_y", "********") in text


def test_headers_are_few_and_short() -> None:
    headers = shown(b"", {f"x-{number}": "v" * 10_000 for number in range(500)})["headers"]
    assert (len(headers), {len(value) for value in headers.values()}) == (MOST_HEADERS, {MOST_VALUE})


def test_a_failure_is_told_as_deliveries_tell_it() -> None:
    failed = NoResponse("connect_timeout", f"no connection within 5 s, {SECRET}", sent=False)
    assert response_view(failed, CI) is None
    view = present(failure_view(failed, CI, SENT))
    assert (view["kind"], view["sent"]) == ("connect_timeout", False)
    assert view["detail"].endswith("connect timeout: no connection within 5 s, ********")
    assert failure_view(Response(500, {}, b""), CI, SENT) is None
