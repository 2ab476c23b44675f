"""The host of a URL as the URL standard reads it: what spells an IPv4 address in any of its forms is that address.

Source: WHATWG URL, 3.5, "ends in a number checker" and "IPv4 parser". Others that parse URLs, such as egress proxies,
read `0x7f.1`, `2130706433` and `017700000001` as 127.0.0.1; so must whoever says where requests may go.
"""

import re
from ipaddress import IPv4Address
from typing import Final

_NUMBER: Final = re.compile(r"0[xX](?P<hex>[0-9a-fA-F]*)|(?P<octal>0[0-7]+)|(?P<decimal>0|[1-9][0-9]*)")
_MOST_PARTS: Final = 4
_MOST_DIGITS: Final = 300
"""A host name is not longer; int() is slow on very long input."""


def ends_in_number(host: str) -> bool:
    """Whether `host` is meant as an IPv4 address: it is one, then, or nothing."""
    last = host.removesuffix(".").rpartition(".")[2]
    return last.isascii() and (last.isdigit() or _is_hex(last))


def ipv4_of(host: str) -> IPv4Address:
    """The address that `host`, which ends in a number, spells. Raises ValueError where it is none."""
    parts = host.removesuffix(".").split(".")
    if len(parts) > _MOST_PARTS or len(host) > _MOST_DIGITS:
        raise ValueError(f"{host!r} is no IPv4 address")
    *first, last = map(_number, parts)
    if any(number > 255 for number in first) or last >= 256 ** (5 - len(parts)):
        raise ValueError(f"{host!r} is no IPv4 address")
    return IPv4Address(last + sum(number << 8 * (3 - place) for place, number in enumerate(first)))


def _is_hex(part: str) -> bool:
    match = _NUMBER.fullmatch(part)
    return match is not None and match["hex"] is not None


def _number(part: str) -> int:
    match = _NUMBER.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is no number of an IPv4 address")
    if match["hex"] is not None:
        return int(match["hex"] or "0", 16)
    return int(part, 8) if match["octal"] else int(part)
