"""Cancels deliveries that were never sent.

The end is stored in the delivery's row, in one step with the check that no attempt has begun; its lane then writes the
dead letter when it reaches the record, which is at once if that is parked.
"""

from collections.abc import Sequence

from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.reasons import CANCELLED, REASON_CODES
from relay.domain.replay_job import OffsetSpan
from relay.domain.topics import Topics
from relay.engine.parked_copy import parked_key
from relay.log.port import Log, Record
from relay.state.attempts import Change, Settlement
from relay.state.port import State
from relay.state.replies import answered
from relay.state.rows import Result, Row, Stage, delivery_row

DETAIL = "cancelled before it was sent"
_STAGE = "to_receiver"


async def cancel(state: State, deliveries: Sequence[tuple[DeliveryId, int]]) -> list[bool]:
    """Cancel these generations of deliveries. False: an attempt has begun, or it is over. Can be repeated."""
    result = Result("dead", reason=CANCELLED, detail=DETAIL)
    rows = await answered(
        state.settle(
            [
                Settlement(delivery_row(delivery), generation, b"", Change.RESULT, result=result, unsent=True)
                for delivery, generation in deliveries
            ]
        )
    )
    return [
        row is not None and row.generation == generation and is_cancelled(row)
        for row, (_, generation) in zip(rows, deliveries, strict=True)
    ]


def is_cancelled(row: Row) -> bool:
    """Whether its current life was cancelled, also before its dead letter is written."""
    if row.stage is Stage.FAILED:
        return row.code == REASON_CODES[CANCELLED]
    return row.result is not None and row.result.reason == CANCELLED


def obstacle(hop: Hop, row: Row) -> str | None:
    """Why a delivery cannot be cancelled: `sent`, `cancelled` already, or `replayed`; None if it can."""
    if row.generation > hop.generation:
        return "replayed"
    if row.generation == hop.generation and is_cancelled(row):
        return "cancelled"
    return "sent" if hop.attempt or row.attempts or row.stage is not Stage.NONE else None


async def unsent_spans(log: Log, topics: Topics, lanes: Sequence[str]) -> tuple[OffsetSpan, ...]:
    """Where records of deliveries may be that were not sent: parked ones, and those that a lane has not finished.
    `lanes`: in which to look."""
    groups = {topics.parked_messages: topics.group(_GROUP)}
    groups |= {topics.to_receiver(lane): topics.group(_GROUP) for lane in lanes}
    found = []
    for each in await log.backlogs(groups):
        is_lane = each.partition.topic != topics.parked_messages
        start = max(each.first, each.committed or 0) if is_lane else each.first
        if each.end > start:
            found.append(OffsetSpan(*each.partition, start, each.end))
    return tuple(found)


_GROUP = "to-receiver"


def is_copy_of_another_stage(record: Record, topics: Topics, hop: Hop) -> bool:
    """Whether a parked copy is one of an answer that is awaited, or of a result."""
    if record.topic != topics.parked_messages:
        return False
    return not (record.key or b"").startswith(parked_key(_STAGE, delivery_row(hop.delivery)))
