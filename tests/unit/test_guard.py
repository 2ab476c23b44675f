"""The guard lets only public addresses through, however an address is written or wrapped."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from relay.delivery.guard import AddressGuard, embedded_ipv4
from relay.domain.urls import UrlParts, ends_in_number, malformed, url_parts

PUBLIC = AddressGuard()

REFUSED = """
    0.0.0.0 0.0.0.1 0.255.255.255 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1
    127.255.255.255 168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 169.254.169.123 172.16.0.1 172.31.255.255
    192.0.0.1 192.0.0.9 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 192.168.255.255 198.18.0.1 198.19.255.255
    198.51.100.7 203.0.113.7 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1 ::ffff:169.254.169.254
    ::ffff:0:127.0.0.1 ::ffff:0:8.8.8.8 64:ff9b::7f00:1 64:ff9b::10.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b:1::1
    64:ff9b:1::8.8.8.8 64:ff9b:1:fffe::127.0.0.1 100::1 100:0:0:1::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2
    2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:a00:1::1 2002:a9fe:a9fe::1 2002:c0a8:1::1 3fff::1
    3fff:fff:ffff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fd20:ce::254 fdff::1 fe80::1 fe80::1%eth0 fe80::a9fe:a9fe
    febf::1 fec0::1 feff::1 ff00::1 ff02::1 ff0e::1
"""

PASSED = """
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 140.82.112.3
    168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.88.98.255
    192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255
    ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2002:808:808::1 2001:200::1 2001:4860:4860::8888 2606:4700:4700::1111
    2620:4f:8000::1 2a00:1450::1
"""


@pytest.mark.parametrize("ip", REFUSED.split())
def test_refused(ip: str) -> None:
    assert "not a public address" in (PUBLIC.check_address(ip) or "")


METADATA = """
    169.254.169.254 169.254.170.2 169.254.0.1 168.63.129.16 192.0.0.192 100.100.100.200 fd00:ec2::254 fd20:ce::254
    fe80::a9fe:a9fe fe80::1%eth0 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1 ::169.254.169.254
"""


@pytest.mark.parametrize("ip", METADATA.split())
def test_how_to_reach_the_credentials_of_a_cloud_is_not_advertised(ip: str) -> None:
    said = PUBLIC.check_address(ip) or ""
    assert "credentials" in said
    assert "RELAY_" not in said


@pytest.mark.parametrize("ip", ["10.0.0.1", "127.0.0.1", "192.168.0.1", "fd00::1", "::1"])
def test_the_setting_that_allows_a_private_network_is_said(ip: str) -> None:
    assert f"RELAY_ALLOW_PRIVATE_NETWORKS={ip}/" in (PUBLIC.check_address(ip) or "")


@pytest.mark.parametrize("ip", PASSED.split())
def test_passed(ip: str) -> None:
    assert PUBLIC.check_address(ip) is None


@pytest.mark.parametrize("ip", ["", "localhost", "127.1", "0x7f.1", "2130706433", "1.2.3.4.5", "[::1]", "127.0.0.1 "])
def test_what_is_no_address_is_refused(ip: str) -> None:
    assert PUBLIC.check_address(ip) == f"{ip!r} is not an IP address"


# IANA IPv4 and IPv6 special-purpose address registries, except globally reachable ones, and multicast.
SPECIAL_4 = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
"""
SPECIAL_6 = """
    ::/128 ::1/128 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001:db8::/32 3fff::/20 5f00::/16 fc00::/7
    fe80::/10 fec0::/10 ff00::/8
"""


def within(net: IPv4Network | IPv6Network) -> st.SearchStrategy[int]:
    first, last = int(net.network_address), int(net.broadcast_address)
    return st.sampled_from([first, last]) | st.integers(first, last)


