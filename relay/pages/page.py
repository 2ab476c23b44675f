"""How pages are declared: the entries of the navigation, and the routes above their handlers."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from aiohttp import web

from relay.client.sse import ServerSentEvent
from relay.pages.visit import HOME, Visit

Handler = Callable[[Visit], Awaitable[web.StreamResponse]]
Fragment = Callable[[Visit], Awaitable[str | Mapping[str, str]]]
"""Makes HTML, whose values were escaped; or several pieces of it, by the name of their event."""

Tail = Callable[[Visit], AsyncIterator[ServerSentEvent]]
"""Begins the stream of the events after which a part is rendered again."""
_PART: Final = re.compile(r"{(\w+)}")
H = TypeVar("H", bound=Callable[..., object])


class Nav(NamedTuple):
    """An entry of the navigation. `href`: with `/ui` before it; pages under it belong to it. `kinds`: of the scopes
    that it is for, beside `admin`; those with `owner` are the portal."""

    label: str
    href: str
    kinds: frozenset[str] = frozenset()


_OF_RECEIVERS: Final = frozenset({"receiver", "owner"})
_OF_MESSAGES: Final = _OF_RECEIVERS | {"read"}
NAVIGATION: Final = (
    Nav("Overview", HOME),
    Nav("Incidents", "/ui/incidents", _OF_MESSAGES),
    Nav("Messages", "/ui/messages", _OF_MESSAGES),
    Nav("Receivers", "/ui/receivers", _OF_RECEIVERS),
    Nav("Sources", "/ui/sources"),
    Nav("Event types", "/ui/event-types", _OF_MESSAGES | {"ingest"}),
    Nav("Failed", "/ui/failed", _OF_MESSAGES),
    Nav("Replays", "/ui/replays", _OF_RECEIVERS),
    Nav("Topics and workers", "/ui/workers"),
    Nav("Try it", "/ui/try", frozenset({"ingest"})),
    Nav("System", "/ui/system", frozenset({"ingest", "read"})),
    Nav("Doctor", "/ui/doctor"),
    Nav("Keys", "/ui/keys"),
    Nav("Audit", "/ui/audit"),
    Nav("Erasures", "/ui/erasures"),
)


def navigation_for(kinds: Iterable[str]) -> list[Nav]:
    """The entries for a key with scopes of these kinds."""
    given = frozenset(kinds)
    return [nav for nav in NAVIGATION if "admin" in given or nav.kinds & given]


class PageRoute(NamedTuple):
    """The route of a page, a form, or a live part of a page. `every_s`, `tail`: of a live part."""

    kind: Literal["page", "form", "live"]
    path: str
    every_s: float = 1.0
    tail: Tail | None = None

    @property
    def pattern(self) -> str:
        """The path for the router, whose own parts have no braces: an id may."""
        return _PART.sub(r"{\1:[^/]+}", self.path)

    def of(self, handler: H) -> H:
        """Declares the function as the handler."""
        vars(handler)["page_route"] = self
        return handler


def get(path: str) -> Callable[[Handler], Handler]:
    """Declares the function below as a page. Paths are under `/ui`, with `{name}` for a part, which
    `visit.part("name")` gives."""
    return PageRoute("page", path).of


def post(path: str) -> Callable[[Handler], Handler]:
    """Declares the function below as what a form is sent to. The form's CSRF token, and where the request comes from,
    are checked before."""
    return PageRoute("form", path).of


def live(path: str, *, every_s: float = 1.0, tail: Tail | None = None) -> Callable[[Fragment], Fragment]:
    """Declares the function below as a live part: server-sent events with the fragment as `message`, or each piece by
    its own name, again if it has changed. A line with the error takes the place of all of them while the API refuses.
    One stream a page: a browser has only six connections to a host. With `tail` it is rendered again on events, and
    seldom without."""
    return PageRoute("live", path, every_s, tail).of


def routes_of(module: ModuleType) -> Iterator[tuple[PageRoute, Any]]:
    """The routes that a module declares, in their order, with their handlers."""
    for member in vars(module).values():
        if isinstance(declared := getattr(member, "page_route", None), PageRoute):
            yield declared, member
