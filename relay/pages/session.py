"""Sign-in: the cookies of a session, log-in with a key, the portal, and the colour theme.

The portal is the same pages for the owner of receivers, opened by a signed link, maybe in a frame of another site. The
link's token becomes a cookie, and is removed from the address. The API decides what it may see.

A link replaces no session without asking: another site may have made the browser open it. A browser that follows a link
from another site does not send its cookies, so a session cannot be detected; it is redirected to the same link once
more, from a page of ours, and then sends them.
"""

import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp import web

from relay.api.landing import wants_page
from relay.client import ApiError
from relay.pages.page import get, post
from relay.pages.visit import HOME, PORTAL_COOKIE, Visit, own_url, problem, result_of, see, set_framed_cookie
from relay.schema.access import SessionView

SESSION_COOKIE: Final = "relay_session"
VISITOR_COOKIE: Final = "relay_visitor"
"""Cookie for a browser without a session: it protects its forms."""
THEME_COOKIE: Final = "relay_theme"
LOG_IN: Final = "/ui/login"
PORTAL: Final = "/ui/portal"
THEMES: Final = ("system", "light", "dark")
FIRST: Final = "/ui/receivers"
"""The first page."""
_PORTAL_KIND: Final = "rp_"
"""Begins the tokens of portal links."""
_CUT: Final = "It is incomplete: copy the whole text."
_COOKIES_SENT: Final = frozenset({"none", "same-origin", "same-site"})
"""Values of Sec-Fetch-Site with which a browser sends cookies that are `SameSite=Strict`."""
_AGAIN: Final = "again"
"""Query parameter that marks a link that was redirected to itself."""
_NOT_ACCEPTED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS})
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,4096}")
_THEME_S: Final = 365 * 86_400
_NOT_ENDED: Final = "This browser has deleted your session. The relay could not end it: it is valid until it expires."


def token_of(request: web.Request) -> str | None:
    """The token in the cookies. In a frame of another site's page the browser sends only the second cookie, elsewhere
    the first one. A value that cannot be a token is ignored: it must not get into a header."""
    token = request.cookies.get(SESSION_COOKIE) or request.cookies.get(PORTAL_COOKIE) or ""
    return token if _TOKEN.fullmatch(token) else None


def keep_token(request: web.Request, response: web.StreamResponse, token: str) -> None:
    """The browser sends it with each page from now on, and shows it to no script."""
    secure = _is_https(request)
    response.set_cookie(SESSION_COOKIE, token, path=HOME, httponly=True, samesite="Strict", secure=secure)


def forget_token(response: web.StreamResponse) -> None:
    response.del_cookie(SESSION_COOKIE, path=HOME)
    set_framed_cookie(response, PORTAL_COOKIE, "", 0)


def visitor_of(request: web.Request) -> str | None:
    """The visitor of the cookie; None without a cookie, or with a foreign value."""
    visitor = request.cookies.get(VISITOR_COOKIE, "")
    return visitor if _TOKEN.fullmatch(visitor) else None


def keep_visitor(request: web.Request, response: web.StreamResponse, visitor: str) -> None:
    response.set_cookie(VISITOR_COOKIE, visitor, path=HOME, httponly=True, samesite="Strict", secure=_is_https(request))


def _is_https(request: web.Request) -> bool:
    """Whether the browser uses https, also through a proxy that terminates TLS and says so; of several, the first is
    next to the browser. A false claim only costs that client its log-in."""
    said = request.headers.get("X-Forwarded-Proto", "").partition(",")[0]
    return request.secure or said.strip().lower() == "https"


class PendingForm(NamedTuple):
    """A form of a session that has ended. `fields`: names and values, without the form's token."""

    path: str
    fields: Sequence[tuple[str, str]]

    @property
    def label(self) -> str:
        """The text of its button, if it has one."""
        return dict(self.fields).get("label", "")

    @classmethod
    def parse(cls, text: str) -> "PendingForm | None":
        """The pending form in `text`; None if it is not a form of the pages."""
        try:
            path, fields = json.loads(text)
            found = cls(str(path), [(str(name), str(value)) for name, value in fields])
        except (ValueError, TypeError, RecursionError):
            return None
        is_own = own_url(found.path) == found.path and found.path not in (HOME, LOG_IN)
        return found if is_own else None


def log_in_again(visit: Visit) -> web.Response:
    """The log-in, after which the visitor may send the form once more."""
    return visit.show("login.html", status=401, to=visit.page, pending=_pending(visit))


def ask_again(visit: Visit) -> web.Response:
    """A form of a former session: it takes effect only if the visitor sends it once more. Raises ApiError for a request
    without the proof that it is from a page of ours (`refuse_foreign` has checked its `Origin`)."""
    pending = PendingForm.parse(_pending(visit)) if "Origin" in visit.request.headers else None
    if pending is None:
        raise problem(403, "form", "The form is too old", "Go back, reload the page, and try again.")
    return visit.show("login_pending.html", status=403, to=visit.page, pending=pending)


def _pending(visit: Visit) -> str:
    """The form that was sent; empty if it was not read."""
    fields = [field for field in visit.fields_read if field[0] != "csrf"]
    return json.dumps([visit.request.rel_url.raw_path_qs, fields]) if visit.fields_read else ""


@get("/login")
async def log_in_form(visit: Visit) -> web.StreamResponse:
    return visit.show("login.html", to=own_url(visit.request.query.get("to", HOME)), pending="")


