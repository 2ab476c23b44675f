"""One message: its round trip as a live timeline, its payload, and the actions on it."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from aiohttp import web
from msgspec import UNSET, convert

from relay.api.responses import PLAIN
from relay.client import ApiError
from relay.client.http import path
from relay.client.open_words import open_words
from relay.domain.identity import copies_prefix
from relay.pages.causes import ruling_words
from relay.pages.page import get, live
from relay.pages.payload_view import body_text, curl, shown
from relay.pages.round_trip import WIDTH, Trip, exchange_name, moment, stations, took, trips_of
from relay.pages.visit import LoadedList, Visit
from relay.schema.attempts import AttemptItem
from relay.schema.messages import MessageItem, MessageView
from relay.schema.replays import LetterView

_MOST_ATTEMPTS: Final = 200
_MOST_LETTERS: Final = 200
_MOST_NAMES: Final = 10
_MOST_COPIES: Final = 10
_SANDBOX: Final = {"Content-Security-Policy": "sandbox; default-src 'none'"}


class ShownMessage(NamedTuple):
    """A message as the API shows it now. `attempts`: newest first, or the problem of requesting them. `old`: the
    history's record, if only the history has the message any more."""

    message: MessageView
    attempts: LoadedList[AttemptItem]
    old: MessageItem | None = None


class Mend(NamedTuple):
    """A remedy that a page offers: a call of the API, or with an empty `method` the page at `path`."""

    label: str
    method: str
    path: str


@get("/messages/{source}/{message}")
async def message_page(visit: Visit) -> web.StreamResponse:
    source_id, message_id = ids_of(visit)
    seen, body, copies = await asyncio.gather(
        visit.result(_look(visit)),
        visit.load(visit.api.messages.payload(source_id, message_id)),
        _copies(visit),
    )
    if isinstance(seen, ApiError):
        if seen.status != 404:
            raise seen
        return visit.show("message_unknown.html", source=source_id, id=message_id, problem=seen)
    payload = None if body.value is None else body.value.body
    names = [each.receiver for each in seen.message.deliveries]
    again = curl(
        str(visit.request.url.origin()),
        *(source_id, message_id, seen.message.type, seen.old["content_type"] if seen.old else None),
        names,
        payload,
    )
    return visit.show(
        "message_one.html" if visit.is_partial else "message.html",
        body=body,
        size=len(payload) if payload is not None else seen.old["size"] if seen.old else None,
        shown=None if payload is None else shown(payload, visit.request.query.get("body")),
        again=again,
        conflicts=await _conflicts(visit, names),
        copies=copies,
        here=path("/ui/messages/{}/{}", source_id, message_id),
        live=path("/ui/live/messages/{}/{}", source_id, message_id),
        **_drawn(visit, seen),
    )


@live("/live/messages/{source}/{message}")
async def timeline(visit: Visit) -> str:
    return visit.fragment("message_line.html", **_drawn(visit, await _look(visit)))


@get(r"/attempts/{partition:\d{1,18}}/{offset:\d{1,18}}")
async def attempt(visit: Visit) -> web.StreamResponse:
    """One exchange, with the headers that a list leaves out."""
    found = await visit.api.attempt(int(visit.part("partition")), int(visit.part("offset")))
    return visit.show(
        "attempt.html", each=found, name=exchange_name(found), body_text=body_text, ruling_words=ruling_words, before={}
    )


@get("/messages/{source}/{message}/payload")
async def payload(visit: Visit) -> web.StreamResponse:
    """The payload as the sender gave it, as a download. Its type is never that of a page, script or style: such a
    response would be one of ours."""
    payload = await visit.api.messages.payload(*ids_of(visit))
    kind = payload.headers.get("Content-Type", "")
    headers = {
        "Content-Type": kind if kind.partition(";")[0].strip().lower() in PLAIN else "application/octet-stream",
        "Content-Disposition": payload.headers.get("Content-Disposition", "attachment"),
    }
    return web.Response(body=payload.body, headers=headers | _SANDBOX)


def _drawn(visit: Visit, seen: ShownMessage) -> dict[str, Any]:
    """The values of the timeline's template."""
    message = seen.message
    trips = trips_of(message, seen.attempts.items, visit.renderer.now())
    return {
        "seen": seen,
        "message": message,
        "trips": trips,
        "took_s": took(trips, moment(message.received_at)),
        "width": WIDTH,
        "stations": stations,
        "mends": lambda trip: mends(message, trip),
        "body_text": body_text,
        "ruling_words": ruling_words,
        "before": _before(seen.attempts.items),
    }


