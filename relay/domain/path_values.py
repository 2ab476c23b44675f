"""Checks external values before they become part of a URL's path. Servers and proxies decode paths, some of them twice,
and resolve dot segments: a value must not lead to another path."""

import re
from typing import Final
from urllib.parse import quote, unquote

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


def shown(value: str) -> str:
    """The value, encoded and shortened for an error text."""
    return quote(value[:_SHOWN], safe="%;=@:+,!*'()~&$ \\") + ("..." if len(value) > _SHOWN else "")
