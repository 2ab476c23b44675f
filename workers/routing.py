"""Builds the hop record with which a message enters a receiver's lane."""

from relay.domain.filters import FilterInput
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.ordering import order_digest
from relay.domain.receiver import Receiver
from relay.domain.topics import SHARED
from relay.log.port import Coordinate, Headers, NewRecord


def first_hop(
    event: FilterInput,
    receiver: Receiver,
    origin: Coordinate | None,
    accepted_ms: int,
    *,
    move: int,
    generation: int = 0,
    wait_s: int = 0,
) -> Hop:
    """The hop of a message without any delivery attempt."""
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
    )


def lane_record(
    topic: str, lane: str, receiver: Receiver, source_id: str, value: bytes | None, headers: Headers
) -> NewRecord:
    """A record for `receiver` in `lane` (its own, or SHARED). `topic`: one of that lane's two topics."""
    if lane == SHARED:
        return NewRecord(topic, receiver.name.encode(), value, headers)
    # after a move its topics may have grown, which this process's client need not know yet
    spread = receiver.partitions if receiver.move else 0
    return NewRecord(topic, source_id.encode(), value, headers, spread)
