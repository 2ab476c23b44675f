"""Committed offsets of a consumer group.

Each offset has an incarnation, which grows when the offsets of another group are taken over: the generations of that
group are counted apart, and every epoch of the new group has to be above all of the old one.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.errors import (
    KafkaError,
    NoError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import HeartbeatRequest, LeaveGroupRequest

from relay.domain.errors import LogUnavailable
from relay.domain.sliced import sliced
from relay.log.kafka.client import FORBIDDEN, PARTITIONS_A_REQUEST, KafkaClient, check
from relay.log.kafka.leader_epochs import UNKNOWN
from relay.log.kafka.wire import by_topic, offset_commit_request, offset_fetch_request
from relay.log.port import TopicPartition

_NO_OFFSET: Final = -1
_OUTSIDE: Final = (-1, "")
"""Generation and member id of a client that is no member."""

_TAKEN: Final = "taken over"
_GROUPS_AT_ONCE: Final = 20
_INCARNATION: Final = re.compile(r"incarnation=(\d{1,4})(?: topic=(\S+))?$")
_WITHOUT_MEMBERS: Final = frozenset({"Empty", "Dead"})

Generation = tuple[int, str]
"""Of a member: the group's generation that it belongs to, and its id."""


class Committed(NamedTuple):
    """A committed offset. `incarnation` 0: of a release that had none, whose epochs were mere generations. `taken`:
    another group continues from here. `leader_epoch`: in which the record before `offset` was written; -1 from a
    release that did not commit it, or if there is no such record. `topic_id`: of the topic that it counts for; empty if
    unknown, as from other tools."""

    offset: int
    incarnation: int = 1
    taken: bool = False
    leader_epoch: int = UNKNOWN
    topic_id: str = ""


class Begun(NamedTuple):
    """Where a member begins in its partitions. `starts`: the offsets. `occupied`: former groups that have
    members; their partitions have to wait."""

    starts: dict[TopicPartition, Committed]
    occupied: frozenset[str]


def epoch(incarnation: int, generation: int, opening: int) -> int:
    """One number below 2**53 that grows with each of them, most of all with the first. `opening`: number of restarts of
    the partition by one member."""
    return incarnation << 40 | generation << 8 | min(opening, 255)


