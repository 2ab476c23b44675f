"""The documentation pages of the API: its routes, and what each problem means. They reveal no secrets.

They need nothing but themselves, no script, no font, no picture. Their templates are in `templates/`. The largest is
the OpenAPI document for people, with each example as a call of curl and of Python, which a test makes."""

import hashlib
import json
import re
import shlex
from base64 import b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import web
from markupsafe import Markup, escape
from msgspec import Meta

from relay import __version__
from relay.api import problems
from relay.api.access import OPEN
from relay.api.asyncapi import asyncapi
from relay.api.landing import PEOPLE, front, wants_json, wants_page
from relay.api.openapi.document import document, encoded
from relay.api.parameter import Parameter
from relay.api.problem_details import http_kind
from relay.api.problems import NOT_FOUND, Problem, ProblemKind
from relay.api.route import Body, DocumentedResponse, Example, Route, json_of, route
from relay.api.waiters import ANSWER_GONE, FAILURES
from relay.domain.topics import Topics
from relay.schema.operation import Front

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES: Final = Path(__file__).parent / "templates"
_STYLE: Final = (_TEMPLATES / "page.css").read_text()
_DIGEST: Final = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_CODE: Final = re.compile(r"`([^`]*)`")


def html_response(text: str) -> web.Response:
    """`text`: what `render` returned."""
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=_HEADERS)


def render(template: str, **values: object) -> str:
    """The page of a template. Values are escaped."""
    return _environment().get_template(template).render(values, style=_STYLE)


