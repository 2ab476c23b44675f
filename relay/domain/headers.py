"""Rules for the names and values of an endpoint's own headers (`headers` in receivers.yaml).

The check of a file and the request builder share them, so that every header that passes the check can be sent.
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
# Framing headers belong to the transport; the others to the relay, even on requests that do not have them.
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
    """`name`, if an endpoint may set a header of this name. Raises ValueError that says why not."""
    check_token(name)
    if is_ours(name):
        raise ValueError(f"{name!r} is set by the relay itself")
    return name


def is_ours(name: str) -> bool:
    """Whether only the relay or its transport may set a header of this name."""
    lower = name.lower()
    return lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES)


def check_token(name: str) -> str:
    """`name`, if it is a valid header name. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a header")
    return name


def check_header_value(value: str) -> str:
    """`value`, if it can be sent unchanged. Raises ValueError without the value, which may be a secret."""
    if not value.isascii() or _CONTROL.search(value) or value != value.strip():
        raise ValueError("the value of a header is printable ASCII, without spaces around it")
    return value


def header_value(text: str) -> str:
    """`text`, with controls and non-ASCII characters percent-encoded, which a header value may not have."""
    if text.isascii() and text.isprintable():
        return text
    return quote(text, safe=VISIBLE + " \t", errors="replace")