class GroupOffsets:
    """Offsets of one group. Every method may raise LogUnavailable."""

    def __init__(self, client: KafkaClient, group: str) -> None:
        self._client = client
        self._group = group

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], member: Generation = _OUTSIDE
    ) -> type[KafkaError] | None:
        """Why the group did not accept all of these; None if it did. From a client outside, only a group without
        members accepts any."""
        for some in sliced(list(offsets), PARTITIONS_A_REQUEST):
            request = offset_commit_request(self._group, *member, by_topic((p, _row(p, offsets[p])) for p in some))
            doing = f"committing for {self._group}"
            refusal = await self._client.coordinated(self._group, doing, request, _refusal_of_commit)
            if refusal is not None:
                return refusal
        return None

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """The offsets of partitions that have one."""
        found: dict[TopicPartition, Committed] = {}
        for some in sliced(list(partitions), PARTITIONS_A_REQUEST):
            request = offset_fetch_request(self._group, by_topic((p, p.partition) for p in some))
            doing = f"asking for the offsets of {self._group}"
            found |= await self._client.coordinated(self._group, doing, request, _committed)
        return found

    async def left(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """As `committed`, without offsets that were taken over."""
        return {p: each for p, each in (await self.committed(partitions)).items() if not each.taken}

    async def has_members(self) -> bool:
        request, doing = DescribeGroupsRequest([self._group]), f"asking who is in {self._group}"
        return await self._client.coordinated(self._group, doing, request, _has_members)

    async def heartbeat(self, member: Generation) -> type[KafkaError] | None:
        """Why the group does not accept this member; None if it does."""
        request, doing = HeartbeatRequest(self._group, *member), f"confirming {self._group}"
        return await self._client.coordinated(self._group, doing, request, _refusal)

    async def leave(self, member_id: str) -> None:
        request, doing = LeaveGroupRequest(self._group, member_id), f"leaving {self._group}"
        await self._client.coordinated(self._group, doing, request, lambda _: None)

    # where new topics begin

    @property
    def _newcomers(self) -> "GroupOffsets":
        """The group for offsets of new topics, which never has members: a group with members accepts no offsets from
        outside. The owner of such a partition finds them there."""
        return GroupOffsets(self._client, f"{self._group}.new_topics")

    async def settled(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """As `committed`, or as `begin` has set it."""
        found = await self.committed(partitions)
        return found | await self._newcomers.left([each for each in partitions if each not in found])

    async def begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the group's start, as a client that is no member of it."""
        starts = {partition: Committed(offset) for partition, offset in offsets.items()}
        if await self.commit(starts) is not None and (refusal := await self._newcomers.commit(starts)) is not None:
            raise LogUnavailable(f"Kafka: {self._group} does not take its first offsets: {refusal.__name__}")

    # taking over

    async def begun(
        self, partitions: Collection[TopicPartition], member: Generation, former: Callable[[str], str | None]
    ) -> Begun:
        """The offsets at which `member`, the owner of these, begins. `former`: topic -> the group that read it before
        this one; its offsets are taken over once it has no member, once, and never where this group has an offset."""
        starts = await self.committed(partitions)
        missing = [partition for partition in partitions if partition not in starts]
        by_group: dict[str, list[TopicPartition]] = {}
        for partition in missing:
            if name := former(partition.topic):
                by_group.setdefault(name, []).append(partition)
        occupied: set[str] = set()
        for some in sliced(list(by_group), _GROUPS_AT_ONCE):
            left = await asyncio.gather(*(self._left_by(name, by_group[name]) for name in some))
            occupied.update(name for name, found in zip(some, left, strict=True) if found is None)
            for name, found in zip(some, left, strict=True):
                starts |= await self._take_over(GroupOffsets(self._client, name), found or {}, member, 1)
        waiting = {partition for name in occupied for partition in by_group[name]}
        fresh = await self._newcomers.left([each for each in missing if each not in starts.keys() | waiting])
        starts |= await self._take_over(self._newcomers, fresh, member, 0)
        return Begun(starts, frozenset(occupied))

    async def _left_by(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Committed] | None:
        """The offsets of a former group; None if it has members, which may still commit."""
        offsets = GroupOffsets(self._client, group)
        return None if await offsets.has_members() else await offsets.left(partitions)

    async def _take_over(
        self, source: "GroupOffsets", left: Mapping[TopicPartition, Committed], member: Generation, raised: int
    ) -> dict[TopicPartition, Committed]:
        taken = {
            p: each._replace(incarnation=max(1, each.incarnation + raised), taken=False) for p, each in left.items()
        }
        if taken:
            if (refusal := await self.commit(taken, member)) is not None:
                raise LogUnavailable(f"Kafka: {self._group} does not take its offsets over: {refusal.__name__}")
            await source.commit({partition: each._replace(taken=True) for partition, each in left.items()})
        return taken


def _row(partition: TopicPartition, at: Committed) -> tuple[int, int, int, str]:
    return partition.partition, at.offset, at.leader_epoch, _metadata(at)


def _metadata(committed: Committed) -> str:
    """Release 0.1 reads an incarnation with a topic as 0, which is the same as 1 and no other one."""
    of_topic = f" topic={committed.topic_id}" if committed.topic_id and committed.incarnation == 1 else ""
    return _TAKEN if committed.taken else f"incarnation={committed.incarnation}{of_topic}"


def _read(offset: int, leader_epoch: int, metadata: str | None) -> Committed:
    found = _INCARNATION.match(metadata or "")
    incarnation, topic_id = (int(found[1]), found[2] or "") if found else (0, "")
    return Committed(offset, incarnation, metadata == _TAKEN, leader_epoch, topic_id)


def _committed(answer: Any) -> dict[TopicPartition, Committed]:
    check(getattr(answer, "error_code", 0))
    found: dict[TopicPartition, Committed] = {}
    for topic, rows in answer.topics:
        for partition, offset, leader_epoch, metadata, error in rows:
            check(error)
            if offset != _NO_OFFSET:
                found[TopicPartition(topic, partition)] = _read(offset, leader_epoch, metadata)
    return found


def _refusal_of_commit(answer: Any) -> type[KafkaError] | None:
    refusals = {for_code(error): topic for topic, rows in answer.topics for _, error in rows}
    for harmless in (NoError, UnknownTopicOrPartitionError):  # a deleted topic has no offsets
        refusals.pop(harmless, None)
    for refusal in refusals:
        if refusal.retriable:
            raise refusal()
    if refusals.keys() == {TopicAuthorizationFailedError}:  # a missing right says nothing about the member
        raise TopicAuthorizationFailedError(refusals[TopicAuthorizationFailedError])
    return min(refusals, key=FORBIDDEN.__contains__, default=None)


def _refusal(answer: Any) -> type[KafkaError] | None:
    refusal: type[KafkaError] = for_code(answer.error_code)
    if refusal is NoError:
        return None
    if refusal.retriable:
        raise refusal()
    return refusal


def _has_members(answer: Any) -> bool:
    [(error, _, state, *_)] = answer.groups
    check(error)
    return state not in _WITHOUT_MEMBERS
