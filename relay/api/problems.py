"""Problem details (RFC 9457): the kinds of problem, and the conversion of errors to them.

`type` is a relative reference, `/problems/<name>`: names are part of the API, the text beside them is for people.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final, NamedTuple, Required, TypedDict, cast

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from relay.domain.errors import (
    HistoryUnavailable,
    InvalidRecord,
    LogUnavailable,
    RecordTooLarge,
    RelayError,
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
RETRY_AFTER_S: Final = 2
"""Sent to clients while Kafka or Redis is away: a failover takes seconds."""

_log = get_logger("relay.api")


class ProblemKind(NamedTuple):
    """A kind of problem: the last part of its `type`, its status and its title."""

    name: str
    status: int
    title: str


INVALID: Final = ProblemKind("invalid-request", 400, "The request is not valid")
INVALID_JSON: Final = ProblemKind("invalid-json", 400, "The payload is not valid JSON")
UNAUTHORIZED: Final = ProblemKind("unauthorized", 401, "An API key is required")
BAD_SIGNATURE: Final = ProblemKind("bad-signature", 401, "The webhook cannot be authenticated")
FORBIDDEN: Final = ProblemKind("forbidden", 403, "The key may not do this")
FOREIGN_ORIGIN: Final = ProblemKind("foreign-origin", 403, "The request comes from a page of another origin")
NOT_FOUND: Final = ProblemKind("not-found", 404, "Not found")
WRONG_METHOD: Final = ProblemKind("method-not-allowed", 405, "The resource does not support this method")
TOO_SLOW: Final = ProblemKind("request-timeout", 408, "The request body took too long")
ID_CONFLICT: Final = ProblemKind("id-conflict", 409, "The message id was used for another message")
NOT_FAILED: Final = ProblemKind("not-failed", 409, "It has not failed")
NOT_REPLAYABLE: Final = ProblemKind("not-replayable", 409, "It can no longer be replayed or discarded")
ALREADY_SENT: Final = ProblemKind("already-sent", 409, "It was already sent, or has ended")
NO_SUCH_NUMBER: Final = ProblemKind("no-such-number", 409, "The receiver has no such number")
TOO_MANY_JOBS: Final = ProblemKind("too-many-jobs", 409, "Too many unfinished jobs")
RECEIVER_EXISTS: Final = ProblemKind("receiver-exists", 409, "A receiver with this name exists")
SOURCE_EXISTS: Final = ProblemKind("source-exists", 409, "This source already has an entry")
DECLARED_IN_FILE: Final = ProblemKind("declared-in-file", 409, "The entry is declared in the receivers file")
UNVERIFIED: Final = ProblemKind("receiver-unverified", 409, "The receiver is not verified")
CREDENTIALS_NEEDED: Final = ProblemKind("credentials-needed", 409, "The credentials must be sent again")
NO_SECRETS_KEY: Final = ProblemKind("no-secrets-key", 409, "Secrets cannot be stored")
ANSWER_CLOSED: Final = ProblemKind("answer-closed", 410, "The time to answer is over")
PAYLOAD_GONE: Final = ProblemKind("payload-gone", 410, "The payload is no longer stored")
TOO_MANY_RECEIVERS: Final = ProblemKind("too-many-receivers", 409, "The owner has the maximum number of receivers")
TOO_MANY_KEYS: Final = ProblemKind("too-many-keys", 409, "The maximum number of keys is reached")
TOO_MANY_EVENT_TYPES: Final = ProblemKind("too-many-event-types", 409, "The catalogue is full")
TOO_MANY_ERASURES: Final = ProblemKind("too-many-erasures", 409, "The maximum number of erasures is reached")
KEY_EXPIRED: Final = ProblemKind("key-expired", 409, "The key has expired")
CHANGED_MEANWHILE: Final = ProblemKind("changed-meanwhile", 412, "It was changed by another request")
TOO_LARGE: Final = ProblemKind("too-large", 413, "The body is too large")
UNSUPPORTED: Final = ProblemKind("unsupported-media-type", 415, "The content type or encoding is not supported")
UNKNOWN_HOST: Final = ProblemKind("unknown-host", 421, "The request is for another host")
INVALID_RECEIVER: Final = ProblemKind("invalid-receiver", 422, "The receiver is not valid")
INVALID_SOURCE: Final = ProblemKind("invalid-source", 422, "The source is not valid")
UNKNOWN_RECEIVER: Final = ProblemKind("unknown-receiver", 422, "There is no such receiver")
INVALID_EVENT_TYPE: Final = ProblemKind("invalid-event-type", 422, "The event type is not valid")
INVALID_PAYLOAD: Final = ProblemKind("invalid-payload", 422, "The payload does not match its event type")
ENDPOINT_NOT_ALLOWED: Final = ProblemKind("endpoint-not-allowed", 422, "No message may be sent to this endpoint")
UNFIT_ID: Final = ProblemKind("unfit-id", 422, "The message id does not fit into a URL")
RESERVED_SOURCE: Final = ProblemKind("reserved-source", 422, "The source is reserved")
NO_RECEIVER: Final = ProblemKind("no-receiver", 422, "No receiver for this message")
TOO_MANY: Final = ProblemKind("too-many-requests", 429, "Too many requests")
OVER_QUOTA: Final = ProblemKind("quota-exceeded", 429, "The quota is used up")
HEADERS_TOO_LARGE: Final = ProblemKind("headers-too-large", 431, "The headers are too large")
INTERNAL: Final = ProblemKind("internal-error", 500, "The relay has failed")
NO_HISTORY: Final = ProblemKind("no-history", 503, "No history is configured")
UNAVAILABLE: Final = ProblemKind("unavailable", 503, "The relay cannot do this right now")

_BY_STATUS: Final = {kind.status: kind for kind in (NOT_FOUND, WRONG_METHOD, TOO_LARGE)}


class Problem(RelayError):
    """Ends a request with this response. `errors`: the mistakes, each with `detail` and its place: `header`,
    `parameter`, `path` or `pointer` (a JSON pointer into the body). `more`: further members of the document."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        errors: tuple[Mapping[str, str], ...] = (),
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = errors
        self.headers = dict(headers or {})
        self.more = dict(more or {})


