"""Which hosts and origins are the API's own, and how wrong keys are counted."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.api.authentication import FailedKeys
from relay.api.connection import network_of
from relay.api.origin_check import WebRules
from relay.config.own_address import is_loopback, own_url

EVERYWHERE: Final = "0.0.0.0"  # noqa: S104
RULES: Final = WebRules(("relay.lan", "*.cluster.local"), "https://relay.example/base")
OURS: Final = """
    localhost LOCALHOST:1 localhost.:8080 127.0.0.1 127.9.9.9:65535 [::1] [::1]:8080 [::ffff:127.0.0.1] relay.lan
    Relay.LAN:9 relay.example relay.example:8443 a.cluster.local a.b.cluster.local:80
"""
NOT_OURS: Final = """
    evil.example localhost.evil.example evil.example:8080 127.0.0.1.evil.example 10.0.0.1 0.0.0.0 [::] ::1 [::1
    [fe80::1] relay.lan.evil cluster.local xcluster.local notlocalhost 127.0.0.1:x localhost: localhost:8080:1
    user@localhost localhost/x 127.1 0x7f.0.0.1 2130706433 localhost,evil.example *.cluster.local.evil
"""


@pytest.mark.parametrize("host", OURS.split())
def test_hosts_that_are_ours(host: str) -> None:
    assert RULES.is_ours(host)


@pytest.mark.parametrize("host", [None, "", " ", "localhost localhost", "\udcff", *NOT_OURS.split()])
def test_hosts_that_are_not(host: str | None) -> None:
    assert not RULES.is_ours(host)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("LOCALHOST:8080", "http://localhost:8080"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("relay.lan", "https://relay.lan"),  # a proxy in front of us ended TLS
        ("[::1]:8080", "http://[::1]:8080"),
        ("relay-api:8080", "https://relay.example"),  # the proxy names us in its own way
        ("localhost:8080", None),
    ],
)
def test_origins_that_are_ours(host: str, origin: str | None) -> None:
    for site in (None, "same-origin", "none", "Same-Origin"):
        assert not RULES.is_foreign(host, origin, site)
    for site in ("cross-site", "same-site", "", "anything"):
        assert RULES.is_foreign(host, origin, site)


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "https://evil.example", "http://localhost", "http://localhost:8081", "http://127.0.0.1:8080"),
        *("http://localhost.evil.example:8080", "chrome-extension://abc", "file://", "http://", "http://[::1", "//"),
        *("http://relay.example", "https://relay.example:444", "http://localhost:8080, http://evil.example", "\udcff"),
    ],
)
def test_origins_that_are_foreign(origin: str) -> None:
    assert RULES.is_foreign("localhost:8080", origin, None)


@given(st.one_of(st.none(), st.text()), st.one_of(st.none(), st.text()), st.one_of(st.none(), st.text()))
def test_nothing_in_these_headers_is_an_error(host: str | None, origin: str | None, site: str | None) -> None:
    assert RULES.is_ours(host) in (True, False)
    assert RULES.is_foreign(host, origin, site) in (True, False)


@pytest.mark.parametrize("host", ["localhost", "Localhost.", "127.0.0.1", "127.255.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", ".", EVERYWHERE, "::", "10.0.0.1", "fe80::1", "localhost.lan", "127.1", "[::1]", "x"]
)
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        (EVERYWHERE, "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("relay.lan", "http://relay.lan:1"),
    ],
)
def test_the_url_by_which_we_reach_ourselves(host: str, url: str) -> None:
    assert own_url(host, 1) == url


# --- wrong keys -------------------------------------------------------------------------------------------------


def test_so_many_wrong_keys_and_then_too_many_until_they_are_forgotten() -> None:
    failed = FailedKeys(most=2, span_s=60.0, addresses=10)
    assert [failed.note("192.0.2.1", now) for now in (0.0, 1.0, 2.0, 59.5)] == [None, None, 58, 1]
    assert failed.note("192.0.2.2", 59.5) is None
    assert failed.note("192.0.2.1", 60.0) is None


def test_an_ipv6_network_is_one_caller_and_a_mapped_address_its_ipv4_one() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"


def test_no_more_addresses_are_remembered_than_allowed() -> None:
    failed = FailedKeys(most=1, span_s=60.0, addresses=2)
    for address in ("a", "b", "c"):
        assert failed.note(address, 0.0) is None
    assert failed.note("a", 0.0) is None  # forgotten
    assert failed.note("c", 0.0) == 60
