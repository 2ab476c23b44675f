"""The portal: the same pages for the owner of receivers, who comes by a signed link, maybe in a frame of another site.

The link's token becomes a cookie, and leaves the address. What it shows is what that may see: the API decides about it.
"""

from typing import ClassVar, Final

from aiohttp import web

from relay.pages.api_client import ApiProblem
from relay.pages.page import Nav, Routes
from relay.pages.session import keep_portal
from relay.pages.visit import Visit, see

FIRST: Final = "/ui/receivers"
"""The page that somebody comes to first."""


class Portal:
    """`/ui/portal`: the way in."""

    nav: ClassVar[Nav | None] = None

    def add_routes(self, routes: Routes) -> None:
        routes.get("/portal", self.enter)

    async def enter(self, visit: Visit) -> web.StreamResponse:
        """A right token is kept; any other one takes nobody's session away."""
        is_in_frame = bool(visit.portal_origins) and visit.request.headers.get("Sec-Fetch-Dest") == "iframe"
        visit.frame_ancestors = visit.portal_origins
        token = visit.request.query.get("token", "").strip()
        if not token.startswith("rp_"):
            return visit.show("portal_over.html", status=400, detail="It is not whole: copy all of it.", left=False)
        try:
            await visit.api.call("POST", "/v1/sessions", body={"key": token})
        except ApiProblem as problem:
            return visit.show("portal_over.html", status=problem.status, detail=problem.detail, left=False)
        response = see(FIRST)
        keep_portal(visit.request, response, token, framed=is_in_frame)
        response.headers["Referrer-Policy"] = "no-referrer"  # the address has the token
        return response