def no_receiver(name: str) -> Problem:
    return Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r}.")


def busy(detail: str, kind: ProblemKind = UNAVAILABLE, after_s: int = RETRY_AFTER_S) -> Problem:
    """The problem of a request that may succeed when it is repeated after `after_s` seconds."""
    return Problem(kind, detail, headers={"Retry-After": str(after_s)})


def invalid(
    detail: str,
    *,
    kind: ProblemKind = INVALID,
    header: str | None = None,
    parameter: str | None = None,
    path: str | None = None,
    pointer: str | None = None,
) -> Problem:
    """A problem about one place in the request, by default a 400."""
    where = {"header": header, "parameter": parameter, "path": path, "pointer": pointer}
    places = {name: value for name, value in where.items() if value is not None}
    return Problem(kind, detail, errors=({"detail": detail, **places},) if places else ())


@contextmanager
def invalid_at(
    *, header: str | None = None, parameter: str | None = None, pointer: str | None = None
) -> Iterator[None]:
    """Translates errors about an invalid value into a problem about its place in the request."""
    try:
        yield
    except (InvalidRecord, ValueError) as error:
        raise invalid(str(error), header=header, parameter=parameter, pointer=pointer) from None


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


def _of_http(error: web.HTTPException) -> Problem:
    status = error.status
    kind = _BY_STATUS.get(status) or ProblemKind(f"http-{status}", status, HTTPStatus(status).phrase)
    allow = error.headers.get("Allow")
    details = {
        404: "No resource of this API has that path.",
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
