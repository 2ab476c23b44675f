"""Dead letters: listed from the state's index, read from the log, which is the truth."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from relay.api.access import LETTERS, access_of, check_own, forbidden, may_read, may_see, may_see_of
from relay.api.context import ApiContext
from relay.api.paging import NewestFirstPages, Rank, cursor_at
from relay.api.problems import NOT_FOUND, Problem
from relay.api.responses import json_response
from relay.api.route import (
    LIMIT,
    DocumentedResponse,
    Example,
    Offset,
    Parameter,
    Partition,
    SourceId,
    cursor_of,
    json_of,
    route,
)
from relay.api.view import rfc3339
from relay.domain.hop import NO_RECEIVER
from relay.domain.reasons import reason_class
from relay.domain.replay_job import Stage
from relay.log.port import AT_ONCE, Coordinate
from relay.replay.letter import Letter, kept, read_dead_letter
from relay.replay.plan import is_open
from relay.schema.dead_letters import LetterPage, LetterView, PayloadView, WholeLetter
from relay.state.port import FailedEntry
from relay.state.replies import answered
from relay.state.rows import delivery_row

PAGES: Final = NewestFirstPages("[0-9]{1,9}-[0-9]{1,18}")
MOST_LOOKED_AT: Final = 10_000
"""Maximum number of the newest letters that are read for a page of open and visible ones."""
_LEAST_OF_EACH: Final = 32
"""Letters of each receiver to read first; four times as many if these are not enough for the page."""
MOST_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of values that are read for a page; beyond that the page ends early."""


DEAD_LETTERS: Final = "dead letters"
CHOSEN: Final = (
    Parameter("receiver", "query", list[str], "Only of these receivers; `-` selects messages without a receiver."),
    Parameter("source", "query", list[SourceId], "Only of messages of these sources."),
    Parameter("reason", "query", list[str], "Only with one of these reasons."),
)
PLACE: Final = (
    Parameter("partition", "path", Partition, "Partition of `failed_messages`."),
    Parameter("offset", "path", Offset, "Offset in that partition."),
)
AT: Final = {"partition": "6", "offset": "0"}


