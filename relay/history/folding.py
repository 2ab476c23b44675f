"""Folds the facts of a batch into delivery rows and counts. Pure, and independent of the order of the facts.

Two rows of one delivery are joined field by field. Each field takes the value with the greatest key, which begins with
the generation; so neither the order nor repetitions matter.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from relay.domain.attempt import Attempt
from relay.domain.coordinate import Coordinate
from relay.domain.hop import NO_RECEIVER
from relay.domain.reasons import is_of_callback
from relay.domain.state import Status
from relay.domain.statistics import BOUNDS_S, NUMBERS, OUTCOMES
from relay.history.port import ArrivalFact, By, DeliveryFound, EndingFact, FactBatch, clean

PROGRESS: Final[tuple[Status, ...]] = (
    "arrived",
    "delivered_to_receiver",
    "response_received_from_receiver",
    "response_delivered_to_sender",
    "failed",
)
"""Statuses of a generation of a delivery in order of progress. A failed generation stays failed, because a replay
begins the next one."""
SPAN_S: Final[Mapping[By, int]] = {"minute": 60, "hour": 3600}

_AFTER_CODE: Final = {"accepted": 1, "delivered": 1}


class Precedence(NamedTuple):
    """Precedence of a record's last response; the greatest counts. `rank`: 0 none, 1 an attempt, 2 an answer, 3 a
    callback that was given up, 4 a delivery that was given up. `number`: of the attempt. Then the place of the
    record."""

    rank: int = 0
    number: int = 0
    partition: int = 0
    offset: int = 0


_NO_RESPONSE: Final = Precedence()


class DeliveryRow(NamedTuple):
    """A row of the table of deliveries. `progress`: index into PROGRESS. `life`: of the receiver's name; empty until a
    record with it was read. `number`: the highest one that it had, in any generation."""

    source_id: str
    message_id: str
    receiver: str
    generation: int
    progress: int
    attempts: int
    precedence: Precedence
    last_status: int | None
    reason: str | None
    detail: str | None
    updated_at: float
    life: str = ""
    number: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self[:3]


def deliveries_of(batch: FactBatch) -> list[DeliveryRow]:
    """One row for each delivery in the batch, ordered by key."""
    found: dict[tuple[str, str, str], DeliveryRow] = {}
    for row in _rows(batch):
        key = row.key
        known = found.get(key)
        found[key] = row if known is None else join(known, row)
    return [found[key] for key in sorted(found)]


def join(one: DeliveryRow, other: DeliveryRow) -> DeliveryRow:
    """Join two rows of the same delivery."""
    number = one.number
    if number is None or (other.number is not None and other.number > number):
        number = other.number
    if one.generation != other.generation:
        return (one if one.generation > other.generation else other)._replace(number=number)
    latest = other if other.precedence > one.precedence else one
    return DeliveryRow(  # `_replace` takes three times as long
        *one.key,
        one.generation,
        max(one.progress, other.progress),
        max(one.attempts, other.attempts),
        latest.precedence,
        latest.last_status,
        latest.reason,
        latest.detail,
        max(one.updated_at, other.updated_at),
        max(one.life, other.life),
        number,
    )


def found_of(row: DeliveryRow) -> DeliveryFound:
    """The row as a result of a query."""
    return DeliveryFound(
        row.receiver,
        PROGRESS[row.progress],
        row.generation,
        row.attempts,
        row.last_status,
        row.reason,
        row.detail,
        row.updated_at,
        row.life,
    )


def _rows(batch: FactBatch) -> Iterable[DeliveryRow]:
    for arrival in batch.arrivals:
        yield from _of_arrival(arrival)
    for at, attempt in batch.attempts:
        if attempt.source_id is not None and attempt.message_id is not None and attempt.kind != "ping":
            yield _of_attempt(at, attempt)
    for ending in batch.endings:
        yield _of_ending(ending)


def _of_arrival(arrival: ArrivalFact) -> Iterable[DeliveryRow]:
    for receiver in arrival.receivers:
        key = _key(receiver, *arrival.message)
        yield DeliveryRow(*key, 0, 0, 0, _NO_RESPONSE, None, None, None, arrival.received_at)


def _of_attempt(at: Coordinate, attempt: Attempt) -> DeliveryRow:
    key = _key(attempt.receiver or "", attempt.source_id or "", attempt.message_id or "")
    ended_at = attempt.started_at + attempt.duration_ms / 1000
    if attempt.kind != "post":
        is_taken = attempt.kind == "callback" and attempt.outcome == "done"
        progress = PROGRESS.index("response_delivered_to_sender") if is_taken else 0
        return DeliveryRow(
            *key, attempt.generation, progress, 0, _NO_RESPONSE, None, None, None, ended_at, clean(attempt.life)
        )
    progress = _AFTER_CODE.get(attempt.code_class or "", 0)
    precedence = Precedence(1, attempt.attempt, at.partition, at.offset)
    status = attempt.response.status if attempt.response is not None else None
    response = (status, _text(attempt.reason), _text(attempt.detail))
    attempts = attempt.attempt if attempt.counted else attempt.attempt - 1
    life, number = clean(attempt.life), attempt.number
    return DeliveryRow(*key, attempt.generation, progress, attempts, precedence, *response, ended_at, life, number)


def _of_ending(ending: EndingFact) -> DeliveryRow:
    progress = PROGRESS.index(ending.status)
    precedence = Precedence(_rank(ending), 0, ending.at.partition, ending.at.offset)
    last = (ending.last_status, _text(ending.reason), _text(ending.detail))
    key = _key(*ending.delivery)
    rest = ending.happened_at, clean(ending.life), ending.number
    return DeliveryRow(*key, ending.generation, progress, ending.attempts, precedence, *last, *rest)


def _rank(ending: EndingFact) -> int:
    if ending.status != "failed":
        return 2
    return 3 if is_of_callback(ending.reason) else 4


def _key(receiver: str, source_id: str, message_id: str) -> tuple[str, str, str]:
    return clean(source_id), clean(message_id), "" if receiver == NO_RECEIVER else clean(receiver)


def _text(text: str | None) -> str | None:
    return clean(text) if text else None


class CountDelta(NamedTuple):
    """Numbers that a batch adds to a span. `at`: the span's begin, Unix seconds."""

    by: By
    at: int
    receiver: str
    source_id: str
    life: str
    numbers: tuple[int, ...]


