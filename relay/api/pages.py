"""The documentation pages of the API: its routes, and what each problem means. They reveal no secrets."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from relay import __version__
from relay.api import problems
from relay.api.access import OPEN
from relay.api.asyncapi import asyncapi
from relay.api.landing import PEOPLE, front, wants_json, wants_page
from relay.api.openapi.document import document, encoded, routes_in
from relay.api.openapi.page import document_html, html_response, render
from relay.api.openapi.sent import SENT
from relay.api.problem_details import http_kind
from relay.api.problems import NOT_FOUND, Problem, ProblemKind
from relay.api.route import Body, DocumentedResponse, Example, Parameter, Route, json_of, route
from relay.api.waiters import ANSWER_GONE, FAILURES
from relay.domain.topics import Topics
from relay.schema.operation import Front

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
    _router: web.UrlDispatcher
    _routes: Mapping[tuple[str, str], Route]
    _topics: Topics
    for_people: bool = False

    @cached_property
    def document(self) -> dict[str, Any]:
        """The document, built on the first request, because that takes some 30 ms."""
        return document(routes_in(self._router), self._routes, SENT, FAILURES)

    @cached_property
    def _encoded(self) -> bytes:
        return encoded(self.document)

    @cached_property
    def _asyncapi(self) -> bytes:
        return encoded(asyncapi(self._topics))

    @cached_property
    def _docs(self) -> str:
        return document_html(self.document)

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
