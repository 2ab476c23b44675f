"""Extracts the history's facts from records of the log. Pure."""

from collections.abc import Iterable
from typing import Final

from relay.domain.attempt import Attempt, decode_attempt
from relay.domain.coordinate import Coordinate
from relay.domain.dead_letter import DeadLetter, identity_of, original_headers, parse_dead_letter
from relay.domain.erasure import LATEST, Erasures
from relay.domain.errors import InvalidRecord
from relay.domain.filters import headers_of
from relay.domain.hop import Hop, decode_hop, hop_of
from relay.domain.identity import MAX_ID_BYTES, DeliveryId
from relay.domain.message import Message, parse_message
from relay.domain.route import marker_in
from relay.domain.state import Status
from relay.domain.topics import Topics
from relay.history.port import ArrivalFact, EndingFact, FactBatch
from relay.log.port import Record
from workers.failed_messages import generation_of, life_of, number_of
from workers.records import FOR_CONSUMER

_MOST: Final = 2**53
"""Largest number that every database and JSON can hold."""
_LONGEST: Final = 4 * MAX_ID_BYTES
"""Maximum bytes of the names of a fact together: an index row of PostgreSQL holds 2,704, and one that does not fit
would stop the history."""

Fact = ArrivalFact | EndingFact | tuple[Coordinate, Attempt]


class FactReader:
    """Reads records. `keep`: bytes of each body to keep, together with the headers; 0: neither. `erasures`: payloads
    that are not kept."""

    def __init__(self, topics: Topics, keep: int, erasures: Erasures | None = None) -> None:
        self._topics = topics
        self._keep = keep
        self._erasures = Erasures() if erasures is None else erasures

    def of(self, record: Record) -> Fact | None:
        """The fact in a record; None if it has none. Raises InvalidRecord for an unreadable record."""
        if record.is_gap:
            raise InvalidRecord("invalid", "offsets without a readable record")
        if record.topic == self._topics.from_sender:
            return self._arrival(record)
        if record.topic == self._topics.to_sender:
            return _answer(record)
        if record.topic == self._topics.failed_messages:
            return self._failure(record)
        return record.coordinate, _checked(decode_attempt(record.value))

    def _arrival(self, record: Record) -> ArrivalFact | None:
        if not record.value and marker_in(record.headers) is not None:
            return None
        message, received = parse_message(record.value, record.headers), _moment(record.timestamp_ms)
        keep = 0 if self._erasures.has(message.id, message.receivers or (), received) else self._keep
        return ArrivalFact(
            message.id,
            record.coordinate,
            received,
            message.event_type,
            message.content_type,
            len(message.payload),
            _headers(message) if keep else {},
            message.payload[:keep] if keep else None,
            message.receivers or (),
        )

    def _failure(self, record: Record) -> EndingFact | None:
        letter = parse_dead_letter(record.headers)
        hop = hop_of(original_headers(record.headers)) if letter.stage != self._topics.from_sender else None
        if hop is not None and hop.progress is not None:
            return None  # its delivery goes on
        receiver, source_id, message_id = identity_of(record.value, record.headers)
        if source_id is None or message_id is None:
            raise InvalidRecord("invalid", "a dead letter of an unknown message")
        never_routed = "id_conflict" in (
            letter.reason,
            letter.former_reason,
        )  # the delivery of this name is the first message's
        delivery = DeliveryId("" if never_routed else receiver or "", source_id, message_id)
        _check_names(letter.reason)
        return EndingFact(
            hop.delivery if hop is not None else delivery,
            hop.generation if hop is not None else generation_of(record),
            record.coordinate,
            _moment(letter.first_failed_ms or record.timestamp_ms),
            "failed",
            self._posts(letter, hop),
            letter.last_status,
            letter.reason,
            letter.detail or None,
            life_of(record),
            number_of(record, letter),
        )

    def _posts(self, letter: DeadLetter, hop: Hop | None) -> int:
        """POSTs to the receiver: a letter of the return path counts callbacks instead."""
        if letter.stage == self._topics.to_sender:
            return hop.attempt if hop is not None else 0
        return letter.attempts


def batch_of(facts: Iterable[Fact]) -> FactBatch:
    """Groups facts by kind."""
    arrivals: list[ArrivalFact] = []
    endings: list[EndingFact] = []
    attempts: list[tuple[Coordinate, Attempt]] = []
    for fact in facts:
        match fact:
            case ArrivalFact():
                arrivals.append(fact)
            case EndingFact():
                endings.append(fact)
            case _:
                attempts.append(fact)
    return FactBatch(arrivals, attempts, endings)


def _answer(record: Record) -> EndingFact | None:
    hop = decode_hop(record.headers)
    if hop.outcome is None:
        raise InvalidRecord("invalid", "a result without an outcome")
    if hop.outcome == "failed" or hop.progress is not None:
        return None  # a failure is in its dead letter, with more details, and progress ends nothing
    left = FOR_CONSUMER in record.headers
    status: Status = "response_delivered_to_sender" if left else "response_received_from_receiver"
    at, moment = record.coordinate, _moment(record.timestamp_ms)
    last = hop.attempt, hop.answer_status, None, None, hop.life
    return EndingFact(hop.delivery, hop.generation, at, moment, status, *last, hop.sequence)


def _headers(message: Message) -> dict[str, str]:
    trace = (("traceparent", message.traceparent), ("tracestate", message.tracestate))
    return headers_of(message) | {name: text for name, text in trace if text is not None}


def _moment(ms: int) -> float:
    return min(max(ms / 1000, 0.0), LATEST)


def _check_names(*names: str | None) -> None:
    if sum(len((name or "").encode(errors="replace")) for name in names) > _LONGEST:
        raise InvalidRecord("invalid", "names that are too long")


def _checked(attempt: Attempt) -> Attempt:
    _check_names(attempt.receiver, attempt.source_id, attempt.message_id, attempt.life)
    status = attempt.response.status if attempt.response is not None else 0
    numbers = (attempt.generation, attempt.attempt, status, attempt.number or 0)
    times = (attempt.started_at, attempt.started_at + attempt.duration_ms / 1000)
    if not all(0 <= number < _MOST for number in numbers) or not all(0 <= moment <= LATEST for moment in times):
        raise InvalidRecord("invalid", "an attempt with impossible numbers")
    return attempt
