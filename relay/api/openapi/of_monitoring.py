"""The routes for monitoring, and those for people: pages, and this document."""

from typing import Annotated, Final

from msgspec import Meta

from relay.api.health import Version
from relay.api.landing import ASYNCAPI, DOCS, INDEX, OPENAPI, PROBLEM, PROBLEMS, Front
from relay.api.openapi.operation import Body, DocumentedResponse, Example, Operation, Parameter, json_of

_MONITORING: Final = "monitoring"
_PAGES: Final = "pages"
_TEXT: Final = Body({"text/plain": str})
_HTML: Final = Body({"text/html": str})

OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/livez",
        id="isAlive",
        noun=_MONITORING,
        summary="Whether the process lives",
        answers=(DocumentedResponse(200, "It does.", _TEXT),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path="/readyz",
        id="isReady",
        noun=_MONITORING,
        summary="Whether it can work",
        description="Of all processes that share the port. 503 in plain text, with a line for each part.",
        parameters=(Parameter("verbose", "query", str, "Also on 200 a line for each part."),),
        answers=(DocumentedResponse(200, "It can.", _TEXT), DocumentedResponse(503, "A part is away.", _TEXT)),
        example=Example(200, query={"verbose": ""}),
    ),
    Operation(
        method="GET",
        path="/metrics",
        id="getMetrics",
        noun=_MONITORING,
        summary="Metrics for Prometheus",
        description="Of all processes that share the port.",
        answers=(DocumentedResponse(200, "The text format.", _TEXT),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path="/version",
        id="getVersion",
        noun=_MONITORING,
        summary="Which version it is",
        answers=(DocumentedResponse(200, "The version.", json_of(Version)),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path=INDEX,
        id="getFrontPage",
        noun=_PAGES,
        summary="What there is",
        description="A page, or JSON where `Accept` asks for that.",
        answers=(DocumentedResponse(200, "What there is.", Body({"text/html": str, "application/json": Front})),),
        example=Example(200, headers={"Accept": "application/json"}),
    ),
    Operation(
        method="GET",
        path=OPENAPI,
        id="getOpenApi",
        noun=_PAGES,
        summary="This document",
        answers=(DocumentedResponse(200, "OpenAPI 3.1.", json_of(dict[str, object])),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path=ASYNCAPI,
        id="getAsyncApi",
        noun=_PAGES,
        summary="What is on the topics",
        description="For who writes or reads them on Kafka. `relay config asyncapi` prints it, too.",
        answers=(DocumentedResponse(200, "AsyncAPI 3.0.", json_of(dict[str, object])),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path=DOCS,
        id="getDocs",
        noun=_PAGES,
        summary="This document as a page",
        answers=(DocumentedResponse(200, "The page.", _HTML),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path=PROBLEMS,
        id="listProblems",
        noun=_PAGES,
        summary="What can go wrong",
        answers=(DocumentedResponse(200, "The page.", _HTML),),
        example=Example(200),
    ),
    Operation(
        method="GET",
        path=PROBLEM,
        id="getProblem",
        noun=_PAGES,
        summary="What a problem means, and what to do",
        parameters=(
            Parameter("name", "path", Annotated[str, Meta(pattern="^[a-z0-9-]{1,60}$")], "Last in its `type`."),
        ),
        answers=(DocumentedResponse(200, "The page.", _HTML),),
        example=Example(200, path={"name": "unknown-receiver"}),
    ),
)
