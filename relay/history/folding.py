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
from relay.domain.identity import DeliveryId
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
        known = found.get(row.key)
        found[row.key] = row if known is None else join(known, row)
    return [found[key] for key in sorted(found)]


def join(one: DeliveryRow, other: DeliveryRow) -> DeliveryRow:
    """Join two rows of the same delivery."""
    number = max((row.number for row in (one, other) if row.number is not None), default=None)
    if one.generation != other.generation:
        return max(one, other, key=lambda row: row.generation)._replace(number=number)
    latest = max(one, other, key=lambda row: row.precedence)
    return latest._replace(
        progress=max(one.progress, other.progress),
        attempts=max(one.attempts, other.attempts),
        updated_at=max(one.updated_at, other.updated_at),
        life=max(one.life, other.life),
        number=number,
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
        if attempt.identity is not None and attempt.kind != "ping":
            yield _of_attempt(at, attempt)
    for ending in batch.endings:
        yield _of_ending(ending)


def _of_arrival(arrival: ArrivalFact) -> Iterable[DeliveryRow]:
    for receiver in arrival.receivers:
        key = _key(DeliveryId(receiver, *arrival.message))
        yield DeliveryRow(*key, 0, 0, 0, Precedence(), None, None, None, arrival.received_at)


def _of_attempt(at: Coordinate, attempt: Attempt) -> DeliveryRow:
    key = _key(DeliveryId(attempt.receiver or "", attempt.source_id or "", attempt.message_id or ""))
    ended_at = attempt.started_at + attempt.duration_ms / 1000
    if attempt.kind != "post":
        is_taken = attempt.kind == "callback" and attempt.outcome == "done"
        progress = PROGRESS.index("response_delivered_to_sender") if is_taken else 0
        return DeliveryRow(
            *key, attempt.generation, progress, 0, Precedence(), None, None, None, ended_at, clean(attempt.life)
        )
    progress = _AFTER_CODE.get(attempt.code_class or "", 0)
    precedence = Precedence(1, attempt.attempt, at.partition, at.offset)
    status = attempt.response.status if attempt.response is not None else None
    response = (status, _text(attempt.reason), _text(attempt.detail))
    attempts = attempt.attempt if attempt.counted else attempt.attempt - 1
    row = DeliveryRow(
        *key, attempt.generation, progress, attempts, precedence, *response, ended_at, clean(attempt.life)
    )
    return row._replace(number=attempt.number)


def _of_ending(ending: EndingFact) -> DeliveryRow:
    progress = PROGRESS.index(ending.status)
    precedence = Precedence(_rank(ending), 0, ending.at.partition, ending.at.offset)
    last = (ending.last_status, _text(ending.reason), _text(ending.detail))
    key = _key(ending.delivery)
    row = DeliveryRow(*key, ending.generation, progress, ending.attempts, precedence, *last, ending.happened_at)
    return row._replace(life=clean(ending.life), number=ending.number)


def _rank(ending: EndingFact) -> int:
    if ending.status != "failed":
        return 2
    return 3 if is_of_callback(ending.reason) else 4


def _key(delivery: DeliveryId) -> tuple[str, str, str]:
    receiver = "" if delivery.receiver == NO_RECEIVER else clean(delivery.receiver)
    return clean(delivery.source_id), clean(delivery.message_id), receiver


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
        for by, span_s in SPAN_S.items():
            at = int(attempt.started_at // span_s) * span_s
            key = (by, at, clean(attempt.receiver), clean(attempt.source_id or ""), clean(attempt.life))
            _count(found.setdefault(key, [0] * NUMBERS), attempt)
    return [CountDelta(*key, tuple(found[key])) for key in sorted(found)]


def _count(numbers: list[int], attempt: Attempt) -> None:
    if attempt.code_class is not None:
        numbers[OUTCOMES.index(attempt.code_class)] += 1
    if attempt.response is not None:
        numbers[len(OUTCOMES) + bisect_left(BOUNDS_S, attempt.duration_ms / 1000)] += 1


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
