"""The declaration of a route, at its handler. Router, check of rights, audit, OpenAPI and tests read it from there."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import cleandoc, signature
from typing import Annotated, Any, Final, Literal

from aiohttp import web
from msgspec import Meta

from relay.api.access import Need
from relay.api.paging import MOST, NewestFirstPages
from relay.api.problems import ProblemKind
from relay.api.reading import MOST_BYTES, read_only
from relay.api.responses import JSON
from relay.domain.identity import MAX_ID_BYTES

Place = Literal["path", "query", "header"]
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
UNAUDITED: Final = "-"
"""In place of an audit verb, for routes that bring messages and answers: the log itself has these."""

SourceId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""Its length counts bytes of UTF-8, not characters, which JSON Schema cannot say."""
MessageIdText = SourceId
ReceiverName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]
Limit = Annotated[int, Meta(ge=1, le=MOST)]
Partition = Annotated[int, Meta(ge=0, le=999_999_999)]
Offset = Annotated[int, Meta(ge=0, lt=10**18)]
ETag = Annotated[str, Meta(pattern=r'^(\*|"[^"]*")$')]

_PATTERNS: Final = {
    "partition": r"\d{1,9}",
    "offset": r"\d{1,18}",
    "source_id": "[^/]+",
    "message_id": "[^/]+",
    "id": "[^/]+",
}
"""What a parameter of a path matches, if not aiohttp's default."""
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """`of`: the type of its value; if it is a list, the parameter may be repeated. One in the path is required."""

    name: str
    place: Place
    of: Any
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request or response: its type by media type; a tuple of types if it is one of several, None if it
    is any bytes."""

    content: Mapping[str, Any]
    required: bool = True
    items: Mapping[str, Any] = field(default_factory=dict)
    """For media types that are a list of documents: the type of one."""


@dataclass(frozen=True, slots=True)
class DocumentedResponse:
    """A response that is no problem. `headers`: description by name."""

    status: int
    description: str
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Example:
    """A request that a test sends to the relay of tests/integration/api_world.py. `status`: of the response. `body`: a
    JSON value, or text that is sent as it is with `content_type`."""

    status: int
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of the API.

    `path`: its template. `scope`: what a caller needs. `audit`: the verb of its lines in the audit. `id`: unique.
    `noun`: the group that it is listed in. `problems`: its own; those that any request may get are added.
    """

    method: str
    path: str
    scope: Need
    audit: str | None
    id: str
    noun: str
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    answers: tuple[DocumentedResponse, ...]
    problems: tuple[ProblemKind, ...]
    example: Example

    def __post_init__(self) -> None:
        if self.audit is None and self.method not in READING:
            raise ValueError(f"{self.method} {self.path} changes something: it needs an audit verb, or UNAUDITED")

    @property
    def verb(self) -> str | None:
        """The verb of its audit line, or None if it has none."""
        return None if self.audit == UNAUDITED else self.audit


Handler = Callable[[Any, web.Request], Awaitable[web.StreamResponse]]


def route(
    method: str,
    path: str,
    *,
    scope: Need,
    id: str,
    noun: str,
    answers: tuple[DocumentedResponse, ...],
    example: Example,
    audit: str | None = None,
    parameters: tuple[Parameter, ...] = (),
    body: Body | None = None,
    most_bytes: int = MOST_BYTES,
    problems: tuple[ProblemKind, ...] = (),
) -> Callable[[Callable[..., Awaitable[web.StreamResponse]]], Handler]:
    """Declares the route that a method of a resource handles. The first line of the method's docstring is the summary,
    the rest the description. A method with a parameter after the request gets the body there, decoded: JSON of at most
    `most_bytes`, of a route without query parameters."""

    def declare(method_of: Callable[..., Awaitable[web.StreamResponse]]) -> Handler:
        handler = method_of if len(signature(method_of).parameters) == 2 else _decoding(method_of, body, most_bytes)
        summary, _, description = cleandoc(handler.__doc__ or "").partition("\n\n")
        declared = Route(
            method=method,
            path=path,
            scope=scope,
            audit=audit,
            id=id,
            noun=noun,
            summary=_in_one_line(summary).removesuffix("."),
            description=_in_one_line(description),
            parameters=parameters,
            body=body,
            answers=answers,
            problems=problems,
            example=example,
        )
        handler.__dict__["route"] = declared
        return handler

    return declare


def _decoding(
    method: Callable[[Any, web.Request, Any], Awaitable[web.StreamResponse]], body: Body | None, most_bytes: int
) -> Handler:
    if body is None:
        raise ValueError(f"{method.__qualname__} takes a body, and its route declares none")
    kind = body.content[JSON]

    @wraps(method)
    async def decoding(resource: Any, request: web.Request) -> web.StreamResponse:
        return await method(resource, request, await read_only(request, kind, most_bytes))

    return decoding


def routes_of(resource: type) -> Iterator[Route]:
    """The routes that a resource declares, in their order."""
    return (declared for _, declared in _handlers(resource))


def add_routes(router: web.UrlDispatcher, resource: object) -> None:
    """Have the router call the handlers of a resource."""
    for name, declared in _handlers(type(resource)):
        router.add_route(declared.method, pattern(declared.path), getattr(resource, name))
        if declared.method == "GET":
            router.add_route("HEAD", pattern(declared.path), getattr(resource, name))


def _handlers(resource: type) -> Iterator[tuple[str, Route]]:
    """Name and route of each handler."""
    for name, member in vars(resource).items():
        if isinstance(declared := getattr(member, "route", None), Route):
            yield name, declared


def pattern(path: str) -> str:
    """A template as aiohttp's router takes it."""
    return _PARAMETER.sub(lambda found: f"{{{found[1]}:{_PATTERNS.get(found[1], '[^{}/]+')}}}", path)


def declared_of(request: web.Request) -> Route | None:
    """The route of a request, or None if it was not found, or is no route of the API."""
    return getattr(request.match_info.route.handler, "route", None)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def cursor_of(pages: NewestFirstPages) -> Parameter:
    cursor = Annotated[str, Meta(pattern=f"^{pages.cursor.pattern}$")]
    return Parameter("cursor", "query", cursor, "Of the page before: what follows it.")


def json_of(kind: Any, *, required: bool = True) -> Body:
    """A body of JSON of this type."""
    return Body({JSON: kind}, required)


SOURCE_ID: Final = Parameter("source_id", "path", SourceId, "The application that messages come from.")
MESSAGE_ID: Final = Parameter("message_id", "path", MessageIdText, "The message's id, unique in its source.")
RECEIVER_NAME: Final = Parameter("receiver", "path", ReceiverName, "The receiver's name.")
NAME: Final = Parameter("name", "path", ReceiverName, "The receiver's name.")
LIMIT: Final = Parameter("limit", "query", Limit, "So many at most; usually 50.")
