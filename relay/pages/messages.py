"""The list of messages: filtered by its URL, followed live, opened in a drawer, exported, and replayed by selection."""

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

import msgspec
from aiohttp import web
from yarl import URL

from relay.client import ApiError
from relay.client.http import path
from relay.client.resources import MessageFilters
from relay.client.sse import ServerSentEvent
from relay.domain.identity import PROBE
from relay.domain.reasons import REASONS
from relay.domain.state import STATES, STORED, State, label_of
from relay.pages.charts import chart_of
from relay.pages.page import get, live, post
from relay.pages.render import choices, moment_of
from relay.pages.visit import LoadedList, NoteKind, Visit, own_url, problem
from relay.schema.messages import DeliveryItem, MessageItem, MessagePage, WaitView

HERE: Final = "/ui/messages"
LOOKED_INTO: Final = frozenset({"header", "payload"})
"""Filters that read through bodies: too much to be done again each second."""
PRESETS: Final = (("15m", "15 minutes"), ("1h", "Last hour"), ("24h", "24 hours"), ("7d", "7 days"), ("", "All"))
_LIMIT: Final = 50
_MOST_PICKED: Final = 200
_LOCAL: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?")
"""The format of a browser's field for date and time; its values are in UTC."""
_NOT_FOLLOWED: Final = "A search in headers or payloads reads all bodies each time: reload the page instead."
_UNFINISHED: Final = frozenset({"arrived", "delivered_to_receiver"})
_MOST_SHOWN: Final = 3
"""Receivers of a message that a row names; of the others it has the number."""


FILTERS: Final = tuple(MessageFilters.__annotations__)
CHIPS: Final = {"id": "id begins with", "payload": "payload has"}
"""Names of filters on their chips, if not the parameter's own."""


class Chip(NamedTuple):
    """A filter that applies. `without`: the page without it."""

    name: str
    value: str
    without: str


class ListedRow(NamedTuple):
    """A message as a row of the list. `wait`, `reason`: of the delivery that gives it its state. `shown`: its most
    urgent deliveries; `more`: the number of the others. `key` identifies the row; `pick`: the value of its box, empty
    if nothing can be replayed. `next_at`: of its next attempt, Unix seconds; `is_due`: that time has passed."""

    item: MessageItem
    href: str
    key: str
    pick: str
    wait: WaitView | None
    reason: str | None
    shown: Sequence[DeliveryItem]
    more: int
    attempts: int
    last_status: int | None
    next_at: float | None
    is_due: bool


class Picked(NamedTuple):
    """One delivery of a list. `delivered`: it did not fail."""

    source_id: str
    message_id: str
    receiver: str
    delivered: bool


@get("/messages")
async def messages(visit: Visit) -> web.StreamResponse:
    query = _filters(visit)
    found = (await visit.load_list(_page(visit))).without(_is_left_out(query))
    can_follow = LOOKED_INTO.isdisjoint(query)
    live = can_follow and bool(visit.request.query.get("live")) and "cursor" not in visit.request.query
    return visit.show(
        "messages.html",
        found=found,
        rows=rows_of(found.items, visit.renderer.now()),
        asked={name: query.get(name, "") for name in FILTERS},
        chips=chips(visit, query),
        live=live,
        can_follow=can_follow,
        url_with=partial(url_with, visit),
        part=partial(part_url, visit),
        presets=[(text, url_with(visit, since=since or None, until=None), since) for since, text in PRESETS],
        states=[("", "Any"), *((state, label_of(state).word) for state in STORED)],
        reasons=choices(tuple(REASONS)),
    )


@get("/messages/chart")
async def chart(visit: Visit) -> web.StreamResponse:
    """The attempts of the range by the class of their responses. Sums of the history, whatever the filters."""
    return visit.show("messages_chart.html", **await chart_of(visit, visit.filters(*FILTERS), partial(part_url, visit)))


@get("/messages/export")
async def export(visit: Visit) -> web.StreamResponse:
    """All messages that the filters match, as a file."""
    kind = visit.request.query.get("format", "csv")
    if kind not in FORMATS:
        raise problem(400, "invalid-request", "There is no such format", f"Known: {', '.join(FORMATS)}.")
    query = _moments(_filters(visit))
    return await export_of(visit, kind, partial(visit.api.messages.page, **query))


@get("/messages/find")
async def find(visit: Visit) -> web.StreamResponse:
    """The page of the message with this source and id: that needs no history."""
    wanted = visit.filters("source", "id")
    if len(wanted) < 2:
        return visit.back(HERE, "Give the exact source and id of the message.", "bad")
    return visit.back(path("/ui/messages/{}/{}", wanted["source"], wanted["id"]))