def prose(text: str) -> Markup:
    """Plain text, with what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader  # takes memory, and few processes need it

    found = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    found.filters["prose"] = prose
    return found


Node = Mapping[str, Any]
BASE: Final = "http://127.0.0.1:8080"
"""The URL of a relay with default settings."""
_KEY: Final = "$RELAY_API_KEY"
_WIDTH: Final = 100


class ExampleCall(NamedTuple):
    """An example call of a route, for `/docs`. `url`: without the query. `has_key`: it proves who it is. `body`: a JSON
    value, or text as it is sent."""

    method: str
    url: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    has_key: bool
    body: Any
    media_type: str | None


def call_of(method: str, path: str, found: Node) -> ExampleCall:
    """`found`: the operation in the document."""
    target, query, headers = path, [], {}
    for one in (one for one in found["parameters"] if "example" in one):
        value = one["example"]
        match one["in"]:
            case "path":
                target = target.replace(f"{{{one['name']}}}", quote(str(value), safe="{}"))
            case "query":
                query += [(one["name"], str(each)) for each in (value if isinstance(value, list) else [value])]
            case _:
                headers[one["name"]] = str(value)
    body, media_type = _example_body(found)
    return ExampleCall(method.upper(), BASE + target, query, headers, bool(found["security"]), body, media_type)


def curl(call: ExampleCall) -> str:
    """A line for a shell."""
    words = ["curl", "-i", *(() if call.method == "GET" else ("-X", call.method))]
    words.append(shlex.quote(call.url + ("?" + urlencode(call.query) if call.query else "")))
    lines = [" ".join(words)]
    if call.has_key:
        lines.append(f'-H "authorization: Bearer {_KEY}"')
    lines += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in call.headers.items()]
    if call.media_type is not None:
        lines.append(f"-H {shlex.quote(f'content-type: {call.media_type}')}")
        data = call.body if isinstance(call.body, str) else json.dumps(call.body)
        lines.append(f"--data-binary {shlex.quote(data)}")
    return " \\\n  ".join(lines)


def python(call: ExampleCall) -> str:
    """The call as a Python program, which needs the package `requests`."""
    method = call.method.lower()
    arguments = [_text(call.url)]
    if call.query:
        arguments.append(f"params=[{', '.join(f'({_text(name)}, {_text(value)})' for name, value in call.query)}]")
    headers = [f"{_text(name)}: {_text(value)}" for name, value in call.headers.items()]
    if call.has_key:
        headers.insert(0, '"Authorization": f"Bearer {os.environ[\'RELAY_API_KEY\']}"')
    as_json = call.media_type == "application/json" and not isinstance(call.body, str)
    if call.media_type is not None and not as_json:
        headers.append(f'"Content-Type": {_text(call.media_type)}')
    if headers:
        arguments.append(f"headers={{{', '.join(headers)}}}")
    if as_json:
        arguments.append(f"json={_literal(call.body)}")
    elif call.media_type is not None:
        arguments.append(f"data={_text(call.body)}")
    arguments.append("timeout=60")
    whole = f"response = requests.{method}({', '.join(arguments)})"
    if len(whole) > _WIDTH:
        whole = "\n".join([f"response = requests.{method}(", *(f"    {each}," for each in arguments), ")"])
    imports = "import os\n\nimport requests" if call.has_key else "import requests"
    return f"{imports}\n\n{whole}\nprint(response.status_code, response.text)"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _literal(value: Any) -> str:
    """A JSON value as Python writes it."""
    match value:
        case dict():
            return f"{{{', '.join(f'{_text(name)}: {_literal(each)}' for name, each in value.items())}}}"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case str():
            return _text(value)
    return repr(value)


def _example_body(found: Node) -> tuple[Any, str | None]:
    for media_type, of in found.get("requestBody", {}).get("content", {}).items():
        if "examples" in of:
            return of["examples"]["tried"]["value"], media_type
    return None, None


def shape(schema: Node) -> Markup:
    """A schema in a few words."""
    if "$ref" in schema:
        return Markup('<a href="#{0}">{0}</a>').format(schema["$ref"].rpartition("/")[2])
    for word in ("anyOf", "allOf"):
        if word in schema:
            return Markup(" or ").join(dict.fromkeys(map(shape, schema[word])))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return Markup(" | ").join(Markup("<code>{}</code>").format(json.dumps(one)) for one in values)
    return _of_type(schema)


def _of_type(schema: Node) -> Markup:
    kind = schema.get("type", "anything")
    if kind == "array":
        return Markup("list of {}").format(shape(schema.get("items", {})))
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return Markup("object of {}").format(shape(schema["additionalProperties"]))
    words = {"minimum": "from", "maximum": "to", "minLength": "at least", "maxLength": "at most", "default": "usually"}
    bounds = [f"{text} {json.dumps(schema[word])}" for word, text in words.items() if word in schema]
    return escape(" ".join([kind if isinstance(kind, str) else " or ".join(kind), *bounds]))


KINDS: Final[Mapping[str, ProblemKind]] = {
    kind.name: kind
    for kind in (*FAILURES, ANSWER_GONE, *(each for each in vars(problems).values() if isinstance(each, ProblemKind)))
}
"""All problems by name. Some are failures of deliveries as well as responses of the API."""
_OF_HTTP: Final = {kind.name: kind for kind in map(http_kind, HTTPStatus) if kind.status >= 400}


_PROBLEM: Final = Parameter(
    "name",
    Annotated[str, Meta(pattern="^[a-z0-9-]{1,60}$")],
    "Name of the problem: the last part of its `type`.",
    "path",
    sample="unknown-receiver",
)
_HTML: Final = Body({"text/html": str})


@dataclass(eq=False, repr=False)
class PagesResource:
    """`/` (it redirects browsers to the web pages, if there are any), `/docs`, `/openapi.json`, `/asyncapi.json`,
    `/problems` and the pages under it."""

    noun = "pages"
    _routes: Collection[Route]
    _topics: Topics
    for_people: bool = False

    @cached_property
    def document(self) -> dict[str, Any]:
        """The document, built on the first request, because that takes some 30 ms."""
        return document(self._routes)

    @cached_property
    def _encoded(self) -> bytes:
        return encoded(self.document)

    @cached_property
    def _asyncapi(self) -> bytes:
        return encoded(asyncapi(self._topics))

    @cached_property
    def _docs(self) -> str:
        """All routes by noun, what the relay sends, and the schemas."""
        return render("docs.html", found=self.document, call_of=call_of, curl=curl, python=python, shape=shape)

    @route(
        "GET",
        "/",
        scope=OPEN,
        answers=(
            DocumentedResponse(
                200, "Links to the parts of the API.", Body({"text/html": str, "application/json": Front})
            ),
        ),
        example=Example(200, headers={"Accept": "application/json"}),
    )
    async def get_front_page(self, request: web.Request) -> web.Response:
        """List the parts of the API.

        A page, or JSON if `Accept` asks for that.
        """
        if self.for_people and wants_page(request.headers.get("Accept", "")):
            return web.Response(status=302, headers={"Location": f"{PEOPLE}/", "Vary": "Accept"})
        if wants_json(request.headers.get("Accept", "")):
            body = msgspec.json.encode(front(__version__))
            return web.Response(body=body, content_type="application/json", headers={"Vary": "Accept"})
        response = html_response(render("front.html", front=front(__version__)))
        response.headers["Vary"] = "Accept"
        return response

    @route(
        "GET",
        "/openapi.json",
        scope=OPEN,
        answers=(DocumentedResponse(200, "OpenAPI 3.1.", json_of(dict[str, object])),),
    )
    async def get_open_api(self) -> web.Response:
        """Get this document."""
        return web.Response(body=self._encoded, content_type="application/json")

    @route(
        "GET",
        "/asyncapi.json",
        scope=OPEN,
        answers=(DocumentedResponse(200, "AsyncAPI 3.0.", json_of(dict[str, object])),),
    )
    async def get_async_api(self) -> web.Response:
        """Get the AsyncAPI document of the topics.

        For producers and consumers on Kafka. `relay config asyncapi` prints it, too.
        """
        return web.Response(body=self._asyncapi, content_type="application/json")

    @route("GET", "/docs", scope=OPEN, answers=(DocumentedResponse(200, "The page.", _HTML),))
    async def get_docs(self) -> web.Response:
        """Show this document as a page."""
        return html_response(self._docs)

    @route("GET", "/problems", scope=OPEN, answers=(DocumentedResponse(200, "The page.", _HTML),))
    async def list_problems(self) -> web.Response:
        """List the problems that responses may have."""
        return html_response(render("problems.html", kinds=KINDS))

    @route("GET", "/problems/{name}", scope=OPEN, answers=(DocumentedResponse(200, "The page.", _HTML),))
    async def get_problem(self, name: Annotated[str, _PROBLEM]) -> web.Response:
        """Explain a problem, and what to do about it."""
        kind = KINDS.get(name) or _OF_HTTP.get(name)
        if kind is None:
            raise Problem(NOT_FOUND, "There is no problem of that name.")
        return html_response(render("problem.html", title=kind.title, advice=kind.advice))
