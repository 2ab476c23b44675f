"""Foreign certificates and keys: those too long for the cryptography libraries are rejected before the libraries see
them."""

import asyncio
import ssl
import threading
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Final

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from relay.config.encryption import KeyRing
from relay.config.receivers_file import parse_receivers_file
from relay.control.records import EntryRecord
from relay.control.resolve import receiver_of, unusable_receiver
from relay.delivery import tls as tls_module
from relay.domain import key_material
from relay.domain.egress import Tls
from relay.domain.errors import UserError
from relay.domain.key_material import MOST_BITS, MOST_CERTIFICATES, _lengths, clean_certificates, clean_private_key
from tests.fakes.certificates import authority, issued, too_long

TOO_LONG: Final = "has a key of 12222 bits; at most 4096 are allowed"
CA: Final = authority()
OURS: Final = issued(CA, "relay.example")
LONG: Final = too_long(CA)
FIRST: Final = settings(phases=[Phase.generate], database=None, derandomize=True)
LONG_KEY, LONG_CERTIFICATE = LONG.key_pem, LONG.pem


@pytest.fixture
def unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a key or a certificate reaches a library that parses it."""

    def reached(*_args: object, **_options: object) -> object:
        pytest.fail("a library of cryptography was asked")

    monkeypatch.setattr(serialization, "load_pem_private_key", reached)
    monkeypatch.setattr("cryptography.x509.load_pem_x509_certificates", reached)
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", reached)
    monkeypatch.setattr(ssl, "create_default_context", lambda cadata=None: cadata and reached())


@pytest.mark.usefixtures("unreached")
@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ({"client_key": LONG_KEY}, f"client_key: {TOO_LONG}"),
        ({"client_certificate": LONG_CERTIFICATE}, f"client_certificate: {TOO_LONG}"),
        ({"ca": LONG_CERTIFICATE}, f"ca: {TOO_LONG}"),
        ({"ca": OURS.pem * 65}, f"ca: has 65 certificates; at most {MOST_CERTIFICATES} are allowed"),
        ({"client_key": OURS.key_pem * 2}, "client_key: has 2 private keys; write one"),
    ],
)
def test_what_is_too_long_is_refused_where_it_is_given(tls: object, message: str) -> None:
    file = yaml.safe_dump({"receivers": {"ci": {"post_endpoint": "https://ci.example/", "tls": tls}}})
    with pytest.raises(UserError) as caught:
        parse_receivers_file(file)
    assert f"receivers.yaml: receivers.ci.tls.{message}" in str(caught.value)


@pytest.mark.usefixtures("unreached")
def test_what_an_older_release_has_stored_waits_for_other_settings() -> None:
    entry: dict[str, object] = {
        "post_endpoint": "https://ci.example/",
        "tls": {"client_certificate": LONG_CERTIFICATE, "client_key": LONG_KEY},
    }
    stored = EntryRecord("api", entry).encode()
    with pytest.raises(UserError) as caught:
        receiver_of("ci", stored, {}, KeyRing([]))
    assert TOO_LONG in str(caught.value)
    waiting = unusable_receiver("ci", stored, str(caught.value))
    assert waiting is not None
    assert TOO_LONG in (waiting.unusable or "")


@pytest.mark.parametrize(
    "tls", [Tls(OURS.pem, OURS.pem, LONG_KEY), Tls(OURS.pem, LONG_CERTIFICATE, OURS.key_pem), Tls(LONG_CERTIFICATE)]
)
async def test_nor_is_it_sent_with(tls: Tls, request: pytest.FixtureRequest) -> None:
    contexts = tls_module.Contexts(None)
    request.getfixturevalue("unreached")
    with pytest.raises(ssl.SSLError, match=TOO_LONG):
        await contexts.of(tls)
    await contexts.close()


async def test_settings_that_take_long_to_make_hold_up_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    over, running = threading.Event(), list[int]()

    def stuck(_tls: Tls, _ca_file: str | None) -> ssl.SSLContext:
        running.append(threading.get_ident())
        over.wait()
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(tls_module, "_context_of", stuck)
    monkeypatch.setattr(tls_module, "MAKING_S", 0.05)
    contexts = tls_module.Contexts(None)
    found = await asyncio.gather(*(contexts.of(Tls(ca=str(n))) for n in range(5)), return_exceptions=True)
    over.set()
    assert [str(each) for each in found] == [
        str(ssl.SSLError("its certificates and key could not be read within 0.05 s"))
    ] * 5
    assert len(running) == tls_module.MAKERS
    assert threading.get_ident() not in running
    await contexts.close()


@pytest.mark.parametrize("where", ["secret", "inbound"])
def test_secrets_are_few_and_short(where: str) -> None:
    def check(secret: object) -> None:
        endpoint = {"receivers": {"ci": {"post_endpoint": "https://ci.example/", "secret": secret}}}
        source = {"sources": {"gh": {"inbound": {"kind": "github", "secret": secret, "receivers": ["ci"]}}}}
        parse_receivers_file(yaml.safe_dump(endpoint if where == "secret" else source))

    check(["s" * 4_096] * 16)
    with pytest.raises(UserError, match="secret: too long; at most 16"):
        check(["s"] * 17)
    with pytest.raises(UserError, match=r"secret\[0\]: too long; at most 4096"):
        check(["s" * 4_097])


# --- generated ------------------------------------------------------------------------------------------------------


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 0x80 else b"\x82" + size.to_bytes(2)
    return bytes([tag]) + length + content


def number(value: int) -> bytes:
    return element(2, value.to_bytes(value.bit_length() // 8 + 1))


def pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{b64encode(der).decode()}\n-----END {label}-----\n"


def rsa_key(numbers: Sequence[int]) -> bytes:
    return element(0x30, number(0) + b"".join(map(number, numbers)))


def wrapped(key: bytes) -> bytes:
    """In PKCS #8."""
    rsa_encryption = bytes.fromhex("06092a864886f70d0101010500")
    return element(0x30, number(0) + element(0x30, rsa_encryption) + element(4, key))


