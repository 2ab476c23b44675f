"""The pages as a web application, under `/ui` of the API's server: cookies, forms, headers, and what goes wrong."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler as WebHandler

from relay import __version__
from relay.api.client_address import address_of
from relay.api.problems import RETRY_AFTER_S, UNAVAILABLE, Problem
from relay.api.shares import Sharer, Shares, sharer_of
from relay.domain.scope import Access, parse_scope
from relay.domain.session import kind_of
from relay.pages.api_client import ApiProblem, OwnApi
from relay.pages.index import pages
from relay.pages.page import Fragment, Handler, Tail
from relay.pages.portal import FIRST
from relay.pages.refresh import Wakes
from relay.pages.render import Renderer
from relay.pages.session import (
    LOG_IN,
    THEME_COOKIE,
    THEMES,
    forget_token,
    keep_visitor,
    new_visitor,
    token_of,
    visitor_of,
)
from relay.pages.statics import Statics
from relay.pages.streams import Streams
from relay.pages.visit import FLASH_COOKIE, HOME, Visit, is_framed, note_of, see, set_framed_cookie

_EVENT: Final = "message"
_READING: Final = frozenset({"GET", "HEAD"})
_KEEP_ALIVE_S: Final = 15.0
"""A proxy takes a stream that says nothing for dead after 30 s or so."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors "
)
_SAFE: Final = {
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_REFUSED: Final = frozenset({401, 403, 429})
_STREAMS_EACH: Final = 8
"""That one session, or one browser, may have."""


def pages_of(
    wanted: bool, now: Callable[[], float], shares: Shares, portal_origins: Sequence[str]
) -> Callable[[Path], web.Application] | None:
    """What makes the pages of a process; None: it has none."""
    return partial(create_pages, now=now, shares=shares, portal_origins=portal_origins) if wanted else None


def create_pages(
    socket: Path, now: Callable[[], float], shares: Shares, portal_origins: Sequence[str] = ()
) -> web.Application:
    """`socket`: where the API of this process listens. `now`: Unix seconds. `shares`: of live pages. `portal_origins`:
    of pages that may show the portal in a frame."""
    api, statics = OwnApi(socket), Statics()
    desk = _Desk(api, Renderer(statics.url, now), Streams(shares, each=_STREAMS_EACH), portal_origins)
    app = web.Application(middlewares=[_with_headers])
    statics.add_routes(app.router)
    routes = _Routes(app.router, desk)
    for page in desk.pages:
        page.add_routes(routes)
    app.router.add_get("", _home)
    app.router.add_route("*", "/{rest:.*}", desk.wrapped(_nothing))

    async def lasting(_app: web.Application) -> None:
        await api.start()

    async def ending(_app: web.Application) -> None:
        desk.streams.end()

    async def over(_app: web.Application) -> None:
        await api.close()

    app.on_startup.append(lasting)
    app.on_shutdown.append(ending)
    app.on_cleanup.append(over)
    return app


class _Refused(Exception):
    """Who listens may not: the session is over, as a rule."""


class _Desk:
    """Makes visits of requests, and answers of what was raised."""

    def __init__(self, api: OwnApi, renderer: Renderer, streams: Streams, portal_origins: Sequence[str]) -> None:
        self._api = api
        self._portal_origins = portal_origins
        self._renderer = renderer
        self.pages = pages()
        self._nav = [page.nav for page in self.pages if page.nav is not None]
        self.streams = streams

    def visit(self, request: web.Request) -> Visit:
        token, theme = token_of(request), request.cookies.get(THEME_COOKIE, "")
        known = visitor_of(request)
        visitor = known or new_visitor()
        in_portal = token is not None and kind_of(token) == "portal"
        shared = {
            "nav": [nav for nav in self._nav if nav.portal or not in_portal],
            "here": _here(self._nav_hrefs(), request.path),
            "version": __version__,
            "theme": theme if theme in THEMES else "system",
            "themes": THEMES,
        }
        note = note_of(request.cookies.get(FLASH_COOKIE)) if request.method in _READING else None
        return Visit(
            request,
            self._api.of(token, address_of(request)),
            self._renderer,
            token or visitor,
            shared,
            signed_in=token is not None,
            note=note,
            newcomer=None if known or in_portal else visitor,
            in_portal=in_portal,
            portal_origins=self._portal_origins,
            frame_ancestors=self._portal_origins if in_portal else (),
        )

    def _nav_hrefs(self) -> list[str]:
        return [nav.href for nav in self._nav]

    def wrapped(self, handler: Handler, *, changes: bool = False) -> WebHandler:
        """`changes`: the form's token is checked."""

        async def handle(request: web.Request) -> web.StreamResponse:
            visit = self.visit(request)
            if visit.in_portal and request.path == HOME:
                return see(FIRST)
            try:
                if changes and not await _is_our_form(visit):
                    problem = ApiProblem(403, "form", "The form is too old", "Go back, load the page again, repeat it.")
                    return _problem_page(visit, problem)
                response = await handler(visit)
            except ApiProblem as problem:
                response = _of_problem(visit, problem)
            if not response.prepared:
                _finish(visit, response)
            return response

        return handle

    def live(self, fragment: Fragment, every_s: float, tail: Tail | None) -> WebHandler:
        async def handle(request: web.Request) -> web.StreamResponse:
            visit = self.visit(request)
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
            try:
                caller = await _sharer(visit)
                await _check_sight(visit, fragment)
                place = self.streams.enter(visit.seed, caller)
            except _Refused:
                return web.Response(status=204)  # by which a browser knows that it need not ask again
            except Problem as problem:
                return web.Response(status=problem.kind.status, headers=problem.headers)
            try:
                await stream.prepare(request)
                with suppress(ConnectionError, _Refused):  # they have left, or may not see it any more
                    wakes = Wakes(visit.api, {} if tail is None else tail(visit), every_s)
                    async with _running(wakes if tail is not None else None):
                        await self._tell(visit, stream, fragment, wakes, place)
            finally:
                self.streams.leave(visit.seed, place)
            return stream

        return handle

    async def _tell(
        self, visit: Visit, stream: web.StreamResponse, fragment: Fragment, wakes: Wakes, place: asyncio.Event
    ) -> None:
        """Until the client leaves, `place` is taken by another one, or the server stops."""
        loop = asyncio.get_running_loop()
        last: dict[str, str] = {}
        told = 0.0
        while not place.is_set() and visit.request.transport is not None:
            pieces = await _pieces(visit, fragment, last)
            changed = {name: text for name, text in pieces.items() if last.get(name) != text}
            if changed or loop.time() - told > _KEEP_ALIVE_S:
                await stream.write(b"".join(map(_event, changed, changed.values())) or b": still here\n\n")
                last, told = {**last, **changed}, loop.time()
            await wakes.wait(place)


class _Routes:
    def __init__(self, router: web.UrlDispatcher, desk: _Desk) -> None:
        self._router = router
        self._desk = desk

    def get(self, path: str, handler: Handler) -> None:
        self._router.add_get(path, self._desk.wrapped(handler))

    def post(self, path: str, handler: Handler) -> None:
        self._router.add_post(path, self._desk.wrapped(handler, changes=True))

    def live(self, path: str, fragment: Fragment, *, every_s: float = 1.0, tail: Tail | None = None) -> None:
        self._router.add_get(path, self._desk.live(fragment, every_s, tail))


@asynccontextmanager
async def _running(wakes: Wakes | None) -> AsyncIterator[None]:
    """None without a listener: then only the time counts."""
    task = None if wakes is None else asyncio.create_task(wakes.run())
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _sharer(visit: Visit) -> Sharer:
    """The caller that has a share of the live pages. Raises _Refused, or Problem where the API does not answer."""
    try:
        session = await visit.api.get("/v1/session")
    except ApiProblem as problem:
        if problem.status in _REFUSED:
            raise _Refused from problem
        raise Problem(UNAVAILABLE, problem.detail, headers={"Retry-After": str(RETRY_AFTER_S)}) from problem
    if session["proof"] == "nothing":  # without keys all callers are one: there each browser has a share
        return Sharer(f"browser:{visit.seed}", is_admin=False)
    return sharer_of(Access(session["who"], frozenset(map(parse_scope, session["scopes"])), session["key"]))


async def _check_sight(visit: Visit, fragment: Fragment) -> None:
    """Raises _Refused where the caller may not see it; other problems are for the stream to show."""
    try:
        await fragment(visit)
    except ApiProblem as problem:
        if problem.status in _REFUSED:
            raise _Refused from problem


async def _is_our_form(visit: Visit) -> bool:
    """Whether it has the token of this browser. Its origin was looked at before (`refuse_strangers`)."""
    given = visit.request.headers.get("X-CSRF-Token") or (await visit.form()).get("csrf", "")
    return hmac.compare_digest(given.encode(errors="surrogateescape"), visit.csrf.encode())


def _finish(visit: Visit, response: web.StreamResponse) -> None:
    request = visit.request
    if visit.newcomer is not None:
        keep_visitor(request, response, visit.newcomer)
    if visit.note is not None and response.status == 200:
        if is_framed(request):
            set_framed_cookie(response, FLASH_COOKIE, "", 0)
        else:
            response.del_cookie(FLASH_COOKIE, path=HOME)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault("Content-Security-Policy", _POLICY + (" ".join(visit.frame_ancestors) or "'none'"))


@web.middleware
async def _with_headers(request: web.Request, handler: WebHandler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update(_SAFE)
        raise
    if not response.prepared:
        for name, value in _SAFE.items():
            response.headers.setdefault(name, value)
    return response


def _of_problem(visit: Visit, problem: ApiProblem) -> web.StreamResponse:
    if problem.status != 401:
        return _problem_page(visit, problem)
    if visit.in_portal:
        over = visit.show("portal_over.html", status=401, detail=problem.detail, left=False)
        forget_token(over)
        return over
    to = visit.url if visit.request.method in _READING and not visit.is_partial else HOME
    log_in = str(visit.request.rel_url.with_path(LOG_IN).with_query(to=to))
    if visit.is_partial:
        return web.Response(headers={"HX-Redirect": log_in})
    return see(log_in)


def _problem_page(visit: Visit, problem: ApiProblem) -> web.StreamResponse:
    response = visit.show("problem.html", status=problem.status, problem=problem)
    _finish(visit, response)
    return response


async def _pieces(visit: Visit, fragment: Fragment, last: Mapping[str, str]) -> Mapping[str, str]:
    """By event name. An error is shown once, and nothing beside it."""
    try:
        made = await fragment(visit)
        return {_EVENT: made} if isinstance(made, str) else made
    except ApiProblem as problem:
        if problem.status in _REFUSED:
            raise _Refused from problem
        said = visit.fragment("problem_line.html", problem=problem)
        return {name: said if n == 0 else "" for n, name in enumerate(last or (_EVENT,))}


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode()


def _here(hrefs: list[str], path: str) -> str:
    """Which entry of the navigation a page belongs to; empty: none."""
    under = [href for href in hrefs if path == href or (href != HOME and path.startswith(href.rstrip("/") + "/"))]
    return max(under, key=len, default="")


async def _home(_request: web.Request) -> web.StreamResponse:
    return see(HOME)


async def _nothing(visit: Visit) -> web.StreamResponse:
    raise ApiProblem(404, "not-found", "There is no such page", "It may have moved, or the link is mistyped.")