@post("/messages/replay")
async def replay(visit: Visit) -> web.StreamResponse:
    """Replays the selected deliveries, after a page that lists them."""
    posted = await visit.form()
    texts = [value for name, value in await visit.fields() if name == "pick"]
    picked = [one for text in texts for one in _picked(text)]
    back = own_url(posted.get("back", HERE))
    if not picked:
        return visit.back(back, "Select some messages first.", "bad")
    if len(picked) > _MOST_PICKED:
        return visit.back(
            back, f"At most {_MOST_PICKED} deliveries at once. The page Failed replays any number.", "bad"
        )
    if not posted.get("confirmed"):
        return visit.show("messages_replay.html", picked=picked, texts=texts, back=back)
    chosen = [one for one in picked if posted.get("also") or not one.delivered]
    return visit.back(back, *await _replayed(visit, chosen))


def _events(visit: Visit) -> AsyncIterator[ServerSentEvent]:
    """Filtered as the live tail can for all events: the message type of an attempt may be unknown."""
    query = _filters(visit)
    return visit.api.tail(sources=_some(query.get("source")), receivers=_some(query.get("receiver")))


@live("/live/messages", tail=_events)
async def live_rows(visit: Visit) -> str:
    query = _filters(visit)
    if not LOOKED_INTO.isdisjoint(query):
        raise problem(400, "invalid-request", "This cannot be followed", _NOT_FOLLOWED)
    found = LoadedList(await _page(visit)).without(_is_left_out(query))
    return visit.fragment("messages_rows.html", rows=rows_of(found.items, visit.renderer.now()))


def _some(text: str | None) -> Sequence[str]:
    return () if text is None else (text,)


def _filters(visit: Visit) -> MessageFilters:
    return cast(MessageFilters, visit.filters(*FILTERS))


async def _page(visit: Visit) -> MessagePage:
    return await visit.api.messages.page(**_moments(_filters(visit)), limit=_LIMIT, cursor=visit.cursor)


def _is_left_out(query: MessageFilters) -> Callable[[MessageItem], bool]:
    """The relay's own messages are listed only if they are searched for."""
    return lambda item: item["source_id"] == PROBE and query.get("source") != PROBE


def _moments(query: MessageFilters) -> MessageFilters:
    """The filters with times as the API takes them."""
    for end in ("since", "until"):
        given = query.get(end)
        if isinstance(given, str) and _LOCAL.fullmatch(given):
            query[end] = f"{given}Z"
    return query


def url_with(visit: Visit, **changes: str | None) -> str:
    """The first page of the list with other parameters, and without an open drawer."""
    return visit.url_with(**{"open": None, "cursor": None, **changes})


def part_url(visit: Visit, part: str = "", **changes: str | None) -> str:
    """The list, or a part of it, with the filters of this page."""
    query = {name: text for name, text in {**visit.filters(*FILTERS), **changes}.items() if text}
    return str(URL(f"{HERE}/{part}" if part else HERE).with_query(query))


def chips(visit: Visit, query: MessageFilters) -> list[Chip]:
    """All filters but the range, which has a menu of its own."""
    given = cast(dict[str, str], query)
    return [
        Chip(CHIPS.get(name, name), given[name], url_with(visit, **{name: None}))
        for name in FILTERS
        if name in given and name not in ("since", "until")
    ]


def rows_of(items: Sequence[MessageItem], now: float) -> list[ListedRow]:
    """`now`: Unix seconds."""
    return [_row(item, now) for item in items]


def _row(item: MessageItem, now: float) -> ListedRow:
    deliveries = sorted(item["deliveries"], key=lambda each: _rank(each["state"]))
    first = deliveries[0] if deliveries else None
    statuses = {each["last_status"] for each in deliveries if each["last_status"]}
    times = [at.timestamp() for each in deliveries if (at := moment_of(each["next_attempt_at"])) is not None]
    return ListedRow(
        item,
        path("/ui/messages/{}/{}", item["source_id"], item["message_id"]),
        f"{item['source_id']}\n{item['message_id']}",
        _pick(item),
        None if first is None else first["waiting_for"],
        None if first is None else first["reason"],
        deliveries[:_MOST_SHOWN],
        len(deliveries[_MOST_SHOWN:]),
        sum(each["attempts"] for each in deliveries),
        max(statuses, default=None),
        min(times, default=None),
        is_due=bool(times) and min(times) <= now,
    )


def _rank(state: State) -> int:
    """The place of a delivery among those of its message; that of a state of a newer relay is the last."""
    return STATES.index(state) if state in STATES else len(STATES)


