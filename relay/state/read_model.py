"""What the state tells those who only look: why a delivery waits, and who serves its lane. Nothing is decided by it."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from relay.log.port import Coordinate, TopicPartition
from relay.state.rows import Row


@dataclass(frozen=True, slots=True)
class Watched:
    """A row, and more about it. `since_s`: seconds since its last attempt was begun, or since it is AWAITING; None: not
    known. `under_way`: that attempt's outcome is not stored yet. `starts_in_s`: until it starts, in its slot of the
    rate. `detail`: what came of the attempt before, in words."""

    row: Row
    since_s: float | None = None
    under_way: bool = False
    starts_in_s: float = 0.0
    detail: str | None = None


class Openings(NamedTuple):
    """When an endpoint takes something again: seconds until the next POST may start by its rate limit, and until its
    open breaker lets a probe through (0: now, or it is closed)."""

    rate_in_s: float
    probe_in_s: float


class LineHead(NamedTuple):
    """The first of an order key, which others of a lane wait behind. `row`: the digest of its row. `owner`: of the row;
    empty: not told. `behind`: how many wait."""

    queue: bytes
    row: bytes
    source_id: str
    message_id: str
    owner: str = ""
    behind: int = 0


class ParkedLine(NamedTuple):
    """An order key that has parked records, as far as its lane knows. `owner`: of their rows."""

    owner: str
    queue: bytes


class Sign(NamedTuple):
    """A sign of life of whoever serves a partition. `heads`: of the lines in its memory, some at most; `parked`: order
    keys, likewise. `process`: who serves it; `in_flight`: requests that are under way."""

    topic: str
    partition: int
    heads: tuple[LineHead, ...] = ()
    process: str = ""
    in_flight: int = 0
    parked: tuple[ParkedLine, ...] = ()


def unusable_at(owner: str) -> TopicPartition:
    """Where processes sign that they cannot use the settings of an endpoint: in place of a lane's, as signs are kept by
    the name of a lane. No topic has a slash in its name."""
    return TopicPartition(f"configuration/{owner}", 0)


UNSERVED_S: Final = 10.0
"""A lane without a sign for so long is served by nobody: signs that follow each other are never so far apart."""


class Served(NamedTuple):
    """The last sign of life of a partition, so many seconds ago; for the rest see `Sign`."""

    ago_s: float
    heads: tuple[LineHead, ...]
    process: str = ""
    in_flight: int = 0
    parked: tuple[ParkedLine, ...] = ()


class ParkedHead(NamedTuple):
    """The first of an order key's parked records: the digest of its row, and where its copy is. `behind`: how many are
    parked behind it."""

    row: bytes
    at: Coordinate
    behind: int = 0


@dataclass(frozen=True, slots=True)
class FailedEntry:
    """Index entry of a dead letter. `failed_at`: Unix seconds."""

    receiver: str
    at: Coordinate
    failed_at: float
    reason: str
    source_id: str
    message_id: str
