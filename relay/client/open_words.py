"""Types of responses that accept words of a newer relay: values of `status`, `kind` and the like may be added."""

from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec


def open_words(kind: Any) -> Any:
    """`kind`, with `str` in place of each Literal of words, also in what it is made of."""
    return _opened(kind)


@cache
def _opened(kind: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return str if all(isinstance(word, str) for word in parts) else kind
    if origin is Annotated:
        return Annotated[open_words(parts[0]), *parts[1:]]
    if origin in (Union, UnionType):
        return Union[tuple(map(open_words, parts))]  # noqa: UP007 - of types that are known only now
    if origin is not None:
        return origin[tuple(part if part is ... else open_words(part) for part in parts)]
    if is_typeddict(kind):
        return _open_dict(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _open_struct(kind)
    return _open_class(kind) if isinstance(kind, type) and is_dataclass(kind) else kind


def _open_dict(kind: Any) -> Any:
    opened = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        known = open_words(get_args(hint)[0] if get_origin(hint) in (NotRequired, Required) else hint)
        opened[name] = known if name in kind.__required_keys__ else NotRequired[known]
    return TypedDict(kind.__name__, opened)  # type: ignore[operator]


def _open_class(kind: type) -> type:
    """A subclass whose fields have open types."""
    hints = get_type_hints(kind, include_extras=True)
    opened = []
    for each in fields(kind):
        default = field(default=each.default, kw_only=each.kw_only)
        opened.append((each.name, open_words(hints[each.name]), default))
    return make_dataclass(kind.__name__, opened, bases=(kind,), frozen=True, slots=True)


def _open_struct(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Likewise."""
    opened: list[Any] = []
    for each in msgspec.structs.fields(kind):
        default = msgspec.field(default=each.default, default_factory=each.default_factory)  # type: ignore[call-overload]
        opened.append((each.name, open_words(each.type), default))
    return msgspec.defstruct(kind.__name__, opened, bases=(kind,), frozen=kind.__struct_config__.frozen)
