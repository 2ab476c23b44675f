"""Current status of lanes: each group's backlog, the age of its oldest unread record, and the process that serves it;
and how many records of a receiver are unfinished."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from relay.domain.coordinate import Coordinate
from relay.domain.hop import hop_of
from relay.domain.state import StageName
from relay.domain.topics import SHARED, Topics
from relay.log.partitioner import partition_of
from relay.log.port import Backlog, Log, LogReader, Record, TopicPartition, read_each
from relay.state.port import State
from relay.state.read_model import UNSERVED_S, Served, Waiting

OLDEST_LOOKED_AT: Final = 200
"""Maximum number of lanes, those with the largest lag, whose oldest unread record is read, to bound the time."""

LONG_S: Final = 5.0
"""Messages that wait for less are ignored: most are sent at once."""

STAGES: Final[Mapping[str, StageName]] = {
    "from-sender": "from_sender",
    "to-receiver": "to_receiver",
    "from-receiver-async": "pending",
    "to-sender": "to_sender",
    "failed-messages": "failed_messages",
}
"""Role -> stage whose topics it reads, in the order of processing."""


@dataclass(frozen=True, slots=True)
class LaneNow:
    """A partition that a group reads. `heartbeat`: the last one of its worker; None if there was none for a week.
    `oldest_s`: age of the first unread record, `oldest`: the endpoint that it waits for; None if there is none, or it
    was not read."""

    backlog: Backlog
    role: str
    receiver: str | None
    heartbeat: Served | None
    oldest_s: float | None = None
    oldest: Waiting | None = None

    @property
    def stage(self) -> StageName:
        return STAGES[self.role]

    @property
    def key(self) -> TopicPartition:
        return self.backlog.partition

    @property
    def lag(self) -> int:
        """Records that are not finished."""
        return self.backlog.unread

    @property
    def recent(self) -> Served | None:
        """The last heartbeat; None if no process serves it now."""
        beat = self.heartbeat
        return beat if beat is not None and beat.ago_s <= UNSERVED_S else None

    @property
    def served(self) -> bool:
        return self.recent is not None

    @property
    def process(self) -> str | None:
        """The process that serves it; None if no process does, or it is unknown."""
        return self.recent.process or None if self.recent is not None else None

    @property
    def in_flight(self) -> int:
        """Requests in flight, as of the last heartbeat."""
        return self.recent.in_flight if self.recent is not None else 0

    @property
    def is_broken(self) -> bool:
        """The log does not have the next record of its group."""
        return self.backlog.is_lost


async def read_lanes(log: Log, state: State, topics: Topics, groups: Mapping[str, str]) -> list[LaneNow]:
    """The lanes of topics, as they are. `groups`: the topics, and the group that reads each. Raises Unavailable."""
    backlogs = await log.backlogs(groups)
    return lanes_of(topics, backlogs, await state.heartbeats([backlog.partition for backlog in backlogs]))


def lanes_of(topics: Topics, backlogs: Sequence[Backlog], heartbeats: Sequence[Served | None]) -> list[LaneNow]:
    """The lanes of `backlogs`. `heartbeats`: the last ones, in the same order."""
    roles = {topics.group(role): role for role in STAGES}
    return [
        LaneNow(backlog, roles[backlog.group], _receiver(topics, backlog.partition.topic), heartbeat)
        for backlog, heartbeat in zip(backlogs, heartbeats, strict=True)
        if backlog.group in roles
    ]


def _receiver(topics: Topics, topic: str) -> str | None:
    """The receiver of a dedicated lane; None for a lane of many receivers."""
    lane = topics.lane_of(topic)
    return None if lane in (topic, SHARED) else lane


def to_be_read(lanes: Iterable[LaneNow]) -> list[LaneNow]:
    """The lanes whose oldest unread record should be read."""
    behind = [lane for lane in lanes if lane.lag and not lane.is_broken]
    return sorted(behind, key=lambda lane: lane.lag, reverse=True)[:OLDEST_LOOKED_AT]


async def with_oldest(log: LogReader, lanes: Sequence[LaneNow], now: float) -> list[LaneNow]:
    """The lanes, with the first unread record of those with the largest lag. `now`: Unix seconds. Raises
    LogUnavailable."""
    read = to_be_read(lanes)
    wanted = [(Coordinate(*lane.key, lane.backlog.position), None) for lane in read]
    found = dict(zip([lane.key for lane in read], await read_each(log, wanted, _first), strict=True))
    return [lane if (first := found.get(lane.key)) is None else _with_first(lane, first, now) for lane in lanes]


class _First(NamedTuple):
    at: float
    waits: Mapping[StageName, Waiting]


def _first(record: Record | None) -> _First | None:
    return None if record is None else _First(record.timestamp_ms / 1000, waits_of(record))


def _with_first(lane: LaneNow, first: _First, now: float) -> LaneNow:
    return replace(lane, oldest_s=max(now - first.at, 0.0), oldest=first.waits.get(lane.stage))


def waits_of(record: Record) -> Mapping[StageName, Waiting]:
    """What a record of a delivery waits for in these stages, since it was appended or is due; empty for others."""
    hop = hop_of(record.headers)
    if hop is None:
        return {}
    since = record.timestamp_ms / 1000
    if hop.timing is not None and hop.generation == 0:
        since = max(since, hop.timing.deliver_at) + hop.timing.window
    receiver, source_id, _ = hop.delivery
    return {"to_receiver": Waiting(f"r:{receiver}", since), "to_sender": Waiting(f"s:{source_id}", since)}


async def in_lanes(log: Log, topics: Topics, lanes: Mapping[str, str]) -> dict[str, int]:
    """Of many receivers, by name, the number of records of their lanes that are unread or in progress: those of the
    receiver, or in the shared lane those of all receivers in its partition. Raises LogUnavailable."""
    groups = {name: topics.lane_groups(lane) for name, lane in lanes.items()}
    known: dict[str, list[Backlog]] = {}
    for each in await log.backlogs({topic: group for found in groups.values() for topic, group in found.items()}):
        known.setdefault(each.partition.topic, []).append(each)
    return {
        name: _unfinished(name, lane, [known[topic] for topic in groups[name] if topic in known])
        for name, lane in lanes.items()
    }


async def in_lane(log: Log, topics: Topics, name: str, lane: str) -> int:
    """As `in_lanes`, of one receiver."""
    return (await in_lanes(log, topics, {name: lane}))[name]


def _unfinished(name: str, lane: str, topics: list[list[Backlog]]) -> int:
    """The unfinished records of a receiver in its lane. `topics`: the backlogs of each topic of the lane."""
    if lane == SHARED:
        topics = [[own_backlog(name, of_topic)] for of_topic in topics]
    return sum(each.end - each.position for of_topic in topics for each in of_topic)


def own_backlog(name: str, of_topic: Sequence[Backlog]) -> Backlog:
    """The backlog of the partition of a topic of the shared lane that has the receiver's records. `of_topic`: of all
    its partitions."""
    place = partition_of(name.encode(), len(of_topic))
    return next(each for each in of_topic if each.partition.partition == place)
