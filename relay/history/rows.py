"""Converts facts to table rows, in the order of the columns in `sql.py`. Pure."""

from collections.abc import Iterator
from typing import Any

import msgspec

from relay.domain.attempt import Attempt
from relay.domain.coordinate import Coordinate
from relay.domain.identity import webhook_id
from relay.history.folding import SPAN_S, CountDelta, DeliveryRow
from relay.history.port import ArrivalFact
from relay.history.taking import attempt_value
from relay.history.text import clean

MESSAGE_COLUMNS = (
    "source_id, message_id, webhook_id, at_topic, at_partition, at_offset, received_at, event_type, content_type,"
    " size, headers, body, routed"
)
_encode = msgspec.json.Encoder().encode


def message_row(arrival: ArrivalFact) -> tuple[Any, ...]:
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


def delivery_row(row: DeliveryRow) -> tuple[Any, ...]:
    return (*row[:6], *row.said, *row[7:])


def attempt_row(at: Coordinate, attempt: Attempt) -> tuple[Any, ...]:
    return (
        *at,
        attempt.started_at,
        attempt.kind,
        clean(attempt.receiver or ""),
        clean(attempt.source_id or ""),
        clean(attempt.message_id or ""),
        int(not attempt.failed),
        attempt_value(attempt),
        attempt.life,
    )


def count_row(count: CountDelta) -> tuple[Any, ...]:
    by, at, receiver, source_id, life, numbers = count
    return SPAN_S[by], at, receiver, source_id, life, *numbers


def messages_in(deliveries: list[DeliveryRow]) -> Iterator[tuple[str, str]]:
    """Keys of the deliveries' messages, each once."""
    yield from dict.fromkeys((row.source_id, row.message_id) for row in deliveries)
