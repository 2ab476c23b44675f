"""TLS settings of one endpoint, as they may be written."""

import json
from collections.abc import Mapping

import pytest
import yaml

from relay.config.encryption import KeyRing
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import parse_receivers_file, resolve
from relay.config.redacted_entry import effective
from relay.control.patch import RECEIVER, Rules, checked, encrypted, opened
from relay.domain.egress import Egress, Tls
from relay.domain.errors import UserError
from relay.domain.receiver import Receiver
from relay.domain.secrecy import MASK
from tests.expecting import present
from tests.fakes.certificates import authority, issued

CA = authority()
OURS = issued(CA, "relay.example")
OTHER = issued(CA, "other.example")
KEY = {"client_certificate": OURS.pem, "client_key": OURS.key_pem}
URL = "https://ci.example/hooks"
NO_PIN = (
    "a pin is sha256/ and the SHA-256 of the server's certificate or public key, in base64 or as openssl prints it "
    "(openssl x509 -noout -fingerprint -sha256)"
)
NO_CERTIFICATES = (
    "not certificates in PEM; write the text from -----BEGIN CERTIFICATE----- to the last -----END CERTIFICATE-----, "
    "not the name of a file"
)
NOT_TWO = "client_certificate and client_key go together; give both or neither"
NOT_FIT = "does not match client_certificate (the first certificate there has to be the client's)"


def _file(tls: object, url: str = URL) -> str:
    return yaml.safe_dump({"receivers": {"ci": {"post_endpoint": url, "tls": tls}}})


def _resolved(tls: object, environ: Mapping[str, str] | None = None) -> Receiver:
    return parse_receivers_file(_file(tls)).resolve(environ or {})[0]["ci"]


def test_what_is_written_reaches_the_endpoint() -> None:
    tls = {"ca": CA.pem + OTHER.pem, **KEY, "pinned": [f"sha256/{CA.fingerprint}", OTHER.pin_of_key]}
    egress = present(_resolved(tls).post.egress)
    assert egress.tls is not None
    assert (egress.tls.ca, egress.tls.client_certificate) == (CA.pem + OTHER.pem, OURS.pem)
    assert egress.tls.client_key == OURS.key_pem
    assert egress.tls.pinned[0].hex(":").upper() == CA.fingerprint
    assert "PRIVATE KEY" not in repr(egress)


@pytest.mark.parametrize("tls", [None, {}, {"ca": None, "pinned": []}])
def test_nothing_of_its_own_is_nothing(tls: object) -> None:
    assert _resolved(tls).post.egress is None


def test_it_may_be_in_variables_and_is_checked_then() -> None:
    tls = {"ca": "${CA}", "client_certificate": "${CERT}", "client_key": "${KEY}", "pinned": ["${PIN}"]}
    environ = {"CA": CA.pem, "CERT": OURS.pem, "KEY": OURS.key_pem, "PIN": OURS.pin_of_key}
    egress = present(_resolved(tls, environ).post.egress)
    assert present(egress.tls).client_key == OURS.key_pem
    with pytest.raises(UserError) as caught:
        _resolved(tls, {**environ, "KEY": OTHER.key_pem})
    assert str(caught.value) == f"receivers.yaml: receivers.ci.tls.client_key: {NOT_FIT}"


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        ({"ca": "/etc/ca.pem"}, f"ca: {NO_CERTIFICATES}"),
        ({"ca": OURS.pem.replace("A", "B")}, f"ca: {NO_CERTIFICATES}"),
        ({"ca": "ü\n" + CA.pem}, "ca: has characters beyond ASCII; leave out any text around the certificates"),
        ({"ca": OURS.pem + OURS.key_pem}, "ca: contains a private key, which is a secret: it belongs into client_key"),
        ({"ca": "a" * 131_073}, "ca: too long; at most 131072"),
        ({"client_certificate": OURS.pem}, f"client_key: {NOT_TWO}"),
        ({"client_key": OURS.key_pem}, f"client_key: {NOT_TWO}"),
        ({"client_certificate": OURS.pem, "client_key": OTHER.key_pem}, f"client_key: {NOT_FIT}"),
        ({"client_certificate": CA.pem + OURS.pem, "client_key": OURS.key_pem}, f"client_key: {NOT_FIT}"),
        (
            {"client_certificate": OURS.pem, "client_key": OURS.encrypted_key_pem},
            "client_key: is encrypted with a passphrase; decrypt it (openssl pkey -in KEY)",
        ),
        (
            {"client_certificate": OURS.pem, "client_key": "hunter2"},
            "client_key: not a private key in PEM; write its text, not the name of a file",
        ),
        ({"client_certificate": OURS.pem, "client_key": 12}, "client_key: the value is not text; put it in quotes"),
        ({"pinned": ["sha1/AAAA"]}, f"pinned[0]: {NO_PIN}"),
        ({"pinned": [OURS.pin_of_key, "sha256/" + "A" * 44]}, f"pinned[1]: {NO_PIN}"),
        ({"pinned": [f"sha256/{OURS.fingerprint}:00"]}, f"pinned[0]: {NO_PIN}"),
        ({"pinned": [OURS.pin_of_key] * 17}, "pinned: too long; at most 16"),
        ({"verify": False}, "verify: unknown field; known: ca, client_certificate, client_key, pinned"),
    ],
)
def test_a_mistake(tls: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_receivers_file(_file(tls))
    assert str(caught.value) == f"receivers.yaml: receivers.ci.tls.{message}"


def test_plain_http_has_none() -> None:
    why = "plain http has no TLS; write https, or leave tls out"
    with pytest.raises(UserError, match=why):
        parse_receivers_file(_file({"ca": CA.pem}, "http://ci.example/"))
    callback = {"sources": {"gh": {"callback": {"url": "http://sender.example/", "tls": {"ca": CA.pem}}}}}
    with pytest.raises(UserError, match=why):
        parse_receivers_file(yaml.safe_dump(callback))


def test_a_key_leaves_the_file_as_a_reference_only() -> None:
    file = parse_receivers_file(_file(KEY))
    sealed = file.sealed
    assert "PRIVATE KEY" not in json.dumps(sealed.receivers) + repr(sealed)
    entry = ReceiverEntry.model_validate(sealed.receivers["ci"])
    expected = Egress(Tls(client_certificate=OURS.pem, client_key=OURS.key_pem))
    assert resolve("ci", entry, sealed.literals).post.egress == expected


def test_a_key_that_came_over_the_api_is_encrypted_and_not_shown() -> None:
    rules = Rules({}, (), KeyRing([b"k" * 32]))
    draft = {"post_endpoint": URL, "tls": KEY}
    entry = checked(RECEIVER, draft, rules)
    raw = encrypted("ci", entry, rules)
    assert "PRIVATE KEY" not in json.dumps(raw)
    assert opened("ci", raw, rules) == draft
    shown = effective(ReceiverEntry.model_validate(raw))["tls"]
    assert shown == {"ca": None, "client_certificate": OURS.pem, "client_key": MASK, "pinned": []}
