"""The state port: rows of messages and deliveries, endpoints' health, timers. All of it may be lost at any moment.

Every method takes a batch, whose rows lie in 64 fixed hash tags (see `tag_of`). Any may raise StateUnavailable (effect
unknown; everything here can be repeated safely, also by the client library itself) or StateRecovering (a tag's memory
was lost and its recovery has not ended; nothing was done for that tag). Time is the state's own clock; durations are
seconds. Stages only rise within a generation; a higher generation starts a new life (stage and attempts from 0), a
lower one is `STALE`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, Literal, NamedTuple, Protocol

from msgspec import Struct

from relay.domain.identity import DeliveryId, MessageId, digest12
from relay.domain.receiver import BreakerPolicy
from relay.log.port import Coordinate

TAGS: Final = 64


class MessageStage(IntEnum):
    """Life of a message up to its fan-out. ENQUEUED is proof that all its hop records are acknowledged."""

    ACCEPTED = 1
    ARRIVED = 2
    ENQUEUED = 3


class Stage(IntEnum):
    """Life of a delivery, and of a callback (which uses NONE, SENDING, RESULT and DONE only).

    NONE: no row, which is all that ENQUEUED would say. ACCEPTED, RESULT: an outcome is stored, its hop record not yet
    acknowledged; AWAITING, PUBLISHED: it is. DONE and FAILED are finished: kept for `dedup_window`.
    """

    NONE = 0
    ENQUEUED = 2
    SENDING = 3
    ACCEPTED = 4
    AWAITING = 5
    RESULT = 6
    PUBLISHED = 7
    DONE = 8
    FAILED = 9


class RowKey(NamedTuple):
    """A row: `owner` is `r:<receiver>` or `s:<source_id>` and decides the hash tag, `digest` (12 bytes) names it."""

    owner: str
    digest: bytes


def tag_of(owner: str) -> int:
    """The hash tag, 0-63, of everything that belongs to `owner` (`r:<receiver>` or `s:<source_id>`)."""
    return hashlib.sha256(owner[2:].encode()).digest()[0] % TAGS


def delivery_row(delivery: DeliveryId) -> RowKey:
    """The row of a delivery: with its receiver."""
    return RowKey(f"r:{delivery.receiver}", digest12("d", *delivery))


def callback_row(delivery: DeliveryId, generation: int, *, failed: bool) -> RowKey:
    """The row of a callback: with its source, one per generation and kind."""
    kind = "f" if failed else "a"
    return RowKey(f"s:{delivery.source_id}", digest12("c", *delivery, str(generation), kind))


class Lane(NamedTuple):
    """One partition of a topic and its owner's epoch. A begin, due or park with an epoch below the highest one seen
    is refused as FENCED (a whole call: PartitionLost); a higher one is remembered, so the fence heals after a loss."""

    topic: str
    partition: int
    epoch: int


# --- messages ---------------------------------------------------------------------------------------------------


class Arrival(Struct, frozen=True, gc=False):
    """`digest`: 6 bytes over payload, receivers and type. `partition`, `offset`: where on `from_sender`."""

    id: MessageId
    digest: bytes
    partition: int
    offset: int
    stage: MessageStage = MessageStage.ARRIVED


class MessageRow(Struct, frozen=True, gc=False):
    """What is known of a message; `partition`, `offset`: its first arrival on `from_sender`."""

    stage: MessageStage
    digest: bytes
    partition: int
    offset: int


# --- rows -------------------------------------------------------------------------------------------------------


class Result(Struct, frozen=True, gc=False):
    """The outcome of an attempt, kept until its hop record is acknowledged. Opaque to the state."""

    outcome: Literal["answered", "delivered", "accepted", "dead"]
    status: int | None = None
    content_type: str | None = None
    body: bytes = b""
    truncated: bool = False
    reason: str | None = None
    detail: str | None = None
    status_url: str | None = None
    ask_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of a delivery or callback. With stage NONE all the rest has its default, but for the park fields.

    `attempts`: POSTs begun and counted in this generation; `polls`: status GETs begun. `due_in_s`: rest of the wait
    that a RETRY or DOUBT asked for. `park_intent`: a parked copy may be on the log, so a tombstone is owed. `kept`:
    this lane holds a parked reference to it. `behind`: its order key has parked records, and this is none of them.
    `at`: once PUBLISHED, DONE or FAILED, the partition and offset given with the mark. `code`: small integer given
    with the finishing mark. `result`: while ACCEPTED or RESULT.
    """

    stage: Stage = Stage.NONE
    generation: int = 0
    attempts: int = 0
    polls: int = 0
    due_in_s: float = 0.0
    last_status: int | None = None
    reason: str | None = None
    park_intent: bool = False
    kept: bool = False
    behind: bool = False
    at: tuple[int, int] | None = None
    code: int = 0
    result: Result | None = None


