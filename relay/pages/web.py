"""The web application of the pages, under `/ui` of the API's server: visits, forms, headers, errors, static files."""

import gzip
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import ClientSession, DummyCookieJar, UnixConnector, web
from aiohttp.typedefs import Handler as WebHandler

from relay import __version__
from relay.api.connection import VISITOR_ADDRESS, address_of
from relay.api.landing import wants_page
from relay.api.shares import Shares
from relay.client import ApiError, AsyncRelay
from relay.domain.scope import parse_scope
from relay.domain.session import kind_of
from relay.pages import (
    access,
    event_types,
    failed,
    finder,
    incidents,
    message,
    message_copy,
    messages,
    overview,
    receivers,
    session,
    sources,
    system,
    try_it,
)
from relay.pages.brand import LOGO_TYPES, RELAY, Brand
from relay.pages.live import Streams, live_handler
from relay.pages.page import NAVIGATION, Handler, PageRoute, navigation_for, routes_of
from relay.pages.render import Renderer
from relay.pages.visit import (
    FLASH_COOKIE,
    HOME,
    GoBack,
    Visit,
    is_framed,
    note_of,
    own_url,
    problem,
    result_of,
    see,
    set_framed_cookie,
)

FILES: Final = Path(__file__).parent / "static"
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_TIMEOUT_S: Final = 70.0
"""Timeout of one API call: a test of a receiver takes up to a minute."""
_MOST_AT_ONCE: Final = 256
"""Connections to the API."""
_READING: Final = frozenset({"GET", "HEAD"})
_REGISTER: Final = frozenset({"owner", "admin"})
"""Kinds of scopes with which receivers are registered, changed and removed."""
_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_UP: Final = re.compile(r"/\.\.(?![^/?#])")
"""A part `..` of a path; an id may begin with the same."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors "
)
_SAFE: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def create_pages(
    socket: Path,
    now: Callable[[], float],
    shares: Shares,
    portal_origins: Sequence[str] = (),
    brand: Brand = RELAY,
    strings: Mapping[str, str] | None = None,
) -> web.Application:
    """`socket`: where the API of this process listens. `now`: Unix seconds. `shares`: of live pages. `portal_origins`:
    of pages that may show the portal in a frame. `brand`: the look of the portal; `strings`: its texts, by those that
    they replace."""
    statics, streams = _Statics(brand), Streams(shares)
    renderer = Renderer(statics.url, now)
    of_portal = Renderer(statics.url, now, strings) if strings else renderer
    visitors = _Visitors(renderer, of_portal, portal_origins, statics.build, brand)
    app = web.Application()
    app.on_response_prepare.append(_secure)
    app.router.add_get("/static/{digest}/{name:.+}", statics.get)
    declared = [(route, handler) for module in MODULES for route, handler in routes_of(module)]
    for route, handler in declared:
        _add(app.router, route, handler, visitors, streams)
    app.router.add_get("", _home)
    app.router.add_post("/act", visitors.wrapped(_act, changes=True))
    pages = {route.pattern for route, _ in declared if route.kind == "page"}
    for pattern in {"/act", *(route.pattern for route, _ in declared if route.kind == "form")} - pages:
        app.router.add_get(pattern, visitors.wrapped(_of_form))
    app.router.add_route("*", "/{rest:.*}", visitors.wrapped(_unknown_page))

    async def connect(_app: web.Application) -> AsyncIterator[None]:
        connector = UnixConnector(str(socket), limit=_MOST_AT_ONCE)
        async with ClientSession(connector=connector, cookie_jar=DummyCookieJar(), auto_decompress=False) as pool:
            visitors.api = AsyncRelay("http://localhost", "", tries=1, timeout_s=_TIMEOUT_S, session=pool)
            yield

    async def end_streams(_app: web.Application) -> None:
        streams.end()

    app.cleanup_ctx.append(connect)
    app.on_shutdown.append(end_streams)
    return app


MODULES: Final = (
    *(overview, incidents, messages, message, message_copy, finder, receivers, sources, event_types),
    *(failed, system, try_it, access, session),
)
"""The modules with the pages. That of a new page is added here."""


class _Visitors:
    """Makes visits of requests, and responses of errors. `api`: of this process, without a key; set before the first
    request."""

    api: AsyncRelay

    def __init__(
        self, renderer: Renderer, of_portal: Renderer, portal_origins: Sequence[str], build: str, brand: Brand
    ) -> None:
        self._build = build
        self._brand = brand
        self._portal_origins = portal_origins
        self._renderer = renderer
        self._of_portal = of_portal

    def visit(self, request: web.Request) -> Visit:
        token, theme = session.token_of(request), request.cookies.get(session.THEME_COOKIE, "")
        known = session.visitor_of(request)
        visitor = known or secrets.token_urlsafe(16)
        in_portal = token is not None and kind_of(token) == "portal"
        is_portal = in_portal or request.path == session.PORTAL
        brand = self._brand if is_portal else RELAY
        shared = {
            **_for(["owner" if in_portal else "admin"]),
            "entry_here": _here([nav.href for nav in NAVIGATION], request.path),
            "version": __version__,
            "build": self._build,
            "brand": brand,
            "theme": _theme(theme, brand),
            "themes": session.THEMES if brand.theme == "system" else (),
            "resize_to": " ".join(self._portal_origins) if in_portal else "",
        }
        note = note_of(request.cookies.get(FLASH_COOKIE)) if request.method in _READING else None
        return Visit(
            request,
            self.api.with_headers(_identity(token, address_of(request))),
            self._of_portal if is_portal else self._renderer,
            token or visitor,
            shared,
            signed_in=token is not None,
            note=note,
            newcomer=None if known or in_portal else visitor,
            in_portal=in_portal,
            portal_origins=self._portal_origins,
            frame_ancestors=self._portal_origins if in_portal else (),
        )

    def wrapped(self, handler: Handler, *, changes: bool = False) -> WebHandler:
        """`changes`: the form's token is checked."""

        async def handle(request: web.Request) -> web.StreamResponse:
            visit = self.visit(request)
            if visit.in_portal and visit.shared["entry_here"] not in ("", *(nav.href for nav in visit.shared["nav"])):
                return see(session.FIRST)
            if visit.signed_in and not visit.in_portal and wants_page(request.headers.get("Accept", "")):
                await _limit_navigation(visit)
            try:
                response = await result_of(_response(visit, handler, changes=changes))
            except GoBack as going:
                response = going.response
            if isinstance(response, ApiError):
                response = _of_problem(visit, response)
            if not response.prepared:
                _finish(visit, response)
            return response

        return handle


