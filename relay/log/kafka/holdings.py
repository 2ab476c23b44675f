"""The topics that a member of a consumer group wants, and the partitions that it holds, from assignment to release."""

import asyncio
from collections.abc import Collection, Iterable, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka.errors import TopicAuthorizationFailedError

from relay.domain.sliced import sliced
from relay.log.kafka.client import TOPICS_A_REQUEST, KafkaClient, described
from relay.log.kafka.leader_epochs import UNKNOWN, ReadHistory
from relay.log.kafka.member_metadata import MemberMetadata
from relay.log.kafka.offsets import Committed, epoch
from relay.log.partitioner import partitions_of
from relay.log.port import NONE_UNABLE, TopicPartition, Unable

_LOOK_S: Final = 300.0
"""Interval of looks at known topics, which may get more partitions."""

Lost = Mapping[tuple[str, int], tuple[int, int]]
"""As in OffsetMissing."""


class WantedTopics:
    """The topics that a member wants. `metadata`: of those that exist."""

    def __init__(self, client: KafkaClient, topics: Collection[str]) -> None:
        self._client = client
        self._topics = frozenset(topics)
        self._unable = NONE_UNABLE
        self._counts: dict[str, int] = {}
        self._refused: set[str] = set()
        self._looked_at = float("-inf")
        self._to_recount: frozenset[str] = frozenset()
        self.metadata = MemberMetadata({})

    def change(self, topics: Collection[str], unable: Unable) -> bool:
        """True if they differ from before; then `look` has to be called."""
        wanted = frozenset(topics)
        if (wanted, unable) == (self._topics, self._unable):
            return False
        self._topics, self._unable = wanted, unable
        return True

    def recount(self, topics: Collection[str]) -> None:
        """Have `look` count the partitions of these again: they were perhaps deleted, and created with others."""
        self._to_recount |= frozenset(topics)

    @property
    def any(self) -> str | None:
        """An existing topic."""
        return next(iter(self._counts), None)

    @property
    def missing(self) -> list[str]:
        return sorted(self._topics - self._counts.keys())

    @property
    def waits_for(self) -> str | None:
        """The missing topics, for operators."""
        if not (missing := self.missing):
            return None
        if refused := self._refused.intersection(missing):
            return f"Kafka: {described(TopicAuthorizationFailedError(min(refused)))}"
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return f"Kafka: no topic {shown}; `relay topics apply` creates it"

    async def look(self) -> bool:
        """Ask the cluster about unknown topics and those to recount, and now and then about all. True if the wanted
        topics have changed. One that this user may not see counts as missing: the others go on. Raises LogUnavailable.
        """
        now, wanted = asyncio.get_running_loop().time(), self._topics
        all_of_them = now - self._looked_at >= _LOOK_S
        names = sorted(wanted if all_of_them else wanted - (self._counts.keys() - self._to_recount))
        counts = {name: count for name, count in self._counts.items() if name in wanted and not all_of_them}
        self._refused = set()
        for some in sliced(names, TOPICS_A_REQUEST):
            there = await self._client.topics(some, self._refused)
            counts |= {name: len(partitions) for name, partitions in there.items()}
            self._to_recount -= there.keys()
        if all_of_them:
            self._looked_at = now
        unable = partitions_of(self._unable, counts)
        if (counts, unable) == (self._counts, self.metadata.unable):
            return False
        self._counts = counts
        self.metadata = MemberMetadata(counts, unable)
        return True


@dataclass(slots=True)
class HeldPartition:
    """A partition of a member. `generation`: of the group, at the assignment. `opening`: number of restarts since.
    `offset`: the last known committed one."""

    generation: int
    opening: int = 0
    incarnation: int = 0
    offset: int = 0
    is_open: bool = False
    is_leaving: bool = False
    is_meant: bool = True
    """Whether it is in the last assignment: a partition that is released for a restart may be assigned to another
    member."""
    is_missing: bool = False
    """The log does not have its offset: an error was raised, and it waits to be restarted."""
    is_of_another: bool = False
    """Its committed offset may be that of a deleted topic of the same name: it begins at the first record."""
    history: ReadHistory = field(default_factory=ReadHistory)

    def committed(self, offset: int) -> Committed:
        """The commit once all records before `offset` are finished."""
        at = self.history.behind(offset)
        return Committed(
            at, self.incarnation, leader_epoch=self.history.epoch_before(at), topic_id=self.history.topic_id
        )

    def begun_at(self, offset: int) -> Committed:
        """The commit from which the partition restarts."""
        epoch = self.history.epoch_before(offset) if offset >= self.history.start else UNKNOWN
        return Committed(offset, self.incarnation, leader_epoch=epoch)

    @property
    def epoch(self) -> int:
        return epoch(self.incarnation, self.generation, self.opening)


