"""One request for a page: its visitor, its URL parameters and form, and its response."""

import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar
from urllib.parse import parse_qsl

from aiohttp import web
from yarl import URL

from relay.api.body import read_body
from relay.api.problems import Problem
from relay.client import ApiError, ClientError
from relay.client.api import RelayApi
from relay.client.call import Asyncio
from relay.client.http import path
from relay.pages.render import Renderer
from relay.schema.attempts import AttemptItem

HOME: Final = "/ui/"
FLASH_COOKIE: Final = "relay_note"
PORTAL_COOKIE: Final = "relay_portal"
"""The token of the portal in a frame of another site's page."""
_FLASH_MOST: Final = 600
"""Characters of a note: a cookie has 4 KiB, and a character up to 4 bytes."""
_FLASH_S: Final = 60
_CSRF: Final = b"the form of a page"
MOST_BYTES: Final = 2 * 1024 * 1024
"""A message that is tried may be 1 MiB, and grows when a form has it."""
_MOST_FIELDS: Final = 2_000
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_FIELDS: Final[web.RequestKey[list[tuple[str, str]]]] = web.RequestKey("form", list[tuple[str, str]])

_CHANGED: Final = (
    "It was changed by another request. These are its current settings with your changes: check them, and save again."
)

Entry = Mapping[str, object]
NoteKind = Literal["good", "bad", "plain"]
T = TypeVar("T")
Item = TypeVar("Item")


class Listed(TypedDict, Generic[Item]):
    """A page of a list of the API. `cursor`: of the next one; None on the last page."""

    items: list[Item]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """The result of an action, shown once on the next page."""

    text: str
    kind: NoteKind = "good"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """The result of a call of the API: a `value`, or a `problem` to show in its place."""

    value: T | None = None
    problem: ApiError | None = None


@dataclass(frozen=True, slots=True)
class LoadedList(Loaded[Listed[Item]]):
    """A page of a list; an empty one if there is a `problem`."""

    @property
    def items(self) -> Sequence[Item]:
        return () if self.value is None else self.value["items"]

    @property
    def cursor(self) -> str | None:
        return None if self.value is None else self.value["cursor"]

    def without(self, is_left_out: Callable[[Item], bool]) -> "LoadedList[Item]":
        """The page without some of its items."""
        if self.value is None:
            return self
        kept = [item for item in self.value["items"] if not is_left_out(item)]
        return LoadedList({**self.value, "items": kept})


class GoBack(Exception):
    """The request is answered with `response`, which leads to another page."""

    def __init__(self, response: web.Response) -> None:
        super().__init__()
        self.response = response


def problem(status: int, kind: str, title: str, detail: str) -> ApiError:
    """A refusal by the pages themselves, shown as one by the API is."""
    return ApiError(status, {"type": kind, "title": title, "detail": detail})


async def result_of(call: Awaitable[T]) -> T | ApiError:
    """The result of a call of the API, or its problem."""
    try:
        return await call
    except ApiError as refused:
        return refused
    except ClientError:
        return problem(503, "unavailable", "The API does not answer", "It may be starting or stopping. Try again.")


