"""Signatures: against the Standard Webhooks library, against the published GitHub example, and against forgery."""

import base64
import hashlib
import hmac
import itertools
from datetime import UTC, datetime
from typing import Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from relay.domain.headers import SIGNATURE_HEADERS
from relay.domain.receiver import SignatureStyle, SigningPolicy
from relay.domain.signing import check_secret, generate_secret, sign, verify_standard

NEW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD = "whsec_" + base64.b64encode(bytes(range(64))).decode()
NOW = 1_700_000_000
BODY = b'{"a":1}'


def signed(policy: SigningPolicy, body: bytes = BODY) -> dict[str, str]:
    headers = sign(policy, webhook_id="msg_1", timestamp=NOW, body=body)
    assert len(dict(headers)) == len(headers)
    return dict(headers)


def test_the_example_of_the_standard_webhooks_libraries() -> None:
    headers = sign(
        SigningPolicy(secrets=(NEW,)),
        webhook_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1_614_265_330,
        body=b'{"test": 2432232314}',
    )
    assert headers == (
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    )


@given(st.binary(min_size=24, max_size=64), st.text(st.characters(exclude_categories=["Cs"])))
def test_the_standard_signature_is_that_of_the_library(key: bytes, body: str) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    headers = signed(SigningPolicy(secrets=(secret,)), body.encode())
    expected = Webhook(secret).sign("msg_1", datetime.fromtimestamp(NOW, UTC), body)
    assert headers["webhook-signature"] == expected


@pytest.mark.parametrize("held", [NEW, OLD, "plain text secret"])
def test_during_rotation_each_secret_verifies_with_the_library(held: str) -> None:
    now = int(datetime.now(UTC).timestamp())  # the library takes no clock
    policy = SigningPolicy(secrets=(NEW, OLD, "plain text secret"))
    headers = dict(sign(policy, webhook_id="msg_1", timestamp=now, body=BODY))
    assert headers["webhook-signature"].count("v1,") == 3
    receiver = Webhook(held if held.startswith("whsec_") else held.encode())
    assert receiver.verify(BODY, headers) == {"a": 1}
    with pytest.raises(WebhookVerificationError):
        receiver.verify(BODY + b" ", headers)


def test_the_github_style_is_that_of_its_manual() -> None:
    policy = SigningPolicy(("github",), ("It's a Secret to Everybody", OLD))
    headers = signed(policy, b"Hello, World!")
    assert headers == {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(NOW),
        "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
    }


def test_the_stripe_style_signs_time_and_body_with_each_secret_as_it_stands() -> None:
    headers = signed(SigningPolicy(("stripe",), (NEW, "old")))
    macs = [hmac.new(secret.encode(), b"%d.%b" % (NOW, BODY), hashlib.sha256).hexdigest() for secret in (NEW, "old")]
    assert headers["stripe-signature"] == f"t={NOW},v1={macs[0]},v1={macs[1]}"
    assert "webhook-signature" not in headers


@pytest.mark.parametrize("digest", ["sha256", "sha512"])
@pytest.mark.parametrize("styles", list(itertools.permutations(sorted({*get_args(SignatureStyle)} - {"http-message"}))))
def test_several_styles_sign_side_by_side_as_each_does_alone(
    styles: tuple[SignatureStyle, ...], digest: Literal["sha256", "sha512"]
) -> None:
    alone = [signed(SigningPolicy((style,), (NEW, "old"), digest)) for style in styles]
    together = signed(SigningPolicy(styles, (NEW, "old"), digest))
    assert together == {name: value for headers in alone for name, value in headers.items()}
    assert len(together) == 2 + len(styles)
    assert together.keys() - {"webhook-id", "webhook-timestamp"} <= {*SIGNATURE_HEADERS}


def mac(secret: bytes, content: bytes) -> bytes:
    return hmac.new(secret, content, hashlib.sha512).digest()


def test_sha512_in_the_standard_style_has_a_scheme_of_its_own_for_each_secret() -> None:
    headers = signed(SigningPolicy(("standard",), (NEW, "plain"), "sha512"))
    content = b"msg_1.%d.%b" % (NOW, BODY)
    macs = [mac(base64.b64decode(NEW.removeprefix("whsec_")), content), mac(b"plain", content)]
    assert headers["webhook-signature"] == " ".join(f"v1-sha512,{base64.b64encode(each).decode()}" for each in macs)
    assert not verify_standard([NEW], headers, BODY, NOW)  # it is never taken for a v1 signature


def test_sha512_in_the_style_of_github_is_that_of_websub() -> None:
    headers = signed(SigningPolicy(("github",), (NEW,), "sha512"))
    assert headers["x-hub-signature"] == f"sha512={mac(NEW.encode(), BODY).hex()}"
    assert "x-hub-signature-256" not in headers


