"""`POST /v1/receivers/{name}/catch-up`: the messages behind the last number that a receiver has, in the order of their
numbers.

For a receiver that was restored from a backup. The history knows which message has which number, from attempts and
from the ends of deliveries; payloads are read as for an export.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Final

from aiohttp import web

from relay.api.access import RECEIVER
from relay.api.context import ApiContext
from relay.api.failed import MOST_LOOKED_AT
from relay.api.history.live_overlay import with_live
from relay.api.history.query import AT_ONCE
from relay.api.history.resource import history_of
from relay.api.history.visibility import Visibility
from relay.api.problems import NO_HISTORY, Problem, invalid
from relay.api.receiver_export import (
    JUDGED_S,
    NDJSON,
    ExportedDelivery,
    ReceiverExportResource,
    json_line,
    ndjson_response,
    parts_of,
)
from relay.api.route import NAME, UNAUDITED, Body, DocumentedResponse, Example, json_of, route
from relay.api.status import StatusReader
from relay.domain.errors import Unavailable
from relay.domain.identity import MessageId
from relay.domain.state import State
from relay.history.port import HistoryReader, MessageQuery
from relay.schema.exports import CatchUp, CatchUpEnd, MissingLine, NumberedLine

MOST_NUMBERS: Final = 10_000
"""Numbers of one response."""
UNKNOWN: Final = "unknown"
IN_PROGRESS: Final = "in_progress"
_UNFINISHED: Final[frozenset[State]] = frozenset({"queued", "retrying", "blocked"})
_DELIVERED: Final[frozenset[State]] = frozenset({"awaiting_answer", "returning", "returned", "delivered"})


class CatchUpResource:
    """The route. `export`: decides what a caller sees, and reads payloads."""

    def __init__(self, context: ApiContext, reader: StatusReader, export: ReceiverExportResource) -> None:
        self._context = context
        self._reader = reader
        self._export = export
        self._sight = Visibility(context, reader, context.history)

    @route(
        "POST",
        "/v1/receivers/{name}/catch-up",
        scope=RECEIVER,
        audit=UNAUDITED,
        id="catchUpReceiver",
        noun="history",
        parameters=(NAME,),
        body=json_of(CatchUp),
        answers=(
            DocumentedResponse(
                200,
                "The messages, in the order of their numbers.",
                Body({NDJSON: str}, items={NDJSON: (NumberedLine, MissingLine, CatchUpEnd)}),
            ),
        ),
        problems=(NO_HISTORY,),
        example=Example(400, path={"name": "ci"}, body={"after": 12}),
    )
    async def catch_up(self, request: web.Request, name: str, body: CatchUp) -> web.StreamResponse:
        """The messages behind the last number that a receiver has.

        For a receiver with `ordering: receiver` that has lost messages, for example because it was restored from a
        backup. A line of JSON for each delivered message, in the order of their numbers (`relay-sequence`), with its
        payload; other numbers are named in lines with `first`, `last` and `reason`. The last line has the highest
        number, and says whether that is all: at most 10,000 numbers are in one response. Nothing is delivered again.
        """
        history = history_of(self._context)
        self._context.check_receiver(name)
        receiver = self._context.directory.receiver(name)
        if receiver is None or receiver.ordering != "receiver":
            raise invalid(f"the messages of {name} have no numbers: it has no `ordering: receiver`", path="/name")
        with self._export.place(request):
            return await self._write(request, history, name, body.after)

    async def _write(self, request: web.Request, history: HistoryReader, name: str, after: int) -> web.StreamResponse:
        visible = self._sight.of_receivers(request, {name})
        found = dict(await history.numbered(name, visible, after=after, limit=MOST_NUMBERS + 1))
        more = len(found) > MOST_NUMBERS
        if more:
            del found[max(found)]
        reasons = {
            entry.number: entry.reason
            for entry in await self._context.state.failed(name, limit=MOST_LOOKED_AT)
            if entry.number is not None and after < entry.number and not (more and entry.number > max(found))
        }
        response = ndjson_response()
        delivered, why = 0, f"more than {MOST_NUMBERS} numbers follow" if more else None
        with suppress(ConnectionError):  # the client has closed the connection, or read nothing for too long
            await response.prepare(request)
            try:
                async for line in _merged(self._lines(request, history, name, found, reasons, after)):
                    await response.write(json_line(line))
                    if "last" in line:
                        after = line["last"]
                    else:
                        delivered, after = delivered + 1, line["sequence"]
            except (Unavailable, Problem) as error:
                why = str(error)
            end: CatchUpEnd = {"delivered": delivered, "complete": why is None, "detail": why, "last": after}
            await response.write(json_line(end))
            await response.write_eof()
        return response

    async def _lines(
        self,
        request: web.Request,
        history: HistoryReader,
        name: str,
        found: Mapping[int, MessageId],
        reasons: Mapping[int, str],
        after: int,
    ) -> AsyncIterator[NumberedLine | MissingLine]:
        """Each number from `after` on once, alone or in a range."""
        judged = self._context.clock.monotonic() + JUDGED_S
        last = after or min((*found, *reasons), default=1) - 1  # the first number of a receiver may be any
        numbers = sorted(found)
        for start in range(0, len(numbers), AT_ONCE):
            if self._context.clock.monotonic() >= judged:
                self._export.check_rights(request)
                judged = self._context.clock.monotonic() + JUDGED_S
            some = {number: found[number] for number in numbers[start : start + AT_ONCE]}
            deliveries = await self._deliveries(request, history, name, set(some.values()))
            lines = await self._delivered(history, some, deliveries)
            for number, id in some.items():
                for line in missing(last + 1, number - 1, reasons):
                    yield line
                reason = reasons.get(number) or _reason(deliveries.get(id))
                yield lines.get(number) or MissingLine(first=number, last=number, reason=reason)
                last = number
        for line in missing(last + 1, max(reasons, default=0), reasons):
            yield line

    async def _deliveries(
        self, request: web.Request, history: HistoryReader, name: str, ids: set[MessageId]
    ) -> dict[MessageId, ExportedDelivery]:
        """What the caller may see of these."""
        messages = [one for id in ids if (one := await history.message(id)) is not None]
        listed = await with_live(self._reader, messages, MessageQuery(receiver=name), self._context.clock.time())
        return {one.arrival.message: one for each in listed for one in self._export.visible(request, each, name)}

    async def _delivered(
        self, history: HistoryReader, some: Mapping[int, MessageId], deliveries: Mapping[MessageId, ExportedDelivery]
    ) -> dict[int, NumberedLine]:
        delivered = {
            number: one
            for number, id in some.items()
            if (one := deliveries.get(id)) is not None and one.delivery.state in _DELIVERED
        }
        lines: dict[int, NumberedLine] = {}
        rest = iter(delivered)
        for part in parts_of(list(delivered.values())):
            for line in await self._export.with_payloads(history, part):
                number = next(rest)
                lines[number] = NumberedLine(**line, sequence=number)
        return lines


def missing(first: int, last: int, reasons: Mapping[int, str]) -> Iterator[MissingLine]:
    """The numbers from `first` to `last`, with the reasons that are known."""
    for number in sorted(number for number in reasons if first <= number <= last):
        if first < number:
            yield MissingLine(first=first, last=number - 1, reason=UNKNOWN)
        yield MissingLine(first=number, last=number, reason=reasons[number])
        first = number + 1
    if first <= last:
        yield MissingLine(first=first, last=last, reason=UNKNOWN)


def _reason(one: ExportedDelivery | None) -> str:
    """Why a message was not delivered that was sent with a number."""
    if one is None:
        return UNKNOWN
    return IN_PROGRESS if one.delivery.state in _UNFINISHED else one.delivery.found.reason or UNKNOWN


async def _merged(lines: AsyncIterator[NumberedLine | MissingLine]) -> AsyncIterator[NumberedLine | MissingLine]:
    """Joins ranges that follow each other with the same reason."""
    pending: MissingLine | None = None
    async for line in lines:
        if "reason" in line and pending is not None and pending["reason"] == line["reason"]:
            pending["last"] = line["last"]
            continue
        if pending is not None:
            yield pending
        pending = line if "reason" in line else None
        if pending is None:
            yield line
    if pending is not None:
        yield pending