@dataclass(slots=True)
class Visit:
    """`seed`: what only this browser has, which its forms' token is made of. `shared`: values every template gets.

    `newcomer`: what a browser that came without any such thing is given.
    `frame_ancestors`: origins that may show the answer in a frame; empty: none.
    """

    request: web.Request
    api: RelayApi[Asyncio]
    renderer: Renderer
    seed: str = field(repr=False)
    shared: Mapping[str, Any]
    signed_in: bool
    note: Note | None = None
    newcomer: str | None = None
    in_portal: bool = False
    """A visitor with a portal link, who sees the receivers of one owner."""
    attempts: LoadedList[AttemptItem] = field(default_factory=LoadedList)
    """The attempts that a live part has shown."""
    portal_origins: Sequence[str] = ()
    frame_ancestors: Sequence[str] = ()

    # the request

    def part(self, name: str) -> str:
        """A part of the path, decoded."""
        return self.request.match_info[name]

    def filters(self, *names: str) -> dict[str, str]:
        """The given parameters of the query that are set and not empty."""
        query = self.request.query
        return {name: query[name].strip() for name in names if query.get(name, "").strip()}

    @property
    def cursor(self) -> str | None:
        """The cursor of the list that is shown; None on its first page."""
        return self.request.query.get("cursor") or None

    async def form(self) -> Mapping[str, str]:
        """Fields of the form; of several with one name the first."""
        return dict(reversed(await self.fields()))

    async def fields(self) -> list[tuple[str, str]]:
        """Names and values of the form, in their order. Raises ApiError for another kind of body, or one that cannot
        be read."""
        fields = self.request.get(_FIELDS)
        if fields is None:
            try:
                body = await read_body(self.request, MOST_BYTES)
            except Problem as refused:
                raise problem(refused.kind.status, refused.kind.name, refused.kind.title, refused.detail) from None
            fields = self.request[_FIELDS] = _parsed(self.request.content_type, body)
        return fields

    @property
    def fields_read(self) -> Sequence[tuple[str, str]]:
        """The fields of the form, if they were read; otherwise none."""
        found: Sequence[tuple[str, str]] = self.request.get(_FIELDS, ())
        return found

    @property
    def is_partial(self) -> bool:
        """Whether htmx asks, for a part of the page that it is on."""
        return self.request.headers.get("HX-Request") == "true"

    @property
    def csrf(self) -> str:
        """The token of this browser's forms."""
        return hmac.new(self.seed.encode(), _CSRF, hashlib.sha256).hexdigest()

    # the API

    async def load(self, call: Awaitable[T]) -> Loaded[T]:
        """The result of a call of the API, for a template."""
        found = await self.result(call)
        return Loaded(problem=found) if isinstance(found, ApiError) else Loaded(found)

    async def load_list(self, call: Awaitable[Listed[Item]]) -> LoadedList[Item]:
        """The page of a list, for a template."""
        found = await self.load(call)
        return LoadedList(found.value, found.problem)

    async def result(self, call: Awaitable[T]) -> T | ApiError:
        """The result of a call of the API, or its problem. A 401 is raised: it leads to the log-in."""
        found = await result_of(call)
        if isinstance(found, ApiError) and found.status == 401:
            raise found
        return found

    async def or_back(self, call: Awaitable[T], following: str) -> T:
        """The result of a call of the API. If it is refused, the answer is the page `following`, with the reason."""
        result = await self.result(call)
        if isinstance(result, ApiError):
            more = (error["detail"] for error in result.errors if error["detail"] not in result.detail)
            raise GoBack(self.back(following, " ".join([f"{result.title}. {result.detail}", *more]), "bad"))
        return result

    async def change(self, call: Awaitable[object], following: str, done: str) -> web.Response:
        """Make a change, and go to the page `following` with a note: `done`, or why the API refused."""
        await self.or_back(call, following)
        return self.back(following, done)

    async def save(
        self,
        etag: str | None,
        patch: Callable[[], Entry],
        update: Callable[..., Awaitable[Mapping[str, Any]]],
        own: str,
    ) -> web.Response | ApiError:
        """Changes an entry that is still as the form showed it (`If-Match`), and goes to its page `own`. Returns the
        reason if the form has to be shown again."""
        if etag != (await self.form()).get("etag"):
            return problem(412, "changed-meanwhile", "Changed meanwhile", _CHANGED)

        async def change() -> tuple[Entry, Sequence[str]]:
            changes = patch()
            return changes, (await update(changes, etag=etag)).get("warnings", ())

        changed = await self.result(change())
        if isinstance(changed, ApiError):
            return changed
        changes, warnings = changed
        done = f"Changed: {', '.join(changes)}." if changes else "Nothing was changed."
        return self.back(own, " ".join((done, *warnings)), "bad" if warnings else "good")

    async def replay(self, wanted: Mapping[str, object], own: str, template: str, **values: Any) -> web.Response:
        """Counts the selected messages first; once that is confirmed, starts the job, whose page shows its progress.
        `own`: the page that it began on."""
        if (await self.form()).get("confirmed"):
            job = await self.or_back(self.api.replays.create(everything=True, **wanted), own)
            return self.back(path("/ui/replays/{}", job["id"]), "The replay has started.")
        found = await self.or_back(self.api.replays.preview(**wanted), own)
        return self.show(template, wanted=wanted, found=found, **values)

    # the answer

    def fragment(self, template: str, **values: Any) -> str:
        """A part of a page, as HTML."""
        return self.renderer.render(template, {**self.shared, "visit": self, **values})

    def show(self, template: str, *, status: int = 200, problem: ApiError | None = None, **values: Any) -> web.Response:
        """A whole page. `problem`: why a form was refused, with its status; None for a form that was not sent."""
        if problem is not None:
            status = problem.status
        values["problem"] = problem
        return web.Response(status=status, text=self.fragment(template, **values), content_type="text/html")

    def back(self, url: str, text: str = "", kind: NoteKind = "good") -> web.Response:
        """To another page of ours, which shows the note."""
        response = see(url)
        if text:
            plain = json.dumps([text[:_FLASH_MOST], kind], ensure_ascii=False)  # an escape would be up to 12 bytes
            note = base64.urlsafe_b64encode(plain.encode(errors="replace")).decode()
            if is_framed(self.request):
                set_framed_cookie(response, FLASH_COOKIE, note, _FLASH_S)
            else:
                response.set_cookie(FLASH_COOKIE, note, path=HOME, max_age=_FLASH_S, httponly=True, samesite="Strict")
        return response

    def has_page(self, href: str) -> bool:
        """Whether the navigation leads there."""
        return any(entry.href == href for entry in self.shared["nav"])

    @property
    def url(self) -> str:
        """Path and query of this page."""
        return self.request.path_qs

    @property
    def page(self) -> str:
        """The page that is looked at: of a part of one, the page that it is on."""
        headers = self.request.headers
        is_whole = not self.is_partial and headers.get("Sec-Fetch-Dest") in (None, "document", "iframe")
        if self.request.method == "GET" and is_whole:
            return self.url
        on = headers.get("HX-Current-URL") or headers.get("Referer")
        return HOME if on is None else own_url(_path_of(on))

    def url_with(self, **changes: str | None) -> str:
        """This page with other parameters; None takes one out."""
        query = [(name, value) for name, value in self.request.query.items() if name not in changes]
        query += [(name, value) for name, value in changes.items() if value is not None]
        return str(self.request.rel_url.with_query(query))


