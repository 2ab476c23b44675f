"""The declaration of a route, at its handler. Router, check of rights, audit, OpenAPI and tests read it from there."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import cleandoc, signature
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from aiohttp import web
from msgspec import Struct, structs

from relay.api.access import Need
from relay.api.body import MOST_BYTES, read_body, read_json, read_object
from relay.api.parameter import IN_PATHS, LIMIT, Parameter
from relay.api.problems import ProblemKind
from relay.api.reading import query_of
from relay.api.responses import JSON, Reply, json_response

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
UNAUDITED: Final = "-"
"""In place of an audit verb, for routes that bring messages and answers: the log itself has these."""

_PATTERNS: Final = {
    "partition": r"\d{1,9}",
    "offset": r"\d{1,18}",
    "source_id": "[^/]+",
    "message_id": "[^/]+",
    "id": "[^/]+",
}
"""Patterns of path parameters that differ from aiohttp's default."""
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_CAPITAL: Final = re.compile("_([a-z])")


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
    """A documented response other than a problem. `headers`: descriptions by name."""

    status: int
    description: str
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Example:
    """A request that a test sends to the relay of tests/integration/api_world.py. `status`: of the response. `path`:
    without parameters that have their sample. `body`: a JSON value, or text that is sent as it is with
    `content_type`."""

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
    `noun`: the group that it is listed in, by default the `noun` of its resource. `problems`: its own; those that any
    request may get are added.
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
Values = Callable[[web.Request], Awaitable[dict[str, Any]]]
Declare = Callable[[Callable[..., Awaitable[object]]], Handler]
"""Makes a handler of a method of a resource, by the declaration of its route."""


def route(
    method: str,
    path: str,
    *,
    scope: Need,
    example: Example | None = None,
    noun: str = "",
    audit: str | None = None,
    parameters: tuple[Parameter, ...] = (),
    body: Body | None = None,
    most_bytes: int = MOST_BYTES,
    reads_itself: bool = False,
    answer: str = "",
    status: int = 200,
    headers: Mapping[str, str] = MappingProxyType({}),
    answers: tuple[DocumentedResponse, ...] = (),
    problems: tuple[ProblemKind, ...] = (),
) -> Declare:
    """Declares the route that a method of a resource handles. The method's name in camel case is the route's id, the
    first line of its docstring the summary, the rest the description.

    What the method returns is sent as JSON with `status`, unless it is a response; see also `Reply`. `answer` describes
    that JSON and `headers` its headers, and its schema is the method's return type; `answers` declares others.

    The parameters are those of `path`, those in `parameters`, and arguments that are annotated with a Parameter, or
    with the description of one of the query; so are fields of an argument that is a NamedTuple, such as the filters of
    a list. One that is not declared is refused. A method gets those that it names, decoded, as `request` the request,
    and as `body` the JSON of at most `most_bytes` bytes: an instance of a Struct, which the argument's type declares
    unless `body` does; a dict for any other type, in which no name occurs twice. With `reads_itself` it reads query and
    body on its own. By default the example is the request without a body, and with no more of a query than the limit of
    a list.
    """

    def declare(method_of: Callable[..., Awaitable[object]]) -> Handler:
        declared, taken = _all_parameters(path, parameters, method_of), body or _body_of(method_of)
        values = _values(method_of, declared, taken, most_bytes, reads_itself=reads_itself)
        shown = example or Example(status, query={"limit": "10"} if LIMIT in declared else {})
        samples = {each.name: each.sample for each in declared if each.place == "path"}
        summary, _, description = cleandoc(method_of.__doc__ or "").partition("\n\n")
        returned = signature(method_of).return_annotation
        shape = get_args(returned)[0] if get_origin(returned) is Reply else returned
        described = DocumentedResponse(status, answer, json_of(shape), headers)

        @wraps(method_of)
        async def handle(resource: Any, request: web.Request) -> web.StreamResponse:
            found = await method_of(resource, **await values(request))
            if isinstance(found, web.StreamResponse):
                return found
            reply = found if isinstance(found, Reply) else Reply(found, {})
            response = json_response(status, reply.view)
            response.headers.update(reply.headers)
            return response

        handle.__dict__["route"] = Route(
            method=method,
            path=path,
            scope=scope,
            audit=audit,
            id=_CAPITAL.sub(lambda found: found[1].upper(), method_of.__name__),
            noun=noun,
            summary=_in_one_line(summary).removesuffix("."),
            description=_in_one_line(description),
            parameters=declared,
            body=taken,
            answers=(described, *answers) if answer else answers,
            problems=problems,
            example=replace(shown, path={**samples, **shown.path}),
        )
        return handle

    return declare


