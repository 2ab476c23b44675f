"""`GET /v1/messages`, `.../attempts`, `.../payload` and `/v1/stats`: what happened, newest first."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from relay.api.access import is_admin, may_read, may_see_of
from relay.api.context import ApiContext
from relay.api.history.live_overlay import brought_up
from relay.api.history.payload import payload_response
from relay.api.history.query import (
    OF_COUNTS,
    OF_MESSAGES,
    Query,
    counts_asked,
    cursor_in,
    message_query,
    no_cursor,
    owner_in,
    place_in,
    receiver_in,
    source_in,
)
from relay.api.history.shapes import (
    AttemptItem,
    AttemptPage,
    MessageItem,
    MessagePage,
    attempt_item,
    counts_view,
    message_item,
    of_receiver,
)
from relay.api.history.visibility import Visibility
from relay.api.json_body import json_response
from relay.api.paging import limit_in
from relay.api.problems import NO_HISTORY, NOT_FOUND, Problem, invalid
from relay.api.reading import MESSAGE_PATH, flag_in, message_in_path, query_of
from relay.api.shares import Shares, caller_of
from relay.api.status import StatusReader
from relay.domain.attempt import AttemptKind
from relay.history.lag import Behind
from relay.history.port import AttemptFound, AttemptQuery, HistoryPage, HistoryReader, MessageFound, Visible

AT_RECEIVERS: Final[tuple[AttemptKind, ...]] = ("post", "status", "ping")
"""What is a matter of the receiver; how an answer comes back is one of its sender."""
MOST_COUNTS: Final = 20_000
"""Points of one answer."""

_NONE: Final = "This relay has no history: RELAY_HISTORY_URL says where there is one."

_KEPT: Final = {"header": "headers", "payload": "bodies"}
_KEPT_IF: Final = "(RELAY_HISTORY_BODIES is 0 for this process)."

MOST_SEARCHES: Final = 8
"""Of the history, at a time, in a process."""
AT_ONCE: Final = 50
"""Messages, or attempts, that are in memory as the history has them."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of JSON in one page, which ends early then."""

T = TypeVar("T")
Item = TypeVar("Item")


Handler = Callable[["HistoryResource", web.Request], Awaitable[web.Response]]


def _in_turn(handler: Handler) -> Handler:
    """A search of the history, when it is the turn of its caller."""

    @wraps(handler)
    async def handle(self: "HistoryResource", request: web.Request) -> web.Response:
        async with self.searches.turn(caller_of(request)):
            return await handler(self, request)

    return handle