def embeddings(ip: IPv4Address, noise: int) -> dict[str, IPv6Address]:
    """Every way to write `ip` into an IPv6 address; `noise` fills the bits that do not matter."""
    number = int(ip)
    low_80, low_32 = noise % 2**80, noise % 2**32
    return {
        "mapped": IPv6Address(int(IPv6Address("::ffff:0:0")) | number),
        "translated": IPv6Address(int(IPv6Address("::ffff:0:0:0")) | number),
        "compatible": IPv6Address(number),
        "nat64": IPv6Address(int(IPv6Address("64:ff9b::")) | number),
        "nat64 local": IPv6Address(int(IPv6Address("64:ff9b:1::")) | low_80 >> 32 << 32 | number),
        "6to4": IPv6Address(0x2002 << 112 | number << 80 | low_80),
        "teredo": IPv6Address(0x20010000 << 96 | low_32 << 64 | low_80 % 2**32 << 32 | (~number & 0xFFFFFFFF)),
    }


special_4 = st.sampled_from(SPECIAL_4.split()).map(IPv4Network).flatmap(within).map(IPv4Address)
special_6 = st.sampled_from(SPECIAL_6.split()).map(IPv6Network).flatmap(within).map(IPv6Address)
any_4 = st.integers(0, 2**32 - 1).map(IPv4Address)
noises = st.integers(0, 2**80 - 1)


@given(special_4, noises)
def test_no_special_address_passes_in_any_embedding(ip: IPv4Address, noise: int) -> None:
    assert PUBLIC.check_address(str(ip))
    passed = {name for name, wrapped in embeddings(ip, noise).items() if not PUBLIC.check_address(str(wrapped))}
    assert passed == set()


@given(special_6)
def test_no_special_ipv6_address_passes(ip: IPv6Address) -> None:
    assert PUBLIC.check_address(str(ip))


@given(any_4, noises)
def test_embeddings_are_seen_through(ip: IPv4Address, noise: int) -> None:
    assert {embedded_ipv4(wrapped) for wrapped in embeddings(ip, noise).values()} == {ip}


@given(any_4, noises)
def test_an_embedding_never_passes_more_than_the_address_itself(ip: IPv4Address, noise: int) -> None:
    if PUBLIC.check_address(str(ip)):
        assert all(PUBLIC.check_address(str(wrapped)) for wrapped in embeddings(ip, noise).values())


@given(special_4, noises)
def test_an_allowed_address_passes_in_every_embedding(ip: IPv4Address, noise: int) -> None:
    guard = AddressGuard([ip_network(ip)])
    assert guard.check_address(str(ip)) is None
    assert not any(guard.check_address(str(wrapped)) for wrapped in embeddings(ip, noise).values())


def test_an_allowed_network_opens_nothing_else() -> None:
    guard = AddressGuard([ip_network("10.1.0.0/16"), ip_network("fd00:1::/32")])
    assert guard.check_address("10.1.2.3") is None
    assert guard.check_address("fd00:1::5") is None
    assert guard.check_address("10.2.0.1")
    assert guard.check_address("fd00:2::5")
    assert guard.check_address("127.0.0.1")


