"""Webhooks of others: published examples of each scheme, libraries that are there, and forgery of every kind."""

import base64
import hmac
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from relay.domain import inbound
from relay.domain.errors import InvalidRecord
from relay.domain.inbound import Challenge, InboundEvent, read_event, standard_headers, verify
from relay.domain.receiver import Inbound, InboundKind, SigningPolicy
from relay.domain.signing import sign
from relay.sink import samples

NOW = 1_700_000_000
BODY = b'{"a":1}'
WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
    b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121."
    b"803a0bc887a14d10d2c447fce8b6703c"
)
"""Of Slack's manual, "Verifying requests from Slack"."""


def _hmac(secret: str, content: bytes, digest: str = "sha256") -> bytes:
    return hmac.new(secret.encode(), content, digest).digest()


def github(secret: str, body: bytes, at: int) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + _hmac(secret, body).hex()}


def stripe(secret: str, body: bytes, at: int) -> dict[str, str]:
    return {"stripe-signature": f"t={at},v0=00,v1={_hmac(secret, b'%d.%b' % (at, body)).hex()}"}


def slack(secret: str, body: bytes, at: int) -> dict[str, str]:
    signature = "v0=" + _hmac(secret, b"v0:%d:%b" % (at, body)).hex()
    return {"x-slack-signature": signature, "x-slack-request-timestamp": str(at)}


def standard(secret: str, body: bytes, at: int) -> dict[str, str]:
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(at, UTC), body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signature}


def svix(secret: str, body: bytes, at: int) -> dict[str, str]:
    return {name.replace("webhook-", "svix-"): value for name, value in standard(secret, body, at).items()}


def bearer(secret: str, body: bytes, at: int) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def gitlab(secret: str, body: bytes, at: int) -> dict[str, str]:
    return {"x-gitlab-token": secret}


def generic(secret: str, body: bytes, at: int) -> dict[str, str]:
    return {"x-signature": "hmac " + base64.b64encode(_hmac(secret, body, "sha512")).decode()}


Sign = Callable[[str, bytes, int], dict[str, str]]
GENERIC = Inbound("generic", header="X-Signature", digest="sha512", encoding="base64", prefix="hmac ")
SECRETS = ("the new secret", "the old secret")
WHSECS = (WHSEC, "whsec_" + base64.b64encode(bytes(range(32))).decode())
SCHEMES: list[tuple[Inbound, Sign]] = [
    (Inbound("github", SECRETS), github),
    (Inbound("gitlab", SECRETS), gitlab),
    (Inbound("stripe", SECRETS), stripe),
    (Inbound("slack", SECRETS), slack),
    (Inbound("standard", WHSECS), standard),
    (Inbound("standard", WHSECS), svix),
    (Inbound("cloudevents", SECRETS), bearer),
    (replace(GENERIC, kind="cloudevents", secrets=SECRETS), generic),
    (replace(GENERIC, secrets=SECRETS), generic),
]
TIMED = [scheme for scheme in SCHEMES if scheme[0].kind in ("stripe", "slack", "standard")]
OVER_THE_BODY = [scheme for scheme in SCHEMES if scheme[1] not in (bearer, gitlab)]


