"""Ed25519 signatures (`v1a`): against a published example, the library's own check, and forgery."""

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from relay.cli.receivers import receivers
from relay.config.receivers_file import parse_receivers_file
from relay.domain.errors import UserError
from relay.domain.inbound import verify
from relay.domain.receiver import Inbound, SignatureStyle, SigningPolicy
from relay.domain.signing import (
    check_secret,
    check_verifier,
    is_signature,
    public_key,
    sign,
    signature_of,
    verify_standard,
)

PRIVATE = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
SEED = "whsk_" + base64.b64encode(base64.b64decode(PRIVATE[5:])[:32]).decode()
OTHER = "whsk_" + base64.b64encode(bytes(range(32))).decode()
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = 1_700_000_000
BODY = b'{"a":1}'


def signed(body: bytes = BODY, **policy: tuple[str, ...]) -> dict[str, str]:
    return dict(sign(SigningPolicy(**policy), webhook_id="msg_1", timestamp=NOW, body=body))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [PRIVATE, SEED])
def test_the_example_of_the_specification(key: str) -> None:
    """The signature is that of its example header; key and content are those with which others reproduce it."""
    headers = sign(
        SigningPolicy(private_keys=(key,)),
        webhook_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1_614_265_330,
        body=b'{"test": 2432232314}',
    )
    signature = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
    assert dict(headers)["webhook-signature"] == signature
    assert public_key(key) == PUBLIC


@given(seed=st.binary(min_size=32, max_size=32), body=st.binary())
def test_the_library_verifies_what_we_sign(seed: bytes, body: bytes) -> None:
    key = "whsk_" + base64.b64encode(seed).decode()
    signature = base64.b64decode(signed(body, private_keys=(key,))["webhook-signature"].removeprefix("v1a,"))
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key(key).removeprefix("whpk_")))
    public.verify(signature, b"msg_1.%d.%b" % (NOW, body))
    with pytest.raises(InvalidSignature):
        public.verify(signature, b"msg_1.%d.%b" % (NOW, body + b" "))


def test_each_secret_and_each_key_signs_and_a_check_of_either_kind_finds_its_own() -> None:
    headers = signed(secrets=(SECRET, "old"), private_keys=(PRIVATE, OTHER))
    kinds = [signature.partition(",")[0] for signature in headers["webhook-signature"].split(" ")]
    assert kinds == ["v1", "v1", "v1a", "v1a"]
    for verifier in (SECRET, "old", PUBLIC, public_key(OTHER)):
        assert verify_standard([verifier], headers, BODY, NOW)
        assert verify(Inbound("standard", (verifier,)), headers, BODY, NOW) is None
    assert not verify_standard([public_key("whsk_" + base64.b64encode(bytes(32)).decode())], headers, BODY, NOW)


def test_the_library_of_standard_webhooks_passes_over_a_v1a_beside_its_v1() -> None:
    now = int(time.time())  # the library takes no clock
    policy = SigningPolicy(secrets=(SECRET,), private_keys=(PRIVATE,))
    headers = dict(sign(policy, webhook_id="msg_1", timestamp=now, body=BODY))
    assert Webhook(SECRET).verify(BODY, headers) == {"a": 1}


@pytest.mark.parametrize("styles", [("standard", "github"), ("github", "standard", "stripe")])
def test_no_key_is_taken_for_the_secret_of_an_hmac(styles: tuple[SignatureStyle, ...]) -> None:
    with_key = signed(styles=styles, secrets=(SECRET,), private_keys=(PRIVATE,))
    without = signed(styles=styles, secrets=(SECRET,))
    assert with_key.pop("webhook-signature").startswith(without.pop("webhook-signature") + " v1a,")
    assert with_key == without


@given(at=st.integers(0, 63), flip=st.integers(1, 255))
def test_any_changed_byte_of_a_signature_is_noticed(at: int, flip: int) -> None:
    signature = bytearray(signature_of(PRIVATE, BODY))
    assert is_signature(PUBLIC, bytes(signature), BODY)
    signature[at] ^= flip
    assert not is_signature(PUBLIC, bytes(signature), BODY)


@pytest.mark.parametrize(
    "value",
    ["", "v1a,", "v1a,AAAA", "v1a,!", "v1a,\udcff", "v1," + "A" * 86 + "==", "v1a," + "A" * 86 + "==", "v1a v1a,,"],
)
def test_what_is_no_signature_is_refused_and_raises_nothing(value: str) -> None:
    headers = signed(private_keys=(PRIVATE,)) | {"webhook-signature": value}
    assert not verify_standard([PUBLIC], headers, BODY, NOW)
    assert not verify_standard([PUBLIC], signed(secrets=(PUBLIC,)), BODY, NOW)  # what everybody knows signs nothing


