"""The overview: live throughput; what needs attention, with a button; and the last hour."""

from collections import defaultdict
from collections.abc import Mapping
from math import ceil
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web

from relay.client.http import path
from relay.domain.identity import PROBE
from relay.pages.incidents import party_page
from relay.pages.page import Nav, Page, PageRoutes
from relay.pages.round_trip import moment
from relay.pages.start import SAMPLE, start_of
from relay.pages.visit import Loaded, Visit, see
from relay.schema.overview import AttentionView, NotWellView
from relay.schema.statistics import CountsView

_SPAN: Final = "1h"
_MINUTE_S: Final = 60
_NARROWER: Final = "/ui/messages"
"""The first page for callers without the right to see everything."""
PARTS: Final[tuple[str, ...]] = ("flow", "attention", "health", "failures")
STEPS: Final = ("sample", "receiver", "answer")
"""The first steps."""
STAGES: Final[Mapping[str, tuple[str, str]]] = {
    "from_sender": ("Coming in", "messages from senders"),
    "to_receiver": ("To receivers", "deliveries on their way"),
    "pending": ("Awaiting answers", "accepted, and answered later"),
    "to_sender": ("Back to senders", "answers on their way"),
    "failed_messages": ("Dead letters", "given up, to be replayed"),
}
"""Stage -> its label, and a description."""
WORDS: Final[Mapping[str, str]] = {
    "part_away": "away",
    "unread_lost": "lost unread",
    "no_worker": "not served",
    "held_up": "holds others up",
    "failed": "dead letters",
}
"""Labels of alerts whose names are not plain words."""


class Overview(Page):
    """The first page."""

    nav = Nav("Overview", "/ui/")

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/", self.show)
        routes.live("/live/overview", self.now)

    async def show(self, visit: Visit) -> web.StreamResponse:
        found = await visit.load(visit.api.overview())
        if found.problem is not None and found.problem.status == 403 and visit.has_page(_NARROWER):
            return see(_NARROWER)
        stats = await visit.load(visit.api.stats(by="minute", since=_SPAN))
        start = None if found.problem is not None else await start_of(visit)
        return visit.show("overview.html", found=found, chart=chart_of(stats), start=start, **_words())

    async def now(self, visit: Visit) -> Mapping[str, str]:
        """The parts as they are now, each replaced only if it has changed. The first steps are for a page that shows
        them."""
        found, parts, start = Loaded(await visit.api.overview()), PARTS, None
        if visit.filters("start"):
            start, parts = await start_of(visit), (*PARTS, *(f"start_{step}" for step in STEPS))
        return {part: visit.fragment(f"overview_{part}.html", found=found, start=start, **_words()) for part in parts}


def _words() -> dict[str, Any]:
    pages = {"page_of": page_of, "failed_page": failed_page, "endpoint_page": endpoint_page}
    return {"stages": STAGES, "kinds": WORDS, "steps": STEPS, "probe": PROBE, "sample": SAMPLE, **pages}


def page_of(item: AttentionView) -> str | None:
    """Our page about the party of an item of `attention`, if there is one."""
    if (page := party_page(item["party"])) is not None:
        return page
    kind = item["kind"]
    if kind == "no_worker":
        return "/ui/workers?" + urlencode({"served": "false"})
    if kind == "unread_lost":
        return "/ui/workers"
    return "/ui/system" if kind in ("part_away", "warning") else None


def endpoint_page(one: NotWellView) -> str:
    return path("/ui/receivers/{}" if one["type"] == "receiver" else "/ui/sources/{}", one["name"])


def failed_page(receiver: str, reason: str | None) -> str:
    chosen = {"receiver": receiver} | ({} if reason is None else {"reason": reason})
    return f"/ui/failed?{urlencode(chosen)}"


def chart_of(stats: Loaded[CountsView]) -> dict[str, Any] | None:
    """The counts of each minute over all receivers and sources, including idle ones. None without a history, or if it
    is empty."""
    if stats.value is None:
        return None
    delivered: dict[float, int] = defaultdict(int)
    failed: dict[float, int] = defaultdict(int)
    for line in stats.value["series"]:
        for point in line["points"]:
            at = moment(point["at"]) or 0.0
            delivered[at] += point["delivered"]
            failed[at] += point["failed"]
    if not delivered:
        return None
    since, until = moment(stats.value["since"]) or 0.0, moment(stats.value["until"]) or 0.0
    moments = range(int(since // _MINUTE_S) * _MINUTE_S, ceil(until), _MINUTE_S)
    return {
        "at": list(moments),
        "series": [
            {"label": "delivered", "tone": "accent", "values": [delivered[at] for at in moments]},
            {"label": "failed attempts", "tone": "bad", "values": [failed[at] for at in moments]},
        ],
    }
