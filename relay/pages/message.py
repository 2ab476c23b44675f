"""One message: its round trip as a live timeline, its payload, and the actions on it."""

import asyncio
import re
from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from relay.pages.api_client import ApiProblem, path
from relay.pages.page import Page, PageRoutes
from relay.pages.payload_view import body_text, curl, shown
from relay.pages.round_trip import WIDTH, Trip, moment, stations, took, trips_of
from relay.pages.visit import Loaded, Visit

_MOST_ATTEMPTS: Final = "200"
_MOST_LETTERS: Final = "200"
_PAYLOAD_HEADERS: Final = ("Content-Type", "Content-Disposition")
_IN_FRONT: Final = re.compile(r"message ('.*'|\".*\") of source ('.*'|\".*\") comes first", re.DOTALL)
_SANDBOX: Final = {"Content-Security-Policy": "sandbox; default-src 'none'"}
_OF_MESSAGE: Final = "/v1/sources/{}/messages/{}"


class ShownMessage(NamedTuple):
    """A message as the API shows it now. `attempts`: newest first; with a `problem` where they are not known.
    `is_old`: only the history knows it any more."""

    message: Mapping[str, Any]
    attempts: Loaded[Any]
    is_old: bool


class Mend(NamedTuple):
    """A remedy that a page offers: a call of the API, or with an empty `method` the page at `path`."""

    label: str
    method: str
    path: str


class MessageDetailPage(Page):
    """The page, its live part, and the payload as a download."""

    def add_routes(self, routes: PageRoutes) -> None:
        routes.get("/messages/{source:[^/]+}/{message:[^/]+}", self.show)
        routes.get("/messages/{source:[^/]+}/{message:[^/]+}/payload", self.payload)
        routes.get(r"/attempts/{partition:\d+}/{offset:\d+}", self.attempt)
        routes.live("/live/messages/{source:[^/]+}/{message:[^/]+}", self.timeline)

    async def show(self, visit: Visit) -> web.StreamResponse:
        source_id, message_id = _ids(visit)
        try:
            seen, body, conflicts = await asyncio.gather(_look(visit), visit.load(_payload(visit)), _conflicts(visit))
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            return visit.show("message_unknown.html", status=404, source=source_id, id=message_id, problem=problem)
        payload = body.value
        receivers = [each["receiver"] for each in seen.message["deliveries"]]
        again = curl(
            str(visit.request.url.origin()),
            *(source_id, message_id, seen.message["type"], seen.message.get("content_type")),
            receivers,
            payload,
        )
        return visit.show(
            "message.html",
            body=body,
            shown=None if payload is None else shown(payload, visit.request.query.get("body")),
            again=again,
            conflicts=conflicts,
            here=path("/ui/messages/{}/{}", source_id, message_id),
            live=path("/ui/live/messages/{}/{}", source_id, message_id),
            **_drawn(visit, seen),
        )

    async def timeline(self, visit: Visit) -> str:
        return visit.fragment("message_line.html", **_drawn(visit, await _look(visit)))

    async def attempt(self, visit: Visit) -> web.StreamResponse:
        """One exchange, with the headers that a list leaves out."""
        found = await visit.api.get(path("/v1/attempts/{}/{}", visit.part("partition"), visit.part("offset")))
        return visit.show("attempt.html", each=found, body_text=body_text)

    async def payload(self, visit: Visit) -> web.StreamResponse:
        """As the sender gave it, as a download: its content never runs."""
        answer = await visit.api.call("GET", path(f"{_OF_MESSAGE}/payload", *_ids(visit)))
        headers = {name: answer.headers[name] for name in _PAYLOAD_HEADERS if name in answer.headers}
        return web.Response(body=answer.body, headers={"Content-Disposition": "attachment"} | headers | _SANDBOX)


def _drawn(visit: Visit, seen: ShownMessage) -> dict[str, Any]:
    """What the timeline's template gets."""
    message = seen.message
    trips = trips_of(message, seen.attempts.items, visit.renderer.now())
    return {
        "seen": seen,
        "message": message,
        "trips": trips,
        "took_s": took(trips, moment(message["received_at"])),
        "width": WIDTH,
        "stations": stations,
        "mends": lambda trip: mends(message, trip),
        "body_text": body_text,
    }