class IntakeAsk(Struct, frozen=True, gc=False):
    """`queue`: digest of the order key, None where there is no order. `generation`: the record's."""

    row: RowKey
    generation: int
    queue: bytes | None


class Kind(Enum):
    """POST: intent, counted attempt, rate and breaker. POLL: a status GET; no intent, no rate."""

    POST = "post"
    POLL = "poll"


@dataclass(frozen=True, slots=True)
class Limits:
    """What begin has to keep to, of the endpoint that `row.owner` names.

    `interval_s`: least distance of two POST starts (0: no limit). `settle_s`: how long after its begin a POST may
    still arrive. `probe_s`: how long the one probe of a half-open breaker may take until another may be sent.
    """

    interval_s: float
    settle_s: float
    breaker: BreakerPolicy
    probe_s: float


class BeginAsk(Struct, frozen=True, gc=False):
    """Ask to start an attempt. `token`: unique per attempt, so that a repeated call gets the same verdict.

    `attempts`: what the record itself says has been tried (for a row that was lost); the greater one counts.
    `takeover`: the caller has proof (a status endpoint's 404 after settling) or the receiver's consent
    (`on_ambiguous: resend`) to POST although an earlier attempt is in doubt; it does not shorten settling.
    `ask_first`: in doubt after a loss of state, a delivery without a row is AMBIGUOUS (the receiver can be asked).
    """

    row: RowKey
    generation: int
    token: bytes
    limits: Limits
    kind: Kind = Kind.POST
    attempts: int = 0
    takeover: bool = False
    ask_first: bool = False


class Go(NamedTuple):
    """Start `start_in_s` from now (at most 1 s: a slot of the rate limit), and within 5 s of this verdict, or release.

    `attempt`: 1-based number of this POST (or GET).
    """

    attempt: int
    start_in_s: float


WaitReason = Literal["rate", "pause", "breaker", "settling", "offline", "disabled"]


class Wait(NamedTuple):
    """Not yet. Nothing was recorded, no attempt counted. `settling`: an earlier POST may still arrive. `offline`: as
    `breaker`, in a long outage; `disabled`: as `pause`, which such an outage ended in."""

    seconds: float
    why: WaitReason


class Ping(NamedTuple):
    """Not yet: the endpoint is offline, for `down_for_s` so far. The caller alone is to send it a throw-away ping.

    No intent was written, no attempt counted, no slot of the rate taken. What comes of the ping is to be settled with
    the ask's token as RELEASED, with `healthy`; that is a probe's outcome for the endpoint, and nothing to the row.
    """

    down_for_s: float


class Ambiguous(NamedTuple):
    """An earlier attempt was begun, has settled, and nobody knows what came of it."""

    attempts: int


class Have(NamedTuple):
    """Nothing to send: the row already is at ACCEPTED or beyond (POLL: at RESULT or beyond)."""

    row: Row


class Stale(NamedTuple):
    """A higher generation lives; this record is a leftover."""

    generation: int


class Fenced(NamedTuple):
    """A newer owner has the lane."""


Verdict = Go | Wait | Ping | Ambiguous | Have | Stale | Fenced


class Change(Enum):
    """What an attempt did to its row.

    RELEASED: surely never started: the attempt is not counted, the stage falls back. RETRY: not processed, try again
    after `due_in_s`. DOUBT: ambiguous: the stage stays SENDING, ask again after `due_in_s`. ACCEPTED, RESULT: `result`
    is stored. RELEASED, RETRY and DOUBT count only with the current attempt's token; ACCEPTED and RESULT raise the
    stage whoever brings them, also a former owner, unless the row is there or beyond, or has a higher generation.
    """

    RELEASED = "released"
    RETRY = "retry"
    DOUBT = "doubt"
    ACCEPTED = "accepted"
    RESULT = "result"


