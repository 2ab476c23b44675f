"""The stored result of a receiver's verification: what it proves, when to try again, and its effect on the receiver."""

import json
from dataclasses import replace
from math import inf

import pytest

from relay.domain.control_key import decode_value, encode_value
from relay.domain.errors import InvalidRecord
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.verification import (
    GIVEN_UP_S,
    LONGEST_WAIT_S,
    HandshakeResult,
    failed,
    handshake_of,
    next_try,
    with_proof,
)

URL = "https://ci.example/hooks"
NOW = 1_700_000_000.0
OF = handshake_of("challenge", URL)
PROOF = HandshakeResult(OF, NOW, NOW)
CI = Receiver("ci", Endpoint(URL), verification="challenge", verified=False)


@pytest.mark.parametrize(
    "other",
    [
        "http://ci.example/hooks",
        "https://ci.example:8443/hooks",
        "https://cd.example/hooks",
        "https://ci.example/hook",
        "https://ci.example/",
    ],
)
def test_a_proof_is_of_one_url_and_one_kind(other: str) -> None:
    assert handshake_of("challenge", other) != OF
    assert handshake_of("hmac", URL) != OF
    moved = replace(CI, post=Endpoint(other))
    assert with_proof(CI, PROOF).verified
    assert not with_proof(moved, PROOF).verified
    assert not with_proof(replace(CI, verification="hmac"), PROOF).verified


@pytest.mark.parametrize(
    "same", ["https://CI.example/hooks", "https://ci.example:443/hooks", "https://ci.example/hooks?tenant=1"]
)
def test_the_same_place_spelled_otherwise_is_the_same(same: str) -> None:
    assert handshake_of("challenge", same) == OF


def test_nobody_is_verified_by_a_failure_or_by_nothing() -> None:
    assert not with_proof(CI, failed(OF, "404", NOW, None)).verified
    assert not with_proof(CI, None).verified
    assert with_proof(replace(CI, verification="none", verified=True), None).verified


def test_what_is_asked_of_nobody_is_no_loss() -> None:
    receiver = replace(CI, verified=True)  # whichever process resolved it
    assert not with_proof(receiver, None).verified


def test_failures_are_followed_by_longer_and_longer_waits_until_nobody_tries() -> None:
    result: HandshakeResult | None = None
    now, waits = NOW, []
    for _ in range(14):
        result = failed(OF, "no", now, result)
        waits.append(next_try(result) - now)
        now = next_try(result)
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert waits[-1] == LONGEST_WAIT_S
    assert result is not None
    assert (result.failures, result.failing_since) == (14, NOW)
    assert next_try(failed(OF, "no", NOW + GIVEN_UP_S, result)) == inf


def test_of_another_url_the_waits_begin_anew() -> None:
    before = failed(OF, "no", NOW - 100, failed(OF, "no", NOW - 200, None))
    other = handshake_of("challenge", "https://cd.example/")
    assert failed(other, "no", NOW, before) == HandshakeResult(other, NOW, None, 1, NOW, "no")
    assert failed(OF, "no", NOW, PROOF).failures == 1


def test_the_url_is_sent_no_more_than_it_has_agreed_to() -> None:
    agreed = replace(PROOF, of=handshake_of("cloudevents", URL), allowed_rate=90, origin="relay.example")
    fast = Receiver("ci", Endpoint(URL, rate_limit=100), verification="cloudevents")
    free = replace(fast, post=Endpoint(URL))
    slow = replace(fast, post=Endpoint(URL, rate_limit=1, window_size=2.0))
    for receiver in (fast, free):
        post = with_proof(receiver, agreed).post
        assert (post.rate_limit, post.window_size) == (90, 60.0)
    post = with_proof(slow, agreed).post
    assert (post.rate_limit, post.window_size) == (1, 2.0)
    assert post.headers == (("webhook-request-origin", "relay.example"),)


def test_a_record_is_read_as_it_was_written() -> None:
    for result in (PROOF, failed(OF, "it said no", NOW, None), replace(PROOF, allowed_rate=7, origin="relay")):
        assert decode_value(HandshakeResult, encode_value(result)) == result
    newer = json.loads(encode_value(PROOF)) | {"more": 1}
    assert decode_value(HandshakeResult, json.dumps(newer).encode()) == PROOF


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'{"of": "a", "tried_at": "x"}', b'{"of": "a", "tried_at": 1, "verified_at": NaN}']
)
def test_what_is_no_record_is_no_proof(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_value(HandshakeResult, value)
