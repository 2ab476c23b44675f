"""Where a page ended, as text that a caller hands back. Pure."""

import base64
import binascii
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

T = TypeVar("T", bound=tuple[Any, ...])

_TOO_LARGE: Final = 2**62
"""Databases have 64 bits."""


class AfterMessage(NamedTuple):
    """Pages go from newer to older ones; those that arrived together by their ids."""

    received_at: float
    source_id: str
    message_id: str


class AfterAttempt(NamedTuple):
    """Those that began together go by the place of their records."""

    started_at: float
    partition: int
    offset: int


def write_cursor(place: AfterMessage | AfterAttempt) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(tuple(place))).decode().rstrip("=")


def read_message_cursor(text: str | None) -> AfterMessage | None:
    """None of None. Raises ValueError."""
    return None if text is None else AfterMessage(*_decoded(text, tuple[float, str, str]))


def read_attempt_cursor(text: str | None) -> AfterAttempt | None:
    """None of None. Raises ValueError."""
    return None if text is None else AfterAttempt(*_decoded(text, tuple[float, int, int]))


def _decoded(text: str, kind: type[T]) -> T:
    try:
        found: T = msgspec.json.decode(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True), type=kind)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise ValueError("not a cursor of this list") from error
    if any(isinstance(part, int) and abs(part) >= _TOO_LARGE for part in found):
        raise ValueError("not a cursor of this list")
    return found
