"""Syntax of the URLs that the relay requests. Strict, so that all parsers interpret valid URLs alike: every spelling of
an IPv4 address is normalized."""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple

_LABEL: Final = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_URL = re.compile(rf"(?i:(https?))://(\[[0-9A-Fa-f:.]+\]|{_LABEL}(?:\.{_LABEL})*\.?)(?::([0-9]{{1,5}}))?([/?][!-~]*)?")

_NUMBER: Final = re.compile(r"0[xX](?P<hex>[0-9a-fA-F]*)|(?P<octal>0[0-7]+)|(?P<decimal>0|[1-9][0-9]*)")
_MOST_PARTS: Final = 4
_MOST_DIGITS: Final = 300
"""No host name is longer; int() is slow on very long input."""


class UrlParts(NamedTuple):
    """A normalized URL. `scheme` and `host` are in lower case, `host` with the brackets of an IPv6 address or in the
    usual spelling of an IPv4 address; `target` begins with a slash."""

    scheme: str
    host: str
    port: int
    target: str


def malformed(url: str) -> str | None:
    """Why `url` cannot be requested; None if it can."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return "the URL may have only printable ASCII without spaces and backslashes; percent-encode the rest"
    if "#" in url:
        return "the URL has a fragment (#...)"
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        return "the URL must begin with https:// or http://"
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    if "@" in authority:
        return "the URL has a user name or password; use a header instead"
    if not authority or authority.startswith(":"):
        return "the URL has no host"
    if "%" in authority:
        return "the URL's host has an IPv6 zone or percent-encoding"
    return _bad_authority(url)


def _bad_authority(url: str) -> str | None:
    match = _URL.fullmatch(url)
    if match is None:
        return "the URL's host or port is malformed"
    if match[3] is not None and not 1 <= int(match[3]) <= 65535:
        return "the URL's port is not within 1-65535"
    if match[2].startswith("["):
        try:
            IPv6Address(match[2][1:-1])
        except AddressValueError:
            return "the URL's host is not a valid IPv6 address"
    elif ends_in_number(match[2]):
        try:
            ipv4_of(match[2])
        except ValueError:
            return "the URL's host ends in a number but is not an IPv4 address"
    return None


def url_parts(url: str) -> UrlParts:
    """The parts of a `url` that is not `malformed`. Requests use these parts, so that exactly the checked URL is
    used."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(f"malformed URL: {url!r}")
    scheme, target = match[1].lower(), match[4] or "/"
    port = int(match[3] or (443 if scheme == "https" else 80))
    host = str(ipv4_of(match[2])) if ends_in_number(match[2]) else match[2].lower()
    return UrlParts(scheme, host, port, target if target.startswith("/") else f"/{target}")


# IPv4 addresses in the forms of the URL standard


def ends_in_number(host: str) -> bool:
    """Whether `host` has to be an IPv4 address, which makes it invalid if it is not."""
    last = host.removesuffix(".").rpartition(".")[2]
    return last.isascii() and (last.isdigit() or _is_hex(last))


def ipv4_of(host: str) -> IPv4Address:
    """The IPv4 address of a `host` that ends in a number. Raises ValueError if it is not one.

    Source: WHATWG URL, 3.5, "ends in a number checker" and "IPv4 parser". Other URL parsers, such as egress proxies,
    read `0x7f.1`, `2130706433` and `017700000001` as 127.0.0.1, so the guard must, too.
    """
    parts = host.removesuffix(".").split(".")
    if len(parts) > _MOST_PARTS or len(host) > _MOST_DIGITS:
        raise ValueError(f"{host!r} is not an IPv4 address")
    *first, last = map(_number, parts)
    if any(number > 255 for number in first) or last >= 256 ** (5 - len(parts)):
        raise ValueError(f"{host!r} is not an IPv4 address")
    return IPv4Address(last + sum(number << 8 * (3 - place) for place, number in enumerate(first)))


def _is_hex(part: str) -> bool:
    match = _NUMBER.fullmatch(part)
    return match is not None and match["hex"] is not None


def _number(part: str) -> int:
    match = _NUMBER.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is not a number of an IPv4 address")
    if match["hex"] is not None:
        return int(match["hex"] or "0", 16)
    return int(part, 8) if match["octal"] else int(part)
