"""What a lane still has to do for one receiver: what is unread there, under way, or parked.

A record below the committed offset is finished or parked. One above it may be finished, too: in the shared lane a
neighbour's record holds the watermark back. Then its row says so, and only a row does: without one it counts as open.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from relay.domain.errors import InvalidRecord, NotYet, StateRecovering
from relay.domain.hop import decode_hop
from relay.domain.topics import SHARED, Topics
from relay.log.partitioner import partition_of
from relay.log.port import Backlog, Log, Record
from relay.state.port import State
from relay.state.rows import Row, Stage, delivery_row

_PUBLISHED: Final = frozenset({Stage.PUBLISHED, Stage.DONE, Stage.FAILED})
_POSTED: Final = _PUBLISHED | {Stage.AWAITING}


async def unfinished(log: Log, state: State, topics: Topics, name: str, lane: str) -> int:
    """How many messages of receiver `name` are unread or under way in `lane` (its own, or SHARED), or parked.

    Raises Unavailable, and NotYet while the state recovers: what is parked is not known then.
    """
    try:
        return await _unfinished(log, state, topics, name, lane)
    except StateRecovering as error:
        raise NotYet(f"what {name} has parked is not known yet: {error}") from error


async def _unfinished(log: Log, state: State, topics: Topics, name: str, lane: str) -> int:
    backlogs = await log.backlogs(topics.lane_groups(lane))
    if lane == SHARED:
        unread = await _unread_in_shared(log, state, topics, name, backlogs)
    else:
        unread = sum(each.end - _position(each) for each in backlogs)
    # counted last: what is not unread any more is parked by then, if it is not over
    [counts] = await state.parked([f"r:{name}"])
    return unread + counts.retries + counts.polls


async def _unread_in_shared(log: Log, state: State, topics: Topics, name: str, backlogs: Sequence[Backlog]) -> int:
    found = 0
    for topic in topics.lane_groups(SHARED):
        of_topic = [each for each in backlogs if each.partition.topic == topic]
        if not of_topic:
            continue
        finished_at = _PUBLISHED if topic == topics.pending(SHARED) else _POSTED
        own = next(b for b in of_topic if b.partition.partition == partition_of(name.encode(), len(of_topic)))
        async for records in _records_of(log, name, own):
            rows = await state.peek([delivery_row(decode_hop(record.headers).delivery) for record in records])
            found += sum(not _is_over(each, row, finished_at) for each, row in zip(records, rows, strict=True))
    return found


async def _records_of(log: Log, name: str, backlog: Backlog) -> AsyncIterator[list[Record]]:
    topic, partition = backlog.partition
    async for records in log.scan(topic, partition, start=_position(backlog), end=backlog.end):
        if own := [record for record in records if _receiver(record) == name]:
            yield own


def _receiver(record: Record) -> str | None:
    try:
        return decode_hop(record.headers).delivery.receiver
    except InvalidRecord:
        return None  # a dead letter for the lane to write; nobody's message


def _position(backlog: Backlog) -> int:
    return max(backlog.first, backlog.committed or 0)


def _is_over(record: Record, row: Row, finished_at: frozenset[Stage]) -> bool:
    generation = decode_hop(record.headers).generation
    return row.generation > generation or (row.generation == generation and row.stage in finished_at)
