"""`relay.receiver.verify`: what it takes, and what it refuses; signed by the library of Standard Webhooks."""

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook as Standard

from relay.receiver import InvalidSignature, verify

SECRET = "whsec_" + "A" * 32
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