class Settlement(Struct, frozen=True, gc=False):
    """The outcome of an attempt, or (token b"") of a poll or of the receiver's own callback.

    `counted` False takes the attempt back (429). `healthy`: for the endpoint's breaker; None says nothing.
    `pause_s`: hold the whole endpoint for so long (inf: until resumed by hand, as after a 410; of one that is not
    healthy: its outage was too long, and it counts as disabled from now on).
    """

    row: RowKey
    generation: int
    token: bytes
    change: Change
    due_in_s: float = 0.0
    counted: bool = True
    last_status: int | None = None
    reason: str | None = None
    result: Result | None = None
    healthy: bool | None = None
    pause_s: float = 0.0
    breaker: BreakerPolicy = BreakerPolicy()


class Mark(Struct, frozen=True, gc=False):
    """The hop record is acknowledged: raise the row to AWAITING, PUBLISHED, DONE or FAILED.

    `at`: partition and offset of the record on `to_sender` (PUBLISHED, DONE; None keeps what was marked before) or
    `failed_messages` (FAILED). `code`: 0-255, kept with a finished row. Drops the stored result.
    """

    row: RowKey
    generation: int
    stage: Stage
    at: tuple[int, int] | None = None
    code: int = 0


# --- parking ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parked:
    """A reference to a parked record. `order`: offset in the lane's topic, which ranks it within `queue`.

    `due_in_s`: when to take it up again; it counts only at the head of its queue: behind a head it waits for its turn.
    `poll`: counted apart from retries.
    """

    row: RowKey
    generation: int
    at: Coordinate
    due_in_s: float
    queue: bytes | None
    order: int
    poll: bool = False


class Due(NamedTuple):
    """A parked reference whose time has come, leased to the caller."""

    row: RowKey
    at: Coordinate


class Counts(NamedTuple):
    """Parked references of an owner."""

    retries: int
    polls: int


class Restored(Enum):
    """What a recovery pass found: the row is finished (a tombstone is owed), the reference was there, or put back."""

    FINISHED = "finished"
    THERE = "there"
    PUT_BACK = "put_back"