class HistoryResource:
    """The routes; see the module's first lines. Without a history only payloads are shown, as the log has them."""

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._context = context
        self._reader = reader
        self.searches = Shares("search", "places for searches", MOST_SEARCHES, context.meter)
        self._sight = Visibility(context, reader, context.history)
        history = context.history
        self._behind = None if history is None else Behind(history, context.log, context.topics, context.clock)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/messages", self.messages)
        router.add_get(f"{MESSAGE_PATH}/attempts", self.of_message)
        router.add_get(f"{MESSAGE_PATH}/payload", self.payload)
        router.add_get("/v1/receivers/{name}/attempts", self.of_receiver)
        router.add_get(r"/v1/attempts/{partition:\d{1,9}}/{offset:\d{1,18}}", self.one)
        router.add_get("/v1/stats", self.counts)

    @_in_turn
    async def messages(self, request: web.Request) -> web.Response:
        """Of each, the deliveries that the caller may see."""
        query, history = query_of(request, *OF_MESSAGES), self._history()
        if not self._context.keeps_bodies:
            _refuse_search_in_bodies(query)
        visible = self._sight.visible(request, receiver_in(query), owner_in(query))
        if "header" in query:
            visible = self._sight.of_senders(request, visible)
        wanted = message_query(query, visible, self._context.clock.time())

        async def made(found: list[MessageFound]) -> list[MessageItem]:
            known = await brought_up(self._context.state, found, wanted)
            return [item for each in known if (item := _seen(request, each)) is not None]

        items, cursor = await _page(
            query, lambda limit, cursor: history.messages(wanted, limit=limit, cursor=cursor), made
        )
        behind_s = None if self._behind is None else await self._behind.seconds()
        return json_response(200, MessagePage(items=items, cursor=cursor, behind_s=behind_s))

    @_in_turn
    async def of_message(self, request: web.Request) -> web.Response:
        """All exchanges about it, or those with receivers of the caller's."""
        query, history = query_of(request, "receiver", "behind", "limit", "cursor"), self._history()
        identity, receiver, behind = message_in_path(request), receiver_in(query), place_in(query, "behind")
        if may_read(request, identity.source_id):
            page = await self._attempts(
                query, history, AttemptQuery(message=identity, receiver=receiver, behind=behind)
            )
            if not page["items"]:
                await self._sight.of_message(request, identity)
            return json_response(200, page)
        seen = await self._sight.of_message(request, identity)
        visible = self._sight.of_receivers(request, seen.receivers or ())
        wanted = AttemptQuery(visible, identity, receiver, AT_RECEIVERS, behind=behind)
        return json_response(200, await self._attempts(query, history, wanted))

    @_in_turn
    async def one(self, request: web.Request) -> web.Response:
        """An attempt that the caller may see, with all of its headers that are kept."""
        query_of(request)
        at = int(request.match_info["partition"]), int(request.match_info["offset"])
        page = await self._history().attempts(AttemptQuery(self._sight.visible(request), at=at), limit=1)
        if not page.items:
            raise Problem(NOT_FOUND, f"There is no attempt at {at[0]}/{at[1]} (any more) that you may see.")
        return json_response(200, attempt_item(page.items[0], whole=True))

    @_in_turn
    async def of_receiver(self, request: web.Request) -> web.Response:
        """All that was sent to it, and asked of it."""
        query, history = query_of(request, "failed", "limit", "cursor"), self._history()
        name, failed = request.match_info["name"], flag_in(query, "failed") if "failed" in query else None
        visible = Visible() if is_admin(request) else self._sight.of_receivers(request, {name})
        wanted = AttemptQuery(visible, receiver=name, kinds=AT_RECEIVERS, failed=failed)
        page = await self._attempts(query, history, wanted)
        directory = self._context.directory
        if not page["items"] and directory.receiver(name) is None and directory.refusal(name) is None:
            raise Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r}, and no attempt at one.")
        return json_response(200, page)

    async def payload(self, request: web.Request) -> web.Response:
        """As the sender gave it: from the log, else what the history kept of it."""
        query_of(request)
        identity = message_in_path(request)
        seen = await self._sight.of_message(request, identity)
        return await payload_response(self._context.log, identity, seen)

    @_in_turn
    async def counts(self, request: web.Request) -> web.Response:
        """Of POSTs, by minute or hour."""
        query, history = query_of(request, *OF_COUNTS), self._history()
        asked = counts_asked(query, self._context.clock.time())
        receiver, source_id = receiver_in(query), source_in(query)
        visible = self._sight.visible(request, receiver)
        found = await history.counted(
            asked.by,
            since=asked.since,
            until=asked.until,
            visible=visible,
            receiver=receiver,
            source_id=source_id,
            most=MOST_COUNTS + 1,
        )
        if len(found) > MOST_COUNTS:
            detail = f"that is more than {MOST_COUNTS} points: ask for less time, for one receiver, or for one source"
            raise invalid(detail, parameter="since")
        return json_response(200, counts_view(*asked, found))

    def _history(self) -> HistoryReader:
        if self._context.history is None:
            raise Problem(NO_HISTORY, _NONE)
        return self._context.history

    async def _attempts(self, query: Query, history: HistoryReader, wanted: AttemptQuery) -> AttemptPage:

        async def made(found: list[AttemptFound]) -> list[AttemptItem]:
            return [attempt_item(each) for each in found]

        items, cursor = await _page(
            query, lambda limit, cursor: history.attempts(wanted, limit=limit, cursor=cursor), made
        )
        return {"items": items, "cursor": cursor}


async def _page(
    query: Query,
    ask: Callable[[int, str | None], Awaitable[HistoryPage[T]]],
    made: Callable[[list[T]], Awaitable[list[Item]]],
) -> tuple[list[Item], str | None]:
    """What `made` shows of a page, and the cursor of the next one. A few are asked for at a time, as they may be large
    until they are made."""
    left, cursor = limit_in(query), cursor_in(query)
    items, size = list[Item](), 0
    while True:
        wanted = min(AT_ONCE, left)
        try:
            page = await ask(wanted, cursor)
        except ValueError:
            raise no_cursor() from None
        some, cursor = await made(page.items), page.cursor
        items += some
        size += len(msgspec.json.encode(some))
        left -= len(page.items)
        if cursor is None or left == 0 or len(page.items) < wanted or size >= MOST_BYTES:
            return items, cursor


def _refuse_search_in_bodies(query: Query) -> None:
    """Raises a Problem: it would find nothing, which reads as if there were nothing."""
    for name in ("header", "payload"):
        if name in query:
            raise invalid(f"{name} finds nothing here: this history keeps no {_KEPT[name]} {_KEPT_IF}", parameter=name)


def _seen(request: web.Request, found: MessageFound) -> MessageItem | None:
    """As the caller may see it; None where that is nothing. Judged by the message itself, whatever was asked for."""
    if may_read(request, found.arrival.message.source_id):
        return message_item(found.arrival, found.deliveries)
    at, deliveries = found.arrival.at, found.deliveries
    own = [of_receiver(each) for each in deliveries if may_see_of(request, each.receiver, each.life, at)]
    return message_item(found.arrival, own) if own else None
