"""Cleans texts for storage, and matches headers and bodies of searches. Pure."""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from relay.domain.json_pointer import pointer_steps, value_at

REPLACEMENT: Final = "\ufffd"
_LONGEST_EXPONENT: Final = 400
"""Numbers with more digits are not searched for."""


def clean(text: str) -> str:
    """`text` with NUL and lone surrogates replaced, which databases reject."""
    if text.isascii():
        return text.replace("\0", REPLACEMENT) if "\0" in text else text
    return "".join(REPLACEMENT if char == "\0" or "\ud800" <= char <= "\udfff" else char for char in text)


def has_header(headers: Mapping[str, str], name: str, value: str) -> bool:
    return headers.get(name.lower()) == value


def payload_has(body: bytes | None, pointer: str, value: str) -> bool:
    """Whether the text at `pointer` in this JSON is `value`. A body that is not JSON, or is cut, has no values."""
    if not body:
        return False
    try:
        found = value_at(json.loads(body, parse_float=Decimal), pointer_steps(pointer))
    except (ValueError, LookupError, RecursionError):
        return False
    return _text_of(found) == value


def _text_of(value: object) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal() if abs(value.adjusted()) < _LONGEST_EXPONENT:
            return format(value, "f")
        case _:
            return None


def may_hold(value: str) -> bytes | None:
    """Bytes that a body with the text `value` must contain, unless it has a backslash. None for a number, which has
    several spellings."""
    try:
        Decimal(value)
    except ArithmeticError:
        return value.encode(errors="replace")
    return None
