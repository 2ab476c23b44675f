"""Page cursors: the place where a page ended, as opaque text. Pure."""

import base64
import binascii
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from relay.domain.identity import base64url

T = TypeVar("T", bound=tuple[Any, ...])

_TOO_LARGE: Final = 2**62
"""Databases have 64-bit integers."""


class AfterMessage(NamedTuple):
    """Pages are ordered from newest to oldest; messages that arrived at the same time by their ids."""

    received_at: float
    source_id: str
    message_id: str


class AfterAttempt(NamedTuple):
    """Attempts that began at the same time are ordered by the place of their records."""

    started_at: float
    partition: int
    offset: int


def write_cursor(place: AfterMessage | AfterAttempt) -> str:
    return base64url(msgspec.json.encode(tuple(place)))


def read_cursor(text: str | None, kind: type[T]) -> T | None:
    """The place in a cursor; None for None. Raises ValueError."""
    if text is None:
        return None
    try:
        found: T = msgspec.json.decode(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True), type=kind)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise ValueError("not a cursor of this list") from error
    if any(isinstance(part, int) and abs(part) >= _TOO_LARGE for part in found):
        raise ValueError("not a cursor of this list")
    return found
