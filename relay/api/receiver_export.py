"""`GET /v1/receivers/{name}/export`: what a receiver got or missed, as lines of JSON with payloads.

It is written in parts of a limited size, each read when the client has taken the one before, so that neither the number
of messages nor the size of payloads matters. Messages are found in the history, and payloads on the log.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from relay.api.access import RECEIVER, is_admin, may_read, may_see_of
from relay.api.bounds import RightsCheck
from relay.api.context import ApiContext
from relay.api.history.query import AT_ONCE, After, Since, Until, no_cursor, times_in
from relay.api.history.resource import history_of
from relay.api.history.shapes import ListedDelivery, ListedMessage, delivery_item, of_receiver, with_live
from relay.api.history.visibility import KeptFrom, Visibility, kept_from
from relay.api.problems import NO_HISTORY, NOT_FOUND, Problem
from relay.api.responses import text_or_base64
from relay.api.route import Body, DocumentedResponse, Example, route
from relay.api.shares import Shares, sharer_of
from relay.api.status import StatusReader, message_in
from relay.domain.errors import Unavailable
from relay.domain.identity import webhook_id
from relay.domain.times import rfc3339
from relay.history.port import (
    AfterMessage,
    ArrivalFact,
    HistoryPage,
    HistoryReader,
    MessageFound,
    MessageQuery,
    Visible,
    write_cursor,
)
from relay.schema.streams import CatchUpEnd, ExportedMessage, ExportEnd, ExportLine, PayloadKept

MOST_EXPORTS: Final = 16
"""Exports at a time in a process."""
BYTES_AT_ONCE: Final = 1024**2
"""Bytes of payloads in memory; the last one may exceed it."""
NDJSON: Final = "application/x-ndjson"
_HEADERS: Final = {"Content-Type": NDJSON, "X-Accel-Buffering": "no"}


class _Payload(NamedTuple):
    body: bytes | None
    kept: PayloadKept


class ExportedDelivery(NamedTuple):
    """A message that the caller may see, and its delivery to the receiver."""

    arrival: ArrivalFact
    delivery: ListedDelivery
    kept_from: KeptFrom | None
    erased: bool


class ReceiverExportResource:
    """The route; see the module's first lines."""

    noun = "history"

    def __init__(self, context: ApiContext, reader: StatusReader) -> None:
        self._context = context
        self._reader = reader
        self._visibility = Visibility(context, reader)
        self._places = Shares("export", "places for exports", MOST_EXPORTS, context.meter)

    @route(
        "GET",
        "/v1/receivers/{name}/export",
        scope=RECEIVER,
        answers=(
            DocumentedResponse(
                200, "A page, newest first.", Body({NDJSON: str}, items={NDJSON: (ExportLine, ExportEnd)})
            ),
        ),
        problems=(NO_HISTORY,),
        example=Example(200, query={"since": "1h"}),
    )
    async def export_receiver(
        self, request: web.Request, name: str, since: Since, until: Until, after: After
    ) -> web.StreamResponse:
        """Everything that a receiver got or missed, with payloads.

        A line of JSON for each message with a delivery to this receiver, the newest first, whatever became of it. Each
        line has a `cursor`: after a broken connection, repeat the request with the last one as `after`. The last line
        has no message: it says how many there were, and whether that is all. Messages that arrive meanwhile are not
        included.
        """
        history = history_of(self._context)
        visible = Visible() if is_admin(request) else self._visibility.of_receivers(request, {name})
        begin, end_at = times_in(since, until, self._context.clock.time())
        wanted = MessageQuery(visible, receiver=name, since=begin, until=end_at)
        if request.method == "HEAD":
            return web.Response(headers=_HEADERS)
        with self.place(request):
            first = await _page(history, wanted, after)
            if not first.items and after is None and not self._context.has_receiver(name):
                raise Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r}, and no message for one.")
            end: ExportEnd = {"exported": 0, "complete": True, "detail": None, "cursor": after}
            return await write_ndjson(request, self._parts(request, history, wanted, first, end), end)

    @contextmanager
    def place(self, request: web.Request) -> Iterator[None]:
        """One of the process's exports, for the caller. Raises a Problem if all are taken."""
        leave = self._places.take(sharer_of(request))
        try:
            yield
        finally:
            leave()

    async def _parts(
        self,
        request: web.Request,
        history: HistoryReader,
        wanted: MessageQuery,
        page: HistoryPage[MessageFound],
        end: ExportEnd,
    ) -> AsyncIterator[bytes]:
        """Lines of a part each, counted in `end`."""
        rights = RightsCheck(request)
        while True:
            listed = await with_live(self._reader, page.items, wanted, self._context.clock.time())
            found = [one for each in listed for one in self.visible(request, each, wanted.receiver)]
            for part in parts_of(found):
                rights.check()
                lines = [
                    ExportLine(**line, cursor=write_cursor(AfterMessage(one.arrival.received_at, *one.arrival.message)))
                    for one, line in zip(part, await self.with_payloads(history, part), strict=True)
                ]
                end["exported"] += len(lines)
                end["cursor"] = lines[-1]["cursor"]
                yield b"".join(map(json_line, lines))
            if page.cursor is None:
                return
            page = await _page(history, wanted, page.cursor)

    def visible(self, request: web.Request, message: ListedMessage, name: str | None) -> Iterator[ExportedDelivery]:
        """What the caller may see of a message's delivery to the receiver."""
        arrival = message.arrival
        at, reads = arrival.at, may_read(request, arrival.message.source_id)
        erased = self._context.is_erased(arrival.message, [name or ""], arrival.received_at)
        hidden = None if reads else kept_from(self._context.directory, name)
        for each in message.deliveries:
            if each.found.receiver == name and (reads or may_see_of(request, name, each.found.life, at)):
                yield ExportedDelivery(arrival, each if reads else of_receiver(each), hidden, erased)

    async def with_payloads(self, history: HistoryReader, part: Sequence[ExportedDelivery]) -> list[ExportedMessage]:
        payloads = await self._payloads(history, part)
        return [_exported(one, payload) for one, payload in zip(part, payloads, strict=True)]

    async def _payloads(self, history: HistoryReader, part: Sequence[ExportedDelivery]) -> list[_Payload]:
        """From the log; of those that are gone there, what the history keeps."""
        places = [(one.arrival.at, None) for one in part if not (one.kept_from or one.erased)]
        records = iter(await self._context.log.read(places) if places else ())
        return [
            _Payload(None, one.kept_from)
            if one.kept_from is not None
            else _Payload(None, "erased")
            if one.erased
            else _Payload(message.payload, "whole")
            if (message := message_in(next(records), one.arrival.message)) is not None
            else await _kept(history, one.arrival)
            for one in part
        ]