# --- endpoints --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """`paused_for_s`: inf when paused until resumed. `failures`: in the breaker's current run. `failing_for_s`: since
    the first failure that no success followed; 0: there is none, or it was long ago. `disabled_for_s`: since when it is
    paused because that lasted too long; None: it is not."""

    breaker: Literal["closed", "open", "half_open"]
    paused_for_s: float
    failures: int
    failing_for_s: float = 0.0
    disabled_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class FailedEntry:
    """Index entry of a dead letter. `failed_at`: Unix seconds."""

    receiver: str
    at: Coordinate
    failed_at: float
    reason: str
    source_id: str
    message_id: str


class State(Protocol):
    async def start(self) -> None:
        """Connect, and refuse (UserError) a server that may evict: `maxmemory-policy` must be `noeviction`."""
        ...

    async def problems(self) -> list[str]:
        """What is off about the server, a short line each: for people, as nothing stops on account of it."""
        ...

    async def time(self) -> float:
        """Unix seconds by the clock of the state's server, which all processes share; also while tags are not ready."""
        ...

    async def close(self) -> None: ...

    # messages
    async def arrive(self, arrivals: Sequence[Arrival]) -> list[MessageRow | None]:
        """What was known of each before this call; where nothing was, remember it. A known row keeps its digest and
        coordinate; its stage rises to the arrival's. Of two arrivals of one id in a batch, the first counts first."""
        ...

    async def enqueued(self, arrivals: Sequence[Arrival]) -> None:
        """All hop records of these are acknowledged: keep them as finished rows for `dedup_window`. A row with another
        digest and another first arrival is another message's, and stays as it is."""
        ...

    async def messages(self, ids: Sequence[MessageId]) -> list[MessageRow | None]: ...

    # rows
    async def intake(self, lane: Lane, asks: Sequence[IntakeAsk]) -> list[Row]:
        """What is known of each, without changing anything. A row of a lower generation counts as NONE (its park
        fields still tell); one of a higher generation is returned as it is."""
        ...

    async def peek(self, rows: Sequence[RowKey]) -> list[Row]:
        """As `intake`, for onlookers without a lane: `kept` and `behind` are False."""
        ...

    async def begin(self, lane: Lane, asks: Sequence[BeginAsk]) -> list[Verdict]:
        """Ask to start attempts, in order of importance: fence, generation, what is known, settling and doubt, pause,
        breaker, rate. Go writes the intent; a half-open breaker gives one Go, in a long outage one Ping, per probe."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | None]:
        """Write outcomes. Endpoint health and pauses are taken into account once per token.

        None: the attempt under way was settled as told, so the row says what the caller knows (and there is no intent
        to park). Else the row as it now is (with `result` where stored): the settlement came late, repeatedly, for
        another generation or attempt, or, as with token b"", from somebody who cannot know what else the row says.
        """
        ...

    async def mark(self, marks: Sequence[Mark]) -> None:
        """Raise stages after the hop record's acknowledgement. Finished rows move to their compact form."""
        ...

    async def forget(self, rows: Sequence[RowKey]) -> None:
        """Drop unfinished rows (callbacks whose end is recorded in the delivery's row)."""
        ...

    # parking
    async def intend_to_park(self, lane: Lane, rows: Sequence[tuple[RowKey, int]]) -> None:
        """Note (row, generation) that a parked copy may come to exist. Survives a later `mark`, until `unpark`."""
        ...

    async def park(self, lane: Lane, parked: Sequence[Parked]) -> None:
        """Put references to acknowledged parked copies into the due index and their queues, or renew them."""
        ...

    async def next_due(self, lane: Lane, tags: Sequence[int]) -> dict[int, float]:
        """Seconds until the first reference of each tag is due (<= 0: is due); tags without any are left out. What an
        owner of a lower epoch had taken is due."""
        ...

    async def take_due(self, lane: Lane, tags: Sequence[int], *, limit: int, lease_s: float) -> list[Due]:
        """Up to `limit` due references per tag, earliest first; each comes again after `lease_s`, or to an owner of a
        higher epoch at once, unless renewed by `park` or removed by `unpark`."""
        ...

    async def unpark(self, lane: Lane, rows: Sequence[tuple[RowKey, bytes | None]]) -> list[bool]:
        """Remove references and the intent of (row, queue), after the tombstone is acknowledged. True where the next
        of the queue became due at once."""
        ...

    async def parked(self, owners: Sequence[str]) -> list[Counts]: ...

    async def parked_total(self) -> Counts: ...

    # life and recovery
    async def lost(self) -> frozenset[int]:
        """Tags that are not ready: their memory is missing, from another server run, or in recovery."""
        ...

    def forgotten(self) -> frozenset[int]:
        """Of the tags that `lost` told of last, those whose memory is gone, or may lack its end. The others are a
        server's that came back with all that it ever acknowledged (it fsyncs every write)."""
        ...

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        """In recovery: put back references that have no finished row (`epoch` of the lane is not looked at). Allowed
        while the tag is not ready, and harmless when it is."""
        ...

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float) -> None:
        """Recovery is complete for these tags. For `in_doubt_s` (if memory was really lost), deliveries without a row
        count as in doubt. A server run that lost nothing (fsynced on every write) gets no doubt."""
        ...

    async def lease(self, name: str, owner: str, ttl_s: float) -> bool:
        """Give `name` to the first `owner` that asks, for `ttl_s`. True if `owner` holds it (asking again renews).
        Works while tags are not ready."""
        ...

    async def release(self, name: str, owner: str) -> None:
        """Give the lease back, if `owner` holds it."""
        ...

    # endpoints
    async def endpoints(self, owners: Sequence[str]) -> list[EndpointHealth]: ...

    async def pause(self, owner: str, seconds: float) -> None:
        """Hold an endpoint; inf: until resumed; 0: resume now, close its breaker, and forget its outage."""
        ...

    # failed messages
    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        """Remember for listing: the newest 10,000 per receiver. Repeatable."""
        ...

    async def failed(self, receiver: str, *, limit: int) -> list[FailedEntry]:
        """Newest first. `receiver` "-": those without a known receiver."""
        ...

    async def unindex_failed(self, entries: Sequence[FailedEntry]) -> None: ...

    async def failed_receivers(self) -> list[str]:
        """Receivers that have entries."""
        ...
