"""What went wrong with a request, in words: where it went, what came back, and no secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.exchange import NoResponse, Response
from relay.domain.receiver import Endpoint
from relay.domain.shown_exchange import SHOWN_BYTES, failure_detail

CI = Endpoint("https://ci.example/hooks", secrets=("s3cret-token",))


def of(status: int, body: bytes = b"", **headers: str) -> str:
    return failure_detail(Response(status, headers, body), CI)


def test_where_it_went_and_what_came_back() -> None:
    assert of(500, b'{"error": "no disk"}') == 'POST https://ci.example/hooks: 500: {"error": "no disk"}'
    assert of(401) == "POST https://ci.example/hooks: 401"


def test_a_redirect_says_where_to() -> None:
    assert of(302, location="https://login.example/") == (
        "POST https://ci.example/hooks: 302, Location: https://login.example/"
        " (redirects are not followed; give the final URL)"
    )
    asked = failure_detail(Response(303, {}, b""), CI, url="https://ci.example/hooks/m-1", method="GET")
    assert asked == "GET https://ci.example/hooks/m-1: 303 (redirects are not followed; give the final URL)"
    assert of(304) == "POST https://ci.example/hooks: 304"
    assert "login" not in of(201, location="https://login.example/")


def test_no_response_says_why_there_is_none() -> None:
    refused = NoResponse("connect_timeout", "no connection within 5 s", sent=False)
    assert failure_detail(refused, CI) == "POST https://ci.example/hooks: connect timeout: no connection within 5 s"
    asked = failure_detail(refused, CI, url="https://ci.example/hooks/m-1", method="GET")
    assert asked.startswith("GET https://ci.example/hooks/m-1: ")


def test_secrets_are_masked_in_the_url_and_in_what_is_echoed() -> None:
    endpoint = Endpoint("https://me:pass@ci.example/hooks?token=abcd1234", secrets=("abcd1234", "s3cret-token"))
    told = failure_detail(Response(403, {}, b"bad token s3cret-token, not abcd1234"), endpoint)
    for secret in ("pass@", "abcd1234", "s3cret-token"):
        assert secret not in told
    assert "ci.example" in told
    assert "bad token" in told


@pytest.mark.parametrize("start", [0, 200, SHOWN_BYTES - 12, SHOWN_BYTES - 5, SHOWN_BYTES - 1, SHOWN_BYTES, 3000])
def test_a_secret_is_masked_wherever_the_cut_falls(start: int) -> None:
    told = of(400, b"x" * start + b"s3cret-token" + b"y" * 10_000)
    assert "s3c" not in told


@given(st.binary(max_size=2_000))
def test_the_body_is_short_and_printable_whatever_it_is(body: bytes) -> None:
    told = of(422, body)
    assert told.isprintable()
    assert len(told.encode()) <= len("POST https://ci.example/hooks: 422: ") + SHOWN_BYTES + len("...")
