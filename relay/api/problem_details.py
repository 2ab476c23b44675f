"""The responses to errors: problem details (RFC 9457)."""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from math import ceil
from typing import Final, Required, TypedDict, cast

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from relay.api.problems import (
    INTERNAL,
    INVALID,
    NOT_FOUND,
    TOO_LARGE,
    TOO_MANY,
    TOO_MANY_ERASURES,
    TOO_MANY_EVENT_TYPES,
    TOO_MANY_KEYS,
    WRONG_METHOD,
    Problem,
    ProblemKind,
    busy,
)
from relay.control.records import LimitReached
from relay.domain.control_key import KEYS, Kind
from relay.domain.errors import (
    HistoryUnavailable,
    InvalidRecord,
    LogUnavailable,
    RecordTooLarge,
    StateRecovering,
    Unavailable,
)
from relay.telemetry.logging import get_logger


class Place(TypedDict, total=False):
    """A mistake, and its place: a `header`, a `parameter`, a part of the `path`, or the `pointer` (RFC 6901) to a
    place in the body."""

    detail: Required[str]
    header: str
    parameter: str
    path: str
    pointer: str


class ProblemView(TypedDict):
    """Problem details (RFC 9457). `type`: path of a page with what it means and what to do; `detail`: the particular
    cause."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[Place]


Check = Callable[[web.Request], None]
"""A check that every request passes before its handler runs. Raises the Problem that becomes the response."""

MEDIA_TYPE: Final = "application/problem+json"

_log = get_logger("relay.api")

_LIMITS: Final[Mapping[Kind, ProblemKind]] = {
    **dict.fromkeys(KEYS, TOO_MANY_KEYS),
    "event-type": TOO_MANY_EVENT_TYPES,
    "erasure": TOO_MANY_ERASURES,
}
"""Problems by the kind of record for which there is no room."""
_BY_STATUS: Final = {kind.status: kind for kind in (NOT_FOUND, WRONG_METHOD, TOO_LARGE)}


def middleware_of(*checks: Check) -> Middleware:
    """Middleware that runs `checks` in order before the handler."""

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        for check in checks:
            check(request)
        return await handler(request)

    return checked


@web.middleware
async def problem_details(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers every error with problem details. Internal errors are logged, and their text is not sent."""
    try:
        return await handler(request)
    except Exception as error:  # noqa: BLE001  the outermost place: whatever it is, the client gets an answer
        problem = problem_of(error)
        if problem.kind is INTERNAL:
            _log.error("request_failed", method=request.method, route=template_of(request) or "-", exc_info=True)
        if isinstance(error, HistoryUnavailable):  # of log and state, readiness reports it
            _log.warning("history_unavailable", route=template_of(request) or "-", error=str(error))
        return response_of(problem, request)


def problem_of(error: Exception) -> Problem:
    """The problem that a client gets for an error. The text of an internal error is not part of it."""
    match error:
        case Problem():
            return error
        case InvalidRecord():
            return Problem(INVALID, error.detail)
        case RecordTooLarge():
            return Problem(TOO_LARGE, "The log does not accept records of this size.")
        case LimitReached(kind=kind, wait_s=wait_s):
            return Problem(_LIMITS[kind], str(error)) if wait_s is None else busy(str(error), TOO_MANY, ceil(wait_s))
        case Unavailable():
            return busy(_unavailable_detail(error))
        case web.HTTPException():
            return _of_http(error)
        case _:
            return Problem(INTERNAL, "This is a bug in the relay; it is in the log.")


def response_of(problem: Problem, request: web.BaseRequest) -> web.Response:
    """The response for `problem`."""
    return web.Response(
        status=problem.kind.status,
        body=msgspec.json.encode(document_of(problem, request)),
        headers={**problem.headers, "Content-Type": MEDIA_TYPE},
    )


def document_of(problem: Problem, request: web.BaseRequest) -> dict[str, object]:
    """The problem document; also for one item of a batch."""
    errors = [cast(Place, {name: _sayable(text) for name, text in error.items()}) for error in problem.errors]
    return {**view_of(problem.kind, _sayable(problem.detail), path_of(request), errors), **problem.more}


def view_of(kind: ProblemKind, detail: str, instance: str, errors: Sequence[Place] = ()) -> ProblemView:
    """The members that every problem document has."""
    return {
        "type": f"/problems/{kind.name}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "instance": instance,
        "errors": list(errors),
    }


def _unavailable_detail(error: Unavailable) -> str:
    if isinstance(error, StateRecovering):
        return "The state is being recovered after a loss; repeat the request later."
    if isinstance(error, LogUnavailable):
        return "The log does not answer, or accepts no records at present; repeat the request later."
    if isinstance(error, HistoryUnavailable):
        return "The store of the history does not answer; repeat the request later."
    return "The state does not answer; repeat the request later."


def http_kind(status: HTTPStatus) -> ProblemKind:
    return ProblemKind(
        f"http-{status.value}",
        status.value,
        status.phrase,
        "The HTTP server rejected the request before the relay saw it. Correct how it is sent.",
    )


def _of_http(error: web.HTTPException) -> Problem:
    status = error.status
    kind = _BY_STATUS.get(status) or http_kind(HTTPStatus(status))
    allow = error.headers.get("Allow")
    details = {
        404: "No resource of this API has that path: /docs lists all. The URL of the API ends before /v1.",
        405: f"Allowed methods: {allow}.",
        413: "The body is larger than this resource accepts.",
    }
    detail = details.get(status, f"The HTTP server rejected the request with {status}.")
    return Problem(kind, detail, headers={"Allow": allow} if allow else {})


def path_of(request: web.BaseRequest) -> str:
    """The path of the request, for display. Answer and payload URLs are cut: they are secrets, never logged."""
    path = request.rel_url.raw_path
    prefix = next((each for each in ("/v1/answers", "/v1/payloads") if path.startswith(each)), None)
    return prefix or _sayable(path)


def template_of(request: web.Request) -> str | None:
    """The template of the route that was found: a path can be spelled in more than one way."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def _sayable(text: str) -> str:
    """`text` without lone surrogates, which stand for bytes that were not UTF-8 and cannot be in JSON."""
    return text.encode(errors="replace").decode()
