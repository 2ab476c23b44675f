"""Receivers: the list, registration, and the page of one with its statistics, settings and actions."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from relay.pages import spark
from relay.pages.api_client import ApiProblem, path
from relay.pages.page import Nav, Page, PageRoutes
from relay.pages.receiver_form import COMMON, NEW_FIELDS, credentials_of, given_anew, settings_of, shown, wanted_of
from relay.pages.visit import Visit

STATES: Final = ("up", "backing_off", "failing", "offline", "paused", "disabled", "unverified", "refused")
_PAGE: Final = "50"
_ATTEMPTS: Final = "20"
SPANS: Final = (("1h", "the last hour"), ("6h", "6 hours"), ("1d", "a day"), ("7d", "7 days"), ("30d", "30 days"))
_CHANGED: Final = "It was changed meanwhile. Here is how it is now, with what you wrote; look at it, and save again."


def host_of(url: str | None) -> str:
    """Its origin; the page of the receiver has the whole URL."""
    if url is None:
        return ""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}" or url
    except ValueError:
        return url


class ReceiversPage(Page):
    """`/ui/receivers`, and `/ui/receivers/new`."""

    nav = Nav("Receivers", "/ui/receivers", portal=True)

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/receivers", self.list)
        routes.get("/receivers/new", self.form)
        routes.post("/receivers/new", self.register)

    async def list(self, visit: Visit) -> web.StreamResponse:
        """One call of the API, however many receivers there are."""
        chosen = visit.filters("prefix", "state", "owner", "lane")
        query = {**chosen, **visit.filters("cursor"), "limit": _PAGE, "traffic": "true"}
        found = await visit.load(visit.api.get("/v1/receivers", query))
        return visit.show(
            "receivers.html", found=found, chosen=chosen, states=STATES, host_of=host_of, attempts=spark.attempts
        )

    async def form(self, visit: Visit) -> web.StreamResponse:
        await visit.api.get("/v1/session")  # who has yet to log in, does so before they write
        return visit.show("receiver_new.html", given={}, problem=None, fields=NEW_FIELDS)

    async def register(self, visit: Visit) -> web.StreamResponse:
        """What the API refuses is said beside the form, which keeps what was written."""
        form = await visit.form()

        async def create() -> Any:
            wanted = {"name": form.get("name", "").strip(), **wanted_of(form, {}, NEW_FIELDS)}
            return (await visit.api.call("POST", "/v1/receivers", body=wanted)).value

        made = await visit.result(create())
        if isinstance(made, ApiProblem):
            status = made.status
            return visit.show("receiver_new.html", status=status, given=form, problem=made, fields=NEW_FIELDS)
        name, secret = made["name"], made["secret"]
        if secret is None:
            return visit.back(_page(name), f"{name} is registered.")
        return visit.show("receiver_secret.html", name=name, secret=secret, is_new=True, until=None)


def _page(name: str) -> str:
    return path("/ui/receivers/{}", name)


def _route(name: str, action: str = "") -> str:
    return path("/v1/receivers/{}", name) + action


class ReceiverDetailPage(Page):
    """`/ui/receivers/{name}`, and what its buttons do."""

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/receivers/{name}", self.show)
        routes.get("/receivers/{name}/edit", self.edit)
        routes.post("/receivers/{name}/edit", self.change)
        routes.get("/receivers/{name}/remove", self.removal)
        routes.post("/receivers/{name}/remove", self.remove)
        routes.post("/receivers/{name}/test", self.test)
        routes.post("/receivers/{name}/pause", self.pause)
        routes.post("/receivers/{name}/verify", self.verify)
        routes.post("/receivers/{name}/rotate", self.rotate)
        routes.post("/receivers/{name}/replay", self.replay)

    async def show(self, visit: Visit) -> web.StreamResponse:
        name = visit.part("name")
        failed = "failed" in visit.filters("failed")
        narrowed = {"limit": _ATTEMPTS, **visit.filters("cursor")} | ({"failed": "true"} if failed else {})
        it, stats, attempts, traffic = await asyncio.gather(
            visit.api.get(_route(name)),
            visit.load(visit.api.get(_route(name, "/stats"))),
            visit.load(visit.api.get(_route(name, "/attempts"), narrowed)),
            visit.load(visit.api.get("/v1/receivers", {"prefix": name, "limit": "1", "traffic": "true"})),
        )
        return visit.show(
            "receiver.html",
            it=it,
            stats=stats,
            attempts=attempts,
            failed=failed,
            traffic=next((each["traffic"] for each in traffic.items if each["name"] == name), None),
            rows=[row for row in settings_of(it) if row[2] != "default"],
            defaults=[row for row in settings_of(it) if row[2] == "default"],
            spans=SPANS,
            spark=spark,
            host=host_of((it["settings"] or {}).get("post_endpoint")),
        )

    # done at once

    async def test(self, visit: Visit) -> web.StreamResponse:
        """Send a ping, and show its response on a page of its own."""
        name = visit.part("name")
        tried = (await visit.api.call("POST", _route(name, "/test"))).value
        return visit.show("receiver_test.html", name=name, tried=tried)

    async def pause(self, visit: Visit) -> web.StreamResponse:
        name, why = visit.part("name"), (await visit.form()).get("reason", "").strip()
        call = visit.api.call("POST", _route(name, "/pause"), body={"reason": why})
        return await visit.change(call, _page(name), f"{name} is paused.")

    async def verify(self, visit: Visit) -> web.StreamResponse:
        name = visit.part("name")
        tried = (await visit.api.call("POST", _route(name, "/verify"))).value
        if tried["proved"]:
            return visit.back(_page(name), "It has proved that it wants messages.")
        return visit.back(_page(name), f"It proved nothing: {tried['detail']}", "bad")

    async def rotate(self, visit: Visit) -> web.StreamResponse:
        """The new secret is shown in this response only."""
        name, grace = visit.part("name"), (await visit.form()).get("grace") or "1d"
        rotated = await visit.result(visit.api.call("POST", _route(name, "/rotate"), body={"grace": grace}))
        if isinstance(rotated, ApiProblem):
            return visit.refused(_page(name), rotated)
        it = rotated.value
        secret = it["secret"] or it["public_key"]
        return visit.show("receiver_secret.html", name=name, secret=secret, is_new=False, until=it["former_until"])

    async def replay(self, visit: Visit) -> web.StreamResponse:
        """First count the messages; once that is confirmed, start the job, whose page shows its progress."""
        name, form = visit.part("name"), await visit.form()
        wanted = {"receiver": name, "since": form.get("since") or "1d", "only_failed": "delivered" not in form}
        is_sure = bool(form.get("confirmed"))
        body = wanted if is_sure else {**wanted, "dry_run": True}
        replay = await visit.result(visit.api.call("POST", "/v1/replays", body=body))
        if isinstance(replay, ApiProblem):
            return visit.refused(_page(name), replay)
        found = replay.value
        if is_sure:
            return visit.back(path("/ui/replays/{}", found["id"]), "The replay has begun.")
        return visit.show("receiver_replay.html", name=name, wanted=wanted, found=found, spans=dict(SPANS))

    # settings

    async def edit(self, visit: Visit) -> web.StreamResponse:
        it = await visit.api.get(_route(visit.part("name")))
        return self._form(visit, it, {}, None)

    async def change(self, visit: Visit) -> web.StreamResponse:
        """Change a receiver that is still as the form showed it: `If-Match`."""
        name, form = visit.part("name"), await visit.form()
        it = await visit.api.get(_route(name))
        if it["etag"] != form.get("etag"):
            return self._form(visit, it, form, ApiProblem(412, "changed-meanwhile", "Changed meanwhile", _CHANGED))
        headers = {"If-Match": f'"{it["etag"]}"', "Content-Type": "application/merge-patch+json"}

        async def update() -> dict[str, Any]:
            patch = wanted_of(form, it["settings"] or {}, COMMON) | given_anew(form)
            await visit.api.call("PATCH", _route(name), body=patch, headers=headers)
            return patch

        patch = await visit.result(update())
        if isinstance(patch, ApiProblem):
            return self._form(visit, it, form, patch)
        return visit.back(_page(name), f"Changed: {', '.join(patch)}." if patch else "Nothing was changed.")

    async def removal(self, visit: Visit) -> web.StreamResponse:
        """The question shows what becomes of its messages."""
        name = visit.part("name")
        it = await visit.api.get(_route(name))
        removal = (await visit.api.call("DELETE", _route(name), query={"dry_run": "true"})).value
        return visit.show("receiver_remove.html", it=it, messages=removal["messages"])

    async def remove(self, visit: Visit) -> web.StreamResponse:
        name, form = visit.part("name"), await visit.form()
        call = visit.api.call("DELETE", _route(name), headers={"If-Match": f'"{form.get("etag", "")}"'})
        result = await visit.result(call)
        if isinstance(result, ApiProblem):
            return visit.refused(_page(name), result)
        return visit.back("/ui/receivers", f"{name} is removed.")

    def _form(
        self, visit: Visit, it: Mapping[str, Any], form: Mapping[str, str], problem: ApiProblem | None
    ) -> web.Response:
        present = it["settings"] or {}
        values = {field.name: form.get(field.name, shown(present.get(field.name), field.kind)) for field in COMMON}
        status, anew = 200 if problem is None else problem.status, credentials_of(problem)
        return visit.show(
            "receiver_edit.html", status=status, it=it, fields=COMMON, values=values, anew=anew, problem=problem
        )
