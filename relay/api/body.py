"""The body of a request, with a cap, as bytes or JSON, read strictly: mistakes are Problems."""

import asyncio
import json
import re
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from relay.api.access import access_of, is_known
from relay.api.bounds import bounds_of
from relay.api.connection import address_of, network_of
from relay.api.problems import INVALID, TOO_LARGE, TOO_SLOW, UNSUPPORTED, Problem, busy, invalid, invalid_at
from relay.api.shares import sharer_with
from relay.config.limits import ApiLimits
from relay.domain.json_pointer import NOT_JSON, pointer_of
from relay.domain.times import parse_duration

MOST_BYTES: Final = 512 * 1024
MERGE_PATCH: Final = "application/merge-patch+json"
_PLACE: Final = re.compile(r" - at `\$([^`]*)`$")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[([^\[\]]*)\]")
_UNKNOWN: Final = re.compile(r"contains unknown field `([^`]*)`")

_T = TypeVar("_T", bound=msgspec.Struct)


async def read_body(request: web.Request, cap: int) -> bytes:
    """The body verbatim; never more than `cap` bytes of it are kept, and only once there is memory for them. Raises a
    Problem, also if the caller has lost its rights while the body was awaited."""
    if any(each.strip().lower() != "identity" for each in request.headers.getall("Content-Encoding", ())):
        detail = "Content-Encoding is not supported: the bytes are passed on as they come"
        raise invalid(detail, kind=UNSUPPORTED, header="Content-Encoding")
    length = request.content_length
    if length is not None and length > cap:
        raise _too_large(cap)
    bounds = bounds_of(request)
    try:
        if request.content.is_eof():  # it came in one go with its head, as most do: nothing to wait for
            body = _capped(request.content.read_nowait(), cap)
            await _reserve(request, len(body))
            return body
        await _reserve(request, cap if length is None else length)
        body = await _read_all(request, cap, bounds.limits)
        bounds.room.shrink(len(body))
        bounds.check_again()
        return body
    except (BadHttpMessage, web.RequestPayloadError) as error:
        raise Problem(INVALID, "The body is not framed as HTTP requires.") from error
    except ConnectionError as error:
        raise Problem(INVALID, "The connection ended before the body was complete.") from error  # no client reads it


async def _reserve(request: web.Request, size: int) -> None:
    access = access_of(request) if is_known(request) else None  # pages read a form before they know its sender
    caller = network_of(address_of(request)) if access is None or access.key is None else sharer_with(access).name
    bounds = bounds_of(request)
    if bounds.room.take_now(size, caller):
        return
    try:
        async with asyncio.timeout(bounds.limits.room_s):
            await bounds.room.take(size, caller)
        bounds.check_again()
    except TimeoutError:
        raise busy("There is no memory for this body: too many others are in progress; repeat the request.") from None


async def _read_all(request: web.Request, cap: int, limits: ApiLimits) -> bytes:
    """A client that sends a byte now and then, or none, must not keep memory and connection for long."""
    clock = asyncio.get_running_loop().time
    chunks: list[bytes] = []
    size, end = 0, clock() + limits.body_s
    try:
        async with asyncio.timeout_at(min(end, clock() + limits.stall_s)) as timer:
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > cap:
                    raise _too_large(cap)
                chunks.append(chunk)
                timer.reschedule(min(end, clock() + limits.stall_s))
    except TimeoutError:
        times = f"{limits.body_s:g} s, or nothing of it for {limits.stall_s:g} s"
        raise Problem(TOO_SLOW, f"The body did not arrive within {times}.") from None
    return b"".join(chunks)


def _capped(body: bytes, cap: int) -> bytes:
    if len(body) > cap:
        raise _too_large(cap)
    return body


def _too_large(cap: int) -> Problem:
    return Problem(TOO_LARGE, f"The body may have at most {cap:,} bytes.")


def duration_in(value: float | str, pointer: str, most_s: float, limits: str) -> float:
    """Seconds. Raises a Problem for no duration, and with `limits` for one above `most_s`."""
    with invalid_at(pointer=pointer):
        seconds = parse_duration(value)
    if seconds > most_s:
        raise invalid(limits, pointer=pointer)
    return seconds


def read_json(body: bytes, kind: type[_T]) -> _T:
    """Raises a Problem that says where the body is wrong. An empty one says nothing."""
    try:
        return _decoded(body or b"{}", kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        steps = [name or number for name, number in _STEP.findall(place[1])] if place is not None else []
        if (unknown := _UNKNOWN.search(text)) is not None:
            steps.append(unknown[1])
        raise invalid(_PLACE.sub("", text), pointer=pointer_of(steps)) from None
    except NOT_JSON as error:
        raise invalid(f"the body is not JSON: {error}") from None


def _decoded(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        if "Expected `int`, got `float`" not in str(error):
            raise
        # 5.0 is an integer in JSON Schema, and with it in the OpenAPI document
        return msgspec.json.decode(msgspec.json.encode(_with_integers(msgspec.json.decode(body))), type=kind)


def _with_integers(value: Any) -> Any:
    match value:
        case dict():
            return {name: _with_integers(inner) for name, inner in value.items()}
        case list():
            return [_with_integers(inner) for inner in value]
        case float() if value.is_integer() and abs(value) < 2**63:
            return int(value)
    return value


async def read_object(request: web.Request, cap: int, *media_types: str) -> dict[str, Any]:
    """The object in a body of at most `cap` bytes, of one of `media_types`, in which no name occurs twice: that would
    be ambiguous. Raises Problem."""
    if request.content_type not in media_types:
        raise invalid(f"The body has to be {' or '.join(media_types)}.", kind=UNSUPPORTED, header="Content-Type")
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
    """The reason without any part of the body, which may be secret."""
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
