"""Keys of the API on a log in memory, whose records are taken in full after each append."""

from itertools import count

from relay.control.keys import ApiKeys, KeyService
from relay.control.records import ControlWriter
from relay.domain.control_key import KEYS, decode_key
from relay.domain.scope import parse_scope
from tests.fakes.log import MemoryLog

_NUMBERS = count()


def counted(size: int) -> bytes:
    """Other bytes each time."""
    return next(_NUMBERS).to_bytes(size, "big")


class MemoryKeys(KeyService):
    """What follows `topic` in a process is here the return of each append."""

    def __init__(self, log: MemoryLog, topic: str) -> None:
        self.log, self._topic_read, self._seen = log, topic, 0
        super().__init__(ControlWriter(log, topic, self._take_all), ApiKeys(), counted)
        self.keys.known = True

    async def _take_all(self, offset: int) -> None:
        async for records in self.log.scan(self._topic_read, 0, start=self._seen, end=offset):
            for each in records:
                if (key := decode_key(each.key)) is not None and key.kind in KEYS:
                    self.keys.take(key, each)
        self._seen = offset

    async def make(self, *scopes: str, now: float, expires_at: float | None = None) -> str:
        """The text of a key with these scopes."""
        made = await self.create("", frozenset(map(parse_scope, scopes)), expires_at, by="test", now=now)
        return made.text
