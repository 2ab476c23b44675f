"""Finds topics that their receivers no longer use: receivers that were removed, or moved to the shared lane."""

from dataclasses import dataclass

from relay.control.records import Topic, read_topic
from relay.domain.topics import Topics
from relay.log.port import Log, TopicState


@dataclass(frozen=True, slots=True)
class LeftOver:
    """`note`: the former owner and the remaining records, for operators."""

    state: TopicState
    note: str

    @property
    def topic(self) -> str:
        return self.state.spec.name


async def left_over(log: Log, topics: Topics) -> list[LeftOver]:
    """Sorted by receiver. Raises LogUnavailable."""
    if not await log.describe([topics.receiver_config]):
        return []
    there = await read_topic(log, topics)
    names = there.routes.all().keys() | there.routes.removed.keys()
    return [found for name in sorted(names) for found in await _of_receiver(log, topics, there, name)]


async def _of_receiver(log: Log, topics: Topics, there: Topic, name: str) -> list[LeftOver]:
    if there.uses_own_topics(name):
        return []
    groups = topics.lane_groups(name)
    states, backlogs = await log.describe(list(groups)), await log.backlogs(groups)
    who = f"left by {name}, who " + ("went to the shared lane" if name in there.declared else "was removed")
    served = there.routes.route(name).left or name in there.routes.removed
    found = []
    for topic, state in states.items():
        of_topic = [each for each in backlogs if each.partition.topic == topic]
        unread = sum(each.end - max(each.first, each.committed or 0) for each in of_topic)
        rest = (
            "it is served until all its records are finished, parked ones included"
            if served or unread
            else "it may be deleted"
        )
        found.append(LeftOver(state, f"{who}; unread: {unread}; {rest}"))
    return found
