"""Errors of the CEL library in plain words: its own name functions and types that no user has written."""

import re
from collections.abc import Callable, Mapping
from typing import Final

_SHOWN: Final = 200
_TYPES: Final[Mapping[str, str]] = {
    "int64": "an integer",
    "uint64": "an unsigned integer",
    "int": "an integer",
    "uint": "an unsigned integer",
    "double": "a number with a fraction",
    "string": "a text",
    "bool": "true or false",
    "null_type": "null",
    "list": "a list",
    "map": "an object",
    "bytes": "bytes",
    "timestamp": "a timestamp",
    "duration": "a duration",
}
_CONDITION: Final = "a condition is neither true nor false"
_OPERATORS: Final[Mapping[str, str]] = {
    "!_": _CONDITION,
    "_&&_": _CONDITION,
    "_||_": _CONDITION,
    "<jump_condition>": _CONDITION,
    "<iter_range>": "a loop needs a list or an object",
    "@in": "`in` needs a list or an object on its right side",
}
"""Operators that the library reports without types. Macros such as `all` and `filter` use some of them."""


def _overload(match: re.Match[str]) -> str:
    """`_+_(string, int64)`, `size(null_type)`, or `(int64).startsWith(string)`."""
    target, name, rest = match["target"], match["name"], match["rest"]
    if name in _OPERATORS:
        return _OPERATORS[name]
    types = [_type(each.strip()) for each in (rest or "").split(",") if each.strip()]
    if target is not None:
        return f"{name}() does not work on {' with '.join([_type(target), *types])}"
    shown = f"`{name.strip('_')}`" if "_" in name and not name.strip("_").isidentifier() else f"{name}()"
    return f"{shown} does not work on {' and '.join(types)}" if types else f"{shown} does not work on this value"


def _type(name: str) -> str:
    return _TYPES.get(name, name)


_WORDS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r'Key not found in map : "?([^"]{0,200})'), lambda found: f"there is no field {found[1]!r}"),
    (
        re.compile(r"Index error: index=(-?\d{1,19}) size=(\d{1,19})"),
        lambda found: f"there is no element {found[1]}; the list has {found[2]}",
    ),
    (
        re.compile(r"Index error: expected integer type, got (\w{1,40})"),
        lambda found: f"the index of a list is {_type(found[1])}, not an integer",
    ),
    (
        re.compile(r"Applying SELECT to non-message type"),
        lambda _: "a field is read from a value that is not an object",
    ),
    (
        re.compile(r"Invalid container type: '(\w{1,40})'"),
        lambda found: f"an element is read from {_type(found[1])}, not from a list or an object",
    ),
    (re.compile(r"Invalid map key type: '(\w{1,40})'"), lambda found: f"the key of an object is {_type(found[1])}"),
    (re.compile(r"Iteration budget"), lambda _: "it takes more than 10,000 iterations"),
    (
        re.compile(
            r"No matching overloads found : (?:\((?P<target>\w{1,40})\)\.)?(?P<name>[^(]{1,80})"
            r"(?:\((?P<rest>[^)]{0,200})\))?"
        ),
        _overload,
    ),
)


def in_plain_words(said: str) -> str:
    """The message of a CEL error, in one line."""
    for pattern, words in _WORDS:
        if (found := pattern.search(said)) is not None:
            return words(found)
    return " ".join(re.sub(r"^[A-Z_]+: ", "", said).split())[:_SHOWN]
