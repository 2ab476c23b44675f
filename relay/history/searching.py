"""Searches on SQL stores: runs the selects of a query, and merges their rows into a page."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final, TypeVar

import msgspec
from msgspec import structs

from relay.domain.attempt import OF_SENDER, Attempt, decode_attempt
from relay.domain.coordinate import Coordinate
from relay.domain.erasure import Erasure
from relay.domain.errors import HistoryUnavailable, InvalidRecord
from relay.domain.identity import MessageId
from relay.domain.json_pointer import NOT_JSON
from relay.domain.scope import Scope
from relay.domain.sliced import sliced
from relay.history.folding import DeliveryRow, Precedence, found_of
from relay.history.port import (
    LARGEST,
    AfterAttempt,
    AfterMessage,
    ArrivalFact,
    AttemptFound,
    AttemptQuery,
    CountQuery,
    HistoryPage,
    MessageFound,
    MessageQuery,
    SpanCount,
    Visible,
    clean,
    has_header,
    payload_has,
    read_cursor,
    write_cursor,
)
from relay.history.select import Dialect, Select, erasing
from relay.history.sql import (
    MOST_BRANCHES,
    MessageSearch,
    attempt_selects,
    count_select,
    deliveries_of,
    ids_beginning,
    numbered_select,
    types_beginning,
)

T = TypeVar("T")
Row = Sequence[Any]
Fetch = Callable[[Sequence[Select]], Awaitable[list[list[Row]]]]
"""The rows of each select."""
Change = Callable[[Select], Awaitable[int]]
"""The number of rows that a statement changes."""

FEW: Final = 2_000
"""Maximum number of ids with a prefix that are looked up by id; if there are more, scanning by time finds some soon."""
LOOKED_AT_FIRST: Final = 250
LOOKED_AT_ONCE: Final = 1_000
LOOKED_AT_MOST: Final = 100_000
"""Maximum number of messages whose headers and bodies are examined for one page."""
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes of bodies that are fetched together, estimated from the previous fetch."""
BYTES_AT_MOST: Final = 16 * 1024 * 1024
"""Maximum bytes of bodies that are examined for one page."""
_BYTES_A_TURN: Final = 64 * 1024
"""Bytes of bodies that are examined before the event loop runs other tasks."""
_PER_SELECT: Final = 1_000
BODY_IN_LIST: Final = 256
"""Bytes of each body that a list fetches, for its preview: whole bodies would be megabytes for a page."""

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class _Looked:
    """Counts the messages examined for a page, and adapts the size of the next fetch."""

    def __init__(self) -> None:
        self.next_run = LOOKED_AT_FIRST
        self._messages = 0
        self._bytes = 0
        self._turn = 0

    @property
    def is_enough(self) -> bool:
        return self._messages >= LOOKED_AT_MOST or self._bytes >= BYTES_AT_MOST

    def fetched(self, arrivals: Sequence[ArrivalFact]) -> None:
        """Adapt the next fetch: it grows while few or small bodies are returned."""
        held = sum(len(each.body or b"") for each in arrivals)
        grown = min(LOOKED_AT_ONCE, 2 * self.next_run)
        self.next_run = grown if 2 * held <= BYTES_AT_ONCE else LOOKED_AT_FIRST

    async def looked_at(self, arrival: ArrivalFact) -> None:
        size = len(arrival.body or b"")
        self._messages += 1
        self._bytes += size
        self._turn += size
        if self._turn >= _BYTES_A_TURN:
            self._turn = 0
            await asyncio.sleep(0)


