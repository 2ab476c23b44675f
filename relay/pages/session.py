"""Who looks: the session that a browser's cookie has, the log-in that makes one, and the choice of light or dark."""

import re
import secrets
from http import HTTPStatus
from typing import ClassVar, Final

from aiohttp import web

from relay.pages.api_client import ApiProblem
from relay.pages.page import Nav, PageRoutes
from relay.pages.visit import HOME, PORTAL_COOKIE, Visit, own_url, see, set_framed_cookie

SESSION_COOKIE: Final = "relay_session"
VISITOR_COOKIE: Final = "relay_visitor"
"""Made for a browser without a session: its forms need something that only it has."""
THEME_COOKIE: Final = "relay_theme"
LOG_IN: Final = "/ui/login"
THEMES: Final = ("system", "light", "dark")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,4096}")
_THEME_S: Final = 365 * 86_400
_NOT_ENDED: Final = "This browser has forgotten your session, but it has not ended: it is good until its time is over."


def token_of(request: web.Request) -> str | None:
    """In a frame of another site's page the browser sends the second one alone, elsewhere the first one. What cannot be
    a token is none: it must not get into a header."""
    token = request.cookies.get(SESSION_COOKIE) or request.cookies.get(PORTAL_COOKIE) or ""
    return token if _TOKEN.fullmatch(token) else None


def keep_token(request: web.Request, response: web.StreamResponse, token: str, max_age_s: int | None = None) -> None:
    """The browser sends it with each page from now on, and shows it to no script."""
    response.set_cookie(
        SESSION_COOKIE, token, path=HOME, max_age=max_age_s, httponly=True, samesite="Strict", secure=_is_https(request)
    )


def keep_portal(request: web.Request, response: web.StreamResponse, token: str, *, framed: bool) -> None:
    """The same for a visitor with a portal link; `framed`: in a frame of a page that may show it."""
    if framed:
        set_framed_cookie(response, PORTAL_COOKIE, token)
    else:
        keep_token(request, response, token)


def forget_token(response: web.StreamResponse) -> None:
    response.del_cookie(SESSION_COOKIE, path=HOME)
    set_framed_cookie(response, PORTAL_COOKIE, "", 0)


def visitor_of(request: web.Request) -> str | None:
    """None: the browser has no such cookie, or one that is none of ours."""
    visitor = request.cookies.get(VISITOR_COOKIE, "")
    return visitor if _TOKEN.fullmatch(visitor) else None


def new_visitor() -> str:
    return secrets.token_urlsafe(16)


def keep_visitor(request: web.Request, response: web.StreamResponse, visitor: str) -> None:
    response.set_cookie(VISITOR_COOKIE, visitor, path=HOME, httponly=True, samesite="Strict", secure=_is_https(request))


def _is_https(request: web.Request) -> bool:
    """Also behind a proxy that ends TLS and says so: believing a lie here costs the liar their log-in."""
    return request.secure or request.headers.get("X-Forwarded-Proto", "").strip().lower() == "https"


class SignIn:
    """Log-in with a key, log-out, and the theme."""

    nav: ClassVar[Nav | None] = None

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/login", self.form)
        routes.post("/login", self.log_in)
        routes.post("/logout", self.log_out)
        routes.post("/theme", self.theme)

    async def form(self, visit: Visit) -> web.StreamResponse:
        return visit.show("login.html", to=own_url(visit.request.query.get("to", HOME)), problem=None)

    async def log_in(self, visit: Visit) -> web.StreamResponse:
        form = await visit.form()
        key, to = form.get("key", "").strip(), own_url(form.get("to", HOME))
        try:
            token = await _token(visit, key)
        except ApiProblem as problem:
            return visit.show("login.html", status=problem.status, to=to, problem=problem)
        response = see(to)
        keep_token(visit.request, response, token)
        return response

    async def log_out(self, visit: Visit) -> web.StreamResponse:
        """The browser forgets it in any case; returns whether it is ended on the server, too."""
        left, problem = visit.in_portal, None
        try:
            await visit.api.call("DELETE", "/v1/session")
        except ApiProblem as refused:
            problem = refused if refused.status != HTTPStatus.UNAUTHORIZED else None  # it is over already
        if left:  # a link goes on anyway
            response = visit.show("portal_over.html", detail="You have left.", left=True)
        else:
            response = see(LOG_IN) if problem is None else visit.back(LOG_IN, f"{_NOT_ENDED} {problem.detail}", "bad")
        forget_token(response)
        return response

    async def theme(self, visit: Visit) -> web.StreamResponse:
        form = await visit.form()
        response = see(form.get("to", HOME))
        if (theme := form.get("theme")) in THEMES:
            response.set_cookie(THEME_COOKIE, str(theme), path=HOME, max_age=_THEME_S, httponly=True, samesite="Strict")
        return response


async def _token(visit: Visit, key: str) -> str:
    """Of a new session. Raises ApiProblem."""
    answer = await visit.api.call("POST", "/v1/sessions", body={"key": key})
    return str(answer.value["token"])
