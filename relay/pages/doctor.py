"""Doctor: the relay looks at all that it depends on, and says of each thing whether it is right, or what to do."""

from typing import ClassVar

from aiohttp import web

from relay.pages.page import Nav, Routes
from relay.pages.visit import Visit


class Doctor:
    """One page; reading it is a look."""

    nav: ClassVar[Nav | None] = Nav("Doctor", "/ui/doctor")

    def add_routes(self, routes: Routes) -> None:
        routes.get("/doctor", self.show)

    async def show(self, visit: Visit) -> web.StreamResponse:
        query = visit.filters("receiver")
        return visit.show("doctor.html", found=await visit.load("/v1/doctor", query), query=query)
