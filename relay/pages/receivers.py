"""Receivers: the list, registration, and the page of one with its statistics, settings and actions."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final, Literal, TypedDict, cast

from aiohttp import web

from relay.client import ApiError
from relay.client.http import path
from relay.domain import urls
from relay.domain.identity import PROBE
from relay.pages import charts
from relay.pages.incidents import unresolved_of
from relay.pages.page import get, post
from relay.pages.receiver_form import (
    COMMON,
    NAME,
    NEW_FIELDS,
    credentials_of,
    mistakes_of,
    renewed_credentials,
    settings_of,
    shown,
    wanted_of,
)
from relay.pages.visit import Entry, Visit
from relay.schema.receivers import NewReceiverView, ReceiverHealthView

STATES: Final = ("up", "backing_off", "failing", "offline", "paused", "disabled", "unverified", "refused")
_PAGE: Final = 50
_TYPES: Final = 200
"""Event types that the form to register a receiver offers."""
_CHOSEN: Final = "event_type"
_ATTEMPTS: Final = 20
_GAPS: Final = 20
_INNER: Final = frozenset({"partitions"})
"""Settings that the portal does not show: about topics."""
SPANS: Final = (("1h", "the last hour"), ("6h", "6 hours"), ("1d", "a day"), ("7d", "7 days"), ("30d", "30 days"))


def host_of(url: str | None) -> str:
    """Host and port of a URL; the page of the receiver has the whole URL."""
    return "" if url is None else urls.host_of(url) or url


class ReceiverFilters(TypedDict, total=False):
    """Filters of the list. The API rejects other values."""

    prefix: str
    state: str
    owner: str
    lane: Literal["dedicated", "shared"]


@get("/receivers")
async def receivers(visit: Visit) -> web.StreamResponse:
    """One call of the API, however many receivers there are."""
    chosen = cast(ReceiverFilters, visit.filters(*ReceiverFilters.__annotations__))
    page = visit.api.receivers.page(**chosen, traffic=True, limit=_PAGE, cursor=visit.cursor)
    found = (await visit.load_list(page)).without(lambda item: item["name"] == PROBE)
    return visit.show(
        "receivers.html", found=found, chosen=chosen, states=STATES, host_of=host_of, attempts=charts.attempts
    )


@get("/receivers/new")
async def new_receiver(visit: Visit) -> web.StreamResponse:
    await visit.api.sessions.get()  # a visitor without a session logs in before filling in the form
    return await _show_new(visit, {})


async def _show_new(visit: Visit, given: Mapping[str, str], refused: ApiError | None = None) -> web.Response:
    """The form that registers a receiver, with the event types of the catalogue."""
    types = (await visit.load_list(visit.api.event_types.page(limit=_TYPES))).items
    return visit.show(
        "receiver_new.html",
        given=given,
        problem=refused,
        mistakes=mistakes_of(refused, (NAME, *NEW_FIELDS)),
        fields=(NAME, *NEW_FIELDS),
        types=[each for each in types if not each["deprecated"]],
    )


@post("/receivers/new")
async def register(visit: Visit) -> web.StreamResponse:
    """Registers a receiver. A rejection is shown beside the form, which keeps its values."""
    form, chosen = dict(await visit.form()), [value for name, value in await visit.fields() if name == _CHOSEN]
    form["event_types"] = ", ".join(filter(None, (form.get("event_types", "").strip(), *chosen)))

    async def create() -> NewReceiverView:
        wanted = wanted_of(form, {}, NEW_FIELDS)
        url = wanted.pop("post_endpoint", None)
        return await visit.api.receivers.create(form.get("name", "").strip(), cast(str | None, url), **wanted)

    made = await visit.result(create())
    if isinstance(made, ApiError):
        return await _show_new(visit, form, made)
    name, secret = made["name"], made["secret"]
    warnings = made.get("warnings", [])
    if secret is None:
        return visit.back(_page(name), " ".join((f"{name} is registered.", *warnings)), "bad" if warnings else "good")
    return visit.show("receiver_secret.html", name=name, secret=secret, is_new=True, until=None, warnings=warnings)


def _page(name: str) -> str:
    return path("/ui/receivers/{}", name)


@get("/receivers/{name}")
async def receiver(visit: Visit) -> web.StreamResponse:
    name = visit.part("name")
    failed = "failed" in visit.filters("failed")
    receivers = visit.api.receivers
    it, stats, attempts, traffic, gaps, incidents = await asyncio.gather(
        receivers.get(name),
        visit.load(receivers.stats(name)),
        visit.load_list(receivers.attempts_page(name, failed=failed, limit=_ATTEMPTS, cursor=visit.cursor)),
        visit.load_list(receivers.page(prefix=name, limit=1, traffic=True)),
        visit.load_list(receivers.gaps_page(name, limit=_GAPS)),
        unresolved_of(visit, "receiver", name),
    )
    settings = [row for row in settings_of(it) if not (visit.in_portal and row[0] in _INNER)]
    return visit.show(
        "receiver.html",
        it=it,
        stats=stats,
        attempts=attempts,
        failed=failed,
        gaps=gaps,
        incidents=incidents,
        traffic=next((each["traffic"] for each in traffic.items if each["name"] == name), None),
        rows=[row for row in settings if row[2] != "default"],
        defaults=[row for row in settings if row[2] == "default"],
        spans=SPANS,
        charts=charts,
        host=host_of((it["settings"] or {}).get("post_endpoint")),
    )


@post("/receivers/{name}/test")
async def test(visit: Visit) -> web.StreamResponse:
    """Send a ping, and show its response on a page of its own."""
    name = visit.part("name")
    tried = await visit.api.receivers.test(name)
    return visit.show(
        "receiver_test.html", name=name, tried=tried, parties="Receivers", all="/ui/receivers", own=_page(name)
    )


@post("/receivers/{name}/pause")
async def pause(visit: Visit) -> web.StreamResponse:
    name, why = visit.part("name"), (await visit.form()).get("reason", "").strip()
    return await visit.change(visit.api.receivers.pause(name, why), _page(name), f"{name} is paused.")


@post("/receivers/{name}/verify")
async def verify(visit: Visit) -> web.StreamResponse:
    name = visit.part("name")
    tried = await visit.api.receivers.verify(name)
    if tried["proved"]:
        return visit.back(_page(name), "Verified.")
    return visit.back(_page(name), f"Not verified: {tried['detail']}", "bad")


@post("/receivers/{name}/rotate")
async def rotate(visit: Visit) -> web.StreamResponse:
    """The new secret is shown in this response only."""
    name, grace = visit.part("name"), (await visit.form()).get("grace") or "1d"
    rotated = await visit.or_back(visit.api.receivers.rotate(name, grace=grace), _page(name))
    secret, until = rotated["secret"] or rotated["public_key"], rotated["former_until"]
    return visit.show("receiver_secret.html", name=name, secret=secret, is_new=False, until=until, warnings=[])


@post("/receivers/{name}/replay")
async def replay(visit: Visit) -> web.StreamResponse:
    name, form = visit.part("name"), await visit.form()
    wanted = {"receiver": name, "since": form.get("since") or "1d", "only_failed": "delivered" not in form}
    own, spans = _page(name), dict(SPANS)
    return await visit.replay(wanted, own, "receiver_replay.html", name=name, spans=spans)


@get("/receivers/{name}/edit")
async def edit(visit: Visit) -> web.StreamResponse:
    it = await visit.api.receivers.get(visit.part("name"))
    return _edit_form(visit, it, {}, None)


@post("/receivers/{name}/edit")
async def change(visit: Visit) -> web.StreamResponse:
    name, form = visit.part("name"), await visit.form()
    it = await visit.api.receivers.get(name)

    def patch() -> Entry:
        return wanted_of(form, it["settings"] or {}, COMMON) | renewed_credentials(form)

    saved = await visit.save(it["etag"], patch, partial(visit.api.receivers.update, name), _page(name))
    return _edit_form(visit, it, form, saved) if isinstance(saved, ApiError) else saved


@get("/receivers/{name}/remove")
async def removal(visit: Visit) -> web.StreamResponse:
    """The question shows what becomes of its messages."""
    name = visit.part("name")
    it = await visit.api.receivers.get(name)
    removal = await visit.api.receivers.delete(name, dry_run=True)
    return visit.show("receiver_remove.html", it=it, messages=removal["messages"])


@post("/receivers/{name}/remove")
async def remove(visit: Visit) -> web.StreamResponse:
    name, form = visit.part("name"), await visit.form()
    await visit.or_back(visit.api.receivers.delete(name, etag=form.get("etag", "")), _page(name))
    return visit.back("/ui/receivers", f"{name} is removed.")


def _edit_form(visit: Visit, it: ReceiverHealthView, form: Mapping[str, str], refused: ApiError | None) -> web.Response:
    present = it["settings"] or {}
    values = {field.name: form.get(field.name, shown(present.get(field.name), field.kind)) for field in COMMON}
    return visit.show(
        "receiver_edit.html",
        it=it,
        fields=COMMON,
        values=values,
        anew=credentials_of(refused),
        problem=refused,
        mistakes=mistakes_of(refused, COMMON),
    )
