"""HTTP message signatures: against the package http-message-signatures, examples of RFC 9530 and 8037, and forgery."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import http_message_signatures as other
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from relay.delivery.http1 import head_of, start_of_head
from relay.domain.coordinate import Coordinate
from relay.domain.exchange import Request
from relay.domain.hop import Hop
from relay.domain.http_message import content_digest, public_jwk, secret_id, thumbprint, verify_message
from relay.domain.identity import DeliveryId
from relay.domain.receiver import Endpoint, FormerSecret, Receiver, SigningPolicy
from relay.domain.requests import post_request
from relay.domain.signing import public_key
from relay.domain.urls import url_parts

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RAW = base64.b64decode(SECRET.removeprefix("whsec_"))
PRIVATE = "whsk_" + base64.b64encode(bytes(range(32))).decode()
PUBLIC = public_key(PRIVATE)
URL = "https://CI.example/hooks/a%20b?x=1&y=%C3%A4"
NOW = int(datetime.now(UTC).timestamp())  # the package takes no clock
BODY = b'{"n": 1}'


def request(policy: SigningPolicy, *, body: bytes = BODY, url: str = URL) -> Request:
    return post_request(
        Receiver("ci", Endpoint(url, policy)),
        Hop(DeliveryId("ci", "github", "a-1"), content_type="application/json", origin=Coordinate("from_sender", 0, 0)),
        body,
        attempt=1,
        sequence=None,
        now=NOW,
        answer_url=None,
        user_agent="relay/1",
    )


def verified(sent: Request, secrets: list[str], **changes: Any) -> bool:
    how = {
        "method": sent.method,
        "url": sent.url,
        "headers": dict(sent.headers),
        "body": sent.body,
        "now": NOW,
        **changes,
    }
    return verify_message(secrets, **how)


class Message:
    """A request as that package reads it."""

    def __init__(self, sent: Request) -> None:
        self.method, self.url, self.body = sent.method, sent.url, sent.body
        self.headers = dict(sent.headers)


class Keys:
    def __init__(self, key: object) -> None:
        self.key = key

    def resolve_public_key(self, key_id: str) -> Any:
        return self.key

    resolve_private_key = resolve_public_key


def by_the_package(sent: Request, algorithm: Any, key: object, label: str) -> dict[str, Any]:
    verifier = other.HTTPMessageVerifier(signature_algorithm=algorithm, key_resolver=Keys(key))
    how = {"max_age": timedelta(hours=5), "expect_tag": "webhook", "expect_label": label, "body": sent.body}
    [result] = verifier.verify(Message(sent), **how)
    return dict(result.covered_components)


HMAC = other.algorithms.HMAC_SHA256
ED25519 = other.algorithms.ED25519


def test_the_package_verifies_an_hmac_with_all_that_is_covered() -> None:
    sent = request(SigningPolicy(("http-message",), (SECRET,)))
    covered = by_the_package(sent, HMAC, RAW, "sig1")
    assert covered['"@path"'] == "/hooks/a%20b"
    assert covered['"@query"'] == "?x=1&y=%C3%A4"
    assert covered['"@authority"'] == "ci.example"
    assert covered['"webhook-id"'] == dict(sent.headers)["webhook-id"]
    assert covered['"content-type"'] == "application/json"
    assert verified(sent, [SECRET])


def test_the_package_verifies_an_ed25519_key() -> None:
    sent = request(SigningPolicy(("http-message",), private_keys=(PRIVATE,)))
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(PUBLIC.removeprefix("whpk_")))
    by_the_package(sent, ED25519, key, "sig1")
    assert verified(sent, [PUBLIC])


@pytest.mark.parametrize(
    "url", ["https://ci.example./a?b", "http://CI.example.:81/", "https://0x7f.1/a", "http://[2606::1]:80/a"]
)
def test_the_authority_is_the_host_header_as_it_is_sent(url: str) -> None:
    """The receiver knows nothing else of the URL's host."""
    sent = request(SigningPolicy(styles=("http-message",), secrets=(SECRET,)), url=url)
    parts = url_parts(url)
    head = head_of(sent, start_of_head(parts)).decode()
    seen = f"{parts.scheme}://{head.split('Host: ')[1].split()[0]}{head.split()[1]}"
    assert verified(sent, [SECRET], url=seen)
    assert verified(sent, [SECRET])


