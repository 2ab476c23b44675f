"""Headers of an endpoint's own (`headers` in receivers.yaml): which names and values they may have.

One rule for the check of a file and for sending, so that what passes the check is sent.
"""

import re
from typing import Final
from urllib.parse import quote

MOST_HEADER: Final = 8 * 1024
"""Bytes of a header's value, ours or theirs."""
MOST_URL: Final = 2 * 1024
"""Characters of a URL that is requested."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, token
_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F)))
# What frames a request is the transport's; the others are ours, also on a request where we leave them out.
_RESERVED: Final = frozenset(
    {
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "stripe-signature",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-hub-signature",
        "x-hub-signature-256",
    }
)
_RESERVED_PREFIXES: Final = ("ce-", "relay-", "webhook-")


def check_header_name(name: str) -> str:
    """`name` if an endpoint's own header may have it. Raises ValueError that says why not."""
    check_token(name)
    if is_ours(name):
        raise ValueError(f"{name!r} is set by the relay itself")
    return name


def is_ours(name: str) -> bool:
    """Whether a header of this name is set by the relay, or its transport, alone."""
    lower = name.lower()
    return lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES)


def check_token(name: str) -> str:
    """`name` if any header may have it, also one that others set. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a header")
    return name


def check_header_value(value: str) -> str:
    """`value` if it goes out as it is. Raises ValueError, without the value in it: it may be a secret."""
    if not value.isascii() or _CONTROL.search(value) or value != value.strip():
        raise ValueError("the value of a header is printable ASCII, without spaces around it")
    return value


def header_value(text: str) -> str:
    """`text` as it is, if it may be a header's value; what may not (controls, beyond ASCII) percent-encoded."""
    if text.isascii() and text.isprintable():
        return text
    return quote(text, safe=VISIBLE + " \t", errors="replace")
