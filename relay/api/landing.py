"""The links of the front page of the API, and the paths of pages for people."""

from typing import Final

from relay.schema.operation import Front

DOCTOR: Final = "/v1/doctor"
MONITORING: Final = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths for monitoring, which are served under any host name."""
PEOPLE: Final = "/ui"
"""The pages are under it; they are clients of this API."""
LIVE: Final = f"{PEOPLE}/live/"
"""Streams of the pages."""

_LINKS: Final = {
    "/docs": "every route with its parameters and responses, and a call with curl and Python",
    "/openapi.json": "the same for programs: OpenAPI 3.1",
    "/asyncapi.json": "what is on the topics, for who uses Kafka: AsyncAPI 3.0",
    "/problems": "each error, and what to do",
    "/readyz?verbose": "whether all parts work",
    "/livez": "whether the process lives",
    "/metrics": "metrics for Prometheus",
    "/version": "which version this is",
}


def front(version: str) -> Front:
    return Front("relay", version, dict(_LINKS))


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
