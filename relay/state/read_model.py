"""Read-only views of the state: why a delivery waits, which process serves its lane, and statistics of POSTs to
receivers, which are kept for a day. No decision depends on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from relay.domain.exchange import Response
from relay.domain.receiver import Endpoint
from relay.domain.shown_exchange import shown_body, shown_response_headers
from relay.domain.statistics import Counted
from relay.log.port import Coordinate, TopicPartition
from relay.state.rows import Row, RowKey

MOST_BODY: Final = 4_096
MOST_HEADERS: Final = 32
MOST_VALUE: Final = 256
"""Limits of a stored last response: bytes of its body, number of headers, and characters of a header's value."""


@dataclass(frozen=True, slots=True)
class RowDetails:
    """A row, and what its delivery waits for. `since_s`: seconds since its last attempt began, or since it is AWAITING;
    None if unknown. `under_way`: that attempt's outcome is not stored yet. `starts_in_s`: seconds until it starts, in
    its slot of the rate. `detail`: description of the previous attempt's outcome. `due_in_s`: of one that is parked and
    was never tried, seconds until it is due, otherwise 0."""

    row: Row
    since_s: float | None = None
    under_way: bool = False
    starts_in_s: float = 0.0
    detail: str | None = None
    due_in_s: float = 0.0


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


class LaneLoad(NamedTuple):
    """POSTs of a process in the last minute, to the receivers of a lane; in the shared lane, of all its partitions.
    `hot`: the hot receivers of the shared lane, with their shares."""

    posts: int
    hot: tuple[tuple[str, float], ...] = ()


class Waiting(NamedTuple):
    """The endpoint that a record waits for (`r:<receiver>` or `s:<source_id>`), and since when, in Unix seconds."""

    owner: str
    since: float


class Heartbeat(Struct, frozen=True, omit_defaults=True):
    """The content of a heartbeat, as it is stored: a map with names, so that newer releases can add fields. `heads`:
    first records of order keys in memory, a limited number; `parked`: order keys with parked records, likewise.
    `in_flight`: requests in flight. `load`: None if it is not measured. `waiting`: the oldest record in memory of each
    endpoint, in a lane of many, a limited number. `queued`: the number of records in memory of each, likewise."""

    heads: tuple[LineHead, ...] = ()
    process: str = ""
    in_flight: int = 0
    parked: tuple[ParkedLine, ...] = ()
    load: LaneLoad | None = None
    waiting: tuple[Waiting, ...] = ()
    queued: dict[str, int] = {}


class LaneHeartbeat(NamedTuple):
    """A heartbeat of the process that serves a partition."""

    topic: str
    partition: int
    content: Heartbeat = Heartbeat()


def unusable_at(owner: str) -> TopicPartition:
    """The pseudo-lane for heartbeats of processes that cannot use an endpoint's settings: heartbeats are stored by lane
    name. No topic has a slash in its name."""
    return TopicPartition(f"configuration/{owner}", 0)


UNSERVED_S: Final = 10.0
"""A lane without a heartbeat for this long is not served by any process; heartbeats are more frequent."""


class Served(Heartbeat, frozen=True, kw_only=True):
    """The last heartbeat of a partition, `ago_s` seconds ago."""

    ago_s: float


class ParkedHead(NamedTuple):
    """The first parked record of an order key: the digest of its row, and the place of its copy. `behind`: number of
    records parked behind it."""

    row: bytes
    at: Coordinate
    behind: int = 0


class FailedEntry(Struct, frozen=True, omit_defaults=True):
    """Index entry of a dead letter. `failed_at`: Unix seconds. `number`: of the delivery to its receiver, if that was
    given up and has one. `came_late`: the message's own deadline had passed when it was accepted. `life`: of the
    receiver's name; None: an earlier release wrote the entry."""

    receiver: str
    at: Coordinate
    failed_at: float
    reason: str
    source_id: str
    message_id: str
    number: int | None = None
    came_late: bool = False
    life: str | None = None


class LastAttempt(NamedTuple):
    """`at`: Unix seconds. `status`: of the response; None without one, and `failure` is the kind of NoResponse."""

    at: float
    status: int | None
    failure: str | None
    seconds: float


class LastResponse(NamedTuple):
    """The last response to a POST, bounded, with secrets masked. `at`: Unix seconds. `truncated`: the response had a
    longer body."""

    at: float
    status: int
    headers: dict[str, str]
    body: str
    truncated: bool


class Tally(NamedTuple):
    """A process's counts of an owner since its last call. `response`: None if no attempt had one."""

    owner: str
    counted: Counted
    last: LastAttempt
    response: LastResponse | None = None


class Statistics(NamedTuple):
    """Statistics of an owner. `hours`: by clock hour of the report, counted since 1970, without empty ones; at most the
    current hour and 23 before it."""

    hours: dict[int, Counted]
    last: LastAttempt | None


def kept_response(at: float, response: Response, endpoint: Endpoint) -> LastResponse:
    """The part of a response that is kept, with the secrets of its endpoint masked."""
    shown = list(shown_response_headers(response.headers, endpoint).items())[:MOST_HEADERS]
    headers = {name[:MOST_VALUE]: value[:MOST_VALUE] for name, value in shown}
    return LastResponse(at, response.status, headers, *shown_body(response, endpoint, MOST_BODY))


class StateReader(Protocol):
    """The part of the state port that only reads, for display."""

    async def row_details(self, rows: Sequence[RowKey]) -> list[RowDetails]:
        """As `peek`, with more details."""
        ...

    async def openings(self, owners: Sequence[str]) -> list[Openings]: ...

    async def heartbeats(self, lanes: Sequence[TopicPartition]) -> list[Served | None]:
        """The last heartbeat of each lane; None if there is none. Works while tags are not ready."""
        ...

    async def parked_heads(self, lane: TopicPartition, queues: Sequence[tuple[str, bytes]]) -> list[ParkedHead | None]:
        """The first parked record of each (owner, order key) in the lane; None if none is parked."""
        ...

    async def oldest_parked(self, limit: int) -> list[tuple[str, ParkedHead]]:
        """Of each owner with records parked for a retry without an order key, the one that was parked first; the
        longest parked first, at most `limit`. Of very many owners, a part. Tags that are not ready are left out."""
        ...

    async def waiting(self) -> dict[str, float]:
        """As the last `keep_waiting` of the last minute; empty without one."""
        ...

    async def keys_used(self, ids: Sequence[str]) -> list[float | None]:
        """Seconds since the last use of each key; None if unknown. Works while tags are not ready."""
        ...

    async def statistics(self, owners: Sequence[str]) -> list[Statistics]:
        """Works while tags are not ready."""
        ...

    async def last_attempts(self, owners: Sequence[str]) -> list[LastAttempt | None]:
        """The latest attempt of each owner in a tally of the last day. Works while tags are not ready."""
        ...

    async def last_response(self, owner: str) -> LastResponse | None:
        """The last response in a tally of the last day. Works while the tag is not ready."""
        ...
