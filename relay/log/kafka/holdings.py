"""The topics that a member of a consumer group wants, and the partitions that it holds, from assignment to release."""

import asyncio
from collections.abc import Collection, Iterable, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Final

from relay.log.kafka.client import KafkaClient
from relay.log.kafka.leader_epochs import UNKNOWN, Trail
from relay.log.kafka.member_metadata import Vocabulary
from relay.log.kafka.offsets import Committed, epoch
from relay.log.partitioner import partitions_of
from relay.log.port import NONE_UNABLE, TopicPartition, Unable

_LOOK_S: Final = 300.0
"""They may get more partitions."""

_TOPICS: Final = 500
"""Asked about at a time: the answer is taken apart in one go."""


class WantedTopics:
    """`vocabulary`: of those that there are."""

    def __init__(self, client: KafkaClient, topics: Collection[str]) -> None:
        self._client = client
        self._topics = frozenset(topics)
        self._unable = NONE_UNABLE
        self._counts: dict[str, int] = {}
        self._looked_at = float("-inf")
        self.vocabulary = Vocabulary({})

    def change(self, topics: Collection[str], unable: Unable) -> bool:
        """Whether that is news; then `look` has to be called."""
        wanted = frozenset(topics)
        if (wanted, unable) == (self._topics, self._unable):
            return False
        self._topics, self._unable = wanted, unable
        return True

    @property
    def any(self) -> str | None:
        """One that there is."""
        return next(iter(self._counts), None)

    @property
    def missing(self) -> list[str]:
        return sorted(self._topics - self._counts.keys())

    async def look(self) -> bool:
        """Ask the cluster about unknown topics, and now and then about all. Whether anything about the wanted topics
        has changed. Raises LogUnavailable."""
        now, wanted = asyncio.get_running_loop().time(), self._topics
        all_of_them = now - self._looked_at >= _LOOK_S
        names = sorted(wanted if all_of_them else wanted - self._counts.keys())
        counts = {name: count for name, count in self._counts.items() if name in wanted and not all_of_them}
        for first in range(0, len(names), _TOPICS):
            there = await self._client.topics(names[first : first + _TOPICS])
            counts |= {name: len(partitions) for name, partitions in there.items()}
        if all_of_them:
            self._looked_at = now
        unable = partitions_of(self._unable, counts)
        if (counts, unable) == (self._counts, self.vocabulary.unable):
            return False
        self._counts = counts
        self.vocabulary = Vocabulary(counts, unable)
        return True


@dataclass(slots=True)
class HeldPartition:
    """`generation`: of the group, in which it was dealt. `opening`: how often it was begun anew since. `offset`: the
    last one that is known to be committed."""

    generation: int
    opening: int = 0
    incarnation: int = 0
    offset: int = 0
    is_open: bool = False
    is_leaving: bool = False
    is_meant: bool = True
    """It was in the last assignment, too: a partition that is released to be restarted may be assigned to another
    then."""
    is_missing: bool = False
    """The log does not have its offset: that is raised, and it waits to be restarted."""
    trail: Trail = field(default_factory=Trail)

    def committed(self, offset: int) -> Committed:
        """The commit, once all before `offset` is finished."""
        at = self.trail.behind(offset)
        return Committed(at, self.incarnation, leader_epoch=self.trail.epoch_before(at))

    def begun_at(self, offset: int) -> Committed:
        """It is read anew from there on."""
        epoch = self.trail.epoch_before(offset) if offset >= self.trail.start else UNKNOWN
        return Committed(offset, self.incarnation, leader_epoch=epoch)

    @property
    def epoch(self) -> int:
        return epoch(self.incarnation, self.generation, self.opening)


class Holdings:
    """`generation`: of the group, in which it dealt last. `readable`: partitions that are open, and neither leaving nor
    missing; keeps up with each change."""

    def __init__(self) -> None:
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._lost: set[TopicPartition] = set()
        self.generation = -1
        self.readable: set[TopicPartition] = set()

    @property
    def claims(self) -> KeysView[TopicPartition]:
        """All that may be assigned to no other member."""
        return self._held.keys()

    def get(self, partition: TopicPartition) -> HeldPartition | None:
        return self._held.get(partition)

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, HeldPartition]:
        """Those of them that are held."""
        return {p: held for p in partitions if (held := self._held.get(p)) is not None}

    def deal(self, generation: int, meant: Collection[TopicPartition]) -> dict[TopicPartition, HeldPartition]:
        """The group has dealt: what has to be given up now, which is leaving from here on."""
        self.generation = generation
        for partition, held in self._held.items():
            held.is_meant = partition in meant
        gone = {p: held for p, held in self._held.items() if not (held.is_meant or held.is_leaving)}
        for partition in meant:
            if partition not in self._held:
                self._held[partition] = HeldPartition(generation)
        self.leave(gone)
        return gone

    def leave(self, gone: Mapping[TopicPartition, HeldPartition]) -> None:
        for held in gone.values():
            held.is_leaving = True
        self.readable -= gone.keys()

    def left(self, gone: Mapping[TopicPartition, HeldPartition], *, again: bool) -> None:
        """It is given up: to the group, or (`again`) to be begun anew here, if it is still meant to be here."""
        self._lost -= gone.keys()
        for partition, held in gone.items():
            if self._held.get(partition) is held:
                if again and held.is_meant:
                    self._held[partition] = HeldPartition(held.generation, held.opening + 1)
                else:
                    del self._held[partition]

    def to_open(self) -> dict[TopicPartition, HeldPartition]:
        """What was dealt and not begun."""
        return {p: each for p, each in self._held.items() if not (each.is_open or each.is_leaving or each.is_missing)}

    def open(self, partition: TopicPartition, at: Committed) -> int:
        """Its epoch, with which it begins."""
        held = self._held[partition]
        held.incarnation, held.offset, held.is_open = max(1, at.incarnation), at.offset, True
        held.trail = Trail(at.offset, at.leader_epoch)
        self.readable.add(partition)
        return held.epoch

    def miss(self, partitions: Iterable[TopicPartition]) -> None:
        for partition, held in self.of(partitions).items():
            held.is_missing = True
            held.incarnation = max(1, held.incarnation)
            self.readable.discard(partition)

    def lose(self) -> list[TopicPartition]:
        """The group has put the member out: it holds nothing any more. What was open, and has to be ended."""
        held, self._held = self._held, {}
        self.generation = -1
        self.readable.clear()
        self._lost.update(p for p, each in held.items() if each.is_open)
        return sorted(p for p, each in held.items() if each.is_open and not each.is_leaving)

    @property
    def is_ending(self) -> bool:
        """Something of a former membership has not ended yet."""
        return bool(self._lost)

    def ended(self, lost: Iterable[TopicPartition]) -> None:
        self._lost.difference_update(lost)
