"""Orders the reading of partitions backwards: in blocks, always the newest unread block next. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from relay.log.port import TopicPartition


class Block(NamedTuple):
    """Offsets from `start` to before `end` of a partition."""

    at: TopicPartition
    start: int
    end: int


@dataclass(slots=True)
class _Rest:
    """The unread part of a partition: from `first` to before `end`. `newest_ms`, `oldest_ms`: timestamps of the block
    after it."""

    at: TopicPartition
    first: int
    end: int
    newest_ms: float = inf
    oldest_ms: float = inf


class ReverseScan:
    """Blocks of at most `size` offsets. A partition is finished when a whole block of it was older than `since_ms`
    (Unix ms); that may be lowered, to go on."""

    def __init__(self, spans: Iterable[Block], *, since_ms: float, size: int) -> None:
        self._rests = [_Rest(*span) for span in spans]
        self._size = size
        self.since_ms = since_ms

    @property
    def reached_ms(self) -> float:
        """All records since then have been read, by the log's clock; -inf: all records."""
        return max((rest.oldest_ms for rest in self._open()), default=-inf)

    def next(self) -> Block | None:
        """The next block to read; None if none is left."""
        rest = max(self._open(), key=lambda rest: rest.oldest_ms, default=None)
        return None if rest is None else Block(rest.at, max(rest.first, rest.end - self._size), rest.end)

    def read(self, block: Block, timestamps: Iterable[int]) -> None:
        """All records of `block` have been read; they had these timestamps."""
        known = list(timestamps)
        rest = next(each for each in self._rests if each.at == block.at)
        rest.end = block.start
        if known:  # else retention has deleted them all, which proves nothing
            rest.newest_ms, rest.oldest_ms = max(known), min(rest.oldest_ms, *known)

    def _open(self) -> list[_Rest]:
        return [rest for rest in self._rests if rest.end > rest.first and rest.newest_ms >= self.since_ms]