def test_an_old_signature_is_refused() -> None:
    assert not verify_standard([PUBLIC], signed(private_keys=(PRIVATE,)), BODY, NOW + 301)


@pytest.mark.parametrize(
    ("check", "key", "said"),
    [
        (check_secret, "whsk_", "the key has 0 bytes after whsk_; it is 32, or 64 with its public half"),
        (check_secret, "whsk_AAAA", "the key has 3 bytes after whsk_; it is 32, or 64 with its public half"),
        (check_secret, "whsk_!!", "the key begins with whsk_, but base64 does not follow"),
        (check_secret, PRIVATE.replace("R", "S"), "the halves of the key after whsk_ do not belong together"),
        (check_secret, PUBLIC, "a public key (whpk_) cannot sign; use its private key, whsk_"),
        (
            check_verifier,
            PRIVATE,
            "a private key (whsk_) belongs to the sender alone; verify with its public key, whpk_",
        ),
        (check_verifier, "whpk_AAAA", "the key has 3 bytes after whpk_; it is 32"),
        (check_verifier, "whpk_!", "the key begins with whpk_, but base64 does not follow"),
    ],
)
def test_what_cannot_sign_or_verify_is_refused_without_being_repeated(
    check: Callable[[str], object], key: str, said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        check(key)
    assert str(caught.value) == said


def test_what_can_is_taken() -> None:
    check_secret(PRIVATE)
    check_verifier(PUBLIC)


def test_the_halves_of_a_key_are_those_of_the_library() -> None:
    private = Ed25519PrivateKey.generate()
    halves = private.private_bytes_raw() + private.public_key().public_bytes_raw()
    key = "whsk_" + base64.b64encode(halves).decode()
    check_secret(key)
    assert public_key(key) == "whpk_" + base64.b64encode(halves[32:]).decode()


# --- in receivers.yaml ------------------------------------------------------------------------------------------

FILE = """
sources:
  github: {callback: {url: "https://sender.example/", secret: "${OTHER}"}}
receivers:
  ci: {post_endpoint: "https://ci.example/", secret: ["${KEY}", "${SECRET}"], signature: [standard, github]}
  cd: {post_endpoint: "https://cd.example/", secret: "${ABSENT}"}
  plain: {post_endpoint: "https://plain.example/", secret: "${SECRET}"}
"""
ENVIRON = {"KEY": PRIVATE, "SECRET": SECRET, "OTHER": OTHER}


def test_keys_and_secrets_may_stand_in_one_list() -> None:
    known, _ = parse_receivers_file(FILE).resolve(ENVIRON | {"ABSENT": "s"})
    signing = known["ci"].post.signing
    assert (signing.styles, signing.secrets, signing.private_keys) == (("standard", "github"), (SECRET,), (PRIVATE,))
    assert known["plain"].post.signing.private_keys == ()
    assert PRIVATE not in repr(known)


def test_relay_receivers_shows_the_public_keys_and_never_the_private_ones(tmp_path: Path) -> None:
    path = tmp_path / "receivers.yaml"
    path.write_text(FILE)
    shown = {
        command: CliRunner().invoke(receivers, command, env=ENVIRON, catch_exceptions=False).output
        for command in (("check", str(path)), ("list", "-f", str(path)))
    }
    for output in shown.values():
        lines = [line for line in output.splitlines() if line.startswith("public key")]
        assert lines == [f"public key of receivers.ci: {PUBLIC}", f"public key of sources.github: {public_key(OTHER)}"]
        assert PRIVATE not in output
    listed = CliRunner().invoke(receivers, ("list", "-f", str(path), "-o", "json"), env=ENVIRON).output
    assert {name: one["public_keys"] for name, one in json.loads(listed).items()} == {
        "ci": [PUBLIC],
        "cd": [],
        "plain": [],
    }


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("secret: ${KEY}, signature: github", "signature: 'github' signs with an HMAC"),
        ("secret: ${KEY}, signature: [standard, stripe]", "signature: 'stripe' signs with an HMAC"),
        (
            "secret: [a, '${KEY}'], signature: [github]",
            "signature: a private key (whsk_) signs only in the style 'standard'",
        ),
        ("secret: ${KEY}, signature_digest: sha512", "signature_digest: applies to an HMAC, but all secrets are"),
        ("secret: ${PUBLIC}", "secret: a public key (whpk_) cannot sign"),
    ],
)
def test_a_key_that_contradicts_its_use_is_refused(fields: str, said: str) -> None:
    text = f"receivers: {{ci: {{post_endpoint: 'https://ci.example/', {fields.replace('${', '@')}}}}}"
    for name, key in (("KEY", PRIVATE), ("PUBLIC", PUBLIC)):
        text = text.replace(f"@{name}}}", key)
    with pytest.raises(UserError) as caught:
        parse_receivers_file(text)
    assert said in str(caught.value)
    assert PRIVATE not in str(caught.value)