# --- URLs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://ci.example",
        "https://ci.example/hooks",
        "HTTPS://CI.example:8443/hooks?x=%20+{}",
        "https://ci.example./x",
        "https://ci?x",
        "https://xn--bcher-kva.example/",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]:443/",
        "https://ci.example/@user",
        "https://under_score.internal/",
    ],
)
def test_good_urls(url: str) -> None:
    assert PUBLIC.check_url(url) is None


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "begin with https"),
        ("ci.example/hooks", "begin with https"),
        ("ftp://ci.example/", "begin with https"),
        ("file:///etc/passwd", "begin with https"),
        ("https:/ci.example", "begin with https"),
        ("https://", "no host"),
        ("https:///x", "no host"),
        ("https://:443/x", "no host"),
        ("https://user@ci.example/", "user name"),
        ("https://user:pw@ci.example/", "user name"),
        ("https://8.8.8.8@127.0.0.1/", "user name"),
        ("https://ci.example/#x", "fragment"),
        ("https://ci.example:0/", "port"),
        ("https://ci.example:65536/", "port"),
        ("https://ci.example:/", "port"),
        ("https://ci.example:8a/", "port"),
        ("https://ci.example:443:443/", "port"),
        ("https://[fe80::1%25eth0]/", "zone"),
        ("https://[fe80::1%eth0]/", "zone"),
        ("https://ci%2eexample/", "zone"),
        ("https://[::1/", "malformed"),
        ("https://[:::1]/", "not a valid IPv6"),
        ("https://[1.2.3.4]/", "not a valid IPv6"),
        ("https://a..b/", "malformed"),
        ("https://-a/", "malformed"),
        (f"https://{'a' * 64}.example/", "malformed"),
        ("https://ci.example\\@127.0.0.1/", "backslash"),
        ("https://b\u00fccher.example/", "xn--"),
        ("https://ci.example/a b", "printable"),
        ("https://ci.example/\r\nx", "printable"),
        ("https://①②⑦.0.0.1/", "printable"),
        ("https://127。0。0。1/", "printable"),
        ("https://127.0.0.1/", "not a public address"),
        ("https://169.254.169.254/latest/", "not a public address"),
        ("https://[::1]/", "not a public address"),
        ("https://[::ffff:127.0.0.1]/", "not a public address"),
        ("http://ci.example/", "plain http"),
        ("http://8.8.8.8/", "plain http"),
    ],
)
def test_bad_urls(url: str, complaint: str) -> None:
    assert complaint in (PUBLIC.check_url(url) or "")


def test_plain_http_is_for_allowed_networks() -> None:
    guard = AddressGuard([ip_network("10.0.0.0/8")])
    assert guard.check_url("http://10.1.2.3/") is None
    refusal = "8.8.8.8: plain http is only for allowed networks and names; use https, or set RELAY_ALLOW_HTTP=true"
    assert guard.check_url("http://8.8.8.8/") == refusal
    assert guard.check_url("http://ci.internal/") is None  # the address that it turns out to have decides:
    assert guard.check_dial("http", "10.1.2.3") is None
    assert guard.check_dial("http", "::ffff:10.1.2.3") is None
    assert guard.check_dial("http", "8.8.8.8") == refusal
    assert guard.check_dial("https", "8.8.8.8") is None


NAMED = AddressGuard(allowed_names=["ci.internal", "*.svc.local", "localhost"])
PRIVATE = "10.1.2.3 172.16.0.1 192.168.1.1 100.64.0.1 127.0.0.1 ::1 fd12::1 ::ffff:10.1.2.3"
NOT_BY_NAME = """
    169.254.169.254 169.254.1.1 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254 fd20:ce::254 fe80::1 0.0.0.0 ::
    224.0.0.1 255.255.255.255 ff02::1 198.18.0.1 ::ffff:169.254.169.254 64:ff9b::a01:203 2002:a01:203::1 ::10.1.2.3
"""


@pytest.mark.parametrize("host", ["ci.internal", "CI.Internal.", "a.svc.local", "a.b.svc.local.", "localhost"])
def test_an_allowed_name_may_lead_to_private_addresses_and_nowhere_else(host: str) -> None:
    for scheme in ("http", "https"):
        assert NAMED.check_url(f"{scheme}://{host}/") is None
        assert [NAMED.check_dial(scheme, ip, host) for ip in PRIVATE.split()] == [None] * 8
        assert all(NAMED.check_dial(scheme, ip, host) for ip in NOT_BY_NAME.split())
    assert NAMED.check_dial("https", "8.8.8.8", host) is None
    assert "plain http is only for" in (NAMED.check_dial("http", "8.8.8.8", host) or "")


@pytest.mark.parametrize(
    "host",
    ["internal", "xci.internal", "x.ci.internal", "ci.internal.example", "svc.local", "xsvc.local", "a.localhost"],
)
def test_no_other_name_is_allowed(host: str) -> None:
    assert NAMED.check_url(f"http://{host}/")
    assert not any(NAMED.check_dial("https", ip, host) is None for ip in PRIVATE.split())


def test_a_network_allows_what_a_name_does_not() -> None:
    guard = AddressGuard([ip_network("169.254.169.254/32")], allowed_names=["metadata.internal"])
    assert guard.check_dial("http", "169.254.169.254", "metadata.internal") is None
    assert guard.check_dial("http", "169.254.169.253", "metadata.internal")