def _before(attempts: Sequence[AttemptItem]) -> Mapping[tuple[int, int], str]:
    """The comparison of each attempt with the one before it, by the place of its record. `attempts`: newest first."""
    last: dict[tuple[str, str | None], AttemptItem] = {}
    found: dict[tuple[int, int], str] = {}
    for each in reversed(attempts):
        of = each["kind"], each["receiver"]
        if (old := last.get(of)) is not None:
            places = old["partition"], old["offset"], each["partition"], each["offset"]
            found[each["partition"], each["offset"]] = path("/ui/compare/{}/{}/{}/{}", *places)
        last[of] = each
    return found


def mends(message: MessageView, trip: Trip) -> Sequence[Mend]:
    """Actions that fix the cause of a wait, the nearest first; an empty `method` is a link to a page."""
    wait, receiver = trip.view.waiting_for, path("/ui/receivers/{}", trip.view.receiver)
    at = path("/v1/receivers/{}", trip.view.receiver)
    settings = Mend(f"Settings of {trip.view.receiver}", "", receiver)
    if (newer := trip.view.replaced_by) is not UNSET:
        return [Mend("See the newer message", "", path("/ui/messages/{}/{}", message.source_id, newer)), settings]
    if wait is None:
        return [settings]
    match wait.kind:
        case "paused":
            return [Mend(f"Resume {trip.view.receiver}", "POST", f"{at}/resume"), settings]
        case "verification":
            return [Mend(f"Verify {trip.view.receiver}", "POST", f"{at}/verify"), settings]
        case "order":
            if (first := wait.message) is UNSET:
                return [settings]
            front = path("/ui/messages/{}/{}", first["source_id"], first["message_id"])
            return [Mend("See the message ahead", "", front), settings]
        case "no_worker":
            return [Mend("See the workers", "", "/ui/workers?served=false"), settings]
        case "callback":
            return [Mend(f"Source {message.source_id}", "", path("/ui/messages?source={}", message.source_id))]
    return [settings]


def ids_of(visit: Visit) -> tuple[str, str]:
    return visit.part("source"), visit.part("message")


async def _look(visit: Visit) -> ShownMessage:
    """Raises ApiError if the message is not known."""
    message, attempts = await asyncio.gather(visit.result(visit.api.messages.get(*ids_of(visit))), _attempts(visit))
    if not isinstance(message, ApiError):
        return ShownMessage(message, attempts)
    if message.status == 404 and (old := await _remembered(visit)) is not None:
        return ShownMessage(_as_message(old), attempts, old)
    raise message


async def _attempts(visit: Visit) -> LoadedList[AttemptItem]:
    """A live part requests those that it has shown again only after a new one."""
    page, known = partial(visit.api.messages.attempts_page, *ids_of(visit)), visit.attempts
    if known.items:
        partition, offset = max((each["partition"], each["offset"]) for each in known.items)
        news = await visit.load_list(page(limit=1, behind=f"{partition}-{offset}"))
        if news.problem is None and not news.items:
            return known
    visit.attempts = found = await visit.load_list(page(limit=_MOST_ATTEMPTS))
    return found


async def _remembered(visit: Visit) -> MessageItem | None:
    """The history's record of a message that state and log have forgotten."""
    source_id, message_id = ids_of(visit)
    found = await visit.load_list(visit.api.messages.page(source=source_id, id=message_id))
    same = (each for each in found.items if (each["source_id"], each["message_id"]) == (source_id, message_id))
    return next(same, None)


def _as_message(item: MessageItem) -> MessageView:
    """The message of the history in the shape of one that the state knows."""
    unknown = dict.fromkeys(("next_attempt_at", "waiting_for", "advice", "answer", "callback"))
    deliveries = [{**each, **unknown} for each in item["deliveries"]]
    message = {**item, "at": None, "duplicate": False, "deliveries": deliveries}
    return convert(message, cast(type[MessageView], open_words(MessageView)))


async def _copies(visit: Visit) -> Sequence[MessageItem]:
    """The newest edited copies of the message, if there is a history."""
    source_id, message_id = ids_of(visit)
    prefix = copies_prefix(source_id, message_id)
    found = await visit.load_list(visit.api.messages.page(source=source_id, id=prefix, limit=_MOST_COPIES))
    return [each for each in found.items if each["message_id"].startswith(prefix)]


async def _conflicts(visit: Visit, names: Sequence[str]) -> Sequence[LetterView]:
    """Other messages with the same id, which were rejected for that. They are listed by the receiver that they name, if
    it is one: most likely one of this message."""
    receivers = sorted({"-", *names[:_MOST_NAMES]})
    letters = visit.api.failed.page(receiver=receivers, reason=("id_conflict",), limit=_MOST_LETTERS)
    found = await visit.load_list(letters)
    return [each for each in found.items if (each["source_id"], each["message_id"]) == ids_of(visit)]
