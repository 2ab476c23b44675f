"""Dead letters: listed and counted from the state's index, read from the log, which is the truth."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Annotated, Final, NamedTuple

from aiohttp import web

from relay.api.access import LETTERS, access_of, check_own, forbidden, is_admin, may_read, may_see, may_see_of
from relay.api.coalesce import Reused
from relay.api.context import ApiContext
from relay.api.history.visibility import KeptFrom, kept_from
from relay.api.paging import NewestFirstPages, Rank, cursor_at
from relay.api.parameter import PageLimit, Parameter, Partition, SourceId, cursor_of
from relay.api.problems import NOT_FOUND, Problem
from relay.api.responses import text_or_base64
from relay.api.route import Example, route
from relay.domain.headers import FORWARDED
from relay.domain.hop import KEEP_HEADER, NO_RECEIVER
from relay.domain.identity import DeliveryId
from relay.domain.message import message_of
from relay.domain.one_off import ENDPOINT_HEADER
from relay.domain.reasons import reason_class
from relay.domain.replay_job import Stage
from relay.domain.times import rfc3339
from relay.incidents.reader import FailedEntries, IncidentReader
from relay.log.port import AT_ONCE, Coordinate, Record, read_each
from relay.replay.letter import Letter, kept, read_dead_letter
from relay.replay.life import is_copy, is_open, marked_place
from relay.schema.replays import LetterGroupList, LetterGroupView, LetterPage, LetterView, PayloadView, WholeLetter
from relay.state.port import FailedEntry
from relay.state.replies import answered
from relay.state.rows import Row, delivery_row

PAGES: Final = NewestFirstPages("[0-9]{1,9}-[0-9]{1,18}")
MOST_LOOKED_AT: Final = 10_000
"""Entries of the index that are read for a page, beyond which it ends early. The index has no more of a receiver."""
_LEAST_OF_EACH: Final = 32
"""Letters of each receiver to read first; four times as many if these are not enough for the page."""
MOST_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of values that are read for a page; beyond that the page ends early."""


HOURS: Final = 24
"""Hours for which a group has counts."""
_HOUR_S: Final = 3_600.0
_LETTERS: Final = 200
"""Letters that are read for a caller who does not see all: an entry of the index does not say whether it is theirs."""
InPartition = Annotated[int, Parameter("partition", Partition, "Partition of `failed_messages`.", "path", sample="6")]


class IndexGroup(NamedTuple):
    """Dead letters of a receiver and reason. `first`: when the oldest failed. `hours`: how many in each of the last
    HOURS hours, the present one last."""

    newest: FailedEntry
    first: float
    number: int
    hours: list[int]


def groups_of(entries: Iterable[FailedEntry], now: float) -> list[IndexGroup]:
    """By receiver and reason, the largest first. `now`: Unix seconds."""
    found: dict[tuple[str, str], list[FailedEntry]] = {}
    for entry in entries:
        found.setdefault((entry.receiver, entry.reason), []).append(entry)
    groups = [_group(letters, now) for letters in found.values()]
    return sorted(groups, key=lambda one: (-one.number, one.newest.receiver, one.newest.reason))


