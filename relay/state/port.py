"""The state port: rows of messages and deliveries, endpoints' health, timers. All of it may be lost at any moment.

Every method takes a batch, whose rows lie in 64 fixed hash tags (see `tag_of`); everything can be repeated safely, also
by the client library itself.

What records need on their way can be asked for many lanes in one call. Each item has a reply of its own, in the order
asked, and none is spoiled by another. It is a Refusal where the lane has a newer owner, the tag is not ready, or its
server does not answer; nothing of that is raised. `answered` is for those who need every reply.

All other methods may raise StateUnavailable (effect unknown) or StateRecovering (a tag's memory was lost, and its
recovery has not ended; nothing was done for that tag).

Time is the state's own clock; durations are seconds. Stages only rise within a generation; a higher generation starts a
new life (stage and attempts from 0), a lower one is `STALE`.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from relay.domain.hold import Hold
from relay.domain.identity import MessageId
from relay.log.port import Coordinate, TopicPartition
from relay.state.attempts import BeginAsk, Settlement, Verdict
from relay.state.quotas import Balance, Charge
from relay.state.read_model import FailedEntry as FailedEntry
from relay.state.read_model import Openings, ParkedHead, Served, Sign, Watched
from relay.state.replies import Refusal
from relay.state.rows import Arrival, Mark, MessageRow, Row, RowKey
from relay.state.statistics import LastResponse, Statistics, Tally


class Lane(NamedTuple):
    """One partition of a topic and its owner's epoch. A begin, due or park with an epoch below the highest one seen
    is Fenced; a higher one is remembered, so the fence heals after a loss.
    Groups that count anew (deleted, forgotten, rebuilt) stay below it: see `begin_anew`."""

    topic: str
    partition: int
    epoch: int


class IntakeAsk(Struct, frozen=True, gc=False):
    """`queue`: digest of the order key, None where there is no order. `generation`: the record's."""

    row: RowKey
    generation: int
    queue: bytes | None


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


class DueAsk(NamedTuple):
    """Up to `limit` references of a hash tag. `token`: of this take; with the same one again, as no reply came, it is
    given the same again. Empty: without."""

    tag: int
    limit: int
    token: bytes = b""


class Due(NamedTuple):
    """A parked reference whose time has come, leased to the caller."""

    row: RowKey
    generation: int
    at: Coordinate


class ParkedLife(NamedTuple):
    """What may be parked of one generation of a row. `queue`: its order key."""

    row: RowKey
    generation: int
    queue: bytes | None = None


class Counts(NamedTuple):
    """Parked references of an owner."""

    retries: int
    polls: int


class Remains(NamedTuple):
    """What a lane's former owner left behind, that ended without `leave`. `reserved`: of records before this offset it
    may have had any in hand; `marked`: those with a mark, and how often each."""

    reserved: int
    marked: Mapping[int, int]


class Restored(Enum):
    """What a recovery pass found: the row is finished (a tombstone is owed), the reference was there, or put back."""

    FINISHED = "finished"
    THERE = "there"
    PUT_BACK = "put_back"


HintTopic = Literal["ends", "endpoints"]

LaneEnds = Mapping[int, Mapping[TopicPartition, int]]


class Gap(NamedTuple):
    """Finished rows of a tag may be missing. `since`: when the loss was noticed; `kept_until`: rows of what ended
    before then are there (0: none is known to be). Unix seconds."""

    since: float
    kept_until: float


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """`paused_for_s`: inf when it is held until somebody resumes it, which `hold` tells about. `failures`: in the
    breaker's current run. `failing_for_s`: since the first failure that no success followed; 0: there is none, or it
    was long ago."""

    breaker: Literal["closed", "open", "half_open"]
    paused_for_s: float
    failures: int
    failing_for_s: float = 0.0
    hold: Hold | None = None


