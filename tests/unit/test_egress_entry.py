"""How one endpoint is reached, as it may be written."""

import json

import pytest
import yaml

from relay.config.encryption import NO_KEYS, KeyRing
from relay.config.receivers_file import ReceiversFile, parse_receivers_file
from relay.config.redacted_entry import effective
from relay.control.patch import RECEIVER, Faulty, Rules, checked, encrypted, opened
from relay.domain.egress import Egress, OAuth2, ProxyAddress
from relay.domain.errors import UserError
from relay.domain.secrecy import MASK

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