class Searching:
    """The reading half of a store, and what it erases. `fetch` runs selects; `change`: one statement."""

    def __init__(self, dialect: Dialect, fetch: Fetch, change: Change) -> None:
        self._dialect = dialect
        self._fetch = fetch
        self._change = change

    async def erase(self, erasure: Erasure) -> int:
        messages = 0
        for statement in erasing(self._dialect, erasure):
            while changed := await self._change(statement):
                messages += changed if statement.text.startswith("UPDATE") else 0
        return messages

    async def messages(
        self, query: MessageQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[MessageFound]:
        query, after = kept_query(query), read_cursor(cursor, AfterMessage)
        search = MessageSearch(self._dialect, query, after, limit + 1, body_bytes=BODY_IN_LIST)
        if query.id_prefix is not None:
            [keys] = await self._fetch([ids_beginning(self._dialect, query.id_prefix, FEW)])
            if not keys:
                return HistoryPage([], None)
            search = replace(search, sparse=[(row[0], row[1]) for row in keys] if len(keys) < FEW else None)
        if query.event_type is not None and query.event_type.endswith("*"):
            [rows] = await self._fetch([types_beginning(self._dialect, query.event_type[:-1], FEW)])
            search = replace(search, dense_type=len(rows) == FEW)
        if query.header is not None or query.payload is not None:
            arrivals, place = await self._looked_through(search, limit)
        else:
            found = await self._arrivals(search)
            arrivals = found[:limit]
            place = _after(arrivals[-1]) if len(found) > limit else None
        looked_at = await self._with_deliveries(arrivals, query.visible)
        items = [
            one for one in looked_at if one.deliveries or sees_source(query.visible, one.arrival.message.source_id)
        ]
        return HistoryPage(items, None if place is None else write_cursor(place))

    async def _arrivals(self, search: MessageSearch) -> list[ArrivalFact]:
        """The first arrivals of a search, up to its limit. With many receivers, those with the newest messages are
        queried first, and most are not queried at all: once a page is full, older messages cannot be on it."""
        if not search.is_of_many:
            return await self._merged(search, [])
        found = await self._merged(search.of_sources(), [])
        [rows] = await self._fetch([search.heads()])
        heads = sorted(((newest, name) for name, newest in rows if newest is not None), reverse=True)
        for group in sliced(heads, MOST_BRANCHES):
            last = found[-1] if len(found) == search.limit else None
            if last is not None and group[0][0] < last.received_at:
                break
            found = await self._merged(search.of_receivers([name for _, name in group]), found)
        return found

    async def _merged(self, search: MessageSearch, before: Sequence[ArrivalFact]) -> list[ArrivalFact]:
        """The first arrivals of a search, merged with earlier results."""
        found = {arrival.message: arrival for arrival in before}
        for rows in await self._fetch(list(search.selects())):
            found |= {MessageId(row[0], row[1]): _arrival(row) for row in rows}
        return sorted(found.values(), key=_after, reverse=True)[: search.limit]

    async def _looked_through(self, search: MessageSearch, limit: int) -> tuple[list[ArrivalFact], AfterMessage | None]:
        """Arrivals whose headers or body match, and the place after which to continue; None at the end."""
        query, found = search.query, list[ArrivalFact]()
        held = [None if pair is None else may_hold(pair[1]) for pair in (query.header, query.payload)]
        search, looked = search.candidates(*held), _Looked()
        while True:
            search = replace(search, limit=looked.next_run)
            arrivals = await self._arrivals(search)
            looked.fetched(arrivals)
            for arrival in arrivals:
                if _has(query, arrival):
                    found.append(arrival)
                await looked.looked_at(arrival)
                if len(found) == limit or looked.is_enough:
                    return found, _after(arrival)
            if len(arrivals) < search.limit:
                return found, None
            search = replace(search, after=_after(arrivals[-1]))

    async def _with_deliveries(self, arrivals: Sequence[ArrivalFact], visible: Visible) -> list[MessageFound]:
        rows: dict[MessageId, list[DeliveryRow]] = {arrival.message: [] for arrival in arrivals}
        places = {arrival.message: arrival.at for arrival in arrivals}
        parts = sliced(arrivals, _PER_SELECT)
        for found in await self._fetch([deliveries_of(self._dialect, [one.message for one in part]) for part in parts]):
            for row in map(_delivery, found):
                message = MessageId(row.source_id, row.message_id)
                if sees(visible, row.source_id, row.receiver, row.life, places[message]):
                    rows[message].append(row)
        return [
            MessageFound(arrival, tuple(found_of(row) for row in sorted(rows[arrival.message]))) for arrival in arrivals
        ]

    async def message(self, message: MessageId) -> MessageFound | None:
        message = kept_message(message)
        [rows] = await self._fetch([_message(self._dialect, message)])
        found = await self._with_deliveries([_arrival(row) for row in rows], Visible())
        return found[0] if found else None

    async def numbered(self, receiver: str, visible: Visible, *, after: int, limit: int) -> list[tuple[int, MessageId]]:
        select = numbered_select(self._dialect, clean(receiver), kept_visible(visible), min(after, LARGEST), limit)
        [rows] = await self._fetch([select])
        return [(number, MessageId(source_id, message_id)) for number, source_id, message_id in rows]

    async def attempts(
        self, query: AttemptQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[AttemptFound]:
        query, after = kept_attempt_query(query), read_cursor(cursor, AfterAttempt)
        selects = list(attempt_selects(self._dialect, query, after, limit + 1))
        found: dict[AfterAttempt, AttemptFound] = {}
        for rows in await self._fetch(selects):
            for topic, partition, offset, started_at, value in rows:
                place = AfterAttempt(started_at, partition, offset)
                found[place] = AttemptFound(Coordinate(topic, partition, offset), _decoded(decode_attempt, value))
        places = sorted(found, reverse=True)
        cursor = write_cursor(places[limit - 1]) if len(places) > limit else None
        page = [found[place] for place in places[:limit]]
        return HistoryPage([one for one in page if sees_attempt(query.visible, one.attempt)], cursor)

    async def counted(self, query: CountQuery, *, most: int) -> list[SpanCount]:
        query = replace(query, visible=kept_visible(query.visible))
        [rows] = await self._fetch([count_select(self._dialect, query, most)])
        return summed(
            SpanCount(at, its_receiver, its_source, tuple(numbers))
            for _, at, its_receiver, its_source, life, *numbers in rows
            if sees(query.visible, its_source, its_receiver, life)
        )


def _after(arrival: ArrivalFact) -> AfterMessage:
    return AfterMessage(arrival.received_at, *arrival.message)


def _has(query: MessageQuery, arrival: ArrivalFact) -> bool:
    return (query.header is None or has_header(arrival.headers, *query.header)) and (
        query.payload is None or payload_has(arrival.body, *query.payload)
    )


def sees_source(visible: Visible, source_id: str) -> bool:
    """Whether everything of a source is visible."""
    return visible == Visible() or any(Scope("read", one).covers("read", source_id) for one in visible.sources or ())


def sees(visible: Visible, source_id: str, receiver: str, life: str, at: Coordinate | None = None) -> bool:
    """Whether a delivery to a receiver is visible, by the `life` of its name, or else by its message's place `at`."""
    if sees_source(visible, source_id):
        return True
    return receiver in (visible.receivers or ()) and visible.life(receiver).has(life, at)


def sees_attempt(visible: Visible, attempt: Attempt) -> bool:
    source_id, receiver = clean(attempt.source_id or ""), clean(attempt.receiver or "")
    of_receiver = attempt.kind not in OF_SENDER and sees(visible, source_id, receiver, attempt.life)
    return of_receiver or sees_source(visible, source_id)


def summed(counts: Iterable[SpanCount]) -> list[SpanCount]:
    """Counts summed by span, receiver and source, over all lives of the receiver's name."""
    found: dict[tuple[float, str, str], tuple[int, ...]] = {}
    for at, receiver, source_id, numbers in map(structs.astuple, counts):
        before = found.get((at, receiver, source_id), (0,) * len(numbers))
        found[at, receiver, source_id] = tuple(map(sum, zip(before, numbers, strict=True)))
    return [SpanCount(*key, numbers) for key, numbers in found.items()]


def _message(dialect: Dialect, message: MessageId) -> Select:
    search = MessageSearch(dialect, MessageQuery(id_prefix=message.message_id), None, 1, [message])
    return next(search.selects())


def _arrival(row: Row) -> ArrivalFact:
    source_id, message_id, topic, partition, offset, received_at, event_type, content_type, size, headers, body = row
    return ArrivalFact(
        MessageId(source_id, message_id),
        Coordinate(topic, partition, offset),
        received_at,
        event_type,
        content_type,
        size,
        _decoded(_decode_headers, headers) if headers else {},
        body,
    )


def _decoded(decode: Callable[[bytes], T], stored: bytes) -> T:
    """Raises HistoryUnavailable for what was stored in this form and has another one now."""
    try:
        return decode(stored)
    except (InvalidRecord, *NOT_JSON) as error:
        raise HistoryUnavailable(f"the history is damaged ({error}); rebuild it: docs/history.md") from error


def _delivery(row: Row) -> DeliveryRow:
    source_id, message_id, receiver, generation, progress, attempts, rank, number, partition, offset, *rest = row
    precedence = Precedence(rank, number, partition, offset)
    return DeliveryRow(source_id, message_id, receiver, generation, progress, attempts, precedence, *rest)


# queries, in texts as they are stored


def kept_message(message: MessageId) -> MessageId:
    return MessageId(clean(message.source_id), clean(message.message_id))


def kept_visible(visible: Visible) -> Visible:
    if visible == Visible():
        return visible
    sources, receivers = sorted(map(clean, visible.sources or ())), sorted(map(clean, visible.receivers or ()))
    return Visible(sources, receivers, visible.lives)


def kept_query(query: MessageQuery) -> MessageQuery:
    return replace(
        query,
        visible=kept_visible(query.visible),
        source_id=_kept_text(query.source_id),
        receiver=_kept_text(query.receiver),
        reason=_kept_text(query.reason),
        event_type=_kept_text(query.event_type),
        id_prefix=_kept_text(query.id_prefix),
        header=None if query.header is None else (clean(query.header[0]), clean(query.header[1])),
    )


def kept_attempt_query(query: AttemptQuery) -> AttemptQuery:
    message = None if query.message is None else kept_message(query.message)
    return replace(query, visible=kept_visible(query.visible), message=message, receiver=_kept_text(query.receiver))


def _kept_text(text: str | None) -> str | None:
    return None if text is None else clean(text)


def may_hold(value: str) -> bytes | None:
    """Bytes that a body with the text `value` must contain, unless it has a backslash. None for a number, which has
    several spellings."""
    try:
        Decimal(value)
    except ArithmeticError:
        return value.encode(errors="replace")
    return None