class FailedResource:
    """`GET /v1/failed` and `GET /v1/failed/{partition}/{offset}`."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @route(
        "GET",
        "/v1/failed",
        scope=LETTERS,
        id="listFailed",
        noun=DEAD_LETTERS,
        parameters=(
            *CHOSEN,
            Parameter(
                "stage", "query", Stage, "Only given up in this step; `to_sender` is the way back to the sender."
            ),
            LIMIT,
            cursor_of(PAGES),
        ),
        answers=(DocumentedResponse(200, "A page, newest first.", json_of(LetterPage)),),
        example=Example(200, query={"receiver": "ci", "limit": "10"}),
    )
    async def list(
        self,
        request: web.Request,
        receiver: Sequence[str],
        source: Sequence[str],
        reason: Sequence[str],
        stage: Stage | None,
        limit: int,
        cursor: Rank | None,
    ) -> web.Response:
        """List open dead letters."""
        found, last = await self.newest(request, receiver, source, reason, limit, cursor=cursor, stage=stage)
        after = None if last is None else cursor_at(last)
        return json_response(200, LetterPage(items=[letter for _, letter in found], cursor=after))

    async def newest(
        self,
        request: web.Request,
        receiver: Sequence[str],
        source: Sequence[str],
        reason: Sequence[str],
        limit: int,
        *,
        cursor: Rank | None = None,
        stage: Stage | None = None,
    ) -> tuple[Sequence[tuple[Rank, LetterView]], Rank | None]:
        """The newest that the caller sees, and behind which one others may follow; None: none does."""
        receivers, at = await self._receivers(request, receiver), cursor
        found, size = list[tuple[Rank, LetterView]](), 0
        each = max(_LEAST_OF_EACH, 2 * limit // max(1, len(receivers)))
        while True:
            each = min(each, MOST_LOOKED_AT)
            entries, are_all = await self._newest(receivers, each)
            left = [
                entry
                for entry in entries
                if (at is None or _rank(entry) < at)
                and (not source or entry.source_id in source)
                and (not reason or entry.reason in reason)
                and _sees(request, entry.receiver, entry.source_id)
            ]
            for start in range(0, len(left), AT_ONCE):
                some = left[start : start + AT_ONCE]
                letters, read = await self._open(request, some, stage)
                found += letters
                size += read
                at = _rank(some[-1])
                if len(found) > limit:
                    return found[:limit], found[limit - 1][0]
                if size >= MOST_BYTES:
                    return found, at
            if are_all:
                return found, None
            each *= 4

    async def _open(
        self, request: web.Request, entries: Sequence[FailedEntry], stage: Stage | None
    ) -> tuple[Sequence[tuple[Rank, LetterView]], int]:
        """Those that the caller may see and that are neither replayed nor discarded (the index drops these with a
        delay); and the number of bytes that were read, of which only the listed fields are kept."""
        records = await self._context.log.read([(entry.at, None) for entry in entries])
        size = sum(len(record.value or b"") for record in records if record is not None)
        letters = [
            (_rank(entry), letter)
            for entry, record in zip(entries, records, strict=True)
            if record is not None
            and sees_letter(request, letter := read_dead_letter(record, self._context.topics))
            and stage in (None, letter.stage)
        ]
        own = list(dict.fromkeys(letter.delivery for _, letter in letters))
        peeked = await answered(self._context.state.peek(list(map(delivery_row, own)))) if own else []
        rows = dict(zip(own, peeked, strict=True))
        open_ones = [(rank, letter) for rank, letter in letters if is_open(letter, rows[letter.delivery])]
        return [(rank, letter_view(letter)) for rank, letter in open_ones], size

    @route(
        "GET",
        "/v1/failed/{partition}/{offset}",
        scope=LETTERS,
        id="getFailed",
        noun=DEAD_LETTERS,
        parameters=PLACE,
        answers=(DocumentedResponse(200, "The dead letter.", json_of(WholeLetter)),),
        example=Example(200, path=AT),
    )
    async def get(self, request: web.Request, partition: int, offset: int) -> web.Response:
        """Get a dead letter with its headers and payload."""
        at = Coordinate(self._context.topics.failed_messages, partition, offset)
        [record] = await self._context.log.read([(at, None)])
        letter = None if record is None else read_dead_letter(record, self._context.topics)
        if not sees_letter(request, letter):
            raise forbidden(LETTERS)  # the same if there is no such record
        if letter is None:
            raise Problem(NOT_FOUND, f"failed_messages has no record at {at.partition}/{at.offset} (any more).")
        if self._context.erasures is not None:
            letter = kept(letter, self._context.erasures.known, self._context.topics)
        record = letter.record
        headers = [[name, value.decode(errors="replace")] for name, value in record.headers]
        whole: WholeLetter = {**letter_view(letter), "headers": headers, "payload": _payload(record.value or b"")}
        return json_response(200, whole)

    async def _receivers(self, request: web.Request, asked: Sequence[str]) -> Sequence[str]:
        """Those that were asked for, or all, of what the caller may see; who reads sources sees some of any."""
        reads = access_of(request).has_some("read")
        if asked:
            if not reads:
                check_own(request, asked)
            return asked
        names = await self._context.state.failed_receivers()
        return [name for name in names if reads or may_see(request, [name])]

    async def _newest(self, receivers: Sequence[str], each: int) -> tuple[Sequence[FailedEntry], bool]:
        """The newest letters by rank, of at most `each` per receiver, and whether these are all."""
        state = self._context.state
        found = await asyncio.gather(*(state.failed(receiver, limit=each) for receiver in receivers))
        entries = sorted((entry for some in found for entry in some), key=_rank, reverse=True)
        cut = [some[-1].failed_at for some in found if len(some) == each]
        if not cut or each == MOST_LOOKED_AT:
            return entries[:MOST_LOOKED_AT], True
        # entries as old as the last one that was read may have neighbours in rank that were not read
        newest = [entry for entry in entries if entry.failed_at > max(cut)]
        return newest[:MOST_LOOKED_AT], len(newest) >= MOST_LOOKED_AT


def _sees(request: web.Request, receiver: str, source_id: str | None) -> bool:
    return may_see(request, [receiver]) or may_read(request, source_id)


def sees_letter(request: web.Request, letter: Letter | None) -> bool:
    """Checks the caller's rights by the letter itself, because the index may be wrong. None if there is no letter."""
    if letter is None:
        return may_see(request, [])
    return may_read(request, letter.facts.source_id) or is_about_own_receiver(request, letter)


def is_about_own_receiver(request: web.Request, letter: Letter) -> bool:
    """Whether the letter is about a receiver of the caller, in the current life of its name. A letter of a result is
    not: that requires the right to read its source, too."""
    receiver, source_id, *_ = letter.facts
    if letter.is_of_sender and not may_read(request, source_id):
        return False
    return may_see_of(request, receiver or NO_RECEIVER, letter.life, letter.dead.origin)


def letter_view(letter: Letter) -> LetterView:
    dead, (receiver, source_id, message_id, *_), at = letter.dead, letter.facts, letter.record
    return {
        "receiver": receiver or NO_RECEIVER,
        "source_id": source_id,
        "message_id": message_id,
        "reason": dead.reason,
        "class": reason_class(dead.reason),
        "detail": dead.detail,
        "stage": dead.stage,
        "attempts": dead.attempts,
        "last_status": dead.last_status,
        "failed_at": rfc3339(dead.first_failed_ms / 1000),
        "partition": at.partition,
        "offset": at.offset,
        "replay": f"/v1/failed/{at.partition}/{at.offset}/replay",
    }


def _rank(entry: FailedEntry) -> Rank:
    return entry.failed_at, f"{entry.at.partition}-{entry.at.offset}"


def _payload(value: bytes) -> PayloadView:
    try:
        return {"body": value.decode(), "body_base64": None}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(value).decode()}
