"""The log in memory, under observation: a process does not append a record again that was acknowledged to it."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from relay.domain.errors import PartlyAppended
from relay.log.group_consumer import Commit
from relay.log.port import Coordinate, NewRecord, TopicPartition
from tests.fakes.log import MemoryBroker, MemoryLog


class Troubles:
    """Of all clients. `partly`: of the next appends with more records only so many are acknowledged; the others get
    lost, or, where it says so, they are there all the same. `at_commit`: by topic, what befalls a partition when an
    offset of it is committed next, right before or after that. `wrongs`: what was appended again."""

    def __init__(self) -> None:
        self.partly: deque[tuple[int, bool]] = deque()
        self.at_commit: dict[str, tuple[bool, Callable[[TopicPartition], None]]] = {}
        self.wrongs: list[str] = []

    def clear(self) -> None:
        self.partly.clear()
        self.at_commit.clear()

    def strike_at_commit(self, commits: Mapping[TopicPartition, Commit], *, after: bool) -> None:
        for at in commits:
            if at.topic in self.at_commit and self.at_commit[at.topic][0] is after:
                self.at_commit.pop(at.topic)[1](at)


class WatchedLog(MemoryLog):
    def __init__(self, broker: MemoryBroker, troubles: Troubles) -> None:
        super().__init__(broker)
        self._troubles = troubles
        self._acknowledged: dict[int, NewRecord] = {}

    async def append(self, records: Sequence[NewRecord]) -> list[Coordinate]:
        for record in records:
            if self._acknowledged.get(id(record)) is record:
                self._troubles.wrongs.append(f"appended again to {record.topic}: {record.key!r}")
        upto, arrives = self._fate(len(records))
        places = await super().append(records if arrives else records[:upto])
        self._acknowledged |= {id(record): record for record in records[:upto]}
        if upto < len(records):
            raise PartlyAppended("the log is away", dict(enumerate(places[:upto])))
        return places

    async def commit(self, group: str, commits: Mapping[TopicPartition, Commit]) -> None:
        self._troubles.strike_at_commit(commits, after=False)
        await super().commit(group, commits)
        self._troubles.strike_at_commit(commits, after=True)

    def _fate(self, count: int) -> tuple[int, bool]:
        partly = self._troubles.partly
        return partly.popleft() if partly and partly[0][0] < count else (count, True)
