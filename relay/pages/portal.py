"""The portal: the same pages for the owner of receivers, opened by a signed link, maybe in a frame of another site.

The link's token becomes a cookie, and is removed from the address. The API decides what it may see.

A link replaces no session without asking: another site may have made the browser open it. A browser that follows a link
from another site does not send its cookies, so a session cannot be detected; it is redirected to the same link once
more, from a page of ours, and then sends them.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Final

from aiohttp import web

from relay.api.landing import wants_page
from relay.pages.api_client import ApiClient, ApiProblem
from relay.pages.page import Nav, PageRoutes
from relay.pages.session import SESSION_COOKIE, VISITOR_COOKIE, keep_portal
from relay.pages.visit import Visit, see

FIRST: Final = "/ui/receivers"
"""The first page."""
_KIND: Final = "rp_"
_CUT: Final = "It is not whole: copy all of it."
_COOKIES_COME: Final = frozenset({"none", "same-origin", "same-site"})
"""Values of Sec-Fetch-Site with which a browser sends cookies that are `SameSite=Strict`."""
_AGAIN: Final = "again"
"""Set in the address where the link was led to itself."""
_NOBODY: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS})


class Portal:
    """`/ui/portal`: the way in."""

    nav: ClassVar[Nav | None] = None

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/portal", self.enter)
        routes.post("/portal", self.replace)

    async def enter(self, visit: Visit) -> web.StreamResponse:
        """A valid token is kept. An invalid one replaces no session, and a valid one only if that is confirmed."""
        is_in_frame = bool(visit.portal_origins) and visit.request.headers.get("Sec-Fetch-Dest") == "iframe"
        visit.frame_ancestors = visit.portal_origins
        token = visit.request.query.get("token", "").strip()
        if not token.startswith(_KIND):
            return _over(visit, 400, _CUT)
        if not is_in_frame and not _shows_cookies(visit.request):
            return _lead_on(visit)
        if not is_in_frame and visit.request.cookies.get(SESSION_COOKIE) not in (None, "", token):
            current, link = await _session(visit.api), await _session(visit.api.of(token))
            if current is not None and link is not None and not _is_of_same(current, link):
                return visit.show("portal_instead.html", current=current, link=link, token=token)
        return await _open(visit, token, framed=is_in_frame)

    async def replace(self, visit: Visit) -> web.StreamResponse:
        """The visitor has confirmed on our page that the link's portal replaces the session."""
        token = (await visit.form()).get("token", "").strip()
        return await _open(visit, token, framed=False) if token.startswith(_KIND) else _over(visit, 400, _CUT)


async def _open(visit: Visit, token: str, *, framed: bool) -> web.StreamResponse:
    try:
        await visit.api.call("POST", "/v1/sessions", body={"key": token})
    except ApiProblem as problem:
        return _over(visit, problem.status, problem.detail)
    response = see(FIRST)
    keep_portal(visit.request, response, token, framed=framed)
    response.headers["Referrer-Policy"] = "no-referrer"  # the address has the token
    return response


def _over(visit: Visit, status: int, detail: str) -> web.Response:
    return visit.show("portal_over.html", status=status, detail=detail, left=False)


def _shows_cookies(request: web.Request) -> bool:
    """Whether a session would be seen, if this browser had one. The visitor's cookie is kept back as the session's is;
    without Sec-Fetch-Site (http to another host, old browsers) it alone proves that. Programs open no pages."""
    by_browser = wants_page(request.headers.get("Accept", ""))
    come = request.headers.get("Sec-Fetch-Site", "").strip().lower() in _COOKIES_COME
    return come or not by_browser or VISITOR_COOKIE in request.cookies


def _lead_on(visit: Visit) -> web.StreamResponse:
    """To the same address, from here; once: a browser that keeps no cookies comes back the same."""
    if visit.request.query.get(_AGAIN):
        return _over(visit, 400, "This browser keeps no cookies, and the portal needs one.")
    return visit.show("portal_open.html", to=visit.url_with(**{_AGAIN: "1"}))


async def _session(api: ApiClient) -> Any:
    """The caller, from `GET /v1/session`. None if the API does not accept the token."""
    try:
        return await api.get("/v1/session")
    except ApiProblem as problem:
        if problem.status in _NOBODY:
            return None
        raise


def _is_of_same(current: Mapping[str, Any], link: Mapping[str, Any]) -> bool:
    """Whether the visitor is in the portal of that owner already, by an earlier link."""
    return bool(current["proof"] == link["proof"] == "portal" and current["owner"] == link["owner"])