async def _replayed(visit: Visit, chosen: Sequence[Picked]) -> tuple[str, NoteKind]:
    """The result of a replay, in words."""
    replay = visit.api.messages.replay
    results = await asyncio.gather(*(visit.result(replay(*one[:3], only_failed=not one.delivered)) for one in chosen))
    both = zip(chosen, results, strict=True)
    refused = [f"{one.message_id}: {result.detail}" for one, result in both if isinstance(result, ApiError)]
    sent = len(chosen) - len(refused)
    text = f"{sent} {'delivery is' if sent == 1 else 'deliveries are'} on the way again."
    if not refused:
        return text, "good"
    return f"{text} {len(refused)} not: {'; '.join(refused[:3])}", "bad"


def _pick(item: MessageItem) -> str:
    """The value of a row's checkbox: the deliveries of the message that can be replayed; empty for none."""
    over = [each for each in item["deliveries"] if each["status"] not in _UNFINISHED]
    if not over:
        return ""
    return json.dumps(
        [item["source_id"], item["message_id"], *([one["receiver"], one["status"] != "failed"] for one in over)]
    )


def _picked(text: str) -> list[Picked]:
    """The deliveries in the value of such a box; none if it has another form."""
    try:
        source_id, message_id, *over = json.loads(text)
        return [Picked(str(source_id), str(message_id), str(name), bool(delivered)) for name, delivered in over]
    except (ValueError, TypeError, RecursionError):
        return []


# --- exports: page by page, so that memory does not depend on the number of messages ------------------------------


_EXPORTED_AT_ONCE: Final = 500
"""Messages of a request to the API."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters with which a spreadsheet takes a text for a formula."""
_COLUMNS: Final = (
    *("received_at", "source_id", "message_id", "webhook_id", "type", "size", "content_type", "status", "state"),
    *("receiver", "delivery_status", "delivery_state", "generation", "attempts", "last_status", "reason", "detail"),
    *("updated_at", "preview"),
)
_EXPORT_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Accel-Buffering": "no",
}

Lines = Callable[[Iterable[MessageItem]], str]


def safe_cell(text: str) -> str:
    """A cell that no spreadsheet evaluates: `text`, with an apostrophe before the beginning of a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_rows(items: Iterable[MessageItem]) -> str:
    """A row for each delivery; one for a message without any."""
    out = io.StringIO()
    writer = csv.writer(out)
    for item in items:
        for cells in _cells(item):
            writer.writerow([safe_cell("" if value is None else str(value)) for value in cells])
    return out.getvalue()


def _cells(item: MessageItem) -> Iterator[list[object]]:
    deliveries: list[Mapping[str, object]] = [*item["deliveries"]]
    for each in deliveries or [{}]:
        how = {"delivery_status": each.get("status"), "delivery_state": each.get("state")}
        one: Mapping[str, object] = {**each, **how, **item}
        yield [one.get(name) for name in _COLUMNS]


def ndjson_rows(items: Iterable[MessageItem]) -> str:
    """A line for each message, as `GET /v1/messages` returns it."""
    return "".join(msgspec.json.encode(item).decode() + "\n" for item in items)


FORMATS: Final[Mapping[str, tuple[str, str, Lines]]] = {
    "csv": ("text/csv", ",".join(_COLUMNS) + "\r\n", csv_rows),
    "ndjson": ("application/x-ndjson", "", ndjson_rows),
}
"""Content type, first line and encoder of each."""


async def export_of(visit: Visit, kind: str, ask: Callable[..., Awaitable[MessagePage]]) -> web.StreamResponse:
    """The response with all items. `ask`: one page, by `limit` and `cursor`. It is aborted if the API refuses a later
    page, so that the browser reports a failed download instead of a complete one. Raises ApiError for the first
    page."""
    content_type, head, lines = FORMATS[kind]
    page = await ask(limit=_EXPORTED_AT_ONCE, cursor=None)
    disposition = f'attachment; filename="messages.{kind}"'
    headers = {"Content-Type": f"{content_type}; charset=utf-8", "Content-Disposition": disposition, **_EXPORT_HEADERS}
    response = web.StreamResponse(headers=headers)
    await response.prepare(visit.request)
    await response.write(head.encode())
    while True:
        await response.write(lines(page["items"]).encode(errors="replace"))
        if page["cursor"] is None:
            await response.write_eof()
            return response
        following = await visit.result(ask(limit=_EXPORTED_AT_ONCE, cursor=page["cursor"]))
        if isinstance(following, ApiError):
            if visit.request.transport is not None:
                visit.request.transport.abort()
            return response
        page = following
