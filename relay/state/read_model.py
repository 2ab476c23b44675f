"""Read-only views of the state: why a delivery waits, and which process serves its lane. No decision depends on
them."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from relay.log.port import Coordinate, TopicPartition
from relay.state.rows import Row


@dataclass(frozen=True, slots=True)
class Watched:
    """A row with details. `since_s`: seconds since its last attempt began, or since it is AWAITING; None if unknown.
    `under_way`: that attempt's outcome is not stored yet. `starts_in_s`: seconds until it starts, in its slot of the
    rate. `detail`: description of the previous attempt's outcome."""

    row: Row
    since_s: float | None = None
    under_way: bool = False
    starts_in_s: float = 0.0
    detail: str | None = None


class Openings(NamedTuple):
    """When an endpoint may get requests again: seconds until the next POST by its rate limit, and until its open
    breaker allows a probe (0 if now, or if it is closed)."""

    rate_in_s: float
    probe_in_s: float


class LineHead(NamedTuple):
    """The first record of an order key, which blocks others of its lane. `row`: digest of its row. `owner`: of the row;
    empty if unknown. `behind`: number of waiting records."""

    queue: bytes
    row: bytes
    source_id: str
    message_id: str
    owner: str = ""
    behind: int = 0


class ParkedLine(NamedTuple):
    """An order key with parked records, according to its lane. `owner`: of their rows."""

    owner: str
    queue: bytes


class Sign(NamedTuple):
    """A heartbeat of the process that serves a partition. `heads`: first records of order keys in memory, a limited
    number; `parked`: order keys with parked records, likewise. `in_flight`: requests in flight."""

    topic: str
    partition: int
    heads: tuple[LineHead, ...] = ()
    process: str = ""
    in_flight: int = 0
    parked: tuple[ParkedLine, ...] = ()


def unusable_at(owner: str) -> TopicPartition:
    """The pseudo-lane for heartbeats of processes that cannot use an endpoint's settings: heartbeats are stored by lane
    name. No topic has a slash in its name."""
    return TopicPartition(f"configuration/{owner}", 0)


UNSERVED_S: Final = 10.0
"""A lane without a heartbeat for this long is not served by any process; heartbeats are more frequent."""


class Served(NamedTuple):
    """The last heartbeat of a partition, `ago_s` seconds ago; for the other fields see `Sign`."""

    ago_s: float
    heads: tuple[LineHead, ...]
    process: str = ""
    in_flight: int = 0
    parked: tuple[ParkedLine, ...] = ()


class ParkedHead(NamedTuple):
    """The first parked record of an order key: the digest of its row, and the place of its copy. `behind`: number of
    records parked behind it."""

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
