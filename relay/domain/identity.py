"""Identities of messages and deliveries, receiver names, and the ids derived from them."""

import hashlib
import re
from base64 import b32encode, urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from relay.domain.errors import InvalidRecord

MAX_ID_BYTES: Final = 256
COPY_DIGITS: Final = 12
"""Random characters at the end of a copy's id."""
_COPY: Final = ".copy-"
OWN_SOURCE: Final = "relay"
"""The source of the relay's own events; no sender may use it."""
PROBE: Final = "relay-probe"
"""The receiver and the source of the message that `relay dev` sends at its start, to see it answered."""
_RECEIVER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


Progress = Literal["accepted", "running"]
"""Intermediate results of a delivery: its receiver has accepted it; it is working on it."""


class MessageId(NamedTuple):
    """Identity of a message: chosen by the sender, unique per source."""

    source_id: str
    message_id: str


class DeliveryId(NamedTuple):
    """Identity of a delivery: one message to one receiver."""

    receiver: str
    source_id: str
    message_id: str


def check_id(value: str, field: str) -> str:
    """`value` if it may be a source_id or message_id: 1-256 bytes of UTF-8 without control characters.

    Raises InvalidRecord (reason `invalid`) that names `field`.
    """
    if not value:
        raise InvalidRecord("invalid", f"{field} is missing or empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRecord("invalid", f"{field} is not valid UTF-8") from None
    if size > MAX_ID_BYTES:
        raise InvalidRecord("invalid", f"{field} has {size} bytes; {MAX_ID_BYTES} are allowed")
    if _CONTROL.search(value):
        raise InvalidRecord("invalid", f"{field} contains a control character")
    return value


def read_message_id(value: bytes) -> str:
    """The message_id in a header `ce_id`. Raises as `check_id` does, and UnicodeDecodeError."""
    text = value.decode()
    if text and text.isprintable() and len(value) <= MAX_ID_BYTES:
        return text  # the usual case, without the regular expression
    return check_id(text, "header ce_id")


@lru_cache(maxsize=16_384)
def read_source_id(value: bytes) -> str:
    """The source_id in a header `ce_source`, cached because sources repeat. Raises as `read_message_id` does."""
    return check_id(value.decode(), "header ce_source")


def is_receiver_name(name: str) -> bool:
    """Whether `name` is valid for a receiver: it becomes part of topic and group names."""
    return _RECEIVER_NAME.fullmatch(name) is not None


def base32(raw: bytes) -> str:
    """`raw` in lower-case letters and digits only, without padding: a double click selects all of it."""
    return b32encode(raw).decode().rstrip("=").lower()


def base64url(raw: bytes) -> str:
    """`raw` in letters, digits, `-` and `_`, without padding."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def token_bytes(text: str, most: int) -> bytes | None:
    """The bytes of a token in base64url without padding, of at most `most` characters; None for any other text."""
    if len(text) <= most and text.isascii():
        with suppress(ValueError):
            raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            # the decoder skips foreign characters and ignores spare bits; the same bytes have one token
            if base64url(raw) == text:
                return raw
    return None


_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = [first + second for first in _BASE32 for second in _BASE32]
"""Two characters for each 10 bits: the standard library's base32 takes longer than the hash itself."""


@lru_cache(maxsize=16_384)
def _id26(source_id: str, message_id: str) -> str:
    """The first 130 bits of a SHA-256 in base32. Cached, because a message needs it for its POST, and soon after
    for its answer and the callback."""
    digest = hashlib.sha256(f"{source_id}\0{message_id}".encode()).digest()
    bits = int.from_bytes(digest[:17], "big") >> 6
    return "".join([_PAIRS[bits >> shift & 1023] for shift in range(120, -1, -10)])


def webhook_id(source_id: str, message_id: str) -> str:
    """The `webhook-id` header of a delivery: the same on every attempt, restart and replay."""
    return f"msg_{_id26(source_id, message_id)}"


def copies_prefix(source_id: str, message_id: str) -> str:
    """How the ids of a message's copies begin, so that they are found by it. Of a long id, its digest."""
    prefix = f"{message_id}{_COPY}"
    fits = len(prefix.encode()) + COPY_DIGITS <= MAX_ID_BYTES
    return prefix if fits else f"{_id26(source_id, message_id)}{_COPY}"


def callback_id(
    delivery: DeliveryId, generation: int, *, failed: bool = False, progress: Progress | None = None
) -> str:
    """The `webhook-id` header of a callback to the sender: `ans_...` for an answer, `fail_...` for a failure notice,
    `accepted_...` and `running_...` for progress."""
    kind = progress or ("fail" if failed else "ans")
    return f"{kind}_{_id26(delivery.source_id, delivery.message_id)}_{delivery.receiver}_{generation}"


def digest12(*parts: str) -> bytes:
    """12 bytes of SHA-256 of `parts`, which cannot contain NUL: the names of rows in the state."""
    return hashlib.sha256("\0".join(parts).encode()).digest()[:12]