def _each(schemes: list[tuple[Inbound, Sign]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("policy", "sign_as"), schemes, ids=lambda value: getattr(value, "__name__", None))


@_each(SCHEMES)
def test_each_of_several_secrets_will_do_and_no_other(policy: Inbound, sign_as: Sign) -> None:
    for secret in policy.secrets:
        assert verify(policy, sign_as(secret, BODY, NOW), BODY, NOW) is None
    other = "whsec_" + base64.b64encode(bytes(32)).decode()
    assert verify(policy, sign_as(other, BODY, NOW), BODY, NOW) == "wrong"
    assert (
        verify(replace(policy, secrets=policy.secrets[:1]), sign_as(policy.secrets[1], BODY, NOW), BODY, NOW) == "wrong"
    )
    assert verify(replace(policy, secrets=()), sign_as(policy.secrets[0], BODY, NOW), BODY, NOW) == "wrong"


@_each(SCHEMES)
def test_without_any_of_its_headers_it_is_refused(policy: Inbound, sign_as: Sign) -> None:
    signed = sign_as(policy.secrets[0], BODY, NOW)
    for name in signed:
        assert verify(policy, {other: signed[other] for other in signed if other != name}, BODY, NOW) == "missing"
    assert verify(policy, {}, BODY, NOW) == "missing"


@_each(SCHEMES)
def test_a_header_that_is_changed_anywhere_is_refused(policy: Inbound, sign_as: Sign) -> None:
    signed = sign_as(policy.secrets[0], BODY, NOW)
    for name, value in signed.items():
        for changed in (
            "",
            " ",
            "=",
            value[:-3],
            "x" + value,
            value + "A0",
            value[:9] + "é" + value[9:],
            "\udc80",
            "٣",
        ):
            assert verify(policy, signed | {name: changed}, BODY, NOW) is not None, (name, changed)


@_each(OVER_THE_BODY)
def test_another_body_is_refused(policy: Inbound, sign_as: Sign) -> None:
    signed = sign_as(policy.secrets[0], BODY, NOW)
    for body in (b"", BODY + b" ", b" " + BODY, BODY.replace(b"1", b"2"), b"\xff" + BODY):
        assert verify(policy, signed, body, NOW) == "wrong"


@_each(TIMED)
def test_the_time_may_be_so_far_away_and_no_further(policy: Inbound, sign_as: Sign) -> None:
    signed = sign_as(policy.secrets[0], BODY, NOW)
    assert [verify(policy, signed, BODY, NOW + late) for late in (-300, 300)] == [None, None]
    assert [verify(policy, signed, BODY, NOW + late) for late in (-301, 301)] == ["old", "old"]
    assert verify(replace(policy, tolerance_s=10.0), signed, BODY, NOW + 11) == "old"


@_each(TIMED)
def test_a_new_time_on_an_old_signature_is_wrong(policy: Inbound, sign_as: Sign) -> None:
    old = sign_as(policy.secrets[0], BODY, NOW - 1_000)
    renewed = {name: value.replace(str(NOW - 1_000), str(NOW)) for name, value in old.items()}
    assert renewed != old
    assert verify(policy, renewed, BODY, NOW) == "wrong"


def test_the_example_of_github() -> None:
    signed = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    policy = Inbound("github", ("It's a Secret to Everybody",))
    assert verify(policy, signed, b"Hello, World!", NOW) is None
    assert verify(policy, signed, b"Hello, World.", NOW) == "wrong"


def test_the_old_signature_of_github_proves_nothing() -> None:
    signed = {"x-hub-signature": "sha1=" + _hmac("s", BODY, "sha1").hex()}
    assert verify(Inbound("github", ("s",)), signed, BODY, NOW) == "missing"
    under_the_new_name = {"x-hub-signature-256": signed["x-hub-signature"]}
    assert verify(Inbound("github", ("s",)), under_the_new_name, BODY, NOW) == "wrong"


def test_the_example_of_slack() -> None:
    signed = {
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        "x-slack-request-timestamp": "1531420618",
    }
    policy = Inbound("slack", ("8f742231b10e8888abcd99yyyzzz85a5",))
    assert verify(policy, signed, SLACK_BODY, 1_531_420_618) is None
    assert verify(policy, signed, SLACK_BODY, 1_531_421_000) == "old"


def test_the_example_of_the_standard_webhooks_libraries() -> None:
    signed = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1a,x v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert verify(Inbound("standard", (WHSEC,)), signed, b'{"test": 2432232314}', 1_614_265_330) is None


def test_stripe_signs_with_each_secret_while_it_rotates_and_v0_proves_nothing() -> None:
    content = b"%d.%b" % (NOW, BODY)
    new, old = (_hmac(secret, content).hex() for secret in SECRETS)
    policy = Inbound("stripe", SECRETS[1:])
    assert verify(policy, {"stripe-signature": f"t={NOW},v1={new},v1={old}"}, BODY, NOW) is None
    assert verify(policy, {"stripe-signature": f"t={NOW},v0={old}"}, BODY, NOW) == "wrong"
    assert verify(policy, {"stripe-signature": f"v1={old}"}, BODY, NOW) == "wrong"


@pytest.mark.parametrize(
    ("digest", "known"),
    [
        ("sha1", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),  # RFC 2202, test case 2
        ("sha256", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),  # RFC 4231, test case 2
        (
            "sha512",
            "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b63"
            "6e070a38bce737",
        ),
    ],
)
def test_generic_takes_each_digest_in_either_encoding(digest: Literal["sha1", "sha256", "sha512"], known: str) -> None:
    body = b"what do ya want for nothing?"
    policy = replace(Inbound("generic", ("Jefe",), header="X-Sig"), digest=digest)
    assert verify(policy, {"x-sig": known}, body, NOW) is None
    assert verify(policy, {"x-sig": known.upper()}, body, NOW) is None
    as_base64 = base64.b64encode(bytes.fromhex(known)).decode()
    assert verify(replace(policy, encoding="base64"), {"x-sig": as_base64}, body, NOW) is None
    assert verify(replace(policy, encoding="base64"), {"x-sig": known}, body, NOW) == "wrong"
    assert verify(replace(policy, prefix="sha="), {"x-sig": known}, body, NOW) == "wrong"


def test_a_token_is_a_bearer_token() -> None:
    policy = Inbound("cloudevents", ("token",))
    assert verify(policy, {"authorization": "bearer token"}, BODY, NOW) is None
    for wrong in ("token", "Basic token", "Bearer", "Bearer token2", "Bearer tok en"):
        assert verify(policy, {"authorization": wrong}, BODY, NOW) == "wrong"


@given(body=st.binary(max_size=200), secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_what_this_relay_signs_as_others_do_is_taken(body: bytes, secret: str) -> None:
    for style, kind in (("github", "github"), ("stripe", "stripe")):
        policy = SigningPolicy((style,), (secret,))  # type: ignore[arg-type]
        headers = dict(sign(policy, webhook_id="msg_1", timestamp=NOW, body=body))
        assert verify(Inbound(kind, (secret,)), headers, body, NOW) is None  # type: ignore[arg-type]


# --- what it is as a message ------------------------------------------------------------------------------------


def read(kind: InboundKind, headers: Mapping[str, str], body: bytes) -> InboundEvent | Challenge:
    return read_event(Inbound(kind, ("s",)), headers, body)


@pytest.mark.parametrize("name", samples.names())
def test_each_event_of_github_has_its_type(name: str) -> None:
    sample = samples.load(name)
    headers = {"x-github-event": sample.event_type.partition(".")[0], "x-github-delivery": "d-1"}
    assert read("github", headers, sample.payload) == InboundEvent(
        "d-1", sample.event_type, is_probe=name == "github.ping"
    )


def test_github_may_send_forms() -> None:
    headers = {
        "x-github-event": "issues",
        "x-github-delivery": "d-1",
        "content-type": "application/x-www-form-urlencoded",
    }
    assert read("github", headers, b"payload=%7B%22action%22%3A+%22opened%22%7D") == InboundEvent(
        "d-1", "issues.opened"
    )
    assert read("github", headers, b"\xff&payload=1") == InboundEvent("d-1", "issues")


def test_what_github_does_not_say_is_left_out() -> None:
    headers = {"x-github-event": "push", "x-github-delivery": "d-1"}
    for body in (b"", b"[]", b'{"action": 3}', b'{"action": null}', b"\xff", b"[" * 100_000, b'{"action": "\\ud800"}'):
        assert read("github", headers, body) == InboundEvent("d-1", "push")


@pytest.mark.parametrize(
    ("kind", "headers", "body", "said"),
    [
        ("github", {"x-github-event": "push"}, b"{}", "x-github-delivery is missing"),
        ("github", {"x-github-delivery": "1"}, b"{}", "x-github-event is missing"),
        ("github", {"x-github-event": "push", "x-github-delivery": "1" * 257}, b"{}", "257 bytes"),
        ("github", {"x-github-event": "p" * 2_000, "x-github-delivery": "1"}, b"{}", "longer than"),
        ("github", {"x-github-event": "\udc80", "x-github-delivery": "1"}, b"{}", "not valid UTF-8"),
        ("stripe", {}, b"{}", "not a valid Stripe event"),
        ("stripe", {}, b'{"id": "", "type": "x"}', "missing or empty"),
        ("stripe", {}, b"[" * 100_000, "not a valid Stripe event"),
        ("slack", {}, SLACK_BODY, "not a valid request of Slack's Events API"),
        ("slack", {}, b'{"type": "event_callback", "event_id": 1}', "not a valid request of Slack's Events API"),
        ("standard", {"webhook-id": "", "webhook-timestamp": "", "webhook-signature": ""}, b"{}", "missing or empty"),
        ("standard", standard(WHSEC, b"{}", NOW) | {"webhook-id": "msg.1"}, b"{}", "has a dot"),
    ],
)
def test_what_cannot_be_a_message_says_why(kind: InboundKind, headers: dict[str, str], body: bytes, said: str) -> None:
    with pytest.raises(InvalidRecord, match=said):
        read(kind, headers, body)


def test_the_events_of_the_others() -> None:
    assert read("stripe", {}, b'{"id": "evt_1", "type": "charge.failed"}') == InboundEvent("evt_1", "charge.failed")
    callback = {"type": "event_callback", "event_id": "Ev1", "event": {"type": "message"}}
    assert read("slack", {}, json.dumps(callback).encode()) == InboundEvent("Ev1", "message")
    assert read("slack", {}, b'{"type": "app_rate_limited"}') == InboundEvent(None, "app_rate_limited")
    assert read("slack", {}, b'{"type": "url_verification", "challenge": "3eZ"}') == Challenge("3eZ")
    for named in (standard(WHSEC, BODY, NOW), svix(WHSEC, BODY, NOW)):
        assert read("standard", named, b'{"type": "user.created"}') == InboundEvent("msg_1", "user.created")
        assert read("standard", named, b"no JSON") == InboundEvent("msg_1", None)


def test_generic_has_id_and_type_where_its_settings_say() -> None:
    policy = Inbound("generic", ("s",), header="x-sig", id_header="X-Id", type_header="X-Type")
    assert read_event(policy, {"x-id": "1", "x-type": "t"}, BODY) == InboundEvent("1", "t")
    assert read_event(policy, {"x-id": "1"}, BODY) == InboundEvent("1", None)
    with pytest.raises(InvalidRecord, match="X-Id is missing"):
        read_event(policy, {"x-type": "t"}, BODY)
    assert read_event(replace(policy, id_header=None), {"x-id": "1"}, BODY) == InboundEvent(None, None)


def test_gitlab_has_an_id_in_its_newer_versions() -> None:
    pushed = {"x-gitlab-event": "Push Hook", "x-gitlab-event-uuid": "shared"}
    assert read("gitlab", pushed | {"idempotency-key": "k-1"}, BODY) == InboundEvent("k-1", "Push Hook")
    assert read("gitlab", pushed, BODY) == InboundEvent(None, "Push Hook")
    with pytest.raises(InvalidRecord, match="x-gitlab-event is missing"):
        read("gitlab", {}, BODY)


def test_standard_may_have_its_type_in_a_header() -> None:
    """As GitLab has it."""
    policy, named = Inbound("standard", (WHSEC,), type_header="X-Gitlab-Event"), standard(WHSEC, BODY, NOW)
    body = b'{"object_kind": "push", "type": "other"}'
    assert read_event(policy, named | {"x-gitlab-event": "Push Hook"}, body) == InboundEvent("msg_1", "Push Hook")
    assert read_event(policy, named, body) == InboundEvent("msg_1", None)


SPLIT: Final = st.text("ab1.", min_size=1, max_size=6)


def is_good_for_one_reading(webhook_id: str, stamp: str, body: str) -> None:
    """The signed text cannot be read as another id, time and body that is also valid."""
    signed = f"{webhook_id}.{stamp}.{body}"
    taken = list[str]()
    for place in [at for at, character in enumerate(signed) if character == "."]:
        with suppress(InvalidRecord):
            headers = {"webhook-id": signed[:place], "webhook-timestamp": "1", "webhook-signature": "v1,x"}
            taken.append(str(read("standard", headers, b"{}")))
    assert len(taken) <= 1, f"{signed} is a webhook of {taken}"


test_a_signature_is_good_for_one_id = given(SPLIT, SPLIT, SPLIT)(is_good_for_one_reading)


def test_without_the_rule_about_dots_a_second_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dotted(str):
        def __contains__(self, part: str, /) -> bool:  # type: ignore[override]
            return False

    plain = standard_headers
    dotted = lambda headers: {name: Dotted(value) for name, value in (plain(headers) or {}).items()}  # noqa: E731
    monkeypatch.setattr(inbound, "standard_headers", dotted)
    first = settings(phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises(AssertionError, match="is a webhook of"):
        first(given(SPLIT, SPLIT, SPLIT)(is_good_for_one_reading))()
