"""JSON as a body: of a request, read strictly, and of an answer."""

import json
import re
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from aiohttp import web

from relay.api.problems import INVALID, UNSUPPORTED, Problem, invalid
from relay.api.reading import query_of, read_body

JSON: Final = "application/json"
MOST_BYTES: Final = 512 * 1024
MERGE_PATCH: Final = "application/merge-patch+json"
_PLACE: Final = re.compile(r" - at `\$([^`]*)`$")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[([^\[\]]*)\]")
_UNKNOWN: Final = re.compile(r"contains unknown field `([^`]*)`")

_T = TypeVar("_T", bound=msgspec.Struct)


def json_response(status: int, view: object, **headers: str) -> web.Response:
    """`view`: what msgspec encodes. `headers`: names with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(status=status, body=msgspec.json.encode(view), headers={**named, "Content-Type": JSON})


def read_json(body: bytes, kind: type[_T]) -> _T:
    """Raises a Problem that says where the body is wrong. An empty one says nothing."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        pointer = _pointer(place[1]) if place is not None else ""
        if (unknown := _UNKNOWN.search(text)) is not None:
            pointer += "/" + _escaped(unknown[1])
        raise invalid(_PLACE.sub("", text), pointer=pointer) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from None


async def read_only(request: web.Request, kind: type[_T], cap: int = MOST_BYTES) -> _T:
    """The body of a request that takes no query parameters. Raises a Problem."""
    query_of(request)
    return read_json(await read_body(request, cap), kind)


async def read_object(request: web.Request, cap: int, *media_types: str) -> dict[str, Any]:
    """The object in a body of at most `cap` bytes, of one of `media_types`, in which no name occurs twice: that would
    be ambiguous. Raises Problem."""
    if request.content_type not in media_types:
        detail = f"The body has to be {' or '.join(media_types)}."
        raise Problem(UNSUPPORTED, detail, errors=({"detail": detail, "header": "Content-Type"},))
    body = await read_body(request, cap)
    try:
        found = json.loads(body, object_pairs_hook=_named_once, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()  # lone surrogates can be escaped, and are no text
    except (ValueError, RecursionError) as error:
        raise Problem(INVALID, f"The body is not JSON: {_why(error)}.") from None
    if not isinstance(found, dict):
        raise Problem(INVALID, "The body is not a JSON object.")
    return found


class _Twice(ValueError):
    """A name stands twice in an object."""


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in found if names.count(name) > 1)
        raise _Twice(f"{name[:80]!r} is given twice in an object")
    return found


def _no_number(text: str) -> NoReturn:
    raise _Twice(f"{text} is no number")


def _why(error: Exception) -> str:
    """Without a word of the body, which may be secret."""
    match error:
        case _Twice():
            return str(error)
        case json.JSONDecodeError():
            return f"line {error.lineno}, column {error.colno}: {error.msg}"
        case UnicodeError():
            return "it is no UTF-8 text"
        case RecursionError():
            return "it is nested too deeply"
        case _:
            return "a number in it has too many digits"


def _pointer(path: str) -> str:
    """`.ids[3]` as `/ids/3`."""
    return "".join("/" + _escaped(name or number) for name, number in _STEP.findall(path))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