@post("/login")
async def log_in(visit: Visit) -> web.StreamResponse:
    form = await visit.form()
    key, to = form.get("key", "").strip(), own_url(form.get("to", HOME))
    session = await result_of(visit.api.sessions.create(key=key))
    if isinstance(session, ApiError):
        if session.status == 401:
            session = problem(401, session.kind, "This key is not known", "It may have expired, or been revoked.")
        return visit.show("login.html", to=to, problem=session, pending=form.get("pending", ""))
    former = await _end(visit)
    request = PendingForm.parse(form.get("pending", ""))
    visit.seed = session["token"]  # of the forms of this answer
    if request is None:
        response = visit.back(to, former, "bad")
    else:
        response = visit.show("login_pending.html", to=to, pending=request)
    keep_token(visit.request, response, session["token"])
    return response


@post("/logout")
async def log_out(visit: Visit) -> web.StreamResponse:
    """The browser forgets the session in any case; the note says so if it has not ended on the server."""
    if visit.in_portal:  # the link stays valid
        response = visit.show("portal_over.html", detail="You have left.", left=True)
    else:
        response = visit.back(LOG_IN, await _end(visit), "bad")
    forget_token(response)
    return response


async def _end(visit: Visit) -> str:
    """Ends the session that this browser has, if it has one. Returns a note if that failed, otherwise nothing."""
    ended = await result_of(visit.api.sessions.end()) if visit.signed_in else None
    if isinstance(ended, ApiError) and ended.status != HTTPStatus.UNAUTHORIZED:  # with a 401 it had ended before
        return f"{_NOT_ENDED} {ended.detail}"
    return ""


@get("/pulse")
async def pulse(visit: Visit) -> web.StreamResponse:
    """Whether the session goes on, and which build answers. A page asks every other second."""
    visit.note = None  # it is for the next page
    session = await result_of(visit.api.sessions.get())
    state = "ok"
    if isinstance(session, ApiError):
        state = "ended" if session.status == HTTPStatus.UNAUTHORIZED else "away"
    return web.json_response({"state": state, "build": visit.shared["build"]})


@post("/theme")
async def theme(visit: Visit) -> web.StreamResponse:
    form = await visit.form()
    response = see(form.get("to", HOME))
    if (theme := form.get("theme")) in THEMES:
        response.set_cookie(THEME_COOKIE, str(theme), path=HOME, max_age=_THEME_S, httponly=True, samesite="Strict")
    return response


@get("/portal")
async def enter_portal(visit: Visit) -> web.StreamResponse:
    """A valid token is kept. An invalid one replaces no session, and a valid one only if that is confirmed."""
    is_in_frame = bool(visit.portal_origins) and visit.request.headers.get("Sec-Fetch-Dest") == "iframe"
    visit.frame_ancestors = visit.portal_origins
    token = visit.request.query.get("token", "").strip()
    if not token.startswith(_PORTAL_KIND):
        return _over(visit, 400, _CUT)
    if not is_in_frame and not _shows_cookies(visit.request):
        return _redirect_here(visit)
    if not is_in_frame and visit.request.cookies.get(SESSION_COOKIE) not in (None, "", token):
        current, link = await _session(visit), await _session(visit, token)
        if current is not None and link is not None and not _is_of_same(current, link):
            return visit.show("portal_instead.html", current=current, link=link, token=token)
    return await _open(visit, token, framed=is_in_frame)


@post("/portal")
async def replace_session(visit: Visit) -> web.StreamResponse:
    """The visitor has confirmed on our page that the link's portal replaces the session."""
    token = (await visit.form()).get("token", "").strip()
    return await _open(visit, token, framed=False) if token.startswith(_PORTAL_KIND) else _over(visit, 400, _CUT)


async def _open(visit: Visit, token: str, *, framed: bool) -> web.StreamResponse:
    session = await result_of(visit.api.sessions.create(key=token))
    if isinstance(session, ApiError):
        return _over(visit, session.status, session.detail)
    response = visit.back(FIRST, "" if framed else await _end(visit), "bad")
    if framed:
        set_framed_cookie(response, PORTAL_COOKIE, token)
    else:
        keep_token(visit.request, response, token)
    response.headers["Referrer-Policy"] = "no-referrer"  # the address has the token
    return response


def _over(visit: Visit, status: int, detail: str) -> web.Response:
    return visit.show("portal_over.html", status=status, detail=detail, left=False)


def _shows_cookies(request: web.Request) -> bool:
    """Whether a session would be seen, if this browser had one. The visitor's cookie is kept back as the session's is;
    without Sec-Fetch-Site (http to another host, old browsers) it alone proves that. Programs open no pages."""
    by_browser = wants_page(request.headers.get("Accept", ""))
    are_sent = request.headers.get("Sec-Fetch-Site", "").strip().lower() in _COOKIES_SENT
    return are_sent or not by_browser or VISITOR_COOKIE in request.cookies


def _redirect_here(visit: Visit) -> web.StreamResponse:
    """To the same address, from here; once: a browser that keeps no cookies comes back the same."""
    if visit.request.query.get(_AGAIN):
        return _over(visit, 400, "The portal needs a cookie, and this browser accepts none.")
    return visit.show("portal_open.html", to=visit.url_with(**{_AGAIN: "1"}))


async def _session(visit: Visit, token: str | None = None) -> SessionView | None:
    """The session of the visitor, or that of `token`. None if the API does not accept it."""
    api = visit.api if token is None else visit.api.with_headers({"authorization": f"Bearer {token}"})
    session = await result_of(api.sessions.get())
    if isinstance(session, ApiError):
        if session.status in _NOT_ACCEPTED:
            return None
        raise session
    return session


def _is_of_same(current: SessionView, link: SessionView) -> bool:
    """Whether the visitor is in the portal of that owner already, by an earlier link."""
    return current["proof"] == link["proof"] == "portal" and current["owner"] == link["owner"]