KEYS: Final = given(st.integers(1, 16_000), st.integers(0, 7), st.booleans(), st.integers(0, 2**32))


def passes_by_its_longest_number(bits: int, place: int, in_pkcs8: bool, seed: int) -> None:
    draw = Random(seed)
    numbers = [draw.getrandbits(size) | 1 << (size - 1) for size in [draw.randint(1, 1_024) for _ in range(8)]]
    numbers[place] = draw.getrandbits(bits) | 1 << (bits - 1)
    key = rsa_key(numbers)
    text = pem("PRIVATE KEY", wrapped(key)) if in_pkcs8 else pem("RSA PRIVATE KEY", key)
    longest = max(each.bit_length() for each in numbers)
    if longest <= MOST_BITS:
        assert clean_private_key(text).replace("\n", "") == text.replace("\n", "")
    else:
        with pytest.raises(ValueError, match=f"^has a key of {longest} bits"):
            clean_private_key(text)


test_a_key_passes_by_its_longest_number = KEYS(passes_by_its_longest_number)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("check_bits", lambda _bits: None),
        ("MOST_BITS", 2 * MOST_BITS),
        ("_OCTET_STRING", key_material._BIT_STRING),  # what PKCS #8 wraps is not looked into
        ("_lengths", lambda der: islice(_lengths(der), 2)),
    ],
)
def test_a_planted_hole_is_found(monkeypatch: pytest.MonkeyPatch, name: str, planted: object) -> None:
    monkeypatch.setattr(key_material, name, planted)
    with pytest.raises(BaseException, match=r"DID NOT RAISE|Regex pattern did not match"):
        FIRST(KEYS(passes_by_its_longest_number))()


@pytest.mark.parametrize("format", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_keys_of_each_kind_stay_what_they_are(format: serialization.PrivateFormat) -> None:
    keys: list[rsa.RSAPrivateKey | dsa.DSAPrivateKey | ec.EllipticCurvePrivateKey] = [
        rsa.generate_private_key(65_537, 2_048),
        dsa.generate_private_key(2_048),
        *(ec.generate_private_key(ec.SECP256R1()) for _ in range(600)),  # a string in some begins as a sequence does
    ]
    for key in keys:
        text = key.private_bytes(serialization.Encoding.PEM, format, serialization.NoEncryption()).decode()
        assert clean_private_key(f"my key\r\n{text}".replace("\n", "\r\n")) == text
    plain = ed25519.Ed25519PrivateKey.generate()
    text = plain.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    assert clean_private_key(text) == text


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode), st.sampled_from(("PRIVATE KEY", "CERTIFICATE")))
def test_what_is_neither_is_refused_and_no_more(content: bytes, label: str) -> None:
    for text in (content.decode(errors="replace"), pem(label, content), pem(label, element(0x30, content))):
        for read in (clean_private_key, clean_certificates):
            with suppress(ValueError):  # and nothing else is raised
                assert read(read(text)) == read(text)
