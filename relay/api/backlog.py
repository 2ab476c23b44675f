"""The unfinished records of a receiver's lane, counted without reading them."""

from collections.abc import Mapping

from relay.domain.topics import SHARED, Topics
from relay.log.partitioner import partition_of
from relay.log.port import Backlog, Log


async def in_lanes(log: Log, topics: Topics, lanes: Mapping[str, str]) -> dict[str, int]:
    """The same for many receivers and their lanes, by name, in one query."""
    groups = {name: topics.lane_groups(lane) for name, lane in lanes.items()}
    known: dict[str, list[Backlog]] = {}
    for each in await log.backlogs({topic: group for found in groups.values() for topic, group in found.items()}):
        known.setdefault(each.partition.topic, []).append(each)
    return {
        name: _unfinished(name, lane, [each for topic in groups[name] for each in known.get(topic, ())])
        for name, lane in lanes.items()
    }


async def in_lane(log: Log, topics: Topics, name: str, lane: str) -> int:
    """The number of records of `lane` that are unread or in progress: those of receiver `name`, or in the shared lane
    those of all receivers in its partition. Raises LogUnavailable."""
    return _unfinished(name, lane, await log.backlogs(topics.lane_groups(lane)))


def _unfinished(name: str, lane: str, found: list[Backlog]) -> int:
    """The unfinished records of the partitions `found` of its lane."""
    if lane == SHARED:
        own = {topic: _place(name, topic, found) for topic in {each.partition.topic for each in found}}
        found = [each for each in found if each.partition.partition == own[each.partition.topic]]
    return sum(each.end - each.position for each in found)


def _place(name: str, topic: str, backlogs: list[Backlog]) -> int | None:
    """The partition that has the receiver's records; None if the topic does not exist."""
    count = sum(each.partition.topic == topic for each in backlogs)
    return partition_of(name.encode(), count) if count else None
