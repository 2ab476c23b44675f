"""The overview: live throughput; what needs attention, with a button; the last hour; and the first steps on an empty
relay.

The steps are derived from the lists of receivers and messages each time, so a step is done however it was done."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from relay.client.http import path
from relay.domain.identity import PROBE
from relay.domain.state import State
from relay.pages.incidents import party_page, unresolved
from relay.pages.page import get, live
from relay.pages.round_trip import moment
from relay.pages.visit import Loaded, Visit, see
from relay.schema.incidents import AttentionView, NotWellView
from relay.schema.messages import MessageItem
from relay.schema.statistics import CountsView

_SPAN: Final = "1h"
_MINUTE_S: Final = 60
_NARROWER: Final = ("/ui/messages", "/ui/try")
"""First pages for callers without the right to see everything."""
PARTS: Final[tuple[str, ...]] = ("flow", "attention", "health", "failures")
SAMPLE: Final = "github.push"
_MOST: Final = 20
"""A relay with more messages than this is not new, even if no receiver has answered."""
_LISTED: Final = 2 * _MOST
"""Some of the listed messages are those that `relay dev` sends at its start."""
_ANSWERED: Final[frozenset[State]] = frozenset({"returning", "returned", "delivered"})
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


@get("/")
async def overview(visit: Visit) -> web.StreamResponse:
    found = await visit.load(visit.api.overview())
    narrower = next(filter(visit.has_page, _NARROWER), None)
    if found.problem is not None and found.problem.status == 403 and narrower is not None:
        return see(narrower)
    stats = await visit.load(visit.api.stats(by="minute", since=_SPAN))
    causes = [] if found.problem is None else await unresolved(visit)
    start = None if found.problem is not None else await start_of(visit)
    return visit.show("overview.html", found=found, chart=chart_of(stats), start=start, causes=causes, **_words())


@live("/live/overview")
async def overview_parts(visit: Visit) -> Mapping[str, str]:
    """The parts as they are now, each replaced only if it has changed. The first steps are for a page that shows
    them. Without an overview, as while the log is away, the incidents take its place: this process knows them."""
    found, parts, start = await visit.load(visit.api.overview()), PARTS, None
    if found.problem is not None:
        if found.problem.status == 403:
            raise found.problem
        away = visit.fragment("overview_away.html", found=found, causes=await unresolved(visit))
        return dict.fromkeys(PARTS, "") | {"attention": away}
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
    """The counts of each minute over all receivers and sources but the relay's own, including idle ones. None without
    a history, or if it is empty."""
    if stats.value is None:
        return None
    delivered: dict[float, int] = defaultdict(int)
    failed: dict[float, int] = defaultdict(int)
    for line in stats.value["series"]:
        for point in line["points"] if line["source_id"] != PROBE else ():
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


class Start(NamedTuple):
    """What the first steps on the overview follow from. `has_probe`: the relay has a receiver of its own, which answers
    samples. `receiver`: another one. `sample`: the newest message of a sender; `own`: the newest one to another
    receiver."""

    has_probe: bool
    receiver: str | None
    sample: MessageItem | None
    own: MessageItem | None


async def start_of(visit: Visit) -> Start | None:
    """The first steps; None if all are done, or if the visitor may not see them. Without a history only the receivers
    are known."""
    receivers, messages = await asyncio.gather(
        visit.load_list(visit.api.receivers.page(limit=2)),
        visit.load_list(visit.api.messages.page(limit=_LISTED)),
    )
    if receivers.problem is not None:
        return None
    names = [each["name"] for each in receivers.items]
    return start(names, None if messages.problem is not None else messages.items)


def start(receivers: Sequence[str], messages: Sequence[MessageItem] | None) -> Start | None:
    """`receivers`: the names of some. `messages`: the newest ones, newest first; None: not known."""
    others = [name for name in receivers if name != PROBE]
    sent = [each for each in messages or () if each["source_id"] != PROBE]
    own = [each for each in sent if any(one["receiver"] != PROBE for one in each["deliveries"])]
    if others and (messages is None or len(sent) > _MOST or any(map(_is_answered, own))):
        return None
    return Start(PROBE in receivers, next(iter(others), None), next(iter(sent), None), next(iter(own), None))


def _is_answered(message: MessageItem) -> bool:
    return any(one["receiver"] != PROBE and one["state"] in _ANSWERED for one in message["deliveries"])
