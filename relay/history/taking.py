"""What a store takes of a batch: what it does not have yet, in texts that it can keep. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from relay.domain.attempt import Attempt, encode_attempt
from relay.domain.coordinate import Coordinate
from relay.domain.identity import MessageId
from relay.history.port import ArrivalFact, FactBatch
from relay.history.text import clean
from relay.log.port import TopicPartition


def taken(batch: FactBatch, next_offsets: Mapping[TopicPartition, int]) -> FactBatch:
    """The batch without what lies before these offsets: whoever wrote that counted it, too."""

    def is_new(at: Coordinate) -> bool:
        return at.offset >= next_offsets.get(TopicPartition(at.topic, at.partition), 0)

    return FactBatch(
        [_kept(one) for one in batch.arrivals if is_new(one.at)],
        [one for one in batch.attempts if is_new(one[0])],
        [one for one in batch.endings if is_new(one.at)],
    )


def _kept(arrival: ArrivalFact) -> ArrivalFact:
    """Its ids and texts, where a database would refuse them; of the headers, what JSON can say."""
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
    """What is kept of it."""
    try:
        return encode_attempt(attempt)
    except UnicodeEncodeError:  # a lone surrogate somewhere, which no record of ours can hold
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
