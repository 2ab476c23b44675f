"""Encryption of payloads: jwcrypto decrypts what we encrypt, and the other way round; wrong keys are refused."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jwcrypto import jwe as other
from jwcrypto.jwk import JWK

from relay.domain.jwe import MEDIA_TYPE, check_key, decrypt, encrypt, key_text, opened, private_keys, usable_key
from relay.domain.message import MAX_TEXT_BYTES

KINDS: dict[str, dict[str, Any]] = {
    "P-256": {"kty": "EC", "crv": "P-256"},
    "P-384": {"kty": "EC", "crv": "P-384"},
    "P-521": {"kty": "EC", "crv": "P-521"},
    "X25519": {"kty": "OKP", "crv": "X25519"},
    "RSA": {"kty": "RSA", "size": 2048},
}
KEYS = {name: JWK.generate(**kind, kid=name, use="enc") for name, kind in KINDS.items()}
ALGS = {name: "RSA-OAEP-256" if name == "RSA" else "ECDH-ES+A256KW" for name in KINDS}


def public(name: str, **changes: Any) -> dict[str, Any]:
    known = {**KEYS[name].export_public(as_dict=True), **changes}
    return {field: value for field, value in known.items() if value is not None}


def private(name: str) -> str:
    return str(KEYS[name].export_private())


@pytest.mark.parametrize("name", KINDS)
def test_the_other_library_decrypts_what_we_encrypt(name: str) -> None:
    check_key(public(name))
    token = encrypt(key_text(public(name)), b"\x00 a payload", "application/json")
    assert token.count(b".") == 4
    opened_token = other.JWE(algs=[ALGS[name], "A256GCM"])
    opened_token.deserialize(token.decode(), KEYS[name])
    assert opened_token.payload == b"\x00 a payload"
    header = json.loads(opened_token.objects["protected"])
    assert (header["alg"], header["enc"], header["cty"], header["kid"]) == (
        ALGS[name],
        "A256GCM",
        "application/json",
        name,
    )


@pytest.mark.parametrize("name", KINDS)
def test_we_decrypt_what_the_other_library_encrypts(name: str) -> None:
    header = {"alg": ALGS[name], "enc": "A256GCM", "cty": "text/plain"}
    token = other.JWE(b"an answer", protected=json.dumps(header), recipient=JWK(**public(name)))
    text = token.serialize(compact=True)
    keys = private_keys(json.dumps({"keys": [json.loads(private(each)) for each in KINDS]}))
    assert decrypt(keys, text.encode()) == (b"an answer", "text/plain")
    others = [each for each in KINDS if each != name]
    with pytest.raises(ValueError, match="none of the keys"):
        decrypt([private(each) for each in others], text.encode())


@settings(max_examples=30)
@given(st.binary(max_size=5_000), st.sampled_from(sorted(KINDS)))
def test_any_body_comes_back(body: bytes, name: str) -> None:
    token = encrypt(key_text(public(name)), body, "application/x-y")
    assert decrypt([private(name)], token) == (body, "application/x-y")


@pytest.mark.parametrize("name", KINDS)
def test_a_long_content_type_comes_back(name: str) -> None:
    content_type = "application/" + "x" * (MAX_TEXT_BYTES - len("application/"))
    token = encrypt(key_text(public(name)), b"a payload", content_type)
    assert decrypt([private(name)], token) == (b"a payload", content_type)


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_no_answer_breaks_the_decryption(body: bytes) -> None:
    assert opened([private("P-256")], MEDIA_TYPE, body) == (MEDIA_TYPE, body)


def test_only_an_encrypted_answer_is_decrypted() -> None:
    token, keys = encrypt(key_text(public("P-256")), b"ok", "text/plain"), [private("P-256")]
    assert opened(keys, "application/jose; a=b", token) == ("text/plain", b"ok")
    assert opened(keys, "text/plain", token) == ("text/plain", token)
    assert opened([], MEDIA_TYPE, token) == (MEDIA_TYPE, token)
    assert opened(keys, MEDIA_TYPE, token[:-1] + b"_") == (MEDIA_TYPE, token[:-1] + b"_")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "kty is missing; it has to be EC, OKP or RSA"),
    ({"kty": "oct", "k": "c2VjcmV0"}, "kty is 'oct'; it has to be EC, OKP or RSA"),
    ({"kty": ["EC"]}, "kty is ['EC']; it has to be EC, OKP or RSA"),
    (public("P-256", use="sig"), "use is 'sig'; a key for encryption has 'enc', or none"),
    (public("RSA", alg="RSA-OAEP"), "alg is 'RSA-OAEP'; with kty RSA it has to be RSA-OAEP-256, or none"),
    (public("P-256", alg="ECDH-ES"), "alg is 'ECDH-ES'; with kty EC it has to be ECDH-ES+A256KW, or none"),
    (public("RSA", key_ops=["verify"]), "key_ops has none of encrypt, wrapKey"),
    (public("P-256", key_ops=["sign"]), "key_ops has none of deriveBits, deriveKey"),
    (public("P-256", key_ops=[["deriveKey"]]), "key_ops has none of deriveBits, deriveKey"),
    (public("P-256", crv="secp256k1"), "crv is 'secp256k1'; it has to be one of P-256, P-384, P-521"),
    ({"kty": "OKP", "crv": "Ed25519", "x": "AA"}, "crv is 'Ed25519'; it has to be one of X25519"),
    (public("P-256", kid=7), "kid is not text"),
    (public("P-256", x="AA"), "it cannot encrypt: "),
    (public("P-256", y=None), "it cannot encrypt: "),
    (JWK.generate(kty="RSA", size=1024).export_public(as_dict=True), "the RSA key has 1024 bits; allowed are 2048 to"),
    (public("RSA", n=7), "the RSA key has 0 bits"),
    (json.loads(private("P-256")), "it is a private key (d), which belongs to the receiver alone"),
]


@pytest.mark.parametrize(("jwk", "said"), REFUSED)
def test_a_key_that_is_not_for_encryption_is_refused(jwk: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_key(jwk)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("name", KINDS)
def test_a_key_without_use_and_alg_is_enough(name: str) -> None:
    check_key(public(name, use=None, kid=None))
    check_key(public(name, key_ops=["wrapKey", "deriveKey"], alg=ALGS[name]))


def key_set(*keys: object) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_the_first_usable_key_of_a_set_is_used() -> None:
    wrong, over, early = public("RSA", use="sig"), public("RSA", exp=100), public("RSA", nbf=101)
    found = usable_key(key_set(wrong, over, early, 7, public("P-256", nbf=100, exp=101), public("P-384")), 100)
    assert json.loads(found.text)["kid"] == "P-256"
    assert found.until == 101
    found = usable_key(key_set(public("RSA", nbf=150, exp=160), public("P-384", exp=200)), 100)
    assert (json.loads(found.text)["kid"], found.until) == ("P-384", 150)


def test_a_key_that_takes_long_is_refused() -> None:
    with pytest.raises(ValueError, match="exponent of the RSA key has 2048 bits"):
        check_key(public("RSA", e=public("RSA")["n"]))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "it is no JWK Set"),
        (b"[" * 100_000, "it is no JWK Set"),
        (b'{"keys": 7}', "it is no JWK Set of at most"),
        (key_set(*[7] * 65), "it is no JWK Set of at most"),
        (key_set(), "it has no keys"),
        (key_set(public("RSA", use="sig")), "keys[0]: use is 'sig'"),
        (key_set(public("RSA", exp="soon")), "keys[0]: exp is no number of seconds"),
    ],
)
def test_a_set_without_a_usable_key_says_why(body: bytes, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        usable_key(body, 100)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"keys": [7]}',
        '{"kty": ["EC"], "d": "geheim"}',
        str(KEYS["RSA"].export_public()),
        '{"kty":"EC","d":"geheim"}',
    ],
)
def test_what_is_no_private_key_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        private_keys(text)
    assert "geheim" not in str(caught.value)
