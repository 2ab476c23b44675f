"""Rules for the headers of an endpoint (`headers` in receivers.yaml), and for those that a sender has forwarded.

The check of a file and the request builder share them, so that every header that passes the check can be sent.

A sender attaches headers to a message for its receivers (`relay-header-x-team: core`). A receiver gets only those on
its allow list (`forward_headers`), and never those of the relay or the connection, or credentials, even if the list has
them: a sender must not be able to impersonate the relay.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from relay.domain.coordinate import Headers
from relay.domain.errors import InvalidRecord
from relay.domain.text import matches

MOST_HEADER: Final = 8 * 1024
"""Bytes of a header's value, ours or theirs."""
MOST_URL: Final = 2 * 1024
"""Characters of a URL that is requested."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, token
_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F)))
SIGNATURE_HEADERS: Final = ("stripe-signature", "webhook-signature", "x-hub-signature", "x-hub-signature-256")
"""Of all styles that do not cover the whole request."""
# Framing headers belong to the transport; the others to the relay, even on requests that do not have them.
_RESERVED: Final = frozenset(
    {
        *SIGNATURE_HEADERS,
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
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


# --- forwarded headers --------------------------------------------------------------------------------------------

FORWARDED: Final = "relay-header-"
"""Prefix of such a header in a record and in an API request; the rest is its name at the receiver."""

MAX_HEADERS: Final = 16
MAX_HEADER_BYTES: Final = 4_096
"""Maximum bytes of all names and values of a message: receivers limit request heads, often to 8 KiB, and the relay adds
its own headers."""

Pairs = tuple[tuple[str, str], ...]

# Headers of the connection, credentials and framing; the relay's own are in `headers.py`.
_NEVER: Final = frozenset(
    {
        "accept-encoding",
        "authorization",
        "cookie",
        "date",
        "forwarded",
        "keep-alive",
        "set-cookie",
        "via",
    }
)
_NEVER_PREFIXES: Final = ("proxy-", "sec-")
_NEVER_WITHIN: Final = "signature"


def check_forwardable(name: str) -> str:
    """`name`, if a header of this name may be forwarded. Raises ValueError that says why not.

    `_` counts as `-`: to applications behind CGI and WSGI, both are one header.
    """
    check_token(name)
    lower = name.lower().replace("_", "-")
    check_header_name(lower)
    if lower in _NEVER or lower.startswith(_NEVER_PREFIXES) or _NEVER_WITHIN in lower:
        raise ValueError(
            f"{name!r} is never forwarded: it belongs to the connection, or is a credential or a signature"
        )
    return name


def check_pattern(pattern: str) -> str:
    """`pattern` in lower case, if it is valid in an allow list: a name, or a prefix and `*`. Raises ValueError."""
    beginning = pattern.removesuffix("*")
    if "*" in beginning or not pattern:
        raise ValueError(f"{pattern!r} is neither a header name nor a prefix followed by *")
    if beginning == pattern:
        check_forwardable(pattern)
    elif beginning:
        check_token(beginning)
        # no header with this prefix can be forwarded
        if beginning.lower().startswith(_RESERVED_PREFIXES + _NEVER_PREFIXES):
            raise ValueError(f"{pattern!r} would match nothing: such headers are never forwarded")
    return pattern.lower()


def read_headers(given: Mapping[str, str]) -> Pairs:
    """Forwarded headers of a message: names in lower case, the last of repeated ones. `given`: by name at the receiver.

    Raises InvalidRecord for headers that can never be forwarded, and for too many or too large ones.
    """
    found: dict[str, str] = {}
    size = 0
    for name, value in given.items():
        try:
            found[check_forwardable(name).lower()] = value
            size += len(name) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidRecord("invalid", f"header {FORWARDED}{name} is not valid UTF-8") from None
        except ValueError as error:
            raise InvalidRecord("invalid", f"header {FORWARDED}{name[:80]}: {error}") from None
    if len(found) > MAX_HEADERS:
        raise InvalidRecord("invalid", f"the message has {len(found)} headers of its own; {MAX_HEADERS} are allowed")
    if size > MAX_HEADER_BYTES:
        raise InvalidRecord("invalid", f"the message's own headers have {size} bytes; {MAX_HEADER_BYTES} are allowed")
    return tuple(found.items())


def in_record(named: Mapping[str, bytes]) -> dict[str, str]:
    """Forwarded headers among those of a record, by their name at the receiver. Raises UnicodeDecodeError."""
    return {name[len(FORWARDED) :]: value.decode() for name, value in named.items() if name.startswith(FORWARDED)}


def as_record_headers(headers: Pairs) -> Headers:
    return tuple((FORWARDED + name, value.encode(errors="replace")) for name, value in headers)


def wanted(headers: Pairs, allowed: tuple[str, ...], own: Iterable[str]) -> Pairs:
    """Those of `headers` that a receiver with this allow list gets. `own`: names that the receiver's settings set,
    which take precedence."""
    taken = {name.lower() for name in own}
    return tuple(pair for pair in headers if pair[0] not in taken and _is_wanted(pair[0], allowed))


@lru_cache(maxsize=4096)
def _is_wanted(name: str, allowed: tuple[str, ...]) -> bool:
    try:
        check_forwardable(name)
    except ValueError:
        return False
    return any(matches(pattern, name) for pattern in allowed)
