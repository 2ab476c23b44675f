"""What the facts of a batch come to: rows of deliveries and counts. Pure, and whatever the order of the facts.

Two rows of one delivery are joined field by field, each by a greatest one that begins with the generation; so it does
not matter which came first, nor how often.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from relay.domain.attempt import Attempt
from relay.domain.coordinate import Coordinate
from relay.domain.hop import NO_RECEIVER
from relay.domain.identity import DeliveryId
from relay.domain.progress import Status
from relay.domain.reasons import is_of_callback
from relay.domain.statistics import BOUNDS_S, NUMBERS, OUTCOMES
from relay.history.port import ArrivalFact, By, DeliveryFound, EndingFact, FactBatch
from relay.history.text import clean

PROGRESS: Final[tuple[Status, ...]] = (
    "arrived",
    "delivered_to_receiver",
    "response_received_from_receiver",
    "response_delivered_to_sender",
    "failed",
)
"""Of a life of a delivery, each behind those that it may have been before: what has failed stays so, as a replay begins
the next one."""
SPAN_S: Final[Mapping[By, int]] = {"minute": 60, "hour": 3600}

_AFTER_CODE: Final = {"accepted": 1, "delivered": 1}


class Said(NamedTuple):
    """Whose word about the last response counts: the greatest. `rank`: nobody's, an attempt's, an answer's, that of a
    callback given up, of a delivery given up; `number`: of the attempt; then the place of the record."""

    rank: int = 0
    number: int = 0
    partition: int = 0
    offset: int = 0


class DeliveryRow(NamedTuple):
    """A row. `progress`: index into PROGRESS. `life`: of the receiver's name; empty until one of them says."""

    source_id: str
    message_id: str
    receiver: str
    generation: int
    progress: int
    attempts: int
    said: Said
    last_status: int | None
    reason: str | None
    detail: str | None
    updated_at: float
    life: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self[:3]


def deliveries_of(batch: FactBatch) -> list[DeliveryRow]:
    """One for each delivery that the batch tells of, in the order of their keys."""
    found: dict[tuple[str, str, str], DeliveryRow] = {}
    for row in _told(batch):
        known = found.get(row.key)
        found[row.key] = row if known is None else join(known, row)
    return [found[key] for key in sorted(found)]


def join(one: DeliveryRow, other: DeliveryRow) -> DeliveryRow:
    """What both say of the same delivery."""
    if one.generation != other.generation:
        return max(one, other, key=lambda row: row.generation)
    latest = max(one, other, key=lambda row: row.said)
    return latest._replace(
        progress=max(one.progress, other.progress),
        attempts=max(one.attempts, other.attempts),
        updated_at=max(one.updated_at, other.updated_at),
        life=max(one.life, other.life),
    )


def found_of(row: DeliveryRow) -> DeliveryFound:
    """The row, as it is told."""
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


def _told(batch: FactBatch) -> Iterable[DeliveryRow]:
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
        yield DeliveryRow(*key, 0, 0, 0, Said(), None, None, None, arrival.received_at)


def _of_attempt(at: Coordinate, attempt: Attempt) -> DeliveryRow:
    key = _key(DeliveryId(attempt.receiver or "", attempt.source_id or "", attempt.message_id or ""))
    ended_at = attempt.started_at + attempt.duration_ms / 1000
    if attempt.kind != "post":
        progress = PROGRESS.index("response_delivered_to_sender") if _was_taken(attempt) else 0
        return DeliveryRow(*key, attempt.generation, progress, 0, Said(), None, None, None, ended_at, attempt.life)
    progress = _AFTER_CODE.get(attempt.code_class or "", 0)
    said = Said(1, attempt.attempt, at.partition, at.offset)
    status = attempt.response.status if attempt.response is not None else None
    told = (status, _text(attempt.reason), _text(attempt.detail))
    return DeliveryRow(*key, attempt.generation, progress, attempt.attempt, said, *told, ended_at, attempt.life)


def _was_taken(attempt: Attempt) -> bool:
    return attempt.kind == "callback" and attempt.outcome == "done"


def _of_ending(ending: EndingFact) -> DeliveryRow:
    progress = PROGRESS.index(ending.status)
    said = Said(_rank(ending), 0, ending.at.partition, ending.at.offset)
    told = (ending.last_status, _text(ending.reason), _text(ending.detail))
    key = _key(ending.delivery)
    return DeliveryRow(*key, ending.generation, progress, ending.attempts, said, *told, ending.happened_at, ending.life)


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
    """What a batch adds to the numbers of a span. `at`: its begin, Unix seconds."""

    by: By
    at: int
    receiver: str
    source_id: str
    life: str
    numbers: tuple[int, ...]


def counts_of(attempts: Iterable[Attempt]) -> list[CountDelta]:
    """Of the POSTs among them to a receiver, in the order of their keys."""
    found: dict[tuple[By, int, str, str, str], list[int]] = {}
    for attempt in attempts:
        if attempt.kind != "post" or attempt.code_class is None or attempt.receiver is None:
            continue
        for by, span_s in SPAN_S.items():
            at = int(attempt.started_at // span_s) * span_s
            key = (by, at, clean(attempt.receiver), clean(attempt.source_id or ""), attempt.life)
            _count(found.setdefault(key, [0] * NUMBERS), attempt)
    return [CountDelta(*key, tuple(found[key])) for key in sorted(found)]


def _count(numbers: list[int], attempt: Attempt) -> None:
    if attempt.code_class is not None:
        numbers[OUTCOMES.index(attempt.code_class)] += 1
    if attempt.response is not None:
        numbers[len(OUTCOMES) + bisect_left(BOUNDS_S, attempt.duration_ms / 1000)] += 1


def first_of(arrivals: Sequence[ArrivalFact]) -> list[ArrivalFact]:
    """Of each id the first to arrive, in the order of their ids."""
    found: dict[tuple[str, str], ArrivalFact] = {}
    for arrival in arrivals:
        known = found.get(arrival.message)
        if known is None or order_of(arrival) < order_of(known):
            found[arrival.message] = arrival
    return [found[key] for key in sorted(found)]


def order_of(arrival: ArrivalFact) -> tuple[float, int, int]:
    """Which of several came first."""
    return arrival.received_at, arrival.at.partition, arrival.at.offset
