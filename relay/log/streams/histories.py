"""Detection of lost records: the server of the embedded log was restarted, and its log ends before positions that were
read.

The server writes records, offsets and epochs of groups to one file, one after the other: if it loses some, it loses the
newest of all of them. So only positions in the memory of this process can be beyond the end; from them, reading would
continue in other records with the same offsets.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from relay.domain.errors import OffsetMissing
from relay.log.group_consumer import Position
from relay.log.port import TopicPartition

T = TypeVar("T")


class Cuts:
    """The ends that one partition has lost. Their number names its history: the first is 0."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    @property
    def history(self) -> int:
        return len(self._ends)

    def cut(self, end: int) -> None:
        """The records from `end` on are lost, acknowledged or not."""
        self._ends.append(end)

    def divergence(self, position: Position) -> int | None:
        """Where the log diverges from the records read up to `position`; None if it does not."""
        end = min(self._ends[position.history :], default=position.offset)
        return end if end < position.offset else None


class Histories:
    """`run`: names the start of the server that answers."""

    def __init__(self) -> None:
        self.run = ""
        self._read_to: dict[TopicPartition, int] = {}
        self._cuts: dict[TopicPartition, Cuts] = defaultdict(Cuts)

    def of(self, partition: TopicPartition) -> int:
        return self._cuts[partition].history if partition in self._cuts else 0

    def has_read(self, partition: TopicPartition, end: int) -> None:
        """A position in the memory of this process is `end`, or was."""
        self._read_to[partition] = max(end, self._read_to.get(partition, 0))

    def begin(self, run: str, ends: Mapping[TopicPartition, int]) -> None:
        """A server was started whose log has these ends. Called before anything is written to it; repeatable."""
        if run == self.run:
            return
        for partition, read_to in self._read_to.items() if self.run else ():
            if (end := ends.get(partition, 0)) < read_to:
                self._cuts[partition].cut(end)
                self._read_to[partition] = end
        self.run = run

    async def read(self, positions: Mapping[TopicPartition, Position], call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, which reads from these positions, all from one run of the server. Raises OffsetMissing
        if records that were read before are lost, and the errors of `call`."""
        while True:
            self._check(positions)
            run = self.run
            try:
                found = await call()
            except OffsetMissing:
                if run == self.run:
                    raise
                continue
            if run == self.run:
                return found

    def _check(self, positions: Mapping[TopicPartition, Position]) -> None:
        if not self._cuts:
            return
        lost: dict[tuple[str, int], tuple[int, int]] = {}
        for partition, position in positions.items():
            cuts = self._cuts.get(partition)
            if cuts is not None and (end := cuts.divergence(position)) is not None:
                lost[partition] = end, position.offset
        if lost:
            names = ", ".join(f"{topic}/{number} from offset {end} on" for (topic, number), (end, _) in lost.items())
            raise OffsetMissing(f"the log lost the end of {names}", lost, lost)
