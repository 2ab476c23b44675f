"""Tokens of answer URLs: they say what they were issued for, until they expire, and cannot be made up."""

import base64
import hmac
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.answer_token import TokenExpired, TokenInvalid, issue, issue_for_payload, read, read_for_payload
from relay.domain.errors import RelayError
from relay.domain.identity import DeliveryId

SECRET = b"k" * 32
DELIVERY = DeliveryId("ci", "github", "m-1")
EXPIRES = 1_700_000_000

ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60)
names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
deliveries = st.builds(DeliveryId, names, ids, ids)


@given(st.binary(min_size=16), deliveries, st.integers(0, 2**53), st.integers(1, 2**53))
def test_a_token_says_what_it_was_issued_for(
    secret: bytes, delivery: DeliveryId, generation: int, expires: int
) -> None:
    token = issue(secret, delivery, generation, expires)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    assert read((secret,), token, expires - 1) == (delivery, generation)
    with pytest.raises(TokenExpired):
        read((secret,), token, expires)


@given(st.binary(min_size=16), deliveries, names, st.integers(1, 2**53))
def test_a_token_of_a_payload_reads_that_and_nothing_else(
    secret: bytes, delivery: DeliveryId, life: str, expires: int
) -> None:
    token = issue_for_payload(secret, delivery, life, expires)
    assert read_for_payload((secret,), token, expires - 1) == (delivery, life)
    with pytest.raises(TokenExpired):
        read_for_payload((secret,), token, expires)
    with pytest.raises(TokenInvalid):
        read((secret,), token, 0)
    with pytest.raises(TokenInvalid):
        read_for_payload((secret,), issue(secret, delivery, 0, expires), 0)


def test_the_longest_ids_fit() -> None:
    delivery = DeliveryId("r" * 63, "é" * 128, "m" * 256)
    assert read((SECRET,), issue(SECRET, delivery, 0, EXPIRES), 0) == (delivery, 0)


def test_usual_tokens_are_compact() -> None:
    assert len(issue(SECRET, DELIVERY, 0, EXPIRES)) < 70


@given(st.data())
def test_any_change_of_any_character_is_noticed(data: st.DataObject) -> None:
    token = issue(SECRET, DELIVERY, 0, EXPIRES)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda character: character != token[at]))
    with pytest.raises(TokenInvalid):
        read((SECRET,), token[:at] + other + token[at + 1 :], 0)


@given(st.text(max_size=200))
def test_what_was_made_up_is_invalid(token: str) -> None:
    with pytest.raises(TokenInvalid):
        read((SECRET,), token, 0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token[4:],
        lambda token: token + "A",
        lambda token: token + "=",
        lambda token: token + "\n",
        lambda token: " " + token,
        lambda token: token[:10] + "!" + token[10:],
        lambda token: token * 100,
        lambda token: "\udcff" + token,
    ],
)
def test_a_spoilt_token_is_invalid(spoil: Callable[[str], str]) -> None:
    with pytest.raises(TokenInvalid):
        read((SECRET,), spoil(issue(SECRET, DELIVERY, 0, EXPIRES)), 0)


def test_a_forged_token_is_invalid_rather_than_expired() -> None:
    with pytest.raises(TokenInvalid):
        read((b"another",), issue(SECRET, DELIVERY, 0, EXPIRES), EXPIRES + 1)


def test_a_plain_mac_with_the_same_key_is_no_token() -> None:
    text = "\0".join(("0", str(EXPIRES), *DELIVERY)).encode()
    forged = hmac.digest(SECRET, text, "sha256")[:16] + text
    with pytest.raises(TokenInvalid):
        read((SECRET,), base64.urlsafe_b64encode(forged).decode().rstrip("="), 0)


def test_both_errors_are_ours() -> None:
    assert issubclass(TokenInvalid, RelayError)
    assert issubclass(TokenExpired, RelayError)


def test_while_secrets_are_changed_tokens_of_both_are_good() -> None:
    old, new = b"o" * 32, b"n" * 32
    tokens = [issue(secret, DELIVERY, 0, EXPIRES) for secret in (old, new)]
    for secrets in ((old, new), (new, old)):
        assert [read(secrets, token, 0) for token in tokens] == [(DELIVERY, 0)] * 2
    with pytest.raises(TokenInvalid):
        read((new,), tokens[0], 0)


def test_without_a_secret_nothing_is_a_token() -> None:
    with pytest.raises(TokenInvalid):
        read((), issue(b"", DELIVERY, 0, EXPIRES), 0)