async def _kept(history: HistoryReader, listed: ArrivalFact) -> _Payload:
    found = await history.message(listed.message)  # a list has only a preview
    arrival = listed if found is None else found.arrival
    if arrival.body is None:
        return _Payload(None, "gone")
    return _Payload(arrival.body, "whole" if len(arrival.body) >= arrival.size else "truncated")


async def _page(history: HistoryReader, wanted: MessageQuery, cursor: str | None) -> HistoryPage[MessageFound]:
    try:
        return await history.messages(wanted, limit=AT_ONCE, cursor=cursor)
    except ValueError:
        raise no_cursor("after") from None


def parts_of(found: Sequence[ExportedDelivery]) -> Iterator[list[ExportedDelivery]]:
    """Splits a page into parts whose payloads are read together."""
    part, size = list[ExportedDelivery](), 0
    for one in found:
        part.append(one)
        size += one.arrival.size
        if size >= BYTES_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _exported(one: ExportedDelivery, payload: _Payload) -> ExportedMessage:
    arrival, (source_id, message_id) = one.arrival, one.arrival.message
    text, encoded = (None, None) if payload.body is None else text_or_base64(payload.body)
    return {
        "source_id": source_id,
        "message_id": message_id,
        "webhook_id": webhook_id(source_id, message_id),
        "type": arrival.event_type,
        "received_at": rfc3339(arrival.received_at),
        "content_type": arrival.content_type,
        "size": arrival.size,
        "delivery": delivery_item(one.delivery),
        "payload": text,
        "payload_base64": encoded,
        "payload_kept": payload.kept,
    }


async def write_ndjson(
    request: web.Request, lines: AsyncIterator[bytes], end: ExportEnd | CatchUpEnd
) -> web.StreamResponse:
    """Writes the lines, and then `end`, with the reason if they broke off."""
    response = web.StreamResponse(headers=_HEADERS)
    with suppress(ConnectionError):  # the client has closed the connection, or read nothing for too long
        await response.prepare(request)
        try:
            async for line in lines:
                await response.write(line)
        except (Unavailable, Problem) as error:
            end["detail"] = str(error)
        end["complete"] = end["detail"] is None
        await response.write(json_line(end))
        await response.write_eof()
    return response


def json_line(line: object) -> bytes:
    return msgspec.json.encode(line) + b"\n"