def _for(kinds: Collection[str]) -> dict[str, Any]:
    """Values of templates for a key with scopes of these kinds."""
    return {"nav": navigation_for(kinds), "may_register": not _REGISTER.isdisjoint(kinds)}


async def _limit_navigation(visit: Visit) -> None:
    """Leaves out the pages and buttons that the visitor's key cannot use."""
    found = await result_of(visit.api.sessions.get())
    if not isinstance(found, ApiError):
        kinds = [parse_scope(scope).kind for scope in found["scopes"]]
        visit.shared = {**visit.shared, **_for(kinds)}


def _theme(chosen: str, brand: Brand) -> str:
    if brand.theme != "system":
        return brand.theme
    return chosen if chosen in session.THEMES else "system"


def _identity(token: str | None, address: str | None) -> dict[str, str]:
    """Headers with which a call has the rights of a visitor, and no others, and their address."""
    rights = {} if token is None else {"authorization": f"Bearer {token}"}
    return rights | ({VISITOR_ADDRESS: address} if address else {})


def _add(router: web.UrlDispatcher, declared: PageRoute, handler: Any, visitors: _Visitors, streams: Streams) -> None:
    match declared.kind:
        case "page":
            router.add_get(declared.pattern, visitors.wrapped(handler))
        case "form":
            router.add_post(declared.pattern, visitors.wrapped(handler, changes=True))
        case "live":
            part = live_handler(visitors.visit, streams, handler, declared.every_s, declared.tail)
            router.add_get(declared.pattern, part)


async def _response(visit: Visit, handler: Handler, *, changes: bool) -> web.StreamResponse:
    if changes and not await _is_our_form(visit):
        return session.ask_again(visit)
    return await handler(visit)


async def _is_our_form(visit: Visit) -> bool:
    """Whether it has the token of this browser. Its origin was checked before (`refuse_foreign`)."""
    given = visit.request.headers.get("X-CSRF-Token") or (await visit.form()).get("csrf", "")
    return hmac.compare_digest(given.encode(errors="surrogateescape"), visit.csrf.encode())


def _finish(visit: Visit, response: web.StreamResponse) -> None:
    request = visit.request
    if visit.newcomer is not None:
        session.keep_visitor(request, response, visit.newcomer)
    if visit.note is not None and response.status == 200:
        if is_framed(request):
            set_framed_cookie(response, FLASH_COOKIE, "", 0)
        else:
            response.del_cookie(FLASH_COOKIE, path=HOME)
    if isinstance(response, web.Response) and response.body and "gzip" in request.headers.get("Accept-Encoding", ""):
        # the cookies of a session are not sent with requests of other sites, so none of them can measure our pages
        response.enable_compression(web.ContentCoding.gzip)
    response.headers.setdefault("Content-Security-Policy", _POLICY + (" ".join(visit.frame_ancestors) or "'none'"))