class State(Protocol):
    async def start(self) -> None:
        """Connect, and refuse (UserError) a server that may evict: `maxmemory-policy` must be `noeviction`."""
        ...

    async def problems(self) -> list[str]:
        """What is off about the server, a short line each: for people, as nothing stops on account of it."""
        ...

    async def about(self) -> str:
        """What answers, its version, and how full it is, in a few words for people."""
        ...

    async def time(self) -> float:
        """Unix seconds by the clock of the state's server, which all processes share; also while tags are not ready."""
        ...

    async def close(self) -> None: ...

    # what records need on their way: a reply for each item, also where it is refused
    async def arrive(self, arrivals: Sequence[Arrival]) -> list[MessageRow | Refusal | None]:
        """What was known of each before this call; where nothing was, remember it. A known row keeps its digest and
        coordinate; its stage rises to the arrival's. Of two arrivals of one id in a batch, the first counts first."""
        ...

    async def enqueued(self, arrivals: Sequence[Arrival]) -> list[Refusal | None]:
        """All hop records of these are acknowledged: keep them as finished rows for `dedup_window`. A row with another
        digest and another first arrival is another message's, and stays as it is."""
        ...

    async def intake(self, asks: Sequence[tuple[Lane, IntakeAsk]]) -> list[Row | Refusal]:
        """What is known of each, without changing anything. A row of a lower generation counts as NONE (its park
        fields still tell); one of a higher generation is returned as it is."""
        ...

    async def peek(self, rows: Sequence[RowKey]) -> list[Row | Refusal]:
        """As `intake`, for onlookers without a lane: `kept` and `behind` are False."""
        ...

    async def begin(self, asks: Sequence[tuple[Lane, BeginAsk]]) -> list[Verdict | Refusal]:
        """Ask to start attempts, in order of importance: fence, generation, what is known, settling and doubt, pause,
        breaker, room, rate, places in flight. Go writes the intent, and keeps room for an answer that comes later, and
        a place in flight until the attempt is settled, or for `probe_s`; a half-open breaker gives one Go, in a long
        outage one Ping, per probe. One that is `unseen` needs no intake before."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | Refusal | None]:
        """Write outcomes. Endpoint health and pauses are taken into account once per token.

        None: the attempt under way was settled as told, so the row says what the caller knows (and there is no intent
        to park). Else the row as it now is (with `result` where stored): the settlement came late, repeatedly, for
        another generation or attempt, or, as with token b"", from somebody who cannot know what else the row says.
        An outcome (RESULT) without a token frees what is parked of it: it is due at once, and counts no more.
        """
        ...

    async def mark(self, marks: Sequence[Mark]) -> list[Refusal | None]:
        """Raise stages after the hop record's acknowledgement. Finished rows move to their compact form. What is marked
        PUBLISHED or beyond keeps no room."""
        ...

    async def forget(self, rows: Sequence[RowKey]) -> list[Refusal | None]:
        """Drop unfinished rows (callbacks whose end is recorded in the delivery's row)."""
        ...

    async def intend_to_park(self, rows: Sequence[tuple[Lane, RowKey]]) -> list[Refusal | None]:
        """Note that a parked copy may come to exist. Survives a later `mark`, until `unpark`."""
        ...

    async def park(self, parked: Sequence[tuple[Lane, Parked]]) -> list[bool | Refusal]:
        """Put references to acknowledged parked copies into the due index and their queues, or renew them. False: not
        this one, for its outcome is stored already (for a poll: its answer), or a later life is parked."""
        ...

    async def next_due(self, tags: Sequence[tuple[Lane, int]]) -> list[float | Refusal | None]:
        """Seconds until the first reference of the lane in each tag is due (<= 0: is due); None: there is none. What an
        owner of a lower epoch had taken is due."""
        ...

    async def take_due(self, asks: Sequence[tuple[Lane, DueAsk]], *, lease_s: float) -> list[list[Due] | Refusal]:
        """Due references, earliest first; each comes again after `lease_s`, or to an owner of a higher epoch at once,
        unless renewed by `park` or removed by `unpark`."""
        ...

    async def unpark(self, lives: Sequence[tuple[Lane, ParkedLife]]) -> list[bool | Refusal]:
        """Remove references and intents of these lives and earlier ones, after the tombstone is acknowledged; what a
        later life has there stays. True where the next of the queue became due at once."""
        ...

    async def parked(self, owners: Sequence[str]) -> list[Counts | Refusal]: ...

    # messages, rows, counts
    async def messages(self, ids: Sequence[MessageId]) -> list[MessageRow | None]: ...

    async def remember(self, marks: Sequence[Mark]) -> None:
        """What the log proves of rows that may have been lost: as `mark`, but only where nothing of this generation or
        a later one is known, or no more than that it is AWAITING or PUBLISHED."""
        ...

    async def parked_total(self) -> Counts:
        """Of all owners whose tags are ready and answer; what is to be put back elsewhere is not counted yet. Raises
        where none does."""
        ...

    # owners
    async def epochs(self, lane: Lane, tags: Sequence[int]) -> dict[int, int]:
        """The highest epoch seen of the lane, in each of these tags; those that saw none are left out. Where the lane
        has begun anew, and `lane.epoch` looks like one of before: the highest of these."""
        ...

    async def begin_anew(self, lane: Lane, seen: Mapping[int, int]) -> bool:
        """Make `lane.epoch` the highest one seen, in each tag of `seen` (tag -> epoch) where `epochs` still gives just
        that one; what its owner had in hand is due. False where it gives another: nothing was changed in that tag.
        For `dedup_window` from then on, what looks like an epoch of before (up to `seen`, nearer to that than to the
        lane's, and not the next) is fenced, however high it is.

        Only for an owner whom its group has confirmed after `epochs` gave `seen`: see `relay.engine.supervision`.
        """
        ...

    # who was at what
    async def reserve(self, lane: Lane, before: int) -> Remains | None:
        """Note that `lane` may have records before this offset in hand, until `leave`. To the first call of an owner:
        what a former one left behind; None: nothing. What it had reserved counts on.

        This and the next two work while tags are not ready, and fence nobody: what they keep are hints."""
        ...

    async def suspect(self, lane: Lane, offset: int, times: int) -> None:
        """Put a mark on the record at `offset`, for the `times`-th time; 0: take it off."""
        ...

    async def leave(self, lane: Lane) -> None:
        """This owner ends properly: nothing of it remains. What a later owner has noted stays."""
        ...

    # life and recovery
    async def lost(self) -> frozenset[int]:
        """Tags that are not ready: their memory is missing, from another server run, or in recovery."""
        ...

    def forgotten(self) -> frozenset[int]:
        """Of the tags that `lost` told of last, those whose memory is gone, or may lack its end. The others are a
        server's that came back with all that it ever acknowledged (it fsyncs every write)."""
        ...

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        """In recovery: put back references that have no finished row, nor a later life (`epoch` of the lane is not
        looked at). Allowed while the tag is not ready, and harmless when it is."""
        ...

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float, ends: LaneEnds | None = None) -> None:
        """Recovery is complete for these tags. For `in_doubt_s` (if memory was really lost), deliveries without a row
        count as in doubt. A server run that lost nothing (fsynced on every write) gets no doubt. `ends`: by tag, of the
        lanes of its receivers, read since the loss was noticed; what is not in there had no record then. None: nothing
        is known of them."""
        ...

    async def gaps(self, tags: Sequence[int]) -> dict[int, Gap]:
        """Of those of `tags` whose memory was lost, and whose finished rows are not all back."""
        ...

    async def close_gaps(self, gaps: Mapping[int, Gap]) -> None:
        """All that the log proves of these is remembered. A gap that was opened since stays."""
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

    async def attend(self, tags: Sequence[int]) -> float:
        """Somebody is there to make attempts at the endpoints of `tags`; to be told every 2 s. Time in which nobody
        said so, once somebody has, is no part of any outage. Returns by how many seconds the server's clock was set
        back, in all, since its memory began: the moments that it keeps are not affected, as their time goes on."""
        ...

    async def hold(self, owner: str, hold: Hold) -> None:
        """Send it nothing until `resume`; the log has it already. What was found out before, as that it is gone, keeps
        its `since`. Works while tags are not ready."""
        ...

    async def hold_again(self, holds: Mapping[str, Hold], *, tags: Collection[int] = (), before: float = 0.0) -> None:
        """By owner, as they are on the log: where the state knows of nothing newer, that was lost there. Of `tags` they
        are all: others that were held before `before` (Unix seconds) are resumed. Works while tags are not ready."""
        ...

    async def resume(self, owner: str) -> None:
        """End its hold or pause, close its breaker, and forget its outage. Works while tags are not ready."""
        ...

    async def probe_soon(self, owners: Sequence[str]) -> None:
        """There is reason to think that these take something again: where a breaker is open, the next attempt may probe
        it, unless a probe is under way. Works while tags are not ready."""
        ...

    async def forget_endpoint(self, owner: str, lanes: Sequence[Lane] = ()) -> None:
        """Drop what is known of an endpoint that is no more: pauses, breaker, rate, room, statistics; and the fences of
        `lanes`, which are its own and have lost their topic. Rows and references stay."""
        ...

    # failed messages
    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        """Remember for listing: the newest 10,000 per receiver. Repeatable."""
        ...

    async def drop_failed(self, entries: Sequence[FailedEntry]) -> None:
        """List these no more: somebody has seen to them. Those that are not there are passed over."""
        ...

    async def failed(self, receiver: str, *, limit: int) -> list[FailedEntry]:
        """Newest first. `receiver` "-": those without a known receiver."""
        ...

    async def failed_receivers(self) -> list[str]:
        """Receivers that have entries."""
        ...

    def hints(self, about: HintTopic = "ends") -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Published right after the change to all that listen, from entering on. `ends`: digests of rows that were
        marked as `awaited`. `endpoints`: owners that may be asked sooner than their last Wait said, as a breaker has
        closed or lets an attempt through early; one that is resumed is not among them. A hint may be lost, late, or
        come twice. Entering and listening raise StateUnavailable when nothing can be heard."""
        ...

    # what comes in
    async def charge(self, charges: Sequence[Charge]) -> list[Balance]:
        """Count messages against their quotas, one charge after the other; one that does not fit counts nothing. What
        is repeated counts again. Works while tags are not ready."""
        ...

    # keys of the API
    async def use_keys(self, used: Mapping[str, float]) -> None:
        """Seconds since each key (its id) was used; the latest use is kept 400 days. Works while tags are not ready."""
        ...

    async def keys_used(self, ids: Sequence[str]) -> list[float | None]:
        """Seconds since the last use of each; None: none is known. Works while tags are not ready."""
        ...

    # what became of attempts, for people
    async def tally(self, teller: str, number: int, tallies: Sequence[Tally]) -> None:
        """Add to the statistics of owners; of last attempts the latest is kept. Nothing is added where `number` is that
        of the teller's call before. Kept for a day; works while tags are not ready."""
        ...

    async def statistics(self, owners: Sequence[str]) -> list[Statistics]:
        """Works while tags are not ready."""
        ...

    async def last_response(self, owner: str) -> LastResponse | None:
        """The last response that was told with a tally within a day. Works while the tag is not ready."""
        ...

    # for those who only look
    async def watch(self, rows: Sequence[RowKey]) -> list[Watched]:
        """As `peek`, with more about each."""
        ...

    async def openings(self, owners: Sequence[str]) -> list[Openings]: ...

    async def sign(self, signs: Sequence[Sign]) -> None:
        """Leave signs of life; each is kept for 7 days, or until the next. Works while tags are not ready."""
        ...

    async def signs(self, lanes: Sequence[TopicPartition]) -> list[Served | None]:
        """The last sign of each; None: there is none. Works while tags are not ready."""
        ...

    async def parked_heads(self, lane: TopicPartition, queues: Sequence[tuple[str, bytes]]) -> list[ParkedHead | None]:
        """Which parked record heads each (owner, order key) in the lane; None: nothing of it is parked there."""
        ...