def test_during_a_rotation_each_secret_has_a_signature() -> None:
    former = (FormerSecret("old", NOW + 9), FormerSecret("over", NOW - 1))
    sent = request(SigningPolicy(("http-message",), (SECRET,), private_keys=(PRIVATE,), former=former))
    by_the_package(sent, HMAC, RAW, "sig1")
    by_the_package(sent, HMAC, b"old", "sig2")
    assert all(verified(sent, [each]) for each in (SECRET, "old", PUBLIC))
    assert not verified(sent, ["another", "over"])


def test_it_stands_beside_other_styles_and_signs_nothing_without_a_secret() -> None:
    headers = dict(request(SigningPolicy(("standard", "http-message"), (SECRET,))).headers)
    assert {"webhook-signature", "signature", "signature-input", "content-digest"} <= headers.keys()
    assert not {"signature", "content-digest"} & dict(request(SigningPolicy(("http-message",))).headers).keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "PUT"},
        {"url": "https://other.example/hooks/a%20b?x=1&y=%C3%A4"},
        {"url": "https://ci.example/hooks?x=1&y=%C3%A4"},
        {"url": "https://ci.example/hooks/a%20b"},
        {"url": "https://ci.example:8443/hooks/a%20b?x=1&y=%C3%A4"},
        {"body": BODY + b" "},
        {"now": NOW + 301},
        {"now": NOW - 301},
    ],
)
def test_a_changed_request_is_not_verified(changes: dict[str, Any]) -> None:
    sent = request(SigningPolicy(("http-message",), (SECRET,), private_keys=(PRIVATE,)))
    assert verified(sent, [SECRET])
    assert not verified(sent, [SECRET, PUBLIC], **changes)


@pytest.mark.parametrize("name", ["webhook-id", "content-type", "content-digest", "signature", "signature-input"])
def test_a_changed_or_missing_header_is_not_verified(name: str) -> None:
    sent = request(SigningPolicy(("http-message",), (SECRET,)))
    headers = dict(sent.headers)
    assert not verified(sent, [SECRET], headers={**headers, name: headers[name] + "x"})
    assert not verified(sent, [SECRET], headers={k: v for k, v in headers.items() if k != name})


def test_what_covers_less_is_not_verified_nor_an_hmac_keyed_with_a_public_key() -> None:
    sent = request(SigningPolicy(("http-message",), (SECRET,)))
    headers = dict(sent.headers)
    less = headers["signature-input"].replace(' "content-digest"', "")
    assert not verified(sent, [SECRET], headers={**headers, "signature-input": less})
    forged = request(SigningPolicy(("http-message",), ("x" + PUBLIC,)))
    assert not verified(forged, [PUBLIC])


@given(st.text(), st.text(), st.binary())
def test_any_headers_are_verified_or_not(inputs: str, signature: str, body: bytes) -> None:
    headers = {"signature-input": inputs, "signature": signature, "content-digest": content_digest(body)}
    assert not verify_message([SECRET, PUBLIC], method="POST", url=URL, headers=headers, body=body, now=NOW)


def test_the_digest_is_that_of_the_standard() -> None:
    # RFC 9530, appendix D
    assert content_digest(b'{"hello": "world"}\n') == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"


def test_a_public_key_is_a_jwk_named_by_its_thumbprint() -> None:
    # RFC 8037, A.2 and A.3
    key = "whpk_" + base64.b64encode(base64.urlsafe_b64decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo=")).decode()
    assert thumbprint(key) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    jwk = public_jwk(key)
    assert (jwk["x"], jwk["kid"]) == ("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", thumbprint(key))


def test_the_id_of_a_secret_is_no_part_of_it() -> None:
    assert secret_id(SECRET) != secret_id("another")
    assert secret_id(SECRET) not in SECRET