def test_sha512_in_the_style_of_stripe_has_a_scheme_of_its_own() -> None:
    headers = signed(SigningPolicy(("stripe",), ("new", "old"), "sha512"))
    macs = [mac(secret, b"%d.%b" % (NOW, BODY)).hex() for secret in (b"new", b"old")]
    assert headers["stripe-signature"] == f"t={NOW},v1-sha512={macs[0]},v1-sha512={macs[1]}"


@pytest.mark.parametrize(
    "policy", [SigningPolicy((), (NEW,)), SigningPolicy(("standard",), ()), SigningPolicy(("github",))]
)
def test_without_style_or_secret_there_is_id_and_time_only(policy: SigningPolicy) -> None:
    assert signed(policy) == {"webhook-id": "msg_1", "webhook-timestamp": str(NOW)}


@given(st.binary(), st.lists(st.sampled_from([NEW, OLD, "plain"]), min_size=1, unique=True))
def test_our_own_check_accepts_what_we_sign(body: bytes, secrets: list[str]) -> None:
    headers = signed(SigningPolicy(secrets=tuple(secrets)), body)
    for secret in secrets:
        assert verify_standard([secret], headers, body, NOW)
        assert verify_standard(["another", secret], {name.title(): value for name, value in headers.items()}, body, NOW)
    assert not verify_standard([], headers, body, NOW)
    assert not verify_standard(["another"], headers, body, NOW)


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_any_changed_byte_of_the_body_is_noticed(at: int, flip: int) -> None:
    headers = signed(SigningPolicy(secrets=(NEW,)))
    changed = BODY[:at] + bytes([BODY[at] ^ flip]) + BODY[at + 1 :]
    assert not verify_standard([NEW], headers, changed, NOW)


@pytest.mark.parametrize(
    ("off_s", "accepted"), [(0, True), (300, True), (-300, True), (301, False), (-301, False), (300.5, False)]
)
def test_the_timestamp_has_to_be_recent(off_s: float, accepted: bool) -> None:
    assert verify_standard([NEW], signed(SigningPolicy(secrets=(NEW,))), BODY, NOW + off_s) is accepted


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("webhook-id", ""),
        ("webhook-id", "msg_2"),
        ("webhook-id", "msg_\udcff"),
        ("webhook-timestamp", ""),
        ("webhook-timestamp", str(NOW + 1)),
        ("webhook-timestamp", f"{NOW} "),
        ("webhook-timestamp", f"{NOW}.0"),
        ("webhook-timestamp", "nan"),
        ("webhook-timestamp", "\u0661"),
        ("webhook-timestamp", "9" * 5_000),
        ("webhook-signature", ""),
        ("webhook-signature", "v1,"),
        ("webhook-signature", "v1"),
        ("webhook-signature", "v1,é\udcff"),
        ("webhook-signature", "v1a,AAAA v2,BBBB"),
    ],
)
def test_wrong_headers_are_not_accepted(header: str, value: str) -> None:
    headers = signed(SigningPolicy(secrets=(NEW,)))
    assert not verify_standard([NEW], headers | {header: value}, BODY, NOW)
    del headers[header]
    assert not verify_standard([NEW], headers, BODY, NOW)


def test_foreign_signatures_beside_ours_do_no_harm() -> None:
    headers = signed(SigningPolicy(secrets=(NEW,)))
    headers["webhook-signature"] = f"v1a,AAAA {headers['webhook-signature']} v9"
    assert verify_standard([NEW], headers, BODY, NOW)


@pytest.mark.parametrize("secret", [NEW, OLD, OLD.rstrip("="), "x", "é", generate_secret(bytes)])
def test_good_secrets(secret: str) -> None:
    check_secret(secret)


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        ("", "empty"),
        ("whsec_", "0 bytes"),
        ("whsec_" + base64.b64encode(b"k" * 23).decode(), "23 bytes"),
        ("whsec_" + base64.b64encode(b"k" * 65).decode(), "65 bytes"),
        ("whsec_not base64 at all, but long enough", "base64 does not follow"),
        ("whsec_" + "é" * 40, "base64 does not follow"),
        ("whsec_" + "A" * 33, "base64 does not follow"),
    ],
)
def test_bad_secrets_are_refused_without_being_repeated(secret: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        check_secret(secret)
    assert len(secret) <= len("whsec_") or secret[6:] not in str(caught.value)


@given(st.binary(min_size=32, max_size=32))
def test_a_new_secret_is_made_of_all_the_bytes(entropy: bytes) -> None:
    secret = generate_secret(lambda count: entropy[:count])
    check_secret(secret)
    assert base64.b64decode(secret.removeprefix("whsec_")) == entropy
