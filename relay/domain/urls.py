"""URLs: the strict syntax of those that the relay requests, the origins of those from outside, and values that may
become a part of a path.

The syntax is strict, so that all parsers interpret valid URLs alike: every spelling of an IPv4 address is normalized.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from relay.domain.headers import MOST_URL

DEFAULT_PORTS: Final = {"https": 443, "http": 80}

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
        return (
            "the URL may have only printable ASCII without spaces and backslashes; write other letters of the host as "
            "xn--..., and percent-encode the rest"
        )
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
    port = int(match[3] or DEFAULT_PORTS[scheme])
    host = str(ipv4_of(match[2])) if ends_in_number(match[2]) else match[2].lower()
    return UrlParts(scheme, host, port, target if target.startswith("/") else f"/{target}")


def authority_of(scheme: str, host: str, port: int | None) -> str:
    """The host and port of a URL as in a `Host` header: in the usual spelling, without the dot at the end of a name,
    and without a default port. `host`: with the brackets of an IPv6 address. Raises ValueError if it ends in a number
    but is not an IPv4 address."""
    named = str(ipv4_of(host)) if ends_in_number(host) else host.lower().rstrip(".")
    return named if port in (None, DEFAULT_PORTS.get(scheme)) else f"{named}:{port}"


# --- IPv4 addresses in the forms of the URL standard ---------------------------------------------------------------


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


# --- URLs from outside --------------------------------------------------------------------------------------------

_URL_CHARS: Final = "%/:?#[]@!$&'()*+,;=~"
"""Reserved characters that are kept when a URL from outside is made ASCII."""


def same_origin(a: str, b: str) -> bool:
    """Whether two absolute URLs have the same scheme, host and port."""
    try:
        return origin_of(a) == origin_of(b)
    except ValueError:
        return False


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of an absolute URL. Raises ValueError for an invalid one."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)


def host_of(url: str) -> str:
    """Host and port of a URL, without a user name; empty if it cannot be read."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        return f"{host}:{parts.port}" if parts.port is not None else host
    except ValueError:
        return ""


def joined_url(base: str, value: str) -> str | None:
    """The absolute URL of `value`, which may be relative to `base`, without its fragment.

    None unless it can be requested, is at most MOST_URL characters long, and without characters that clients interpret
    differently.
    """
    if len(value) > MOST_URL or "\\" in value or any(ord(char) < 0x21 or ord(char) == 0x7F for char in value):
        return None
    try:
        url = quote(urldefrag(urljoin(base, value)).url, safe=_URL_CHARS)
    except ValueError:
        return None
    return None if malformed(url) else url


def location_url(post_url: str, location: str) -> str | None:
    """The absolute URL of a `Location` header in the response of `post_url`; None also if it has another origin."""
    url = joined_url(post_url, location)
    return url if url is not None and same_origin(post_url, url) else None


# --- values in paths: servers and proxies decode paths, some twice, and resolve dot segments ----------------------

_DECODINGS: Final = 2
_SHOWN: Final = 80
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_-]+")
_FORBIDDEN: Final = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\u2028\u2029]")


def path_fault(value: str, segment: str) -> str | None:
    """Why `value` may not be part of the (not yet encoded) path segment `segment`; None if it may."""
    if _HARMLESS.fullmatch(value):
        return None
    for _ in range(_DECODINGS + 1):
        if _FORBIDDEN.search(value):
            return "contains a slash, a backslash or a control character, perhaps encoded"
        if segment.partition(";")[0].strip() in (".", ".."):  # some servers drop the part after a semicolon
            return "results in a dot segment, which leads to another path"
        value, segment = unquote(value), unquote(segment)
    return None


def shown(value: str, *, also: str = "") -> str:
    """The value, encoded and shortened for an error text. `also`: further characters that are not encoded."""
    return quote(value[:_SHOWN], safe=f"%;=@:+,!*'()~&$ \\{also}") + ("..." if len(value) > _SHOWN else "")
