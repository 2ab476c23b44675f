"""The routes of the history: `GET /v1/messages`, `.../attempts`, `.../payload` and `/v1/stats`."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Annotated, Final

from aiohttp import web

from relay.api.access import LETTERS, MESSAGE, READ, RECEIVER, Need, is_admin, may_read
from relay.api.bounds import bounds_of
from relay.api.context import ApiContext
from relay.api.history.payload import PAYLOAD, payload_response
from relay.api.history.query import (
    BehindAttempt,
    CountFilter,
    Cursor,
    Failed,
    MessageFilter,
    page_of,
)
from relay.api.history.shapes import answered_by, attempt_item, counts_view, with_live
from relay.api.history.visibility import Visibility, kept_from, seen_message
from relay.api.parameter import PageLimit, Parameter, Partition, ReceiverName
from relay.api.problems import NO_HISTORY, NOT_FOUND, PAYLOAD_GONE, Problem, invalid
from relay.api.reading import message_in_path
from relay.api.route import Declare, Example, Handler, route
from relay.api.shares import Shares, sharer_of
from relay.api.status import StatusReader
from relay.domain.attempt import OF_SENDER, AttemptKind
from relay.history.lag import Behind
from relay.history.port import AttemptFound, AttemptQuery, HistoryReader, MessageFound, MessageQuery, Visible
from relay.schema.attempts import AttemptItem, AttemptPage
from relay.schema.messages import MessageItem, MessagePage
from relay.schema.statistics import CountsView

AT_RECEIVERS: Final[tuple[AttemptKind, ...]] = ("post", "status", "ping")
"""Attempts that concern the receiver; callbacks concern the sender."""
MOST_COUNTS: Final = 20_000
"""Points of one answer."""


MOST_SEARCHES: Final = 8
"""Searches at a time in a process."""
MOST_SOURCES: Final = 1_000
"""Sources that the search for a state names, at most."""


def history_of(context: ApiContext) -> HistoryReader:
    """Raises a Problem if there is none."""
    if context.history is None:
        raise Problem(NO_HISTORY, "This relay has no history: RELAY_HISTORY_URL says where there is one.")
    return context.history


def _search(
    path: str, *, scope: Need, example: Example | None = None, answer: str = "A page, newest first."
) -> Declare:
    """The route of a GET that searches the history once it is its caller's turn."""

    def declare(method: Callable[..., Awaitable[object]]) -> Handler:
        handler = route("GET", path, scope=scope, answer=answer, problems=(NO_HISTORY,), example=example)(method)

        @wraps(handler)
        async def handle(self: "HistoryResource", request: web.Request) -> web.StreamResponse:
            async with self.searches.turn(sharer_of(request), bounds_of(request).check_again):
                return await handler(self, request)

        return handle

    return declare


InPartition = Annotated[int, Parameter("partition", Partition, "Partition of `delivery_attempts`.", "path", sample="0")]