def counts_of(attempts: Iterable[Attempt]) -> list[CountDelta]:
    """Counts of the POSTs to receivers among `attempts`, ordered by key."""
    found: dict[tuple[By, int, str, str, str], list[int]] = {}
    for attempt in attempts:
        if attempt.kind != "post" or attempt.code_class is None or attempt.receiver is None:
            continue
        party = clean(attempt.receiver), clean(attempt.source_id or ""), clean(attempt.life)
        counted = [OUTCOMES.index(attempt.code_class)]
        if attempt.response is not None:
            counted.append(len(OUTCOMES) + bisect_left(BOUNDS_S, attempt.duration_ms / 1000))
        for by, span_s in SPAN_S.items():
            at = int(attempt.started_at // span_s) * span_s
            numbers = found.setdefault((by, at, *party), [0] * NUMBERS)
            for index in counted:
                numbers[index] += 1
    return [CountDelta(*key, tuple(found[key])) for key in sorted(found)]


def first_of(arrivals: Sequence[ArrivalFact]) -> list[ArrivalFact]:
    """The first arrival of each id, ordered by id."""
    found: dict[tuple[str, str], ArrivalFact] = {}
    for arrival in arrivals:
        known = found.get(arrival.message)
        if known is None or order_of(arrival) < order_of(known):
            found[arrival.message] = arrival
    return [found[key] for key in sorted(found)]


def order_of(arrival: ArrivalFact) -> tuple[float, int, int]:
    """Sort key by time of arrival."""
    return arrival.received_at, arrival.at.partition, arrival.at.offset
