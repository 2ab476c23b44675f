"""JSON from outside: what reading it may raise, and JSON pointers (RFC 6901)."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a text that is not JSON, or not of the wanted form, or nested too deeply."""

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_STRAY: Final = re.compile(r"~(?![01])")


def check_pointer(text: str) -> str:
    """`text`, if it is a valid pointer. Raises ValueError."""
    if text and not text.startswith("/"):
        raise ValueError(f"{text[:80]!r} is not a JSON pointer; it begins with /")
    if _STRAY.search(text):
        raise ValueError(f"{text[:80]!r} is not a JSON pointer; a ~ in a name is written ~0, and a / is ~1")
    return text


def pointer_steps(pointer: str) -> tuple[str, ...]:
    """The pointer's names and indexes, unescaped."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def pointer_of(steps: Iterable[str | int]) -> str:
    """The reverse of `pointer_steps`."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def is_index(step: str) -> bool:
    """Whether a step can be an array index."""
    return _INDEX.fullmatch(step) is not None


def value_at(document: object, steps: Sequence[str]) -> object:
    """The value at `steps` in a decoded document. Raises LookupError."""
    here = document
    for step in steps:
        if isinstance(here, dict):
            here = here[step]
        elif isinstance(here, list) and is_index(step):
            here = here[int(step)]
        else:
            raise LookupError(step)
    return here
