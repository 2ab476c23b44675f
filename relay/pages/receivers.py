"""Receivers: the list of them, and registering one."""

from typing import ClassVar, Final
from urllib.parse import urlsplit

from aiohttp import web

from relay.pages import spark
from relay.pages.api_client import ApiProblem, path
from relay.pages.page import Nav, PageRoutes
from relay.pages.receiver_form import NEW_FIELDS, wanted_of
from relay.pages.visit import Visit

STATES: Final = ("up", "backing_off", "failing", "offline", "paused", "disabled", "unverified", "refused")
_PAGE: Final = "50"


def host_of(url: str | None) -> str:
    """Its origin; the page of the receiver has the whole URL."""
    if url is None:
        return ""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}" or url
    except ValueError:
        return url


class ReceiversPage:
    """`/ui/receivers`, and `/ui/receivers/new`."""

    nav: ClassVar[Nav | None] = Nav("Receivers", "/ui/receivers", portal=True)

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/receivers", self.list)
        routes.get("/receivers/new", self.form)
        routes.post("/receivers/new", self.register)

    async def list(self, visit: Visit) -> web.StreamResponse:
        """One call of the API, however many receivers there are."""
        chosen = visit.filters("prefix", "state", "owner", "lane")
        query = {**chosen, **visit.filters("cursor"), "limit": _PAGE, "traffic": "true"}
        found = await visit.load("/v1/receivers", query)
        return visit.show(
            "receivers.html", found=found, chosen=chosen, states=STATES, host_of=host_of, attempts=spark.attempts
        )

    async def form(self, visit: Visit) -> web.StreamResponse:
        await visit.api.get("/v1/session")  # who has yet to log in, does so before they write
        return visit.show("receiver_new.html", given={}, problem=None, fields=NEW_FIELDS)

    async def register(self, visit: Visit) -> web.StreamResponse:
        """What the API refuses is said beside the form, which keeps what was written."""
        form = await visit.form()
        try:
            wanted = {"name": form.get("name", "").strip(), **wanted_of(form, {}, NEW_FIELDS)}
            made = (await visit.api.call("POST", "/v1/receivers", body=wanted)).value
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            status = problem.status
            return visit.show("receiver_new.html", status=status, given=form, problem=problem, fields=NEW_FIELDS)
        if made["secret"] is None:
            return visit.back(path("/ui/receivers/{}", made["name"]), f"{made['name']} is registered.")
        return visit.show("receiver_secret.html", name=made["name"], secret=made["secret"], is_new=True, until=None)
