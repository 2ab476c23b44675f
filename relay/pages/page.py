"""The interface of a page: its entry in the navigation, and its routes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from aiohttp import web

from relay.client.sse import ServerSentEvent
from relay.pages.visit import Visit

Handler = Callable[[Visit], Awaitable[web.StreamResponse]]
Fragment = Callable[[Visit], Awaitable[str | Mapping[str, str]]]
"""Makes HTML, whose values were escaped; or several pieces of it, by the name of their event."""

Tail = Callable[[Visit], AsyncIterator[ServerSentEvent]]
"""Begins the stream of the events after which a part is rendered again."""


@dataclass(frozen=True, slots=True)
class Nav:
    """An entry of the navigation. `href`: with `/ui` before it; pages under it belong to it. `portal`: also for
    owners with a portal link."""

    label: str
    href: str
    portal: bool = False


class PageRoutes(Protocol):
    """Paths here are under `/ui`, with `{name}` for a part, which `visit.part("name")` gives."""

    def get(self, path: str, handler: Handler) -> None: ...

    def post(self, path: str, handler: Handler) -> None:
        """The form's CSRF token, and where the request comes from, are checked before."""
        ...

    def live(self, path: str, fragment: Fragment, *, every_s: float = 1.0, tail: Tail | None = None) -> None:
        """Server-sent events: the fragment as `message`, or each piece by its own name, again if it has changed. A
        line with the error takes the place of all of them while the API refuses. One stream a page: a browser has only
        six connections to a host. With `tail` it is rendered again on events, and seldom without."""
        ...


class Page(Protocol):
    """Pages of one subject. `nav` None: the navigation does not lead there."""

    nav: ClassVar[Nav | None] = None

    def add_routes(self, routes: PageRoutes) -> None: ...
