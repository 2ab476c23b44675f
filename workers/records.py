"""The records that steps append: hops on their way, answers for the sender, and dead letters."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from relay.clock import Clock
from relay.domain.dead_letter import DeadLetter, dead_letter_headers, identity_of, without_payload
from relay.domain.erasure import ACCEPTED_HEADER, Erasures, received_at
from relay.domain.filters import FilterInput, order_digest
from relay.domain.hop import Hop, result_headers
from relay.domain.identity import DeliveryId, Progress
from relay.domain.receiver import Receiver, Source
from relay.domain.result_delivery import Handover, handover, to_code
from relay.domain.timing import Timing, resolved
from relay.domain.topics import SHARED, Topics
from relay.engine.decision import Dead, Done
from relay.log.port import Coordinate, Headers, NewRecord, Record
from relay.state.rows import Result, Stage

NO_CALLBACK: Final = ("relay-callback", b"none")
FOR_CONSUMER: Final = ("relay-callback", b"kafka")
"""Headers of an answer that needs no callback, as its delivery's row records. No client reads it, or the source's
own consumer does."""
_NOT_OF_A_RESULT: Final[Mapping[str, Any]] = {
    "status_url": None,
    "ask_after_s": None,
    "ask_first": False,
    "wait_s": 0,
    "headers": (),
    "chain": None,
    "timing": None,
    "one_off": None,
}
"""Fields of a hop that say how it is to be delivered, or its answer to be found."""
_PROGRESS: Final = frozenset({("relay-outcome", b"accepted"), ("relay-outcome", b"running")})


def first_hop(
    event: FilterInput,
    receiver: Receiver,
    origin: Coordinate | None,
    accepted_ms: int,
    *,
    move: int,
    generation: int = 0,
    wait_s: int = 0,
    keep: str | None = None,
) -> Hop:
    """The hop of a message without any delivery attempt. `keep`: what its source keeps of it."""
    message = event.message
    return Hop(
        DeliveryId(receiver.name, message.source_id, message.message_id),
        event_type=message.event_type,
        time=message.time,
        content_type=message.content_type,
        generation=generation,
        origin=origin,
        accepted_ms=accepted_ms,
        traceparent=message.traceparent,
        tracestate=message.tracestate,
        move=move,
        headers=message.headers if receiver.forward_headers else (),
        wait_s=wait_s,
        order=order_digest(receiver.ordering, event),
        life=receiver.life.id,
        keep=keep,
        timing=None if message.timing is None and receiver.coalesce is None else _timing(event, receiver, accepted_ms),
        one_off=message.one_off,
    )


def _timing(event: FilterInput, receiver: Receiver, accepted_ms: int) -> Timing | None:
    """The message's own; its receiver's window holds unless the message has a key of its own."""
    timing, coalesce = resolved(event.message.timing or Timing(), accepted_ms / 1000), receiver.coalesce
    value = None if coalesce is None or timing.key else order_digest(coalesce.key, event)
    if coalesce is not None and value is not None:
        return structs.replace(timing, key=value, window=coalesce.window)
    return event.message.timing and timing


def lane_record(
    topic: str, lane: str, receiver: Receiver, source_id: str, value: bytes | None, headers: Headers
) -> NewRecord:
    """A record for `receiver` in `lane` (its own, or SHARED). `topic`: one of that lane's two topics."""
    if lane == SHARED:
        return NewRecord(topic, receiver.name.encode(), value, headers)
    # after a move its topics may have grown, which this process's client need not know yet
    spread = receiver.partitions if receiver.move else 0
    return NewRecord(topic, source_id.encode(), value, headers, spread)


class Letters:
    """Writes dead letters to `failed_messages`."""

    def __init__(self, topics: Topics, clock: Clock, erasures: Erasures | None = None) -> None:
        self._topics = topics
        self._clock = clock
        self._erasures = Erasures() if erasures is None else erasures

    def dead_letter(
        self, record: Record, dead: Dead, hop: Hop | None = None, *, attempts: int = 0, extra: Headers = ()
    ) -> NewRecord:
        """The dead letter of `record`. `extra` headers replace those of the same name. An erased payload is left
        out."""
        letter = DeadLetter(
            reason=dead.reason,
            detail=dead.detail,
            stage=record.topic,
            origin=hop.origin if hop is not None and hop.origin is not None else record.coordinate,
            attempts=attempts,
            first_failed_ms=int(self._clock.time() * 1000),
            last_status=dead.last_status,
            omitted=record.flaw.omitted if record.flaw is not None else None,
        )
        if record.topic == self._topics.from_sender:  # an erasure counts from when it was received
            extra += ((ACCEPTED_HEADER, b"%d" % record.timestamp_ms),)
        replaced = {name for name, _ in extra}
        headers = tuple(pair for pair in record.headers if pair[0] not in replaced) + extra
        headers, value = dead_letter_headers(headers, letter), record.value
        if value and self._erasures.known and record.topic != self._topics.to_sender and self._is_erased(record):
            _, value, headers = without_payload(record.key, value, headers)
        return NewRecord(self._topics.failed_messages, record.key, value, headers)

    def _is_erased(self, record: Record) -> bool:
        receiver, source_id, message_id = identity_of(record.value, record.headers)
        moment = received_at(record.headers, record.timestamp_ms)
        return self._erasures.has_delivery(receiver, source_id or "", message_id or "", moment)


def has_arrived(record: Record | NewRecord) -> bool:
    """Whether a record of `to_sender` was finished when it was written."""
    return NO_CALLBACK in record.headers or FOR_CONSUMER in record.headers


def done_with_answer(topics: Topics, source: Source, hop: Hop, result: Result, attempts: int) -> Done:
    """The end of a delivery whose answer is in `result`. Without a callback now, it is done once the record is
    written."""
    how = handover(source, failed=False, empty=not result.body)
    if how is Handover.DELIVERED and source.callback is not None:
        return Done((answer_record(topics, hop, result, attempts),), Stage.PUBLISHED, result=result)
    left = FOR_CONSUMER if how is Handover.DELIVERED else NO_CALLBACK
    code = to_code(how, 0)
    return Done((answer_record(topics, hop, result, attempts, extra=(left,)),), Stage.DONE, code, result=result)


def answer_record(topics: Topics, hop: Hop, result: Result, attempts: int, *, extra: Headers = ()) -> NewRecord:
    """The answer in `result`, for the sender of the delivery in `hop`; empty if the receiver gave none."""
    answer = structs.replace(
        hop,
        content_type=result.content_type,
        attempt=attempts,
        outcome="answered" if result.outcome == "answered" else "delivered",
        answer_status=result.status,
        answer_truncated=result.truncated,
        **_NOT_OF_A_RESULT,
    )
    return NewRecord(topics.to_sender, hop.delivery.source_id.encode(), result.body, result_headers(answer) + extra)


def is_progress(record: Record) -> bool:
    """Whether a record of `to_sender` reports progress."""
    return not _PROGRESS.isdisjoint(record.headers)


def progress_records(
    topics: Topics, source: Source, hop: Hop, progress: Progress, attempts: int
) -> tuple[NewRecord, ...]:
    """The record that reports the progress of the delivery in `hop`; none if its source does not want it."""
    if progress not in source.progress:
        return ()
    report = structs.replace(
        hop, content_type=None, attempt=attempts, outcome=progress, reason=None, **_NOT_OF_A_RESULT
    )
    # a release that knows no progress takes it for an answer that needs no callback, and skips it
    headers = (*result_headers(report), NO_CALLBACK)
    return (NewRecord(topics.to_sender, hop.delivery.source_id.encode(), b"", headers),)
