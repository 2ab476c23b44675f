"""The numbers of a receiver's deliveries: gaps, those that were given up, and their replay; and `POST
/v1/receivers/{name}/catch-up`, the messages behind the last number that a receiver has, in the order of their numbers.

Catching up is for a receiver that was restored from a backup. The history knows which message has which number, from
attempts and from the ends of deliveries; the state knows the highest number, and those without an end. Payloads are
read as for an export."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from relay.api.access import RECEIVER
from relay.api.bounds import RightsCheck
from relay.api.context import ApiContext
from relay.api.failed import MOST_LOOKED_AT, seen_entries
from relay.api.history.query import AT_ONCE
from relay.api.history.resource import history_of
from relay.api.history.shapes import with_live
from relay.api.history.visibility import Visibility
from relay.api.paging import cursor_behind, key_behind
from relay.api.parameter import CURSOR, PageLimit, Parameter
from relay.api.problems import NO_HISTORY, NO_SUCH_NUMBER, Problem, invalid
from relay.api.receiver_export import (
    NDJSON,
    ExportedDelivery,
    ReceiverExportResource,
    json_line,
    parts_of,
    write_ndjson,
)
from relay.api.replays import ReplaysResource, job_route
from relay.api.route import UNAUDITED, Body, DocumentedResponse, Example, route
from relay.api.status import StatusReader
from relay.domain.identity import MessageId
from relay.domain.numbering import GAP_HEADER, UNKNOWN, NumberGap, Numbering, explained, gaps_in
from relay.domain.reasons import NO_ANSWER, is_of_callback
from relay.domain.replay_job import Selection
from relay.domain.text import whole_number
from relay.domain.times import rfc3339
from relay.history.lag import Behind
from relay.history.port import AttemptQuery, HistoryReader, MessageQuery, Visible
from relay.schema.receivers import GapPage, GapView
from relay.schema.replays import GapReplays
from relay.schema.streams import CatchUp, CatchUpEnd, MissingLine, NumberedLine
from relay.state.port import FailedEntry


def _number_in(text: str) -> int:
    """Raises ValueError."""
    if (found := whole_number(text)) is None:
        raise ValueError("which is no number")
    return found


AfterNumber = Annotated[
    int, Parameter("after", Annotated[int, Meta(ge=0)], "Only higher numbers.", parse=_number_in, default=0)
]
NumberCursor = Annotated[int, replace(CURSOR, parse=lambda text: _number_in(key_behind(text) or "0"), default=0)]
"""The last number of the previous page."""


class GapsResource:
    """`GET /v1/receivers/{name}/gaps`, and `POST .../gaps/replay`."""

    noun = "receivers"

    def __init__(self, context: ApiContext, replays: ReplaysResource) -> None:
        self._context = context
        self._replays = replays

    @route(
        "GET",
        "/v1/receivers/{name}/gaps",
        scope=RECEIVER,
        answer="A page, lowest numbers first.",
        example=Example(200),
    )
    async def list_gaps(
        self, request: web.Request, name: str, after: AfterNumber, limit: PageLimit, cursor: NumberCursor
    ) -> GapPage:
        """List the numbers that a receiver did not get, with the reasons.

        By the newest dead letters that are neither replayed nor discarded.
        """
        self._context.check_receiver(name)
        receiver = self._context.directory.receiver(name)
        numbered = receiver is not None and receiver.ordering == "receiver"
        entries = await self._context.state.failed(name, limit=MOST_LOOKED_AT) if numbered else []
        following = [entry for entry in entries if (entry.number or 0) > max(after, cursor)]
        gaps = await self._first(request, following, limit)
        more = cursor_behind(str(gaps[limit - 1]["last"])) if len(gaps) > limit else None
        return GapPage(numbered=numbered, items=gaps[:limit], cursor=more)

    async def _first(self, request: web.Request, entries: Sequence[FailedEntry], most: int) -> list[GapView]:
        """The first gaps that the caller may see, more than `most` if there are. Only the letters that are needed for
        that are read, because there may be thousands."""
        in_order = sorted(entries, key=lambda entry: entry.number or 0)
        seen, gaps, at = list[FailedEntry](), list[GapView](), 0
        while at < len(in_order) and len(gaps) <= most + 1:  # the last of them may go on
            some = in_order[at : 2 * at + AT_ONCE]
            seen += await seen_entries(self._context, request, some)
            gaps, at = gaps_of(seen), at + len(some)
        return gaps

    @job_route(
        "/v1/receivers/{name}/gaps/replay",
        scope=RECEIVER,
        audit="replay.started",
        example=Example(202, body={"first": 1, "last": 20}),
    )
    async def replay_gaps(self, request: web.Request, name: str, body: GapReplays) -> web.Response:
        """Replay the messages in a receiver's gaps.

        They keep their numbers. This starts a job, as `POST /v1/replays` does.
        """
        self._context.check_receiver(name)
        if body.first is not None and body.last is not None and body.last < body.first:
            raise invalid("last is below first", pointer="/last")
        selection = Selection(frozenset({name}), first_number=body.first or 1, last_number=body.last)
        return await self._replays.begin(request, "replay", selection, body)


def gaps_of(entries: Iterable[FailedEntry]) -> list[GapView]:
    """The numbers of `entries`, in ranges with the same reason."""
    newest: dict[int, FailedEntry] = {}
    for entry in entries:
        if entry.number is not None:
            known = newest.setdefault(entry.number, entry)
            newest[entry.number] = max(known, entry, key=lambda each: each.failed_at)
    found: list[GapView] = []
    failed_at = 0.0
    for number, entry in sorted(newest.items()):
        if found and (found[-1]["last"], found[-1]["reason"]) == (number - 1, entry.reason):
            failed_at = max(failed_at, entry.failed_at)
            found[-1] |= {"last": number, "failed_at": rfc3339(failed_at)}
        else:
            failed_at = entry.failed_at
            found.append(GapView(first=number, last=number, reason=entry.reason, failed_at=rfc3339(failed_at)))
    return found


MOST_NUMBERS: Final = 10_000
"""Numbers of one response."""
IN_PROGRESS: Final = "in_progress"
SETTLE_S: Final = 2.0
"""Wait before a number counts as unknown, because records of attempts are written a moment later."""

Line = NumberedLine | MissingLine


class CatchUpResource:
    """The route. `export`: decides what a caller sees, and reads payloads."""

    noun = "history"

    def __init__(self, context: ApiContext, reader: StatusReader, export: ReceiverExportResource) -> None:
        self._context = context
        self._reader = reader
        self._export = export
        self._visibility = Visibility(context, reader)

    @route(
        "POST",
        "/v1/receivers/{name}/catch-up",
        scope=RECEIVER,
        audit=UNAUDITED,
        answers=(
            DocumentedResponse(
                200,
                "The messages, in the order of their numbers.",
                Body({NDJSON: str}, items={NDJSON: (NumberedLine, MissingLine, CatchUpEnd)}),
            ),
        ),
        problems=(NO_HISTORY, NO_SUCH_NUMBER),
        example=Example(409, body={"after": 12}),
    )
    async def catch_up_receiver(self, request: web.Request, name: str, body: CatchUp) -> web.StreamResponse:
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
            raise Problem(NO_SUCH_NUMBER, f"The messages of {name} have no numbers: it has no `ordering: receiver`.")
        began = self._context.clock.time()
        numbering = await self._context.state.numbering(f"r:{name}") or Numbering()
        if body.after > numbering.last:
            detail = f"`after` is {body.after}, and the highest number of {name} is {numbering.last}."
            raise Problem(NO_SUCH_NUMBER, detail)
        letters = await self._context.state.failed(name, limit=MOST_LOOKED_AT)
        following = [each for each in letters if (each.number or 0) > body.after]
        seen = await seen_entries(self._context, request, following)
        dead = {each.number: each.reason for each in seen if each.number is not None}
        known = [
            *numbering.gaps,
            *(NumberGap(first, last, IN_PROGRESS) for first, last in numbering.open),
            *(NumberGap(number, number, reason) for number, reason in dead.items()),
        ]
        visible = self._visibility.of_receivers(request, {name})
        ports = request, self._context, history, self._reader, self._export
        lines = _Following(*ports, name, visible, numbering.last, known, dead, began)
        with self._export.place(request):
            end: CatchUpEnd = {"delivered": 0, "complete": True, "detail": None, "last": body.after}
            return await write_ndjson(request, lines.encoded(end), end)


@dataclass(slots=True)
class _Following:
    """The lines of one response. `newest`: the receiver's highest number when that was read, at `began` (Unix seconds).
    `known`: numbers without a delivered message; `dead`: those among them that have dead letters, with their reasons.
    `why`: why this is not all."""

    request: web.Request
    context: ApiContext
    history: HistoryReader
    reader: StatusReader
    export: ReceiverExportResource
    name: str
    visible: Visible
    newest: int
    known: list[NumberGap]
    dead: Mapping[int, str]
    began: float
    why: str | None = None

    async def encoded(self, end: CatchUpEnd) -> AsyncIterator[bytes]:
        """The lines behind `end`, which is kept up to date."""
        async for line in _merged(self.lines(end["last"])):
            if "last" in line:
                end["last"] = line["last"]
            else:
                end["delivered"] += 1
                end["last"] = line["sequence"]
            yield json_line(line)
        end["detail"] = self.why

    async def lines(self, after: int) -> AsyncIterator[Line]:
        """Each number behind `after` once, alone or in a range, up to the first one that the history may still get."""
        settled = False
        while True:
            is_behind = False
            async for line in self._known_now(after):
                if "reason" in line and line["reason"] == UNKNOWN and not settled:
                    is_behind = True
                    break
                yield line
                after = line["last"] if "last" in line else line["sequence"]
            if not is_behind or await self._lags():
                return
            settled = True

    async def _known_now(self, after: int) -> AsyncIterator[Line]:
        found = dict(await self.history.numbered(self.name, self.visible, after=after, limit=MOST_NUMBERS + 1))
        self.why = f"more than {MOST_NUMBERS} numbers follow" if len(found) > MOST_NUMBERS else None
        numbers = [number for number in found if number <= self.newest][:MOST_NUMBERS]
        rights = RightsCheck(self.request)
        last = after or min(numbers, default=self.newest + 1) - 1  # the first number of a receiver may be any
        for start in range(0, len(numbers), AT_ONCE):
            rights.check()
            some = {number: found[number] for number in numbers[start : start + AT_ONCE]}
            deliveries = await self._deliveries(set(some.values()))
            delivered = await self._delivered(some, deliveries)
            for number, id in some.items():
                for gap in await self._between(last + 1, number - 1, id):
                    yield _missing(gap)
                reason = self._why_missing(number, deliveries.get(id)) or UNKNOWN
                yield delivered.get(number) or MissingLine(first=number, last=number, reason=reason)
                last = number
        for gap in () if self.why else await self._between(last + 1, self.newest, None):
            yield _missing(gap)

    async def _between(self, first: int, last: int, before: MessageId | None) -> list[NumberGap]:
        """Numbers that the history does not have. `before`: the message behind them, whose requests may name them."""
        if first > last:
            return []
        found = explained(first, last, self.known)
        if before is None or all(gap.reason != UNKNOWN for gap in found):
            return found
        query = AttemptQuery(visible=self.visible, message=before, receiver=self.name, kinds={"post"})
        for each in (await self.history.attempts(query, limit=AT_ONCE)).items:
            self.known += gaps_in(each.attempt.headers.get(GAP_HEADER, ""))
        return explained(first, last, self.known)

    async def _lags(self) -> bool:
        """Whether the history lacks what had ended when the numbers were read, also after a moment."""
        await asyncio.sleep(SETTLE_S)
        context = self.context
        lag_s = await Behind(self.history, context.log, context.topics, context.clock).seconds()
        lags = lag_s is None or context.clock.time() - lag_s < self.began
        self.why = "the history has not read all of it yet: ask again later" if lags else None
        return lags

    async def _deliveries(self, ids: set[MessageId]) -> dict[MessageId, ExportedDelivery]:
        """What the caller may see of these."""
        messages = [one for id in ids if (one := await self.history.message(id)) is not None]
        listed = await with_live(self.reader, messages, MessageQuery(receiver=self.name), self.context.clock.time())
        return {
            one.arrival.message: one for each in listed for one in self.export.visible(self.request, each, self.name)
        }

    async def _delivered(
        self, some: Mapping[int, MessageId], deliveries: Mapping[MessageId, ExportedDelivery]
    ) -> dict[int, NumberedLine]:
        delivered = {
            number: one
            for number, id in some.items()
            if (one := deliveries.get(id)) is not None and self._why_missing(number, one) is None
        }
        lines: dict[int, NumberedLine] = {}
        rest = iter(delivered)
        for part in parts_of(list(delivered.values())):
            for line in await self.export.with_payloads(self.history, part):
                number = next(rest)
                lines[number] = NumberedLine(**line, sequence=number)
        return lines

    def _why_missing(self, number: int, one: ExportedDelivery | None) -> str | None:
        """Why the receiver does not have the message; None if it has."""
        if one is None or number in self.dead:
            return self.dead.get(number, UNKNOWN)
        found = one.delivery.found
        if found.status == "arrived":
            return IN_PROGRESS
        reason = found.reason or ""
        if found.status != "failed" or is_of_callback(reason) or reason in NO_ANSWER:
            return None
        return reason or UNKNOWN


def _missing(gap: NumberGap) -> MissingLine:
    return MissingLine(first=gap.first, last=gap.last, reason=gap.reason)


async def _merged(lines: AsyncIterator[Line]) -> AsyncIterator[Line]:
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
