"""A lane's unfinished work for one receiver: messages that are unread, in flight or parked.

A record below the committed offset is finished or parked. One above it may be finished, too: in the shared lane a
neighbour's record holds the watermark back. Only its row says so; without a row it counts as open.
"""

from collections.abc import Sequence
from typing import Final

from relay.domain.errors import LogUnavailable, NotYet, StateRecovering
from relay.domain.hop import Hop, hop_of
from relay.domain.topics import SHARED, Topics
from relay.engine.parked_copy import OWNER_HEADER, unwrap_ours
from relay.log.port import Backlog, Log, Record
from relay.state.lanes import in_lane, own_backlog
from relay.state.port import State
from relay.state.replies import answered
from relay.state.rows import Row, Stage, delivery_row

_PUBLISHED: Final = frozenset({Stage.PUBLISHED, Stage.DONE, Stage.FAILED})
_POSTED: Final = _PUBLISHED | {Stage.AWAITING}


async def unfinished(log: Log, state: State, topics: Topics, name: str, lane: str) -> int:
    """How many messages of receiver `name` are unread or in flight in `lane` (its own, or SHARED), or parked.

    Raises Unavailable, and NotYet while the state recovers: the number of parked messages is not known then.
    """
    try:
        if lane == SHARED:
            unread = await _unread_in_shared(log, state, topics, name)
        else:
            unread = await in_lane(log, topics, name, lane)
        # counted last: messages that left the unread ones are parked by then, unless they are finished
        [counts] = await answered(state.parked([f"r:{name}"]))
    except StateRecovering as error:
        raise NotYet(f"the number of parked messages of {name} is not known yet: {error}") from error
    return unread + counts.retries + counts.polls


class RemainingRecords:
    """The records in the shared lane of a receiver that gets no more there, and how far they are finished."""

    def __init__(self, topics: Topics, name: str, topic: str, place: int, end: int) -> None:
        self._topics = topics
        self._name = name
        self._topic = topic
        self._place = place
        self._end = end
        self._position = 0

    @classmethod
    async def begun(cls, log: Log, topics: Topics, name: str) -> "RemainingRecords":
        """All records it will ever get must be on the topic. Raises LogUnavailable."""
        own = await _own_partition(log, topics, topics.to_receiver(SHARED), name)
        return cls(topics, name, own.partition.topic, own.partition.partition, own.end)

    async def are_finished(self, log: Log, state: State) -> bool:
        """Whether each of them is finished, or parked. Raises Unavailable."""
        own = await _own_partition(log, self._topics, self._topic, self._name)
        start = max(self._position, own.position)
        async for records in log.scan(self._topic, self._place, start=start, end=self._end):
            for record, is_over in await _judged(state, self._name, records, _POSTED):
                if not is_over:
                    self._position = record.offset
                    return False
            self._position = records[-1].offset + 1
        return True


async def is_parked_in_order(log: Log, topics: Topics, name: str, topic: str) -> bool:
    """Whether any record of `topic` for receiver `name` is parked for which later ones wait: not if it is delayed,
    has stepped aside, or is in no order. Reads all parked records. Raises LogUnavailable."""
    owner = f"r:{name}".encode()
    for partition in range(topics.parked().partitions):
        living: set[bytes | None] = set()
        async for records in log.scan(topics.parked_messages, partition):
            for record in records:
                if record.value is not None and (OWNER_HEADER, owner) in record.headers and _is_in_order(record, topic):
                    living.add(record.key)
                else:
                    living.discard(record.key)
        if living:
            return True
    return False


def _is_in_order(parked: Record, topic: str) -> bool:
    copy = unwrap_ours(parked)
    return copy is not None and copy.record.topic == topic and copy.queue is not None and not copy.out_of_order


async def _unread_in_shared(log: Log, state: State, topics: Topics, name: str) -> int:
    found = 0
    for topic, finished_at in ((topics.to_receiver(SHARED), _POSTED), (topics.pending(SHARED), _PUBLISHED)):
        own = await _own_partition(log, topics, topic, name)
        async for records in log.scan(topic, own.partition.partition, start=own.position, end=own.end):
            found += sum(not is_over for _, is_over in await _judged(state, name, records, finished_at))
    return found


async def _own_partition(log: Log, topics: Topics, topic: str, name: str) -> Backlog:
    """The partition of a topic of the shared lane that has the receiver's records."""
    backlogs = await log.backlogs({topic: topics.lane_groups(SHARED)[topic]})
    if not backlogs:
        raise LogUnavailable(f"topic {topic} does not exist")
    return own_backlog(name, backlogs)


async def _judged(
    state: State, name: str, records: Sequence[Record], finished_at: frozenset[Stage]
) -> list[tuple[Record, bool]]:
    """The receiver's own records among these, and whether each is finished."""
    # of an unreadable one, the lane makes a dead letter
    own = [(one, hop) for one in records if (hop := hop_of(one.headers)) and hop.delivery.receiver == name]
    rows = await answered(state.peek([delivery_row(hop.delivery) for _, hop in own])) if own else []
    return [(record, _is_over(hop, row, finished_at)) for (record, hop), row in zip(own, rows, strict=True)]


def _is_over(hop: Hop, row: Row, finished_at: frozenset[Stage]) -> bool:
    return row.generation > hop.generation or (row.generation == hop.generation and row.stage in finished_at)
