"""Prepares a batch for a store: checks its position, drops facts that the store already has, cleans texts, and converts
facts to table rows in the order of the columns in `sql.py`. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from relay.domain.attempt import Attempt, encode_attempt
from relay.domain.coordinate import Coordinate
from relay.domain.errors import HistoryMoved, HistoryUnavailable
from relay.domain.identity import MessageId, webhook_id
from relay.history.folding import SPAN_S, CountDelta, DeliveryRow, counts_of, deliveries_of, first_of
from relay.history.port import ArrivalFact, FactBatch, clean
from relay.log.port import TopicPartition

MESSAGE_COLUMNS = (
    "source_id, message_id, webhook_id, at_topic, at_partition, at_offset, received_at, event_type, content_type,"
    " size, headers, body, routed"
)
_encode = msgspec.json.Encoder().encode

TableRow = tuple[Any, ...]


class NewRows(NamedTuple):
    """The rows of a batch by table. `times`: source id, message id and time of each message."""

    messages: list[TableRow]
    times: list[tuple[str, str, float]]
    deliveries: list[TableRow]
    attempts: list[TableRow]
    counts: list[TableRow]


def new_rows(batch: FactBatch, stored: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]) -> NewRows:
    """The rows of the facts that the store lacks. `stored`: its positions. Raises HistoryMoved unless it has all
    records before the batch, which begins at `first`."""
    _check_begin(stored, first)
    new = taken(batch, stored)
    arrivals = first_of(new.arrivals)
    return NewRows(
        [_message_row(one) for one in arrivals],
        [(*one.message, one.received_at) for one in arrivals],
        [_delivery_row(one) for one in deliveries_of(new)],
        [_attempt_row(at, attempt) for at, attempt in new.attempts],
        [_count_row(one) for one in counts_of(attempt for _, attempt in new.attempts)],
    )


def taken(batch: FactBatch, next_offsets: Mapping[TopicPartition, int]) -> FactBatch:
    """The batch without facts before these offsets, which are already stored and counted."""

    def is_new(at: Coordinate) -> bool:
        return at.offset >= next_offsets.get(TopicPartition(at.topic, at.partition), 0)

    return FactBatch(
        [_kept(one) for one in batch.arrivals if is_new(one.at)],
        [one for one in batch.attempts if is_new(one[0])],
        [one for one in batch.endings if is_new(one.at)],
    )


def _kept(arrival: ArrivalFact) -> ArrivalFact:
    """The arrival with ids, texts and headers cleaned, if a database or JSON would reject them."""
    source_id, message_id = arrival.message
    texts = (source_id, message_id, arrival.event_type or "", arrival.content_type or "", *arrival.headers.values())
    if all(text.isprintable() for text in texts):
        return arrival
    return structs.replace(
        arrival,
        message=MessageId(clean(source_id), clean(message_id)),
        event_type=clean(arrival.event_type) if arrival.event_type is not None else None,
        content_type=clean(arrival.content_type) if arrival.content_type is not None else None,
        headers={clean(name): clean(value) for name, value in arrival.headers.items()},
    )


def attempt_value(attempt: Attempt) -> bytes:
    """The stored form of an attempt."""
    try:
        return encode_attempt(attempt)
    except UnicodeEncodeError:  # a lone surrogate, which no record of ours can have
        return encode_attempt(msgspec.convert(_cleaned(structs.asdict(attempt)), Attempt))


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(name): _cleaned(one) for name, one in value.items()}
        case msgspec.Struct():
            return _cleaned(structs.asdict(value))
        case _:
            return value


def _check_begin(stored: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]) -> None:
    for partition, offset in first.items():
        has = stored.get(partition, 0)
        if has < offset:
            topic, number = partition
            raise HistoryMoved(f"the history has {topic}/{number} up to {has}, but was at {offset}: it was cleared")


def check_not_newer(found: int, known: int, remedy: str) -> None:
    """Raises HistoryUnavailable if a newer release has created the tables, because they may have data that the log no
    longer has. `remedy`: how to start over anyway."""
    if found > known:
        raise HistoryUnavailable(
            f"a newer release has created the history (version {found}, this one reads {known}): use that release, or"
            f" {remedy} to rebuild it from the records that the log still has"
        )


def _message_row(arrival: ArrivalFact) -> TableRow:
    return (
        *arrival.message,
        webhook_id(*arrival.message),
        *arrival.at,
        arrival.received_at,
        arrival.event_type,
        arrival.content_type,
        arrival.size,
        _encode(arrival.headers) if arrival.headers else None,
        arrival.body,
        1 if arrival.receivers else 0,
    )


def _delivery_row(row: DeliveryRow) -> TableRow:
    return (*row[:6], *row.precedence, *row[7:])


def _attempt_row(at: Coordinate, attempt: Attempt) -> TableRow:
    return (
        *at,
        attempt.started_at,
        attempt.kind,
        clean(attempt.receiver or ""),
        clean(attempt.source_id or ""),
        clean(attempt.message_id or ""),
        int(not attempt.failed),
        attempt_value(attempt),
        clean(attempt.life),
    )


def _count_row(count: CountDelta) -> TableRow:
    by, at, receiver, source_id, life, numbers = count
    return SPAN_S[by], at, receiver, source_id, life, *numbers
