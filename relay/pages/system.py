"""System: which version this is, whether all parts work, the settings in force, and where the documents are."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import ClassVar, Final, NamedTuple

from aiohttp import web

from relay.pages.page import Nav, PageRoutes
from relay.pages.visit import Loaded, Visit

_LINE: Final = re.compile(r"\[([-+!])\](\S+) (?:ok|failed: (.*)|warns: (.*))")
_STATES: Final = {"+": "ok", "-": "failed", "!": "warning"}
DOCUMENTS: Final = (
    ("/docs", "The API", "every route, with what it takes and gives, and a call with curl and Python"),
    ("/openapi.json", "OpenAPI 3.1", "the same for programs"),
    ("/asyncapi.json", "AsyncAPI 3.0", "what is on the topics, for those who use Kafka"),
    ("/problems", "Problems", "what can go wrong, and what to do"),
    ("/metrics", "Metrics", "for Prometheus; once there is a key, with one that has the scope metrics"),
)
"""Address, name, and what it is for."""


class SystemPart(NamedTuple):
    """Of what the relay depends on. `state`: `ok`, `failed` or `warning`."""

    name: str
    state: str
    detail: str


class System:
    """One page."""

    nav: ClassVar[Nav | None] = Nav("System", "/ui/system")

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/system", self.show)

    async def show(self, visit: Visit) -> web.StreamResponse:
        version = await visit.load("/version")
        told = await visit.api.call("GET", "/readyz", query={"verbose": ""}, also={503})
        settings = await visit.load("/v1/settings")
        if settings.problem is not None and settings.problem.status == HTTPStatus.FORBIDDEN:
            settings = Loaded()  # it is the administrators' business, and no problem
        return visit.show(
            "system.html",
            found=version,
            parts=parts_of(told.body.decode()),
            settings=settings,
            given=rows_of(settings.items, given=True),
            left=rows_of(settings.items, given=False),
            documents=DOCUMENTS,
        )


def rows_of(items: Iterable[Mapping[str, str]], *, given: bool) -> list[tuple[str, str, str]]:
    """Name of the variable, value, and where it comes from; of those that were `given`, or were left at their
    defaults."""
    return [
        (f"RELAY_{one['name'].upper()}", one["value"], one["source"])
        for one in items
        if (one["source"] != "default") == given
    ]


def parts_of(text: str) -> list[SystemPart]:
    """What /readyz says of each part."""
    found = map(_LINE.fullmatch, text.splitlines())
    return [SystemPart(one[2], _STATES[one[1]], one[3] or one[4] or "") for one in found if one is not None]
