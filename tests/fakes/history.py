"""The history in memory: everything in dictionaries, and every question a walk through all of it."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec import structs

from relay.domain.attempt import Attempt, decode_attempt
from relay.domain.coordinate import Coordinate
from relay.domain.erasure import Erasure
from relay.domain.errors import HistoryMoved, HistoryUnavailable
from relay.domain.identity import MessageId, webhook_id
from relay.domain.state import CallbackStatus, State, Status, delivery_state
from relay.domain.topics import DAY_S
from relay.history.folding import (
    PROGRESS,
    DeliveryRow,
    counts_of,
    deliveries_of,
    first_of,
    found_of,
    join,
    order_of,
)
from relay.history.port import (
    WITHOUT,
    AfterAttempt,
    AfterMessage,
    ArrivalFact,
    AttemptFound,
    AttemptQuery,
    By,
    CountQuery,
    FactBatch,
    HistoryPage,
    MessageFound,
    MessageQuery,
    Size,
    SpanCount,
    Visible,
    clean,
    has_header,
    payload_has,
    read_cursor,
    write_cursor,
)
from relay.history.rows import attempt_value, taken
from relay.history.searching import (
    kept_attempt_query,
    kept_message,
    kept_query,
    kept_visible,
    sees,
    sees_attempt,
    sees_source,
    summed,
)
from relay.log.port import TopicPartition

T = TypeVar("T")
ANSWERED: Mapping[Status, Status] = {"done": "response_received_from_receiver"}


class MemoryHistory:
    """`available` False: every call says that it is away. `dropped`: its tables were removed; `start` creates them."""

    def __init__(self) -> None:
        self.available, self.dropped = True, False
        self.writes = self.refused = 0
        self._arrivals: dict[tuple[str, str], ArrivalFact] = {}
        self._deliveries: dict[tuple[str, str, str], DeliveryRow] = {}
        self._attempts: dict[Coordinate, Attempt] = {}
        self._counts: dict[tuple[By, int, str, str, str], tuple[int, ...]] = {}
        self._positions: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        if self.dropped and self.available:
            self.dropped = False
            await self.clear()
        self._look()

    async def close(self) -> None:
        return

    def _look(self) -> None:
        if not self.available or self.dropped:
            self.refused += 1
            raise HistoryUnavailable("it has no tables" if self.available else "the history is away")

    # writes

    async def next_offsets(self) -> dict[TopicPartition, int]:
        self._look()
        return dict(self._positions)

    async def write(
        self, batch: FactBatch, next_offsets: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
    ) -> None:
        self._look()
        if any(self._positions.get(partition, 0) < offset for partition, offset in first.items()):
            raise HistoryMoved("it was cleared")
        batch = taken(batch, self._positions)
        for arrival in first_of(batch.arrivals):
            known = self._arrivals.get(arrival.message)
            if known is None or order_of(arrival) < order_of(known):
                self._arrivals[arrival.message] = arrival
        for row in deliveries_of(batch):
            old = self._deliveries.get(row.key)
            self._deliveries[row.key] = row if old is None else join(old, row)
        self._attempts |= {at: decode_attempt(attempt_value(one)) for at, one in batch.attempts}
        for *key, numbers in counts_of(attempt for _, attempt in batch.attempts):
            span: tuple[By, int, str, str, str] = tuple(key)  # type: ignore[assignment]
            before = self._counts.get(span, (0,) * len(numbers))
            self._counts[span] = tuple(map(sum, zip(before, numbers, strict=True)))
        self._advance(next_offsets)
        self.writes += 1

    async def skip(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        self._look()
        self._advance(next_offsets)

    async def rewind(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        self._look()
        self._positions |= next_offsets

    def _advance(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in next_offsets.items():
            self._positions[partition] = max(offset, self._positions.get(partition, 0))

    async def prune(self, before: float) -> int:
        self._look()
        day = before // DAY_S * DAY_S
        old = [key for key, arrival in self._arrivals.items() if arrival.received_at < day]
        for key in old:
            del self._arrivals[key]
        self._deliveries = {key: row for key, row in self._deliveries.items() if row.updated_at >= day}
        self._attempts = {at: one for at, one in self._attempts.items() if one.started_at >= day}
        self._counts = {key: numbers for key, numbers in self._counts.items() if key[1] >= day}
        return len(old)

    async def erase(self, erasure: Erasure) -> int:
        self._look()
        found = [one for one in self._arrivals.values() if self._is_erased(erasure, one) and (one.body or one.headers)]
        for one in found:
            self._arrivals[one.message] = structs.replace(one, headers={}, body=None)
        self._attempts = {
            at: one
            for at, one in self._attempts.items()
            if not (
                one.started_at <= erasure.made_at
                and one.message_id
                and erasure.source_id in (None, one.source_id)
                and erasure.message_id in (None, one.message_id)
                and erasure.receiver in (None, one.receiver)
            )
        }
        return len(found)

    def _is_erased(self, erasure: Erasure, one: ArrivalFact) -> bool:
        if one.received_at > erasure.made_at:
            return False
        if erasure.receiver is not None:
            return {key[2] for key in self._deliveries if key[:2] == one.message} == {erasure.receiver}
        return erasure.source_id == one.message.source_id and erasure.message_id in (None, one.message.message_id)

    async def clear(self) -> None:
        self._look()
        for kept in (self._arrivals, self._deliveries, self._attempts, self._counts, self._positions):
            kept.clear()

    # queries

    async def size(self) -> Size:
        self._look()
        return Size(len(self._arrivals), len(self._deliveries), len(self._attempts), None)

    async def messages(
        self, query: MessageQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[MessageFound]:
        self._look()
        query = kept_query(query)
        after = read_cursor(cursor, AfterMessage)
        found = sorted(
            ((_place(one), one) for one in self._arrivals.values() if self._is_meant(query, one)), reverse=True
        )
        page, next_cursor = _page([(place, one) for place, one in found if after is None or place < after], limit)
        return HistoryPage([self._found(one, query.visible) for one in page], next_cursor)

    def _is_meant(self, query: MessageQuery, arrival: ArrivalFact) -> bool:
        source_id, message_id = arrival.message
        event_type = arrival.event_type or ""
        return (
            self._may_be_shown(query.visible, arrival)
            and (query.source_id is None or source_id == query.source_id)
            and _is_within(arrival.received_at, query.since, query.until)
            and (query.event_type is None or _matches(query.event_type, event_type))
            and (
                query.id_prefix is None
                or message_id.startswith(query.id_prefix)
                or webhook_id(source_id, message_id).startswith(query.id_prefix)
            )
            and (query.header is None or has_header(arrival.headers, *query.header))
            and (query.payload is None or payload_has(arrival.body, *query.payload))
            and (
                (query.receiver, query.status, query.state, query.reason) == (None, None, None, None)
                or any(self._is_one(query, row) for row in self._shown(arrival, query.visible))
                or (
                    (query.receiver, query.reason) == (None, None)
                    and {query.status, query.state} <= WITHOUT
                    and self._is_new(arrival)
                )
            )
        )

    def _is_one(self, query: MessageQuery, row: DeliveryRow) -> bool:
        return (
            (query.receiver is None or row.receiver == query.receiver)
            and (query.status is None or PROGRESS[row.progress] == ANSWERED.get(query.status, query.status))
            and (query.state is None or _is_in(query, row))
            and (query.reason is None or row.reason == query.reason)
        )

    def _is_new(self, arrival: ArrivalFact) -> bool:
        return all(row.key[:2] != arrival.message for row in self._deliveries.values())

    def _may_be_shown(self, visible: Visible, arrival: ArrivalFact) -> bool:
        return sees_source(visible, arrival.message.source_id) or bool(list(self._shown(arrival, visible)))

    def _shown(self, arrival: ArrivalFact, visible: Visible) -> Iterable[DeliveryRow]:
        source_id, message_id = arrival.message
        for (of_source, of_message, _), row in self._deliveries.items():
            is_its = of_message == message_id and of_source == source_id
            if is_its and sees(visible, row.source_id, row.receiver, row.life, arrival.at):
                yield row

    def _found(self, arrival: ArrivalFact, visible: Visible) -> MessageFound:
        rows = sorted(self._shown(arrival, visible))
        return MessageFound(arrival, tuple(map(found_of, rows)))

    async def message(self, message: MessageId) -> MessageFound | None:
        self._look()
        arrival = self._arrivals.get(kept_message(message))
        return None if arrival is None else self._found(arrival, Visible())

    async def numbered(self, receiver: str, visible: Visible, *, after: int, limit: int) -> list[tuple[int, MessageId]]:
        self._look()
        found = [
            (row.number, MessageId(row.source_id, row.message_id))
            for row in self._deliveries.values()
            if row.receiver == clean(receiver)
            and row.number is not None
            and row.number > after
            and (not row.life or visible.life(receiver).has(row.life))
        ]
        return sorted(found)[:limit]

    async def attempts(
        self, query: AttemptQuery, *, limit: int, cursor: str | None = None
    ) -> HistoryPage[AttemptFound]:
        self._look()
        after = read_cursor(cursor, AfterAttempt)
        query = kept_attempt_query(query)
        found = [AttemptFound(at, one) for at, one in self._attempts.items() if _is_wanted(query, at, one)]
        placed = [(AfterAttempt(one.attempt.started_at, one.at.partition, one.at.offset), one) for one in found]
        placed.sort(key=lambda pair: pair[0], reverse=True)
        return HistoryPage(*_page([(place, one) for place, one in placed if after is None or place < after], limit))

    async def counted(self, query: CountQuery, *, most: int) -> list[SpanCount]:
        self._look()
        visible = kept_visible(query.visible)
        found = []
        for (span, at, its_receiver, its_source, life), numbers in sorted(self._counts.items()):
            of_span = span == query.by and query.since <= at < query.until
            asked = query.receiver in (None, its_receiver) and query.source_id in (None, its_source)
            if of_span and asked and sees(visible, its_source, its_receiver, life):
                found.append(SpanCount(at, its_receiver, its_source, numbers))
        return summed(found[:most])


def _place(arrival: ArrivalFact) -> AfterMessage:
    return AfterMessage(arrival.received_at, *arrival.message)


def _page(found: list[tuple[AfterMessage, T]] | list[tuple[AfterAttempt, T]], limit: int) -> tuple[list[T], str | None]:
    cursor = write_cursor(found[limit - 1][0]) if len(found) > limit else None
    return [one for _, one in found[:limit]], cursor


def _is_within(at: float, since: float | None, until: float | None) -> bool:
    return (since is None or at >= since) and (until is None or at < until)


def _matches(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def _is_wanted(query: AttemptQuery, at: Coordinate, attempt: Attempt) -> bool:
    return (
        (query.at is None or query.at == at[1:])
        and (query.behind is None or at.partition != query.behind[0] or at.offset > query.behind[1])
        and sees_attempt(query.visible, attempt)
        and (query.message is None or (attempt.identity and kept_message(attempt.identity)) == query.message)
        and (query.receiver is None or clean(attempt.receiver or "") == query.receiver)
        and (query.kinds is None or attempt.kind in query.kinds)
        and (query.failed is None or attempt.failed is query.failed)
        and _is_within(attempt.started_at, query.since, query.until)
    )


def _is_in(query: MessageQuery, row: DeliveryRow) -> bool:
    if query.state == "retrying":  # also if its attempts do not count
        return PROGRESS[row.progress] == "arrived" and row.precedence.rank > 0
    return _state(query, row) == query.state


def _state(query: MessageQuery, row: DeliveryRow) -> State:
    status = PROGRESS[row.progress]
    is_meant = (row.source_id in query.answered_by.names) != query.answered_by.excluded
    is_returning = status == "response_received_from_receiver" and is_meant == (query.state == "returning")
    callback: CallbackStatus | None = "pending" if is_returning else None
    return delivery_state(status, attempts=row.attempts, reason=row.reason, callback=callback)
