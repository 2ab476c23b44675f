"""Formats validation errors as lines for users: the place, the mistake, and allowed values."""

import difflib
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Annotated, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from relay.domain.errors import UserError

Place = tuple[str | int, ...]
"""The path to a value: keys and list positions, outermost first."""

SECRET_FIELDS: Final = frozenset({"secret", "former_secrets", "bearer_token", "headers", "client_key", "client_secret"})
"""Fields of receivers.yaml whose values must not appear in any message."""

_Wording = Callable[[str, Mapping[str, object]], str]
_WORDINGS: Final[dict[str, _Wording]] = {
    "missing": lambda got, ctx: "required, but missing",
    "literal_error": lambda got, ctx: f"{got} is not allowed; allowed: {ctx['expected']}",
    "greater_than": lambda got, ctx: f"{got} is too small; it has to be more than {ctx['gt']}",
    "greater_than_equal": lambda got, ctx: f"{got} is too small; at least {ctx['ge']}",
    "less_than_equal": lambda got, ctx: f"{got} is too big; at most {ctx['le']}",
    "value_error": lambda got, ctx: str(ctx["error"]),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), lambda got, ctx: f"{got} is not a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), lambda got, ctx: f"{got} is not a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), lambda got, ctx: f"{got} is not allowed; allowed: true, false"),
    "string_type": lambda got, ctx: f"{got} is not text; put it in quotes",
    "string_too_short": lambda got, ctx: "is empty; leave it out, or give it a value",
    "too_long": lambda got, ctx: f"too long; at most {ctx['max_length']}",
    "too_short": lambda got, ctx: f"at least {ctx['min_length']} needed",
    "path_type": lambda got, ctx: f"{got} is not the path of a file",
    "tuple_type": lambda got, ctx: f"{got} is not a list; write [a, b]",
    **dict.fromkeys(("dict_type", "model_type"), lambda got, ctx: f"{got} is not a mapping of names to values"),
    "byte_size": lambda got, ctx: f"{got} is not a size; give a number of bytes, or 64KiB, 1MiB",
    "byte_size_unit": lambda got, ctx: f"{got} is not a size; give a number of bytes, or 64KiB, 1MiB",
}


def raise_all(lines: Iterable[str]) -> None:
    """Raise one UserError with a line for each mistake, if there is any."""
    text = "\n".join(dict.fromkeys(lines))
    if text:
        raise UserError(text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that begins with `name`, or the one most similar to it, in any case; None if there is none."""
    names, name = {each.lower(): each for each in known}, name.lower()
    longer = [each for each in names if len(name) > 2 and each.startswith(name)]
    found = longer if len(longer) == 1 else difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """The error text for an unknown name."""
    meant = nearest(name, known)
    return f"unknown {what}; " + (f"did you mean {meant!r}?" if meant else f"known: {', '.join(sorted(known))}")


def dotted(place: Place) -> str:
    """`receivers.circleci.codes.gone[0]`; steps that pydantic adds, such as `[key]`, are left out."""
    steps = [part for part in place if not (isinstance(part, str) and part[:1] in ("[", "("))]
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return text.removeprefix(".")


def explain(
    error: ValidationError, model: type[BaseModel], *, hidden: frozenset[str] = SECRET_FIELDS
) -> list[tuple[Place, str]]:
    """Each mistake's place and text. Values under a `hidden` name are not repeated."""
    found = []
    for detail in error.errors(include_url=False):
        shown = not hidden.intersection(detail["loc"])
        found.append((_place(detail), _text(detail, model, shown)))
    return found


def _place(detail: ErrorDetails) -> Place:
    """Where it is, with names as they are written: pydantic has `datetime.date(2026, 1, 31)`, and 1 for true."""
    place = detail["loc"]
    return (*place[:-2], _shown(detail["input"])) if _is_name_no_text(detail) else place


def _is_name_no_text(detail: ErrorDetails) -> bool:
    return detail["loc"][-1:] == ("[key]",) and detail["type"] == "string_type"


def _text(detail: ErrorDetails, model: type[BaseModel], shown: bool) -> str:
    if detail["type"] == "extra_forbidden":
        return unknown("field", str(detail["loc"][-1]), _fields_at(model, detail["loc"][:-1]))
    if _is_name_no_text(detail):
        return "a name has to be text; put it in quotes"
    wording = _WORDINGS.get("string_too_short" if _is_empty(detail) else detail["type"])
    if wording is None:
        return detail["msg"][:1].lower() + detail["msg"][1:]
    return wording(_shown(detail["input"]) if shown else "the value", detail.get("ctx", {}))


def _is_empty(detail: ErrorDetails) -> bool:
    """Nothing stands behind the name, as in `ci:`."""
    return detail["input"] is None and detail["type"] != "value_error"


def _shown(value: object) -> str:
    """The value as a file has it."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value) if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields_at(model: type[BaseModel], place: Place) -> list[str]:
    here: object = model
    for step in place:
        here = _inside(here, step)
    found = _model_in(here)
    return [field.alias or name for name, field in found.model_fields.items()] if found else []


def _inside(kind: object, step: str | int) -> object:
    found = _model_in(kind)
    if found is not None and step in found.model_fields:
        return found.model_fields[str(step)].annotation
    if get_origin(kind) is tuple:
        return get_args(kind)[0]
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    return kind  # a step that pydantic adds: the member of a union


def _model_in(kind: object) -> type[BaseModel] | None:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    if get_origin(kind) in (Annotated, Union, types.UnionType):
        return next((found for part in get_args(kind) if (found := _model_in(part))), None)
    return None