class Holdings:
    """The partitions of a member. `generation`: of the group, at the last assignment. `readable`: partitions that are
    open, and neither leaving nor missing; always current."""

    def __init__(self) -> None:
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._lost: set[TopicPartition] = set()
        self.generation = -1
        self.readable: set[TopicPartition] = set()

    @property
    def owned(self) -> KeysView[TopicPartition]:
        """Partitions that must not be assigned to another member."""
        return self._held.keys()

    def get(self, partition: TopicPartition) -> HeldPartition | None:
        return self._held.get(partition)

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, HeldPartition]:
        """Those of them that are held."""
        return {p: held for p in partitions if (held := self._held.get(p)) is not None}

    def kept(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, HeldPartition]:
        """Those of them that are held and not being released."""
        return {p: held for p, held in self.of(partitions).items() if not held.is_leaving}

    def behind(self) -> dict[TopicPartition, int]:
        """Of readable partitions with no more records up to there: an offset above the committed one."""
        ends = {p: held.history.behind(held.offset) for p, held in self.of(self.readable).items()}
        return {p: end for p, end in ends.items() if end > self._held[p].offset}

    def assign(self, generation: int, meant: Collection[TopicPartition]) -> dict[TopicPartition, HeldPartition]:
        """Apply an assignment. Returns the partitions to be released, which are leaving from now on."""
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
        """They are released: to the group, or (`again`) to be restarted here, if still assigned."""
        self._lost -= gone.keys()
        for partition, held in gone.items():
            if self._held.get(partition) is held:
                if again and held.is_meant:
                    self._held[partition] = HeldPartition(
                        held.generation, held.opening + 1, is_of_another=held.is_of_another
                    )
                else:
                    del self._held[partition]

    def to_open(self) -> dict[TopicPartition, HeldPartition]:
        """Assigned partitions that are not open yet."""
        return {p: each for p, each in self._held.items() if not (each.is_open or each.is_leaving or each.is_missing)}

    def open(self, partition: TopicPartition, at: Committed) -> int:
        """Open a partition; returns its epoch."""
        held = self._held[partition]
        held.incarnation, held.offset, held.is_open = max(1, at.incarnation), at.offset, True
        held.history = ReadHistory(at.offset, at.leader_epoch, at.topic_id)
        self.readable.add(partition)
        return held.epoch

    def miss(self, partitions: Iterable[TopicPartition], *, of_another: bool = False) -> None:
        for partition, held in self.of(partitions).items():
            held.is_missing = True
            held.is_of_another |= of_another
            held.incarnation = max(1, held.incarnation)
            self.readable.discard(partition)

    def restarts(
        self,
        partitions: Iterable[TopicPartition],
        firsts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        lost: Lost,
    ) -> tuple[dict[TopicPartition, Committed], Lost]:
        """Where partitions with a missing offset restart, and `lost` with the ends that their logs have lost, too.
        `firsts`, `ends`: of the log.

        They restart where the log diverges from the records read (`lost`), if known; otherwise at the first record of
        the log: rows absorb repeated records. A log that ends before our offset has lost its end, and may have grown
        again since: without a leader epoch nothing shows where its present end was before, so it is no place to
        continue from.
        """
        starts: dict[TopicPartition, Committed] = {}
        found = dict(lost)
        for at, held in self.of(partitions).items():
            if at not in lost and held.history.position > ends[at]:
                found[at] = ends[at], held.history.position
            offset = min(lost[at][0], held.offset) if at in lost else firsts[at]  # some may not be finished
            starts[at] = held.begun_at(max(firsts[at], offset))
        return starts, found

    def lose(self) -> list[TopicPartition]:
        """The group has removed the member, which holds nothing any more. Returns the open partitions, to be ended."""
        held, self._held = self._held, {}
        self.generation = -1
        self.readable.clear()
        self._lost.update(p for p, each in held.items() if each.is_open)
        return sorted(p for p, each in held.items() if each.is_open and not each.is_leaving)

    @property
    def is_ending(self) -> bool:
        """Partitions of a former membership have not ended yet."""
        return bool(self._lost)

    def ended(self, lost: Iterable[TopicPartition]) -> None:
        self._lost.difference_update(lost)
