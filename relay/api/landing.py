"""The front page of the API, as HTML or JSON, and the paths of pages for people."""

from typing import Final

from relay.api.html import prose
from relay.schema.operation import Front

DOCTOR: Final = "/v1/doctor"
INDEX: Final = "/"
OPENAPI: Final = "/openapi.json"
ASYNCAPI: Final = "/asyncapi.json"
DOCS: Final = "/docs"
PROBLEMS: Final = "/problems"
MONITORING: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths for monitoring, which are served under any host name."""
PEOPLE: Final = "/ui"
"""The pages are under it; they are clients of this API."""

_LINKS: Final = {
    DOCS: "every route with its parameters and responses, and a call with curl and Python",
    OPENAPI: "the same for programs: OpenAPI 3.1",
    ASYNCAPI: "what is on the topics, for who uses Kafka: AsyncAPI 3.0",
    PROBLEMS: "each error, and what to do",
    "/readyz?verbose": "whether all parts work",
    "/livez": "whether the process lives",
    "/metrics": "metrics for Prometheus",
    "/version": "which version this is",
}


def front(version: str) -> Front:
    return Front("relay", version, dict(_LINKS))


def front_html(version: str) -> str:
    lines = "".join(f'<li><a href="{path}">{path}</a>: {prose(text)}</li>' for path, text in _LINKS.items())
    return (
        f"<h1>Webhook relay</h1><p>Version {prose(version)}. A sender puts messages in; the relay delivers each to its "
        f"receivers, and brings their answers back.</p><ul>{lines}</ul>"
    )


def is_for_people(template: str | None) -> bool:
    """Whether a route, by its template, is one of the pages: they let everybody in, and call the API with the token
    that they were given."""
    return template is not None and (template == PEOPLE or template.startswith(f"{PEOPLE}/"))


def wants_page(accept: str) -> bool:
    """Whether this `Accept` is that of a browser."""
    return "text/html" in accept.lower()


def wants_json(accept: str) -> bool:
    """Whether a client that sends this `Accept` is better served with JSON than with a page."""
    accepted = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return "application/json" in accepted and "text/html" not in accepted
