"""How one endpoint is reached, as it may be written: its proxy, its token and its TLS."""

import json
from collections.abc import Mapping

import pytest
import yaml

from relay.config.encryption import NO_KEYS, KeyRing
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import ReceiversFile, parse_receivers_file, resolve
from relay.config.redacted_entry import effective
from relay.control.patch import RECEIVER, Faulty, Rules, checked, encrypted, opened
from relay.domain.egress import Egress, OAuth2, ProxyAddress, Tls
from relay.domain.errors import UserError
from relay.domain.receiver import Receiver
from relay.domain.secrecy import MASK
from tests.expecting import present
from tests.fakes.certificates import authority, issued

URL = "https://ci.example/hooks"
WITH_LOGIN = "http://relay:hunter2@proxy:3128"


def _file(**fields: object) -> ReceiversFile:
    return parse_receivers_file(yaml.safe_dump({"receivers": {"ci": {"post_endpoint": URL, **fields}}}))


@pytest.mark.parametrize(
    ("written", "egress"),
    [
        (WITH_LOGIN, Egress(proxy=ProxyAddress("proxy", 3128, "Basic cmVsYXk6aHVudGVyMg=="))),
        ("http://proxy", Egress(proxy=ProxyAddress("proxy", 80))),
        ("none", Egress(proxy="none")),
        ("${PROXY}", Egress(proxy=ProxyAddress("10.0.0.1", 8080))),
        (None, None),
    ],
)
def test_a_proxy_of_its_own(written: str | None, egress: Egress | None) -> None:
    receivers, _ = _file(proxy=written).resolve({"PROXY": "http://10.0.0.1:8080/"})
    assert receivers["ci"].post.egress == egress


@pytest.mark.parametrize(
    "written", ["direct", "https://proxy:3128", "http://", "http://hunter2:x:y@proxy:port", "http://proxy/hunter2"]
)
def test_what_is_no_proxy(written: str) -> None:
    with pytest.raises(UserError) as caught:
        _file(proxy=written)
    assert str(caught.value) == (
        "receivers.yaml: receivers.ci.proxy: not the URL of a proxy; write it as http://[user:password@]host:port"
    )


def test_its_login_is_a_secret() -> None:
    file = _file(proxy=WITH_LOGIN)
    assert "hunter2" not in json.dumps(file.sealed.receivers)
    assert effective(file.receivers["ci"])["proxy"] == f"http://{MASK}@proxy:3128"
    endpoint = file.resolve({})[0]["ci"].post
    assert "relay:hunter2" in endpoint.secrets
    assert "hunter2" not in repr(endpoint.egress)


OAUTH2 = {"token_url": "https://idp.example/token", "client_id": "relay", "client_secret": "hunter2"}


def test_oauth2_reaches_the_endpoint_and_its_secret_stays_here() -> None:
    file = _file(oauth2=OAUTH2 | {"scope": "write", "auth": "body"})
    expected = OAuth2("https://idp.example/token", "relay", "hunter2", "write", auth="body")
    assert file.resolve({})[0]["ci"].post.egress == Egress(oauth2=expected)
    assert "hunter2" not in json.dumps(file.sealed.receivers)
    shown = effective(file.receivers["ci"])["oauth2"]
    assert shown == OAUTH2 | {"client_secret": MASK, "scope": "write", "audience": None, "auth": "body"}


def test_a_client_secret_that_came_over_the_api_is_encrypted() -> None:
    rules = Rules({}, (), KeyRing([b"k" * 32]))
    draft = {"post_endpoint": URL, "oauth2": OAUTH2}
    raw = encrypted("ci", checked(RECEIVER, draft, rules), rules)
    assert "hunter2" not in json.dumps(raw)
    assert opened("ci", raw, rules) == draft


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"bearer_token": "t"},
            "bearer_token: contradicts oauth2, which sets the same header; leave one of the two out",
        ),
        (
            {"headers": {"Authorization": "Token t"}},
            "headers: 'authorization' contradicts oauth2; leave one of the two out",
        ),
        (
            {"oauth2": OAUTH2 | {"client_secret": ""}},
            "oauth2.client_secret: is empty; leave it out, or give it a value",
        ),
        ({"oauth2": OAUTH2 | {"auth": "jwt"}}, "oauth2.auth: 'jwt' is not allowed; allowed: 'basic' or 'body'"),
        ({"oauth2": OAUTH2 | {"token_url": "idp"}}, "oauth2.token_url: not a URL; write it as https://host/path"),
        (
            {"oauth2": {"token_url": "https://idp.example/", "client_id": "a"}},
            "oauth2.client_secret: required, but missing",
        ),
    ],
)
def test_a_mistake_about_oauth2(fields: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        _file(**{"oauth2": OAUTH2, **fields})
    assert str(caught.value) == f"receivers.yaml: receivers.ci.{message}"


@pytest.mark.parametrize("proxy", ["http://proxy:3128", "none"])
def test_only_the_file_says_so(proxy: str) -> None:
    with pytest.raises(Faulty) as caught:
        checked(RECEIVER, {"post_endpoint": URL, "proxy": proxy}, Rules({}, (), NO_KEYS))
    [fault] = caught.value.faults
    assert fault.pointer == "/proxy"
    assert "only the receivers file" in fault.detail
    assert checked(RECEIVER, {"post_endpoint": URL, "proxy": None}, Rules({}, (), NO_KEYS)).proxy is None


# --- TLS ----------------------------------------------------------------------------------------------------------

CA = authority()
OURS = issued(CA, "relay.example")
OTHER = issued(CA, "other.example")
KEY = {"client_certificate": OURS.pem, "client_key": OURS.key_pem}
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


def _resolved(tls: object, environ: Mapping[str, str] | None = None) -> Receiver:
    return _file(tls=tls).resolve(environ or {})[0]["ci"]


def test_tls_of_its_own_reaches_the_endpoint() -> None:
    tls = {"ca": CA.pem + OTHER.pem, **KEY, "pinned": [f"sha256/{CA.fingerprint}", OTHER.pin_of_key]}
    egress = present(_resolved(tls).post.egress)
    assert egress.tls is not None
    assert (egress.tls.ca, egress.tls.client_certificate) == (CA.pem + OTHER.pem, OURS.pem)
    assert egress.tls.client_key == OURS.key_pem
    assert egress.tls.pinned[0].hex(":").upper() == CA.fingerprint
    assert "PRIVATE KEY" not in repr(egress)


@pytest.mark.parametrize("tls", [None, {}, {"ca": None, "pinned": []}])
def test_no_tls_of_its_own_is_nothing(tls: object) -> None:
    assert _resolved(tls).post.egress is None


def test_tls_may_be_in_variables_and_is_checked_then() -> None:
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
def test_a_mistake_about_tls(tls: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        _file(tls=tls)
    assert str(caught.value) == f"receivers.yaml: receivers.ci.tls.{message}"


def test_plain_http_has_none() -> None:
    why = "plain http has no TLS; write https, or leave tls out"
    with pytest.raises(UserError, match=why):
        _file(tls={"ca": CA.pem}, post_endpoint="http://ci.example/")
    callback = {"sources": {"gh": {"callback": {"url": "http://sender.example/", "tls": {"ca": CA.pem}}}}}
    with pytest.raises(UserError, match=why):
        parse_receivers_file(yaml.safe_dump(callback))


def test_a_key_leaves_the_file_as_a_reference_only() -> None:
    file = _file(tls=KEY)
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