def _body_of(method: Callable[..., object]) -> Body | None:
    """JSON of the Struct that a method takes as `body`; it may be left out if each field has a default."""
    argument = signature(method).parameters.get("body")
    if argument is None or not _is_struct(argument.annotation):
        return None
    return json_of(argument.annotation, required=any(each.required for each in structs.fields(argument.annotation)))


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _all_parameters(path: str, given: tuple[Parameter, ...], method: Callable[..., object]) -> tuple[Parameter, ...]:
    """Those of the path in its order, those that are `given`, and those that the method's arguments declare."""
    arguments = {each.name: each.annotation for each in signature(method).parameters.values()}
    single = (item for name, of in arguments.items() for item in (_fields_of(of) or {name: of}).items())
    declared = (*given, *(found for each in single if (found := _annotated(*each)) is not None))
    known = IN_PATHS | {each.name: each for each in declared if each.place == "path"}
    in_path = tuple(known[name] for name in _PARAMETER.findall(path))
    return (*in_path, *(each for each in declared if each.place != "path"))


def _fields_of(annotation: Any) -> dict[str, Any]:
    """The annotated fields of a NamedTuple; none of any other type."""
    return get_type_hints(annotation, include_extras=True) if hasattr(annotation, "_fields") else {}


def _annotated(name: str, annotation: Any) -> Parameter | None:
    """The parameter with which an argument is annotated, or which it describes; None if it is none."""
    if get_origin(annotation) is not Annotated:
        return None
    of, *more, about = get_args(annotation)
    usual = False if of is bool else None
    if isinstance(about, Parameter):
        return replace(about, default=usual) if about.default is None else about
    if NoneType in get_args(of):
        [of] = (each for each in get_args(of) if each is not NoneType)
    return Parameter(name, Annotated[of, *more] if more else of, about, default=usual)


def _values(
    method: Callable[..., Awaitable[object]],
    parameters: tuple[Parameter, ...],
    body: Body | None,
    most_bytes: int,
    *,
    reads_itself: bool,
) -> Values:
    """Decodes what the method takes."""
    arguments = list(signature(method).parameters.values())[1:]
    filters = {each.name: (each.annotation, fields) for each in arguments if (fields := _fields_of(each.annotation))}
    named = [each.name for each in arguments if each.name not in filters]
    if undeclared := set(named) - {each.name for each in parameters} - {"request", "body"}:
        raise ValueError(f"{method.__qualname__} takes {undeclared}, which its route does not declare")
    if "body" in named and body is None:
        raise ValueError(f"{method.__qualname__} takes a body, and its route declares none")
    known = [each.name for each in parameters if each.place == "query"]
    taken = {*named, *(field for _, fields in filters.values() for field in fields)}
    wanted = [each for each in parameters if each.name in taken]
    read = None if body is None or reads_itself else _reader(body, most_bytes)

    async def decoded(request: web.Request) -> dict[str, Any]:
        query = {} if reads_itself else query_of(request, *known)
        values = {each.name: each.value(request, query) for each in wanted}
        values |= {name: kind(*map(values.pop, fields)) for name, (kind, fields) in filters.items()}
        found = None if read is None else await read(request)
        given = {"request": request, "body": found}
        return values | {name: value for name, value in given.items() if name in named}

    return decoded


def _reader(body: Body, most_bytes: int) -> Callable[[web.Request], Awaitable[Any]]:
    """Reads and decodes a body. A Struct may come with any media type, or as an empty body."""
    kind = body.content[JSON]

    async def read_struct(request: web.Request) -> Any:
        return read_json(await read_body(request, most_bytes), kind)

    async def read_dict(request: web.Request) -> Any:
        return await read_object(request, most_bytes, *reversed(list(body.content)))

    return read_struct if _is_struct(kind) else read_dict


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
            yield name, replace(declared, noun=declared.noun or vars(resource)["noun"])


def pattern(path: str) -> str:
    """A template as aiohttp's router takes it."""
    return _PARAMETER.sub(lambda found: f"{{{found[1]}:{_PATTERNS.get(found[1], '[^{}/]+')}}}", path)


def declared_of(request: web.Request) -> Route | None:
    """The route of a request; None if it was not found, or is not a route of the API."""
    return getattr(request.match_info.route.handler, "route", None)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def json_of(kind: Any, *, required: bool = True) -> Body:
    """A body of JSON of this type."""
    return Body({JSON: kind}, required)
