"""The return path of a receiver's answer: its record on `to_sender`, and whether the sender's callback is called."""

from typing import Final

from msgspec import structs

from relay.domain.hop import Hop, result_headers
from relay.domain.receiver import Source
from relay.domain.result_delivery import Handover, handover, to_code
from relay.domain.topics import Topics
from relay.engine.work import Done
from relay.log.port import Headers, NewRecord, Record
from relay.state.rows import Result, Stage

NO_CALLBACK: Final = ("relay-callback", b"none")
FOR_CONSUMER: Final = ("relay-callback", b"kafka")
"""Headers of an answer that needs no callback, as its delivery's row records. No client reads it, or the source's
own consumer does."""


def has_arrived(record: Record | NewRecord) -> bool:
    """Whether a record of `to_sender` was finished when it was written."""
    return NO_CALLBACK in record.headers or FOR_CONSUMER in record.headers


def answered(topics: Topics, source: Source, hop: Hop, result: Result, attempts: int) -> Done:
    """The end of a delivery whose answer is in `result`. Without a callback now, it is done once the record is
    written."""
    how = handover(source, failed=False, empty=not result.body)
    if how is Handover.DELIVERED and source.callback is not None:
        return Done((answer_record(topics, hop, result, attempts),), Stage.PUBLISHED, result=result)
    left = FOR_CONSUMER if how is Handover.DELIVERED else NO_CALLBACK
    record = answer_record(topics, hop, result, attempts, extra=(left,))
    return Done((record,), Stage.DONE, to_code(how, 0), result=result)


def answer_record(topics: Topics, hop: Hop, result: Result, attempts: int, *, extra: Headers = ()) -> NewRecord:
    """The answer in `result`, for the sender of the delivery in `hop`; empty if the receiver gave none."""
    answer = structs.replace(
        hop,
        content_type=result.content_type,
        attempt=attempts,
        outcome="answered" if result.outcome == "answered" else "delivered",
        answer_status=result.status,
        answer_truncated=result.truncated,
        status_url=None,
        ask_after_s=None,
        ask_first=False,
        wait_s=0,
        headers=(),
    )
    return NewRecord(topics.to_sender, hop.delivery.source_id.encode(), result.body, result_headers(answer) + extra)
