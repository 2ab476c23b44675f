"""What a receiver's lane has not finished: said without reading a record, for people who ask what waits."""

from relay.domain.topics import SHARED, Topics
from relay.log.partitioner import partition_of
from relay.log.port import Backlog, Log


async def in_lane(log: Log, topics: Topics, name: str, lane: str) -> int:
    """How many records of `lane` are unread or under way: of receiver `name` alone, or in SHARED of all that share its
    place there. Raises LogUnavailable."""
    groups = topics.lane_groups(lane)
    found = await log.backlogs(groups)
    if lane == SHARED:
        own = {topic: _place(name, topic, found) for topic in groups}
        found = [each for each in found if each.partition.partition == own[each.partition.topic]]
    return sum(each.end - max(each.first, each.committed or 0) for each in found)


def _place(name: str, topic: str, backlogs: list[Backlog]) -> int | None:
    """The partition that has the receiver's records; None: there is no such topic."""
    count = sum(each.partition.topic == topic for each in backlogs)
    return partition_of(name.encode(), count) if count else None