def is_framed(request: web.Request) -> bool:
    """Whether the portal is shown in a frame of another site's page."""
    return request.cookies.get(PORTAL_COOKIE) is not None


def set_framed_cookie(response: web.StreamResponse, name: str, value: str, max_age_s: int | None = None) -> None:
    """One that a browser keeps in a frame of another site's page, for that site's pages alone.

    It is sent along with what other pages request, which is no harm: nothing is changed without the token of a form.
    Written out, as http.cookies knows no `Partitioned` before Python 3.14. `value`: of base64's characters alone.
    """
    age = "" if max_age_s is None else f"; Max-Age={max_age_s}"
    text = f"{name}={value}{age}; Path={HOME}; HttpOnly; Secure; SameSite=None; Partitioned"
    response.headers.add("Set-Cookie", text)


def see(url: str) -> web.Response:
    """Redirects to one of the relay's pages, after any method."""
    return web.Response(status=303, headers={"Location": own_url(url)})


def own_url(url: str) -> str:
    """`url` if it is one of our pages, otherwise the first one: a link cannot redirect to another site."""
    is_own = url.startswith(HOME) and "\\" not in url and url.isprintable()  # a header may have no other characters
    return url if is_own else HOME


def _path_of(url: str) -> str:
    """Path and query; empty if it is not a URL."""
    try:
        return URL(url).raw_path_qs
    except ValueError:
        return ""


def note_of(cookie: str | None) -> Note | None:
    """The note that a cookie has, if it has one."""
    if not cookie:
        return None
    try:
        text, kind = json.loads(base64.urlsafe_b64decode(cookie.encode()))
    except (ValueError, TypeError, RecursionError):
        return None
    return Note(str(text), kind if kind in ("good", "bad") else "plain")


def _parsed(kind: str, body: bytes) -> list[tuple[str, str]]:
    if not body:
        return []
    if kind != _FORM_TYPE:
        raise problem(415, "form", "This is not a form", f"A page posts {_FORM_TYPE}.")
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise problem(400, "form", "The form cannot be read", "Go back, reload the page, and try again.") from None
