"""The log in memory, under observation: what is acknowledged is not appended again by whom it was acknowledged to."""

from collections import deque
from collections.abc import Sequence

from relay.domain.errors import PartlyAppended
from relay.log.port import Coordinate, NewRecord
from tests.fakes.log import MemoryBroker, MemoryLog


class Troubles:
    """Of all clients. `partly`: of the next appends with more records only so many are acknowledged; the others get
    lost, or, where it says so, they are there all the same. `wrongs`: what was appended again."""

    def __init__(self) -> None:
        self.partly: deque[tuple[int, bool]] = deque()
        self.wrongs: list[str] = []


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

    def _fate(self, count: int) -> tuple[int, bool]:
        partly = self._troubles.partly
        return partly.popleft() if partly and partly[0][0] < count else (count, True)
