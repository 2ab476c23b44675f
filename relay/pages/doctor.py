"""Doctor: the relay looks at all that it depends on, and says of each thing whether it is right, or what to do."""

from typing import ClassVar
from urllib.parse import urlencode

from aiohttp import web

from relay.pages.page import Nav, PageRoutes
from relay.pages.visit import Visit

_FOUND = "/ui/doctor/found"


class Doctor:
    """One page. A look takes some seconds, so what it finds comes when the page is there."""

    nav: ClassVar[Nav | None] = Nav("Doctor", "/ui/doctor")

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/doctor", self.show)
        routes.get("/doctor/found", self.found)

    async def show(self, visit: Visit) -> web.StreamResponse:
        query = visit.filters("receiver")
        later = f"{_FOUND}?{urlencode(query)}" if query else _FOUND
        return visit.show("doctor.html", found=None, later=later, query=query)

    async def found(self, visit: Visit) -> web.StreamResponse:
        """A part of the page; the whole of it for browsers without scripts."""
        query = visit.filters("receiver")
        found = await visit.load("/v1/doctor", query)
        return visit.show("doctor_found.html" if visit.is_partial else "doctor.html", found=found, query=query)
