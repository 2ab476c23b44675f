"""Texts as every store can keep them, and what a search compares in headers and bodies. Pure."""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from relay.domain.json_pointer import pointer_steps, value_at

REPLACEMENT: Final = "\ufffd"
_LONGEST_EXPONENT: Final = 400
"""No number of a message that anybody looks for has more digits."""


def clean(text: str) -> str:
    """`text` as a database takes it: NUL and lone surrogates replaced."""
    if text.isascii():
        return text.replace("\0", REPLACEMENT) if "\0" in text else text
    return "".join(REPLACEMENT if char == "\0" or "\ud800" <= char <= "\udfff" else char for char in text)


def has_header(headers: Mapping[str, str], name: str, value: str) -> bool:
    return headers.get(name.lower()) == value


def payload_has(body: bytes | None, pointer: str, value: str) -> bool:
    """Whether the text of what `pointer` leads to in this JSON is `value`. What is no JSON, or only the beginning of
    some, has nothing."""
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
    """Bytes that a body has which holds `value` as a text, unless it has a backslash. None: they can be any, as of a
    number, which is written in several ways."""
    try:
        Decimal(value)
    except ArithmeticError:
        return value.encode(errors="replace")
    return None
