"""What expressions need around the CEL library: functions on texts, and its errors in plain words.

The functions have the names and meanings of CEL's own, but are bounded: a single `replace` can fill the memory, and a
single `matches` can take seconds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from relay.domain.pattern import is_found

MOST_CHARACTERS: Final = 2_000
"""Maximum length of an expression."""
MOST_RESULT: Final = 1024 * 1024
"""Characters and values in a result, and characters that the functions of one evaluation may produce."""


_MOST_PATTERN: Final = 2_000
"""Characters of a pattern."""
MATCHES: Final = "matches"
OWN_MATCHES: Final = "Matches"
"""What `matches` is called for the library, whose own function of that name cannot be replaced."""
_WITHOUT_MATCHES: Final = f"stdlib:\n  exclude_functions:\n    - name: {MATCHES}\n"


class Budget:
    """Characters that the functions of one evaluation may still produce."""

    left: int = MOST_RESULT


budget: Final = Budget()
"""The budget of the running evaluation. There is only one, because an evaluation never awaits."""


def _spend(size: int) -> None:
    budget.left -= size
    if budget.left < 0:
        raise ValueError(f"it makes more than {MOST_RESULT} characters")


def _replace(text: str, old: str, new: str, times: int = -1) -> str:
    found = text.count(old)
    _spend(len(text) + (found if times < 0 else min(found, times)) * max(0, len(new) - len(old)))
    return text.replace(old, new, times)


def _split(text: str, separator: str, most: int = -1) -> list[str]:
    _spend(len(text) + text.count(separator) if separator else 2 * len(text))
    if most == 0:
        return []
    if not separator:
        return list(text) if most < 0 else [*text[: most - 1], text[most - 1 :]]
    return text.split(separator, most - 1 if most > 0 else -1)


def _join(texts: Sequence[str], separator: str = "") -> str:
    if not all(isinstance(each, str) for each in texts):
        raise ValueError("join needs a list of texts")
    _spend(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise ValueError(f"substring({start}, {end}) is beyond the text")
    _spend(end - start)
    return text[start:end]


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise ValueError(f"charAt({at}) is beyond the text")
    return text[at : at + 1]


def _lower(text: str) -> str:
    _spend(len(text))
    return "".join(char.lower() if char.isascii() else char for char in text)


def _upper(text: str) -> str:
    _spend(len(text))
    return "".join(char.upper() if char.isascii() else char for char in text)


def _trim(text: str) -> str:
    _spend(len(text))
    return text.strip()


def _matches(text: str, pattern: str) -> bool:
    if len(pattern) > _MOST_PATTERN:
        raise ValueError(f"a pattern has at most {_MOST_PATTERN} characters")
    return is_found(pattern, text)


@lru_cache(maxsize=16)
def environment(variables: tuple[str, ...]) -> Any:
    """The CEL environment with these variables and our own functions. The library is imported here, because most relays
    have no expressions."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_optional

    text, number, texts, types = cel.Type.STRING, cel.Type.INT, cel.Type.List(cel.Type.STRING), cel.Type

    def overload(id: str, gives: Any, impl: Any, form: tuple[Any, ...], *, is_member: bool = True) -> Any:
        return cel.Overload(id, return_type=gives, parameters=list(form), is_member=is_member, impl=impl)

    def function(name: str, gives: Any, impl: Any, *forms: tuple[Any, ...]) -> Any:
        return cel.FunctionDecl(name, [overload(f"{name}_{len(form)}", gives, impl, form) for form in forms])

    functions = [
        function("replace", text, _replace, (text, text, text), (text, text, text, number)),
        function("split", texts, _split, (text, text), (text, text, number)),
        function("join", text, _join, (texts,), (texts, text)),
        function("substring", text, _substring, (text, number), (text, number, number)),
        function("charAt", text, _char_at, (text, number)),
        function("indexOf", number, str.find, (text, text), (text, text, number)),
        function("lastIndexOf", number, str.rfind, (text, text)),
        function("lowerAscii", text, _lower, (text,)),
        function("upperAscii", text, _upper, (text,)),
        function("trim", text, _trim, (text,)),
        cel.FunctionDecl(
            OWN_MATCHES,
            [
                overload(f"{OWN_MATCHES}_{is_member}", types.BOOL, _matches, (text, text), is_member=is_member)
                for is_member in (True, False)
            ],
        ),
    ]
    extensions = [cel.CelExtension("texts", functions), ext_optional.ExtOptional()]
    config = cel.NewEnvConfigFromYaml(_WITHOUT_MATCHES)
    return cel.NewEnv(config=config, variables=dict.fromkeys(variables, types.DYN), extensions=extensions)


# --- errors: the library names functions and types that no user has written ---------------------------------------

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
    said = said.replace(OWN_MATCHES, MATCHES)
    for pattern, words in _WORDS:
        if (found := pattern.search(said)) is not None:
            return words(found)
    return " ".join(re.sub(r"^[A-Z_]+: ", "", said).split())[:_SHOWN]
