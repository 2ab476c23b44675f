"""`relay.receiver.verify`: what it takes, and what it refuses; signed by the library of Standard Webhooks."""

import base64
import time
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook as Standard

from relay.domain.http_message import sign_message
from relay.domain.receiver import SigningPolicy
from relay.domain.signing import public_key
from relay.receiver import InvalidSignature, verify

SECRET = "whsec_" + "A" * 32
PRIVATE = "whsk_" + base64.b64encode(bytes(range(32))).decode()
BODY = b'{"ref": "refs/heads/main"}'


def signed(*, age: timedelta = timedelta(), secret: str = SECRET) -> dict[str, str]:
    at = datetime.now(UTC) - age
    signature = Standard(secret).sign("msg_1", at, BODY.decode())
    return {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(int(at.timestamp())),
        "Webhook-Signature": signature,
        "ce-id": "a%20b",
        "ce-source": "github",
        "ce-type": "push",
        "relay-attempt": "2",
        "relay-answer-url": "https://relay.example/v1/answers/t",
    }


def test_a_signed_delivery_is_returned_with_its_attributes_decoded() -> None:
    hook = verify(SECRET, signed(), BODY)
    assert (hook.webhook_id, hook.source, hook.message_id, hook.type, hook.attempt) == (
        "msg_1",
        "github",
        "a b",
        "push",
        2,
    )
    assert hook.answer_url == "https://relay.example/v1/answers/t"
    assert hook.json() == {"ref": "refs/heads/main"}


def signed_as_a_whole(secret: str, url: str) -> dict[str, str]:
    kind = "private_keys" if secret == PRIVATE else "secrets"
    policy = SigningPolicy(("http-message",), **{kind: (secret,)})  # type: ignore[arg-type]
    fields = (("webhook-id", "msg_1"), ("content-type", "application/json"))
    made = sign_message(policy, method="POST", url=url, fields=fields, body=BODY, created=int(time.time()))
    return {**dict(fields), **dict(made), "ce-id": "m"}


@pytest.mark.parametrize("secret", [SECRET, PRIVATE])
def test_a_signature_over_the_whole_request_counts_where_its_url_is_given(secret: str) -> None:
    url = "https://ci.example/hooks/a%20b?x=%2F"
    headers, known = signed_as_a_whole(secret, url), SECRET if secret == SECRET else public_key(PRIVATE)
    assert verify(known, headers, BODY, url=url).message_id == "m"
    for wrong in ({"url": url + "2"}, {"url": url, "method": "PUT"}, {"url": None}):
        with pytest.raises(InvalidSignature):
            verify(known, headers, BODY, **wrong)
    with pytest.raises(InvalidSignature):
        verify(known, headers, BODY + b" ", url=url)


@pytest.mark.parametrize("host", ["ci.example:x", "ci.example:99999", "[::1", "[x]", "\u2100.com", ""])
def test_a_malformed_host_is_no_other_error(host: str) -> None:
    headers = signed_as_a_whole(SECRET, "https://ci.example/hooks")
    with pytest.raises(InvalidSignature):
        verify(SECRET, headers, BODY, url=f"https://{host}/hooks")


def test_a_number_of_an_attempt_that_is_none_is_no_other_error() -> None:
    for attempt in ("9" * 5_000, "x", "²"):
        assert verify(SECRET, signed() | {"relay-attempt": attempt}, BODY).attempt == 1


def test_a_ping_has_no_message() -> None:
    bare = {name: value for name, value in signed().items() if name.startswith("Webhook")}
    hook = verify(SECRET, bare, BODY)
    assert (hook.source, hook.message_id, hook.answer_url, hook.attempt) == (None, None, None, 1)


def test_one_of_several_secrets_is_enough() -> None:
    assert verify(["whsec_" + "B" * 32, SECRET], signed(), BODY).webhook_id == "msg_1"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (signed(), BODY + b" "),
        (signed(secret="whsec_" + "B" * 32), BODY),
        (signed(age=timedelta(minutes=6)), BODY),
        ({}, BODY),
        ({"webhook-id": "m", "webhook-timestamp": "x", "webhook-signature": "v1,"}, BODY),
    ],
)
def test_everything_else_is_refused(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(InvalidSignature):
        verify(SECRET, headers, body)


def test_an_unsigned_request_is_named_as_such() -> None:
    with pytest.raises(InvalidSignature, match="not signed: it has no header webhook-timestamp, webhook-signature"):
        verify("whsec_" + "A" * 32, {"Webhook-Id": "msg_1"}, b"{}")
