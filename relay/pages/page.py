"""What a page is, and how it says which paths are its own."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from aiohttp import web

from relay.pages.visit import Visit

Handler = Callable[[Visit], Awaitable[web.StreamResponse]]
Fragment = Callable[[Visit], Awaitable[str]]
"""Makes HTML, whose values were escaped."""


@dataclass(frozen=True, slots=True)
class Nav:
    """An entry of the navigation. `href`: with `/ui` before it; what is under it belongs to it. `portal`: also for
    owners who came by a link."""

    label: str
    href: str
    portal: bool = False


class Routes(Protocol):
    """Paths here are under `/ui`, with `{name}` for a part, which `visit.part("name")` gives."""

    def get(self, path: str, handler: Handler) -> None: ...

    def post(self, path: str, handler: Handler) -> None:
        """The form's CSRF token, and where the request comes from, are checked before."""
        ...

    def live(self, path: str, fragment: Fragment, *, every_s: float = 1.0) -> None:
        """Server-sent events `message`: the fragment, again and again where it has changed. `visit.problem_line` of a
        template takes its place while the API refuses."""
        ...


class Page(Protocol):
    """One module of pages."""

    nav: ClassVar[Nav | None]

    def add_routes(self, routes: Routes) -> None: ...