def mends(message: Mapping[str, Any], trip: Trip) -> Sequence[Mend]:
    """What mends the cause of a wait, the nearest first; an empty `method` is a page."""
    wait, receiver = trip.view["waiting_for"], path("/ui/receivers/{}", trip.receiver)
    at = path("/v1/receivers/{}", trip.receiver)
    settings = Mend(f"Settings of {trip.receiver}", "", receiver)
    if wait is None:
        return [settings]
    match wait["kind"]:
        case "paused":
            return [Mend(f"Resume {trip.receiver}", "POST", f"{at}/resume"), settings]
        case "verification":
            return [Mend(f"Verify {trip.receiver}", "POST", f"{at}/verify"), settings]
        case "order":
            front = in_front(wait["detail"])
            return [settings] if front is None else [Mend("See the message in front", "", front), settings]
        case "no_worker":
            return [Mend("See who works", "", "/ui/workers?served=false"), settings]
        case "callback":
            return [Mend(f"Source {message['source_id']}", "", path("/ui/messages?source={}", message["source_id"]))]
    return [settings]


def in_front(detail: str) -> str | None:
    """The page of the message that comes first, as the words of a wait name it."""
    found = _IN_FRONT.search(detail)
    return None if found is None else path("/ui/messages/{}/{}", literal_eval(found[2]), literal_eval(found[1]))


def _ids(visit: Visit) -> tuple[str, str]:
    return visit.part("source"), visit.part("message")


async def _look(visit: Visit) -> ShownMessage:
    """Raises ApiProblem if the message is not known."""
    ids = _ids(visit)
    message, attempts = await asyncio.gather(visit.result(visit.api.get(path(_OF_MESSAGE, *ids))), _attempts(visit))
    if not isinstance(message, ApiProblem):
        return ShownMessage(message, attempts, is_old=False)
    if message.status == 404 and (old := await _remembered(visit, *ids)) is not None:
        return ShownMessage(old, attempts, is_old=True)
    raise message


async def _attempts(visit: Visit) -> Loaded[Any]:
    """Those that a live part knows already are not asked for again until there is a new one."""
    target, known = path(f"{_OF_MESSAGE}/attempts", *_ids(visit)), visit.kept.get("attempts", Loaded())
    if known.items:
        partition, offset = max((each["partition"], each["offset"]) for each in known.items)
        news = await visit.load(visit.api.get(target, {"limit": "1", "behind": f"{partition}-{offset}"}))
        if news.problem is None and not news.items:
            return known
    visit.kept["attempts"] = found = await visit.load(visit.api.get(target, {"limit": _MOST_ATTEMPTS}))
    return found


async def _remembered(visit: Visit, source_id: str, message_id: str) -> Mapping[str, Any] | None:
    """What the history has of a message that state and log have forgotten, in the shape of one that they know."""
    found = await visit.load(visit.api.get("/v1/messages", {"source": source_id, "id": message_id}))
    same = (each for each in found.items if (each["source_id"], each["message_id"]) == (source_id, message_id))
    if (message := next(same, None)) is None:
        return None
    unknown = {"next_attempt_at": None, "waiting_for": None, "answer": None, "callback": None, "at": None}
    return {**message, "deliveries": [{**unknown, **each} for each in message["deliveries"]]}


async def _payload(visit: Visit) -> bytes:
    return (await visit.api.call("GET", path(f"{_OF_MESSAGE}/payload", *_ids(visit)))).body


async def _conflicts(visit: Visit) -> Sequence[Mapping[str, Any]]:
    """Other messages that came with the same id, and were refused for that."""
    letters = await visit.load(visit.api.get("/v1/failed", {"receiver": "-", "limit": _MOST_LETTERS}))
    return [
        each
        for each in letters.items
        if each["reason"] == "id_conflict" and (each["source_id"], each["message_id"]) == _ids(visit)
    ]
