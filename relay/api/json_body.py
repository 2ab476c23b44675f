"""A JSON object as the body of a request: read strictly, as nobody may mean two things with one name."""

import json
from typing import Any, Final, NoReturn

from aiohttp import web

from relay.api.problems import INVALID, UNSUPPORTED, Problem
from relay.api.reading import read_body

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"


async def read_object(request: web.Request, cap: int, *media_types: str) -> dict[str, Any]:
    """The object in a body of at most `cap` bytes, of one of `media_types`. Raises Problem."""
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