class HistoryResource:
    """The routes. Without a history only payloads are available, from the log."""

    noun = "history"

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._context = context
        self._reader = reader
        self.searches = Shares("search", "places for searches", MOST_SEARCHES, context.meter)
        self._visibility = Visibility(context, reader)
        history = context.history
        self._behind = None if history is None else Behind(history, context.log, context.topics, context.clock)

    @_search(
        "/v1/messages", scope=LETTERS, example=Example(200, query={"source": "github", "since": "1h", "limit": "10"})
    )
    async def list_messages(
        self, request: web.Request, asked: MessageFilter, limit: PageLimit, cursor: Cursor
    ) -> MessagePage:
        """Messages that came, and how far their deliveries are.

        All that is given has to be met; `receiver`, `status`, `state` and `reason` by one and the same delivery that
        the caller may see. The history does not store what blocks a delivery: `blocked` ones are found as `queued`,
        `retrying` or `awaiting_answer`. The list follows the topics: `behind_s` says how closely. Of what came more
        than `RELAY_HISTORY_RETENTION` ago nothing is listed.
        """
        history = history_of(self._context)
        if not self._context.keeps_bodies:
            asked.check_bodies_are_kept()
        visible = self._visibility.visible(request, asked.receiver, asked.owner)
        if asked.header is not None:
            visible = self._visibility.of_senders(request, visible)
        if asked.payload is not None:
            visible = self._visibility.of_payloads(visible)
        wanted = self._answered_by(asked.query(visible, self._context.clock.time()))

        async def made(found: list[MessageFound]) -> list[MessageItem]:
            known = await with_live(self._reader, found, wanted, self._context.clock.time())
            return [
                item for each in known if (item := seen_message(request, each, self._context.directory)) is not None
            ]

        items, following = await page_of(limit, cursor, partial(history.messages, wanted), made)
        behind_s = None if self._behind is None else await self._behind.seconds()
        return MessagePage(items=items, cursor=following, behind_s=behind_s)

    @_search("/v1/sources/{source_id}/messages/{message_id}/attempts", scope=MESSAGE, example=Example(200))
    async def list_attempts(
        self,
        request: web.Request,
        receiver: Annotated[ReceiverName | None, "Only about the delivery to this receiver."],
        behind: BehindAttempt,
        limit: PageLimit,
        cursor: Cursor,
    ) -> AttemptPage:
        """List the attempts of a message.

        These are POSTs, status GETs and, for callers that may read the source, callbacks.
        """
        history = history_of(self._context)
        identity = message_in_path(request)
        if may_read(request, identity.source_id):
            wanted = AttemptQuery(message=identity, receiver=receiver, behind=behind)
            page = await self._attempts(history, wanted, limit, cursor)
            if not page["items"]:
                await self._visibility.of_message(request, identity)
            return page
        seen = await self._visibility.of_message(request, identity)
        visible = self._visibility.of_receivers(request, seen.receivers or ())
        wanted = AttemptQuery(visible, identity, receiver, AT_RECEIVERS, behind=behind)
        return await self._attempts(history, wanted, limit, cursor)

    @_search("/v1/attempts/{partition}/{offset}", scope=LETTERS, answer="The attempt.")
    async def get_attempt(self, request: web.Request, partition: InPartition, offset: int) -> AttemptItem:
        """Get an attempt with all its stored headers."""
        at = partition, offset
        page = await history_of(self._context).attempts(AttemptQuery(self._visibility.visible(request), at=at), limit=1)
        if not page.items:
            raise Problem(NOT_FOUND, f"There is no attempt at {partition}/{offset} (any more) that you may see.")
        return attempt_item(page.items[0], whole=True)

    @_search(
        "/v1/receivers/{name}/attempts", scope=RECEIVER, example=Example(200, query={"failed": "true", "limit": "10"})
    )
    async def list_receiver_attempts(
        self, request: web.Request, name: str, failed: Failed, limit: PageLimit, cursor: Cursor
    ) -> AttemptPage:
        """List the attempts at a receiver."""
        history = history_of(self._context)
        visible = Visible() if is_admin(request) else self._visibility.of_receivers(request, {name})
        wanted = AttemptQuery(visible, receiver=name, kinds=AT_RECEIVERS, failed=failed)
        page = await self._attempts(history, wanted, limit, cursor)
        if not page["items"] and not self._context.has_receiver(name):
            raise Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r}, and no attempt at one.")
        return page

    @_search(
        "/v1/sources/{source_id}/callback/attempts",
        scope=READ,
        example=Example(200, path={"source_id": "calls"}, query={"failed": "true", "limit": "10"}),
    )
    async def list_callback_attempts(
        self, source_id: str, failed: Failed, limit: PageLimit, cursor: Cursor
    ) -> AttemptPage:
        """List the attempts at the callback of a source."""
        history = history_of(self._context)
        # the query reads a `*` at the end of an id as a pattern, so attempts of other sources are dropped from the page
        wanted = AttemptQuery(Visible(sources=(source_id,)), kinds=OF_SENDER, failed=failed)
        page = await self._attempts(history, wanted, limit, cursor)
        page["items"] = [item for item in page["items"] if item["source_id"] == source_id]
        return page

    @route(
        "GET",
        "/v1/sources/{source_id}/messages/{message_id}/payload",
        scope=MESSAGE,
        answers=(PAYLOAD,),
        problems=(PAYLOAD_GONE,),
    )
    async def get_payload(self, request: web.Request) -> web.Response:
        """Get the payload of a message, as its sender gave it.

        It is read from the log. If the record is gone, it is the part that the history stores. It works without a
        history, too.
        """
        identity = message_in_path(request)
        seen = await self._visibility.of_message(request, identity)
        if seen.receivers is not None and all(kept_from(self._context.directory, name) for name in seen.receivers):
            raise Problem(
                PAYLOAD_GONE,
                "Its receiver gets it encrypted, or not at all; only callers that may read the source can see it.",
            )
        return await payload_response(self._context.log, identity, seen)

    @_search(
        "/v1/stats", scope=LETTERS, example=Example(200, query={"by": "minute", "since": "1h"}), answer="The counts."
    )
    async def get_stats(
        self, request: web.Request, asked: CountFilter, sums: Annotated[bool, "Return only the sums, without `series`."]
    ) -> CountsView:
        """Count attempts by receiver and source, over time.

        By `minute` for a day at most, by default the last hour; by `hour` for 31 days at most, by default the last 24
        hours. At most 20,000 points.
        """
        history = history_of(self._context)
        visible = self._visibility.visible(request, asked.receiver)
        wanted = asked.query(visible, self._context.clock.time())
        found = await history.counted(wanted, most=MOST_COUNTS + 1)
        if len(found) > MOST_COUNTS:
            detail = f"that is more than {MOST_COUNTS} points: ask for less time, for one receiver, or for one source"
            raise invalid(detail, parameter="since")
        return counts_view(wanted.by, wanted.since, wanted.until, found, with_series=not sums)

    def _answered_by(self, wanted: MessageQuery) -> MessageQuery:
        """The query with the sources whose answered deliveries are in its state. Raises a Problem if they are too
        many."""
        directory, registry = self._context.directory, self._context.registry
        sources = registry.sources()
        if wanted.source_id is not None:
            sources = {wanted.source_id: directory.source(wanted.source_id)}
        found = answered_by(wanted.state, sources, directory.source("*"))
        if len(found.names) > MOST_SOURCES:
            raise invalid(f"more than {MOST_SOURCES} sources are to be searched: give one of them", parameter="state")
        return replace(wanted, answered_by=found)

    async def _attempts(
        self, history: HistoryReader, wanted: AttemptQuery, limit: int, cursor: str | None
    ) -> AttemptPage:
        async def made(found: list[AttemptFound]) -> list[AttemptItem]:
            return [attempt_item(each) for each in found]

        items, following = await page_of(limit, cursor, partial(history.attempts, wanted), made)
        return {"items": items, "cursor": following}