def test_plain_http_may_be_allowed_everywhere_without_opening_networks() -> None:
    guard = AddressGuard(allow_http=True)
    assert guard.check_url("http://ci.example/") is None
    assert guard.check_dial("http", "8.8.8.8") is None
    assert guard.check_dial("http", "127.0.0.1")


@given(
    st.from_regex(r"(?i)https?://[a-z0-9.:@\[\]_%-]{0,25}([/?][!-~]{0,10})?", fullmatch=True)
    | st.from_regex(r"https://([a-z0-9]{1,5}\.){0,3}[a-z0-9.]{1,5}(:[0-9]{1,5})?/", fullmatch=True)
)
def test_what_is_checked_is_what_is_dialled(url: str) -> None:
    if malformed(url):
        return
    if ends_in_number(url_parts(url).host):
        return
    parsed = URL(url, encoded=True)
    assert parsed.scheme in ("http", "https")
    assert parsed.raw_user is None
    assert parsed.raw_host
    assert url.partition("://")[2].lower().startswith((parsed.raw_host.lower(), f"[{parsed.raw_host}]".lower()))
    assert 1 <= (parsed.port or 0) <= 65535
    parts = url_parts(url)
    assert (parts.scheme, parts.host.strip("[]"), parts.port) == (parsed.scheme, parsed.raw_host.lower(), parsed.port)
    assert parts.target in (parsed.raw_path_qs, f"{parsed.raw_path_qs}?")  # yarl drops an empty query


forms = st.sampled_from(["{}", "{:#x}", "0X{:X}", "0{:o}", "0000{:o}"])


@given(st.lists(st.integers(0, 255), max_size=3), st.data())
def test_what_spells_an_address_is_that_address(first: list[int], data: st.DataObject) -> None:
    last = data.draw(st.integers(0, 256 ** (4 - len(first)) - 1))
    spelled = ".".join(data.draw(forms).format(number) for number in (*first, last)) + data.draw(
        st.sampled_from(["", "."])
    )
    address = IPv4Address(bytes(first) + last.to_bytes(4 - len(first), "big"))
    assert url_parts(f"https://{spelled}:8443/x") == UrlParts("https", str(address), 8443, "/x")
    assert PUBLIC.check_url(f"https://{spelled}/") == PUBLIC.check_url(f"https://{address}/")


@pytest.mark.parametrize("host", ["0x", "0x.0x", "4294967295", "1.2.3.4."])
def test_odd_spellings_that_are_addresses(host: str) -> None:
    assert malformed(f"https://{host}/") is None
    IPv4Address(url_parts(f"https://{host}/").host)


@pytest.mark.parametrize(
    "host", ["4294967296", "0x100000000", "256.1", "1.256.1", "1.2.3.256", "08", "1.2.3.4.5", "a.1", "a.0x"]
)
def test_what_ends_in_a_number_and_is_no_address_is_nothing(host: str) -> None:
    assert malformed(f"https://{host}/") == "the URL's host ends in a number but is not an IPv4 address"


def test_localhost_is_loopback_for_whoever_looks_it_up() -> None:
    for host in ("localhost", "LocalHost.", "a.localhost"):
        assert "not a public address" in (PUBLIC.check_url(f"https://{host}/") or "")
        assert AddressGuard([ip_network("::1/128")]).check_url(f"https://{host}/") is None
    assert PUBLIC.check_url("https://notlocalhost/") is None


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://ci.example", ("https", "ci.example", 443, "/")),
        ("HTTP://CI.Example.:080?q=/", ("http", "ci.example.", 80, "/?q=/")),
        ("https://[2606:4700::1111]:8443/A/../b?C", ("https", "[2606:4700::1111]", 8443, "/A/../b?C")),
    ],
)
def test_parts_of_a_url(url: str, parts: tuple[str, str, int, str]) -> None:
    assert malformed(url) is None
    assert url_parts(url) == UrlParts(*parts)
