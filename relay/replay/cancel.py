"""Cancels deliveries that were never sent.

The end is stored in the delivery's row, in one step with the check that no attempt has begun; its lane then writes the
dead letter when it reaches the record, which is at once if that is parked.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from relay.clock import Clock
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

DETAIL: Final = "cancelled before it was sent"
_STAGE: Final = "to_receiver"
_ROUTED_S: Final = 5.0
_LOOK_S: Final = 0.1


class UnsentLife(NamedTuple):
    """A generation of a delivery that may be unsent. `accepted_ms`: when its message was accepted (Unix ms; 0: not
    known)."""

    delivery: DeliveryId
    generation: int
    accepted_ms: int


async def cancel(state: State, lives: Sequence[UnsentLife]) -> list[bool]:
    """Cancel these. False if an attempt was started, or may have been before the state lost its memory, or the delivery
    has ended. Can be repeated."""
    result = Result("dead", reason=CANCELLED, detail=DETAIL)
    rows = await answered(
        state.settle(
            [
                Settlement(delivery_row(delivery), generation, b"", Change.RESULT, result=result, unsent_ms=accepted_ms)
                for delivery, generation, accepted_ms in lives
            ]
        )
    )
    return [
        row is not None and row.generation == life.generation and is_cancelled(row)
        for row, life in zip(rows, lives, strict=True)
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


async def unsent_spans(log: Log, topics: Topics, lanes: Sequence[str], clock: Clock) -> tuple[OffsetSpan, ...]:
    """The spans of the log with deliveries that may be unsent: unfinished records of `lanes`, and parked ones. Waits a
    moment for messages on their way to the lanes."""
    await _routed(log, topics, clock)
    group = topics.group("to-receiver")
    unread = await log.backlogs({topics.to_receiver(lane): group for lane in lanes})
    parked = await log.backlogs({topics.parked_messages: group})  # later: a record that is parked meanwhile is in both
    found = [OffsetSpan(*each.partition, each.position, each.end) for each in unread]
    # from 0, as the topic is compacted, so its first offset is unknown
    found += [OffsetSpan(*each.partition, 0, each.end) for each in parked]
    return tuple(span for span in found if span.end > span.start)


async def _routed(log: Log, topics: Topics, clock: Clock) -> None:
    groups = {topics.from_sender: topics.fixed_groups()[topics.from_sender]}
    ends = {each.partition: each.end for each in await log.backlogs(groups)}
    until = clock.monotonic() + _ROUTED_S
    while clock.monotonic() < until:
        if all((each.committed or 0) >= ends.get(each.partition, 0) for each in await log.backlogs(groups)):
            return
        await clock.sleep(_LOOK_S)


def is_copy_of_another_stage(record: Record, topics: Topics, hop: Hop) -> bool:
    """Whether a parked copy is one of an answer that is awaited, or of a result."""
    if record.topic != topics.parked_messages:
        return False
    return not (record.key or b"").startswith(parked_key(_STAGE, delivery_row(hop.delivery)))
