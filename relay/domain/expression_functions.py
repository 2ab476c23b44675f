"""The environment in which expressions are compiled: functions on texts with the names and meanings of CEL's own
extension, but bounded, because a single `replace` of that one can fill the memory."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

MOST_RESULT: Final = 1024 * 1024
"""Characters and values in a result, and characters that the functions of one evaluation may produce."""


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


@lru_cache(maxsize=16)
def environment(variables: tuple[str, ...]) -> Any:
    """The library is imported here, because most relays have no expressions."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_optional

    text, number, texts, types = cel.Type.STRING, cel.Type.INT, cel.Type.List(cel.Type.STRING), cel.Type

    def function(name: str, gives: Any, impl: Any, *forms: tuple[Any, ...]) -> Any:
        return cel.FunctionDecl(
            name,
            [
                cel.Overload(f"{name}_{len(form)}", return_type=gives, parameters=list(form), is_member=True, impl=impl)
                for form in forms
            ],
        )

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
    ]
    extensions = [cel.CelExtension("texts", functions), ext_optional.ExtOptional()]
    return cel.NewEnv(variables=dict.fromkeys(variables, types.DYN), extensions=extensions)