async def _secure(_request: web.Request, response: web.StreamResponse) -> None:
    """Headers of all responses, also of errors and live parts."""
    for name, value in _SAFE.items():
        response.headers.setdefault(name, value)


def _of_problem(visit: Visit, refused: ApiError) -> web.StreamResponse:
    if refused.status != 401:
        return visit.show("problem.html", problem=refused)
    if visit.in_portal:
        over = visit.show("portal_over.html", status=401, detail=refused.detail, left=False)
        session.forget_token(over)
        return over
    if visit.request.method not in _READING and not visit.is_partial:
        return session.log_in_again(visit)
    log_in = str(
        visit.request.rel_url.with_path(session.LOG_IN).with_query(to=visit.page if visit.is_partial else visit.url)
    )
    if visit.is_partial:
        return web.Response(headers={"HX-Redirect": log_in})
    return see(log_in)


def _here(hrefs: Sequence[str], path: str) -> str:
    """The entry of the navigation that a page belongs to; empty if there is none."""
    under = [href for href in hrefs if path == href or (href != HOME and path.startswith(href.rstrip("/") + "/"))]
    return max(under, key=len, default="")


async def _home(_request: web.Request) -> web.StreamResponse:
    return see(HOME)


async def _of_form(visit: Visit) -> web.StreamResponse:
    """What a form is sent to shows its result once: who comes back, as after a log-in, goes to the page above it."""
    return see(visit.shared["entry_here"] or HOME)


async def _unknown_page(visit: Visit) -> web.StreamResponse:
    raise problem(404, "not-found", "There is no such page", "It may have moved, or the link is mistyped.")


async def _act(visit: Visit) -> web.StreamResponse:
    """`/ui/act`: one call of the API, named by the button of a page, after a confirmation if it asks for one.

    Fields of the form: `method`, `path`, `body` (JSON, or empty), `label`, `done` (the note), `next` (the page that
    follows), and `confirm`: the question to be asked first, until `confirmed` is set. The visitor's token limits the
    possible calls.
    """
    form = await visit.form()
    method, target, following = form.get("method", ""), form.get("path", ""), own_url(form.get("next", HOME))
    if method not in _METHODS or not target.startswith("/v1/") or _UP.search(target):
        raise problem(400, "invalid-request", "The action is not valid", "Load the page again.")
    if form.get("confirm") and not form.get("confirmed"):
        return visit.show("confirm.html", form=form, next=following)
    try:
        body = msgspec.json.decode(form["body"], type=msgspec.Raw) if form.get("body") else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise problem(400, "invalid-request", "The action is not valid", "The body is not JSON.") from error
    done = form.get("done") or f"{form.get('label', 'It')}: done."
    return await visit.change(visit.api.call(method, target, body=body), following, done)


class _Static:
    def __init__(self, plain: bytes, suffix: str) -> None:
        self.digest = hashlib.sha256(plain).hexdigest()[:16]
        self.plain = plain
        self.content_type = (_TYPES | LOGO_TYPES)[suffix]

    @cached_property
    def packed(self) -> bytes:
        return gzip.compress(self.plain, mtime=0)


class _Statics:
    """Scripts, styles and pictures: in memory, compressed at the first request, at a URL with their hash, so that
    browsers keep them."""

    def __init__(self, brand: Brand) -> None:
        files = (file for file in sorted(FILES.rglob("*")) if file.suffix in _TYPES)
        self._files = {file.relative_to(FILES).as_posix(): _Static(file.read_bytes(), file.suffix) for file in files}
        self._files["portal.css"] = _Static(brand.style().encode(), ".css")
        if (logo := brand.logo_file()) is not None:
            name, content = logo
            self._files[name] = _Static(content, Path(name).suffix)

    @property
    def build(self) -> str:
        """Changes with the version and with each file: a page of another build is old."""
        digests = [__version__, *(file.digest for file in self._files.values())]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]

    def url(self, name: str) -> str:
        """The address of a file. Raises KeyError."""
        return f"/ui/static/{self._files[name].digest}/{name}"

    async def get(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["name"])
        if found is None or found.digest != request.match_info["digest"]:
            raise web.HTTPNotFound
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        kind = f"{found.content_type}; charset=utf-8"
        headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding", "Content-Type": kind}
        headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'; sandbox"  # a logo's script
        if packed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=found.packed if packed else found.plain, headers=headers)
