"""URLs from outside: their origins, and values that may become a part of their path."""

import re
from typing import Final
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from relay.domain.headers import MOST_URL

_URL_CHARS: Final = "%/:?#[]@!$&'()*+,;=~"
"""Reserved characters that are kept when a URL from outside is made ASCII."""
DEFAULT_PORTS: Final = {"https": 443, "http": 80}


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

    None unless it is http(s), at most MOST_URL characters long, and without a user name or characters that clients
    interpret differently.
    """
    if len(value) > MOST_URL or "\\" in value or any(ord(char) < 0x21 or ord(char) == 0x7F for char in value):
        return None
    try:
        url = quote(urldefrag(urljoin(base, value)).url, safe=_URL_CHARS)
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
            return None
    except ValueError:
        return None
    return url


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
