"""Which values from outside may become part of a URL's path. Servers and proxies decode paths, some of them twice, and
resolve dot segments: a value must not name another path than the one that it was put into."""

import re
from typing import Final
from urllib.parse import quote, unquote

_DECODINGS: Final = 2
_SHOWN: Final = 80
_HARMLESS: Final = re.compile(r"[A-Za-z0-9_-]+")
_FORBIDDEN: Final = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\u2028\u2029]")


def path_fault(value: str, segment: str) -> str | None:
    """Why `value` may not go into a path where it makes the (not yet encoded) segment `segment`; None if it may."""
    if _HARMLESS.fullmatch(value):
        return None
    for _ in range(_DECODINGS + 1):
        if _FORBIDDEN.search(value):
            return "holds a slash, a backslash or a control character, perhaps encoded"
        if segment.partition(";")[0].strip() in (".", ".."):  # some servers drop what follows a semicolon
            return "makes a segment of dots, which leads elsewhere"
        value, segment = unquote(value), unquote(segment)
    return None


def shown(value: str) -> str:
    """The value as it may stand in a message."""
    return quote(value[:_SHOWN], safe="%;=@:+,!*'()~&$ \\") + ("..." if len(value) > _SHOWN else "")
