"""`GET /v1/tail`: events as they happen, as server-sent events."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final, NamedTuple

from aiohttp import web
from msgspec import Meta

from relay.api.access import LETTERS, access_of, check_own, forbidden, may_read, may_see_of
from relay.api.bounds import RightsCheck
from relay.api.connection import on_loss
from relay.api.context import ApiContext
from relay.api.history.query import TypePattern, type_in
from relay.api.parameter import Parameter, SourceId, receiver_name_in
from relay.api.problems import Problem
from relay.api.route import Body, DocumentedResponse, Example, route
from relay.api.shares import sharer_of
from relay.api.tail.event import TailedEvent, encoded_event
from relay.api.tail.tail import Tail, TailQueue
from relay.domain.hop import NO_RECEIVER
from relay.domain.text import matches
from relay.schema.streams import TailEvent

EVENT_STREAM: Final = "text/event-stream"
ALIVE_S: Final = 15.0
"""Between two comments in a silent stream: proxies close one that is silent for longer."""
_HEADERS: Final = {"Content-Type": EVENT_STREAM, "X-Accel-Buffering": "no"}
_AGAIN: Final = b"retry: 1000\n\n"
"""Milliseconds after which a browser comes back."""
_ALIVE: Final = b": alive\n\n"


_Receiver = Annotated[str, Meta(pattern="^(-|[a-z0-9][a-z0-9-]{0,62})$")]
_RECEIVER: Final = Parameter(
    "receiver",
    list[_Receiver],
    "Only events about these receivers; `-` selects messages without a receiver.",
    parse=lambda text: text if text == NO_RECEIVER else receiver_name_in(text),
)
_TYPE: Final = Parameter(
    "type", list[TypePattern], "Only events of these types; a trailing `*` matches any ending.", parse=type_in
)


class TailFilter(NamedTuple):
    """An empty list matches everything."""

    source: Annotated[list[SourceId], "Only events of these sources."]
    receiver: Annotated[list[str], _RECEIVER]
    type: Annotated[list[str], _TYPE]
    failed: Annotated[bool, "Only failures."]

    def takes(self, event: TailedEvent) -> bool:
        name = event.event_type
        return (
            (not self.source or event.source_id in self.source)
            and (not self.receiver or not set(self.receiver).isdisjoint(event.receivers or (NO_RECEIVER,)))
            and (not self.type or (name is not None and any(matches(pattern, name) for pattern in self.type)))
            and (event.failed or not self.failed)
        )


class TailResource:
    """The route. A listener is one request, which ends when the client hangs up or loses its rights, after `listen_s`,
    or when the server stops."""

    noun = "live tail"

    def __init__(self, context: ApiContext, tail: Tail) -> None:
        self._limits = context.limits
        self._tail = tail

    @route(
        "GET",
        "/v1/tail",
        scope=LETTERS,
        answers=(DocumentedResponse(200, "The events.", Body({EVENT_STREAM: TailEvent})),),
        example=Example(200, query={"source": "github"}),
    )
    async def tail(self, request: web.Request, wanted: TailFilter) -> web.StreamResponse:
        """Events as they happen.

        Server-sent events with JSON as data. `message`: a message was received, with its receivers. `attempt`: a
        request was made for one, with its response. `answer`: an answer is on its way to the sender. `failed`: a dead
        letter, as in `GET /v1/failed`. `listening`: events are streamed from now on; `away`: the log does not answer,
        so there are no events; `skipped`: `count` records, or events, were dropped because there were too many, or the
        client read too slowly; `ended`: the client lost its rights, and `detail` says why. The stream ends seconds
        after the key or session does, and after 15 minutes; then connect again. No event is sent twice, and those in
        between are lost. Keys of sources see all events of these; keys of receivers those about them, but no request
        to a sender.
        """
        _check_wanted(request, wanted.source, wanted.receiver)
        if request.method == "HEAD":
            return web.Response(headers=_HEADERS)

        def shown(event: TailedEvent) -> TailedEvent | None:
            seen = _seen(request, event)
            return seen if seen is not None and wanted.takes(seen) else None

        with self._tail.listen(sharer_of(request), shown) as place, on_loss(request, place.close):
            response = web.StreamResponse(headers=_HEADERS)
            with suppress(ConnectionError):  # the client has hung up, or read nothing for too long
                await response.prepare(request)
                await self._write(response, place, RightsCheck(request))
        return response

    async def _write(self, response: web.StreamResponse, place: TailQueue, rights: RightsCheck) -> None:
        """Write queued events. `rights`: checked before the next event is written."""
        clock = asyncio.get_running_loop().time
        now = clock()
        until, alive = now + self._limits.listen_s, now + ALIVE_S
        await response.write(_AGAIN)
        while not place.closed and (now := clock()) < until:
            events = await place.take(min(until, alive, rights.due) - now)
            try:
                rights.check()
            except Problem as problem:
                await response.write(encoded_event("ended", {"detail": problem.detail}))
                return
            if events or clock() >= min(alive, until):
                await response.write(events or _ALIVE)
                alive = clock() + ALIVE_S


def _check_wanted(request: web.Request, sources: Sequence[str], receivers: Sequence[str]) -> None:
    """Raises a Problem for sources and receivers that the caller may not see."""
    access = access_of(request)
    if receivers and not access.has_some("read"):
        check_own(request, receivers)
    if sources and not access.has_some("receiver", "owner") and not all(may_read(request, one) for one in sources):
        raise forbidden(LETTERS)


def _seen(request: web.Request, event: TailedEvent) -> TailedEvent | None:
    """The part that the caller may see: all of it with the right to read its source, otherwise that about its
    receivers."""
    if may_read(request, event.source_id):
        return event
    life, origin = event.life, event.origin
    own = [name for name in event.receivers if may_see_of(request, name, life, origin)]
    return event.only_for(own) if own and not event.of_sender else None
