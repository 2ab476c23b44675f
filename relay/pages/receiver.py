"""One receiver: how it is, what went to it, its settings, and what can be done about it."""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from aiohttp import web

from relay.pages import spark
from relay.pages.api_client import ApiProblem, path
from relay.pages.page import Nav, PageRoutes
from relay.pages.receiver_form import COMMON, credentials_of, given_anew, shown, wanted_of
from relay.pages.receivers import host_of
from relay.pages.render import duration
from relay.pages.visit import Visit

_ATTEMPTS: Final = "20"
SPANS: Final = (("1h", "the last hour"), ("6h", "6 hours"), ("1d", "a day"), ("7d", "7 days"), ("30d", "30 days"))
_DURATIONS: Final = frozenset(
    {"window_size", "timeout", "answer_deadline", "window", "open_for", "after", "ping_every", "disable_after"}
    | {"base", "cap", "max_age"}
)
_CHANGED: Final = "It was changed meanwhile. Here is how it is now, with what you wrote; look at it, and save again."


def _page(name: str) -> str:
    return path("/ui/receivers/{}", name)


def _route(name: str, action: str = "") -> str:
    return path("/v1/receivers/{}", name) + action


class ReceiverDetailPage:
    """`/ui/receivers/{name}`, and what its buttons do."""

    nav: ClassVar[Nav | None] = None

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/receivers/{name}", self.show)
        routes.get("/receivers/{name}/edit", self.edit)
        routes.post("/receivers/{name}/edit", self.change)
        routes.get("/receivers/{name}/remove", self.removal)
        routes.post("/receivers/{name}/remove", self.remove)
        for action, handler in (
            ("test", self.test),
            ("pause", self.pause),
            ("verify", self.verify),
            ("rotate", self.rotate),
            ("replay", self.replay),
        ):
            routes.post(f"/receivers/{{name}}/{action}", handler)

    async def show(self, visit: Visit) -> web.StreamResponse:
        name = visit.part("name")
        failed = "failed" in visit.filters("failed")
        narrowed = {"limit": _ATTEMPTS, **visit.filters("cursor")} | ({"failed": "true"} if failed else {})
        it, stats, attempts, traffic = await asyncio.gather(
            visit.api.get(_route(name)),
            visit.load(_route(name, "/stats")),
            visit.load(_route(name, "/attempts"), narrowed),
            visit.load("/v1/receivers", {"prefix": name, "limit": "1", "traffic": "true"}),
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
        """A ping, and what came back, on a page of its own."""
        name = visit.part("name")
        answer = await visit.api.call("POST", _route(name, "/test"))
        return visit.show("receiver_test.html", name=name, tried=answer.value)

    async def pause(self, visit: Visit) -> web.StreamResponse:
        name, why = visit.part("name"), (await visit.form()).get("reason", "").strip()
        return await _done(visit, "POST", _route(name, "/pause"), {"reason": why}, f"{name} is paused.")

    async def verify(self, visit: Visit) -> web.StreamResponse:
        name = visit.part("name")
        tried = (await visit.api.call("POST", _route(name, "/verify"))).value
        said = "It has proved that it wants messages." if tried["proved"] else f"It proved nothing: {tried['detail']}"
        return visit.back(_page(name), said, "good" if tried["proved"] else "bad")

    async def rotate(self, visit: Visit) -> web.StreamResponse:
        """The new secret is shown on this answer alone."""
        name, form = visit.part("name"), await visit.form()
        try:
            answer = await visit.api.call("POST", _route(name, "/rotate"), body={"grace": form.get("grace") or "1d"})
        except ApiProblem as problem:
            return _refused(visit, _page(name), problem)
        it = answer.value
        secret = it["secret"] or it["public_key"]
        return visit.show("receiver_secret.html", name=name, secret=secret, is_new=False, until=it["former_until"])

    async def replay(self, visit: Visit) -> web.StreamResponse:
        """First how many it would be; then the job, whose page shows how far it is."""
        name, form = visit.part("name"), await visit.form()
        wanted = {"receiver": name, "since": form.get("since") or "1d", "only_failed": "delivered" not in form}
        is_sure = bool(form.get("confirmed"))
        try:
            answer = await visit.api.call("POST", "/v1/replays", body=wanted | ({} if is_sure else {"dry_run": True}))
        except ApiProblem as problem:
            return _refused(visit, _page(name), problem)
        if is_sure:
            return visit.back(path("/ui/replays/{}", answer.value["id"]), "The replay has begun.")
        return visit.show("receiver_replay.html", name=name, wanted=wanted, found=answer.value, spans=dict(SPANS))

    # settings

    async def edit(self, visit: Visit) -> web.StreamResponse:
        it = await visit.api.get(_route(visit.part("name")))
        return self._form(visit, it, {}, None)

    async def change(self, visit: Visit) -> web.StreamResponse:
        """Only if it still is what the form showed: `If-Match`."""
        name, form = visit.part("name"), await visit.form()
        it = await visit.api.get(_route(name))
        if it["etag"] != form.get("etag"):
            return self._form(visit, it, form, ApiProblem(412, "changed-meanwhile", "Changed meanwhile", _CHANGED))
        headers = {"If-Match": f'"{it["etag"]}"', "Content-Type": "application/merge-patch+json"}
        try:
            patch = wanted_of(form, it["settings"] or {}, COMMON) | given_anew(form)
            await visit.api.call("PATCH", _route(name), body=patch, headers=headers)
        except ApiProblem as problem:
            if problem.status == 401:
                raise
            return self._form(visit, it, form, problem)
        return visit.back(_page(name), "Nothing was changed." if not patch else f"Changed: {', '.join(patch)}.")

    async def removal(self, visit: Visit) -> web.StreamResponse:
        """The question shows what becomes of its messages."""
        name = visit.part("name")
        it = await visit.api.get(_route(name))
        told = await visit.api.call("DELETE", _route(name), query={"dry_run": "true"})
        return visit.show("receiver_remove.html", it=it, messages=told.value["messages"])

    async def remove(self, visit: Visit) -> web.StreamResponse:
        name, form = visit.part("name"), await visit.form()
        try:
            await visit.api.call("DELETE", _route(name), headers={"If-Match": f'"{form.get("etag", "")}"'})
        except ApiProblem as problem:
            return _refused(visit, _page(name), problem)
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


def settings_of(it: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value, and where it comes from. Those that were declared come first."""
    given, declared_by = frozenset(it["given"] or ()), it["declared_by"]
    origin = {"file": "receivers file", "api": "API"}.get(declared_by, declared_by or "")
    rows = [(name, settings_text(name, value), origin if name in given else "default") for name, value in _flat(it)]
    return sorted(rows, key=lambda row: (row[2] == "default", row[0]))


def _flat(it: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list((it["settings"] or {}).items())


def settings_text(name: str, value: Any) -> str:
    """As people read it: durations with a unit, nested values in a line."""
    if value is None or value in ([], {}):
        return ""
    if name in _DURATIONS and isinstance(value, int | float):
        return duration(float(value))
    if isinstance(value, dict) and name == "labels":
        return ", ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, dict):
        known = [(key, settings_text(key, each)) for key, each in value.items()]
        return ", ".join(f"{key} {text}" for key, text in known if text)
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _done(visit: Visit, method: str, target: str, body: object, said: str) -> web.StreamResponse:
    following = _page(visit.part("name"))
    try:
        await visit.api.call(method, target, body=body)
    except ApiProblem as problem:
        return _refused(visit, following, problem)
    return visit.back(following, said)


def _refused(visit: Visit, following: str, problem: ApiProblem) -> web.StreamResponse:
    """Back, with the words of the API."""
    if problem.status == 401:
        raise problem
    more = " ".join(error["detail"] for error in problem.errors if error["detail"] != problem.detail)
    return visit.back(following, f"{problem.title}. {problem.detail} {more}".strip(), "bad")