def _group(letters: Sequence[FailedEntry], now: float) -> IndexGroup:
    newest, first = max(letters, key=_failed_at), min(map(_failed_at, letters))
    ago = Counter(max(0, int((now - each.failed_at) // _HOUR_S)) for each in letters)
    return IndexGroup(newest, first, len(letters), [ago[hours] for hours in reversed(range(HOURS))])


class LetterFilter(NamedTuple):
    """An empty list matches everything."""

    receiver: Annotated[list[str], "Only of these receivers; `-` selects messages without a receiver."]
    source: Annotated[list[SourceId], "Only of messages of these sources."]
    reason: Annotated[list[str], "Only with one of these reasons."]

    def takes(self, entry: FailedEntry) -> bool:
        return (
            (not self.receiver or entry.receiver in self.receiver)
            and (not self.source or entry.source_id in self.source)
            and (not self.reason or entry.reason in self.reason)
        )


class FailedResource:
    """`GET /v1/failed`, `GET /v1/failed/{partition}/{offset}` and `GET /v1/failed/groups`."""

    noun = "dead letters"

    def __init__(self, context: ApiContext, reader: IncidentReader) -> None:
        self._context = context
        self._reader = reader
        self._index = Reused(context.clock, self._of_index)

    @route(
        "GET",
        "/v1/failed",
        scope=LETTERS,
        answer="A page, newest first.",
        example=Example(200, query={"receiver": "ci", "limit": "10"}),
    )
    async def list_failed(
        self,
        request: web.Request,
        wanted: LetterFilter,
        stage: Annotated[Stage | None, "Only given up in this step; `to_sender` is the way back to the sender."],
        limit: PageLimit,
        cursor: Annotated[Rank | None, cursor_of(PAGES)],
    ) -> LetterPage:
        """List open dead letters."""
        found, last = await self.newest(request, wanted, limit, cursor=cursor, stage=stage)
        after = None if last is None else cursor_at(last)
        return LetterPage(items=[letter for _, letter in found], cursor=after)

    async def newest(
        self,
        request: web.Request,
        wanted: LetterFilter,
        limit: int,
        *,
        cursor: Rank | None = None,
        stage: Stage | None = None,
    ) -> tuple[Sequence[tuple[Rank, LetterView]], Rank | None]:
        """The newest dead letters that the caller may see, and the rank behind which the next page begins; None
        on the last page."""
        receivers, at = await self._receivers(request, wanted.receiver), cursor
        found, size, looked_at = list[tuple[Rank, LetterView]](), 0, 0
        each = max(_LEAST_OF_EACH, 2 * limit // max(1, len(receivers)))
        while True:
            each = min(each, MOST_LOOKED_AT)
            entries, are_all = await self._newest(receivers, each, at)
            looked_at += len(entries)
            left = [
                entry
                for entry in entries
                if wanted.takes(entry) and (may_see(request, [entry.receiver]) or may_read(request, entry.source_id))
            ]
            for start in range(0, len(left), AT_ONCE):
                some = left[start : start + AT_ONCE]
                letters, read = await self._open(request, some, stage)
                found += letters
                size += read
                if len(found) > limit:
                    return found[:limit], found[limit - 1][0]
                if size >= MOST_BYTES:
                    return found, _rank(some[-1])
            if are_all:
                return found, None
            if entries:
                at = _rank(entries[-1])
            if looked_at >= MOST_LOOKED_AT:
                return found, at
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
        copies = await self._copies([letter for _, letter in open_ones], rows)
        return [(rank, letter_view(letter)) for rank, letter in open_ones if letter.at not in copies], size

    async def _copies(self, letters: Sequence[Letter], rows: Mapping[DeliveryId, Row]) -> set[Coordinate]:
        """Places of those that are copies of others, which are listed in place of them."""
        topic, elsewhere = self._context.topics.failed_messages, list[tuple[Letter, Coordinate]]()
        for letter in letters:
            if (place := marked_place(letter, rows[letter.delivery])) is not None:
                elsewhere.append((letter, Coordinate(topic, *place)))
        marked = await self._context.log.read([(at, None) for _, at in elsewhere]) if elsewhere else []
        return {
            letter.at
            for (letter, _), record in zip(elsewhere, marked, strict=True)
            if record is not None and is_copy(letter, read_dead_letter(record, self._context.topics))
        }

    @route("GET", "/v1/failed/{partition}/{offset}", scope=LETTERS, answer="The dead letter.")
    async def get_failed(self, request: web.Request, partition: InPartition, offset: int) -> WholeLetter:
        """Get a dead letter with its headers and payload.

        A key of a receiver gets no headers that are about the sender or other receivers, and with `payload: metadata`
        no payload.
        """
        at = Coordinate(self._context.topics.failed_messages, partition, offset)
        [record] = await self._context.log.read([(at, None)])
        letter = None if record is None else read_dead_letter(record, self._context.topics)
        if not sees_letter(request, letter):
            raise forbidden(LETTERS)  # also if there is none, so that a caller learns nothing
        if letter is None:
            raise Problem(NOT_FOUND, f"failed_messages has no record at {at.partition}/{at.offset} (any more).")
        letter = kept(letter, self._context.erasures.known, self._context.topics)
        record, directory = letter.record, self._context.directory
        whole = may_read(request, letter.facts.source_id)
        named = record.headers if whole else filter(_is_of_receiver, record.headers)
        headers = [[name, value.decode(errors="replace")] for name, value in named]
        value = record.value or b"" if whole else _of_receiver(letter, kept_from(directory, letter.facts.receiver))
        body, encoded = (None, None) if value is None else text_or_base64(value)
        payload = PayloadView(body=body, body_base64=encoded)
        return {**letter_view(letter), "headers": headers, "payload": payload}

    @route(
        "GET",
        "/v1/failed/groups",
        scope=LETTERS,
        answer="The groups, largest first.",
        example=Example(200, query={"receiver": "ci"}),
    )
    async def list_failed_groups(self, request: web.Request, wanted: LetterFilter, limit: PageLimit) -> LetterGroupList:
        """List dead letters by receiver and reason.

        The counts are those of the index, a few seconds late. With very many, or for a caller who sees only a part,
        only the newest are counted; `more` says so.
        """
        entries: Iterable[FailedEntry]
        if access_of(request).may("admin"):
            index = await self._index()
            entries, more = filter(wanted.takes, index.entries), index.more or bool(index.truncated)
        else:
            found, last = await self.newest(request, wanted, _LETTERS)
            entries, more = map(self._entry, found), last is not None
        chosen = groups_of(entries, self._context.clock.time())
        some = chosen[:limit]

        def made(record: Record | None) -> LetterView | None:
            letter = None if record is None else read_dead_letter(record, self._context.topics)
            return letter_view(letter) if letter is not None and sees_letter(request, letter) else None

        newest = await read_each(self._context.log, [(group.newest.at, None) for group in some], made)
        items = [_group_view(group, letter) for group, letter in zip(some, newest, strict=True)]
        return {"items": items, "left_out": len(chosen) - len(some), "more": more}

    async def _of_index(self) -> FailedEntries:
        """Raises the errors of log and state."""
        found = await self._reader.failed()
        return replace(found, entries=await self._on_log(found.entries))

    async def _on_log(self, entries: Sequence[FailedEntry]) -> Sequence[FailedEntry]:
        """The index keeps entries of letters that have expired, or whose topic was deleted."""
        topics = self._context.topics
        group = {topics.failed_messages: topics.fixed_groups()[topics.failed_messages]}
        there = {
            each.partition.partition: range(each.first, each.end) for each in await self._context.log.backlogs(group)
        }
        return [entry for entry in entries if entry.at.offset in there.get(entry.at.partition, ())]

    def _entry(self, found: tuple[tuple[float, str], LetterView]) -> FailedEntry:
        (failed_at, _), letter = found
        at = Coordinate(self._context.topics.failed_messages, letter["partition"], letter["offset"])
        source_id, message_id = letter["source_id"] or "", letter["message_id"] or ""
        return FailedEntry(letter["receiver"], at, failed_at, letter["reason"], source_id, message_id)

    async def _receivers(self, request: web.Request, asked: Sequence[str]) -> Sequence[str]:
        """Those that were asked for, or all, of what the caller may see; who reads sources sees some of any."""
        reads = access_of(request).has_some("read")
        if asked:
            if not reads:
                check_own(request, asked)
            return asked
        names = await self._context.state.failed_receivers()
        return [name for name in names if reads or may_see(request, [name])]

    async def _newest(
        self, receivers: Sequence[str], each: int, behind: Rank | None
    ) -> tuple[Sequence[FailedEntry], bool]:
        """The newest letters behind a rank, of at most `each` per receiver, and whether these are all."""
        state, before = self._context.state, behind and behind[0]
        found = await asyncio.gather(*(state.failed(receiver, limit=each, before=before) for receiver in receivers))
        left = (entry for some in found for entry in some if behind is None or _rank(entry) < behind)
        entries = sorted(left, key=_rank, reverse=True)
        cut = [some[-1].failed_at for some in found if len(some) == each]
        if not cut or each == MOST_LOOKED_AT:  # no receiver has more in the index
            return entries[:MOST_LOOKED_AT], len(entries) <= MOST_LOOKED_AT
        # entries as old as the last one that was read may have neighbours in rank that were not read
        newest = [entry for entry in entries if entry.failed_at > max(cut)]
        return newest[:MOST_LOOKED_AT], False


def _is_of_receiver(header: tuple[str, bytes]) -> bool:
    """Whether it may be shown to a caller with rights on the letter's receiver only. `keep` has parts of the payload,
    which the receiver may not get; `ce_receiver` names all receivers of the message."""
    return header[0] not in (KEEP_HEADER, ENDPOINT_HEADER, "ce_receiver") and not header[0].startswith(FORWARDED)


def _of_receiver(letter: Letter, hidden: KeptFrom | None) -> bytes | None:
    """The payload for a caller with rights on the letter's receiver only: without the envelope around it, which names
    all receivers of the message. None if it is kept from them (`hidden`), or cannot be read."""
    if letter.stage != "from_sender":  # behind routing, the payload for a receiver with `encrypt` is encrypted
        return None if hidden == "withheld" else letter.record.value or b""
    message = None if hidden else message_of(letter.record.value, letter.headers)
    return None if message is None else message.payload


def sees_letter(request: web.Request, letter: Letter | None) -> bool:
    """Checks the caller's rights by the letter itself, because the index may be wrong. None if there is no letter."""
    if letter is None:
        return may_see(request, [])
    return may_read(request, letter.facts.source_id) or is_about_own_receiver(request, letter)


async def seen_entries(
    context: ApiContext, request: web.Request, entries: Sequence[FailedEntry]
) -> Sequence[FailedEntry]:
    """Those whose letters the caller may see. Only the letter itself has the life of its receiver's name."""
    if is_admin(request):
        return entries

    def seen(record: Record | None) -> bool:
        return record is not None and sees_letter(request, read_dead_letter(record, context.topics))

    return list(compress(entries, await read_each(context.log, [(entry.at, None) for entry in entries], seen)))


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


def _failed_at(entry: FailedEntry) -> float:
    return entry.failed_at


def _rank(entry: FailedEntry) -> Rank:
    return entry.failed_at, f"{entry.at.partition}-{entry.at.offset}"


def _group_view(group: IndexGroup, newest: LetterView | None) -> LetterGroupView:
    return {
        "receiver": group.newest.receiver,
        "reason": group.newest.reason,
        "count": group.number,
        "first_at": rfc3339(group.first),
        "newest_at": rfc3339(group.newest.failed_at),
        "hours": group.hours,
        "newest": newest,
    }
