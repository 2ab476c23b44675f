"""How pages are declared: the entries of the navigation, and the routes above their handlers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
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
H = TypeVar("H", bound=Callable[..., object])


class Nav(NamedTuple):
    """An entry of the navigation. `href`: with `/ui` before it; pages under it belong to it. `portal`: also for
    owners with a portal link."""

    label: str
    href: str
    portal: bool = False


NAVIGATION: Final = (
    Nav("Overview", HOME),
    Nav("Incidents", "/ui/incidents", portal=True),
    Nav("Messages", "/ui/messages", portal=True),
    Nav("Receivers", "/ui/receivers", portal=True),
    Nav("Sources", "/ui/sources"),
    Nav("Event types", "/ui/event-types", portal=True),
    Nav("Failed", "/ui/failed", portal=True),
    Nav("Replays", "/ui/replays", portal=True),
    Nav("Topics and workers", "/ui/workers"),
    Nav("Try it", "/ui/try"),
    Nav("System", "/ui/system"),
    Nav("Doctor", "/ui/doctor"),
    Nav("Keys", "/ui/keys"),
    Nav("Audit", "/ui/audit"),
    Nav("Erasures", "/ui/erasures"),
)


class PageRoute(NamedTuple):
    """`every_s`, `tail`: of a live part."""

    kind: Literal["page", "form", "live"]
    path: str
    every_s: float = 1.0
    tail: Tail | None = None

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
