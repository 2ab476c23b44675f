"""The state port: rows of messages and deliveries, endpoints' health, timers. All of it may be lost at any moment.

Every method takes a batch, whose rows are in 64 fixed hash tags (see `tag_of`). All calls can be repeated safely, also
by the client library.

The methods that process records accept items of many lanes in one call. Each item has its own reply, in order, and does
not affect others. The reply is a Refusal if the lane has a newer owner, the tag is not ready, or its server does not
answer; these methods do not raise. `answered` is for callers that need every reply.

All other methods may raise StateUnavailable (effect unknown) or StateRecovering (a tag's memory was lost, and its
recovery is not complete; nothing was done for that tag).

Time is the state's own clock; durations are seconds. Stages only rise within a generation; a higher generation starts
over (stage and attempts from 0), a lower one is `STALE`.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from relay.domain.hold import Hold
from relay.domain.identity import MessageId
from relay.domain.incident import Incident, PersonMark, Verb
from relay.domain.numbering import Numbering
from relay.state.attempts import BeginRequest, Settlement, Verdict
from relay.state.read_model import FailedEntry as FailedEntry
from relay.state.read_model import LaneHeartbeat, StateReader, Tally
from relay.state.replies import Refusal
from relay.state.rows import (
    Arrival,
    Due,
    DueRequest,
    Mark,
    MessageRow,
    Parked,
    ParkedLife,
    Row,
    RowKey,
    Superseded,
    Superseding,
)
from relay.state.values import Balance as Balance
from relay.state.values import Charge as Charge
from relay.state.values import Counts as Counts
from relay.state.values import EndpointHealth as EndpointHealth
from relay.state.values import Gap as Gap
from relay.state.values import HintTopic as HintTopic
from relay.state.values import IntakeRequest as IntakeRequest
from relay.state.values import Lane as Lane
from relay.state.values import LaneEnds as LaneEnds
from relay.state.values import Restored as Restored
from relay.state.values import StoredIncidents as StoredIncidents
from relay.state.values import UnreleasedReservation as UnreleasedReservation


class State(StateReader, Protocol):
    async def start(self) -> None:
        """Connect, and reject (UserError) a server that may evict: `maxmemory-policy` must be `noeviction`."""
        ...

    async def problems(self) -> list[str]:
        """Non-fatal problems of the server for operators, a short line each."""
        ...

    async def about(self) -> str:
        """Short description of the server: its kind, version and memory use."""
        ...

    async def time(self) -> float:
        """Unix seconds by the clock of the state's server, shared by all processes; works while tags are not ready."""
        ...

    async def close(self) -> None: ...

    # processing of records: a reply for each item, also if it is refused
    async def arrive(self, arrivals: Sequence[Arrival]) -> list[MessageRow | Refusal | None]:
        """Store arrivals. Returns the row that existed before this call, or None. An existing row keeps its digest and
        coordinate, and its stage rises to the arrival's; one at ACCEPTED gets the coordinate of the record that is read
        first. Arrivals of one id in a batch are processed in order."""
        ...

    async def enqueued(self, arrivals: Sequence[Arrival]) -> list[Refusal | None]:
        """Store that all hop records of these are acknowledged, as finished rows for `dedup_window`. A row with another
        digest and another first arrival belongs to another message and is not changed."""
        ...

    async def intake(self, asks: Sequence[tuple[Lane, IntakeRequest]]) -> list[Row | Refusal]:
        """The row of each, without changes. A row of a lower generation is returned as NONE (with its park fields); one
        of a higher generation is returned unchanged."""
        ...

    async def peek(self, rows: Sequence[RowKey]) -> list[Row | Refusal]:
        """As `intake`, for readers without a lane: `kept` is False and `behind` None."""
        ...

    async def begin(self, asks: Sequence[tuple[Lane, BeginRequest]]) -> list[Verdict | Refusal]:
        """Request attempts. Checks, in order: fence, generation, the row, settling and doubt, pause, breaker, room,
        rate, places in flight. Go writes the intent, reserves room for a later answer, and a place in flight until the
        attempt is settled, or for `probe_s`. A half-open breaker grants one Go per probe, or in a long outage one
        PingDue. An `unseen` ask needs no `intake` before."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | Refusal | None]:
        """Write outcomes. Endpoint health and pauses are taken into account once per token.

        None: the current attempt was settled as requested, so the caller knows the row (and there is no intent to
        park). Otherwise the resulting row (with a stored `result`): the settlement was late, repeated, for another
        generation or attempt, or, with token b"", from a caller that does not know the row. An outcome (RESULT) without
        a token frees its parked reference: it is due at once, and no longer counts.
        """
        ...

    async def mark(self, marks: Sequence[Mark]) -> list[Refusal | None]:
        """Raise stages after the hop record's acknowledgement. Finished rows are stored in compact form. Rows marked
        PUBLISHED or beyond release their room."""
        ...

    async def forget(self, rows: Sequence[RowKey]) -> list[Refusal | None]:
        """Drop unfinished rows (callbacks whose end is recorded in the delivery's row)."""
        ...

    async def intend_to_park(self, rows: Sequence[tuple[Lane, RowKey]]) -> list[Refusal | None]:
        """Note that a parked copy may exist later. Survives a later `mark`, until `unpark` of the same lane."""
        ...

    async def park(self, parked: Sequence[tuple[Lane, Parked]]) -> list[bool | Refusal]:
        """Put references to acknowledged parked copies into the due index and their queues, or renew them. False if the
        outcome (for a poll: the answer) is already stored, or a later generation is parked."""
        ...

    async def next_due(self, tags: Sequence[tuple[Lane, int]]) -> list[float | Refusal | None]:
        """Seconds until the lane's first reference in each tag is due (<= 0 if it is); None if there is none.
        References taken by an owner of a lower epoch are due."""
        ...

    async def take_due(self, asks: Sequence[tuple[Lane, DueRequest]], *, lease_s: float) -> list[list[Due] | Refusal]:
        """Due references, earliest first. Each is returned again after `lease_s`, or at once to an owner of a higher
        epoch, unless renewed by `park` or removed by `unpark`."""
        ...

    async def unpark(self, lives: Sequence[tuple[Lane, ParkedLife]]) -> list[bool | Refusal]:
        """Remove references and intents of these generations and earlier ones, after the tombstone is acknowledged;
        those of later generations stay. True if the next reference of the queue became due at once."""
        ...

    async def parked(self, owners: Sequence[str]) -> list[Counts | Refusal]: ...

    async def supersede(self, messages: Sequence[Superseding]) -> list[Superseded]:
        """Note each message as the newest of its key, unless a newer one is known, also in the same call. A repeat gets
        the same reply."""
        ...

    # messages, rows, counts
    async def messages(self, ids: Sequence[MessageId]) -> list[MessageRow | None]: ...

    async def remember(self, marks: Sequence[Mark]) -> None:
        """Restore rows that the log proves: as `mark`, but only if no row of this generation or a later one exists, or
        only one that is ACCEPTED, AWAITING or PUBLISHED, or whose attempt began before a loss and has no outcome."""
        ...

    async def parked_total(self) -> Counts:
        """Totals of all owners whose tags are ready and answer, without references that are still to be restored.
        Raises if no tag answers."""
        ...

    async def parked_results(self) -> int:
        """How many of the retries of `parked_total` are results, which wait for the callback of a source."""
        ...

    # owners
    async def epochs(self, lane: Lane, tags: Sequence[int]) -> dict[int, int]:
        """Tag -> the highest epoch seen of the lane, without tags that have seen none. If the lane has begun anew and
        `lane.epoch` looks like a former one: the highest former epoch."""
        ...

    async def begin_anew(self, lane: Lane, seen: Mapping[int, int]) -> bool:
        """Make `lane.epoch` the highest one seen, in each tag of `seen` (tag -> epoch) where `epochs` still returns
        that epoch; references that a former owner has leased become due. False if it returns another in any tag, which
        is then not changed. For `dedup_window` afterwards, epochs that look like former ones (up to `seen`, nearer to
        it than to the lane's, and not the next) are fenced, however high they are.

        Only for an owner that its group has confirmed after `epochs` returned `seen`: see `relay.engine.supervision`.
        """
        ...

    # records being processed
    async def reserve(self, lane: Lane, before: int) -> UnreleasedReservation | None:
        """Note that `lane` may be processing records before this offset, until `leave`. The first call of an owner, and
        its repeats, return the remains of a former one, or None. Its reservation stays in effect.

        This and the next two methods work while tags are not ready, and fence no owner: they store hints."""
        ...

    async def suspect(self, lane: Lane, offset: int, times: int) -> None:
        """Mark the record at `offset` for the `times`-th time; 0 removes the mark."""
        ...

    async def leave(self, lane: Lane) -> None:
        """This owner ends properly: remove its notes. Those of a later owner stay."""
        ...

    # life and recovery
    async def lost(self, edition: int = 0) -> frozenset[int]:
        """Tags that are not ready: their memory is missing, of another server run, of an edition below `edition`,
        or in recovery."""
        ...

    async def set_edition(self, edition: int) -> bool:
        """Number the memory. A higher number that it has stays. False if not all tags could be numbered now; raises if
        none could."""
        ...

    def outdated(self) -> bool:
        """Whether the last call of `lost` has found memory of an older edition."""
        ...

    def forgotten(self) -> frozenset[int]:
        """Those of the tags last returned by `lost` whose memory is gone or may be incomplete. The others belong to a
        server that restarted with everything it had acknowledged (it fsyncs every write)."""
        ...

    async def restore(self, lane: Lane, parked: Sequence[Parked]) -> list[Restored]:
        """In recovery: put back references without a finished row or a later generation (the lane's `epoch` is not
        checked); also those that are there and would never become due. Allowed while the tag is not ready, and
        harmless if it is."""
        ...

    async def number_again(self, numberings: Mapping[str, Numbering]) -> None:
        """In recovery: restore the numbers of these owners (`r:<receiver>`). If numbers as high are in use, or the tag
        is ready meanwhile, only gaps are taken over, of numbers that have no end here."""
        ...

    async def numbering(self, owner: str) -> Numbering | None:
        """The numbers of an owner (`r:<receiver>`); None if none was given."""
        ...

    async def ready(self, tags: Sequence[int], *, in_doubt_s: float, ends: LaneEnds | None = None) -> None:
        """Recovery is complete for these tags. For `in_doubt_s`, if memory was lost, deliveries without a row count as
        in doubt. A server run that lost nothing (fsync on every write) has no doubt. `ends`: by tag, the ends of its
        receivers' lanes, read since the loss was noticed; a lane that is not in it had no records then. None if
        unknown."""
        ...

    async def gaps(self, tags: Sequence[int]) -> dict[int, Gap]:
        """The gaps of those of `tags` whose memory was lost, and whose finished rows are not completely restored."""
        ...

    async def close_gaps(self, gaps: Mapping[int, Gap]) -> None:
        """Close gaps whose rows are restored from the log. A gap that was opened since then stays."""
        ...

    async def lease(self, name: str, owner: str, ttl_s: float) -> bool:
        """Grant the lease `name` to the first `owner` that requests it, for `ttl_s`. True if `owner` holds it (a
        repeated call renews it). Works while tags are not ready."""
        ...

    async def release(self, name: str, owner: str | None) -> None:
        """Release the lease, if `owner` holds it; None: whichever does."""
        ...

    # endpoints
    async def endpoints(self, owners: Sequence[str]) -> list[EndpointHealth]: ...

    async def attend(self, tags: Sequence[int]) -> float:
        """Report that a process can make attempts at the endpoints of `tags`, every 2 s. Time without such a report,
        after the first one, is not part of any outage. Returns by how many seconds the server's clock was set back in
        total since its memory began; stored times are not affected, because the tag's time never goes back."""
        ...

    async def hold(self, owner: str, hold: Hold) -> bool:
        """Send the endpoint nothing until `resume`; the hold is already on the log. An existing hold for the same
        reason keeps its `since`. False if the endpoint is not held, because it was resumed after `hold.since`; an
        operator's hold (`paused`) always takes effect. Works while tags are not ready."""
        ...

    async def hold_again(
        self, holds: Mapping[str, Hold], *, tags: Collection[int] = (), before: float = 0.0
    ) -> list[str]:
        """Restore holds from the log, by owner, unless the state has something newer. Returns the owners of `holds`
        that are not held, because they were resumed. For `tags`, `holds` is complete: other endpoints that were held
        before `before` (Unix seconds) are resumed. Works while tags are not ready."""
        ...

    async def resume(self, owner: str) -> None:
        """End the endpoint's hold or pause, close its breaker, and clear its outage. The time of the resume is kept for
        7 days, so that no request from before it holds the endpoint. Works while tags are not ready."""
        ...

    async def probe_soon(self, owners: Sequence[str]) -> None:
        """Allow an early probe, because these endpoints probably accept requests again: if a breaker is open, the next
        attempt may probe it, unless a probe is in progress. Works while tags are not ready."""
        ...

    async def forget_endpoint(self, owner: str, lanes: Sequence[Lane] = ()) -> None:
        """Drop the data of a removed endpoint: pauses, breaker, rate, room, statistics, gaps in its numbers; and the
        fences of its own `lanes`, whose topics were deleted. Rows and references stay."""
        ...

    # failed messages
    async def index_failed(self, entries: Sequence[FailedEntry]) -> None:
        """Store entries for listing: the newest 10,000 per receiver. Repeatable."""
        ...

    async def drop_failed(self, entries: Sequence[FailedEntry]) -> None:
        """Remove handled entries from the list. Missing ones are ignored."""
        ...

    async def failed(self, receiver: str, *, limit: int, before: float | None = None) -> list[FailedEntry]:
        """Entries, newest first; with `before` (Unix seconds, inclusive) only those that failed until then. `receiver`
        "-" for those without a known receiver."""
        ...

    async def failed_receivers(self) -> list[str]:
        """Receivers that have entries."""
        ...

    def hints(self, about: HintTopic = "ends") -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Subscribe to hints, which are published right after a change. `ends`: digests of rows that were marked as
        `awaited`. `endpoints`: owners that may be tried earlier than their last Wait said, because a breaker has closed
        or allows an early probe; resumed endpoints are not included. A hint may be lost, late, or repeated. Entering
        and iterating raise StateUnavailable if the subscription fails."""
        ...

    # quotas
    async def charge(self, charges: Sequence[Charge]) -> list[Balance]:
        """Count messages against their quotas, in order; a charge that does not fit counts nothing. A repeated call
        counts again. Works while tags are not ready."""
        ...

    # keys of the API
    async def use_keys(self, used: Mapping[str, float]) -> None:
        """Store the last use of API keys: id -> seconds since. Kept for 400 days. Works while tags are not ready."""
        ...

    # statistics
    async def tally(self, writer: str, number: int, tallies: Sequence[Tally]) -> None:
        """Add to the statistics of owners, and keep their latest attempt. `writer`: the process; nothing is added if
        `number` is that of its previous call. Kept for a day; works while tags are not ready."""
        ...

    # incidents: hints, for display and notices; these methods work while tags are not ready
    async def incidents(self) -> StoredIncidents:
        """All stored incidents. Those that this release cannot read are left out."""
        ...

    async def keep_incidents(self, kept: Sequence[Incident], dropped: Sequence[str] = ()) -> None:
        """Store these, and remove those with the ids `dropped`, with their marks. Only one process calls it."""
        ...

    async def add_incidents(self, new: Sequence[Incident]) -> None:
        """Store those of these whose ids are not stored. Any process calls it, before it lists them."""
        ...

    async def mark_incident(self, id: str, verb: Verb, mark: PersonMark) -> PersonMark:
        """Store that a person acknowledged or resolved an occurrence. Returns the mark in effect: the first one of the
        occurrence."""
        ...

    async def keep_waiting(self, since: Mapping[str, float]) -> None:
        """Store since when the oldest message of each owner waits, in Unix seconds, in place of what was stored. Kept
        for a minute. Only one process calls it."""
        ...

    # heartbeats
    async def keep_heartbeats(self, beats: Sequence[LaneHeartbeat]) -> None:
        """Store heartbeats; each is kept for 7 days, or until the next. Works while tags are not ready."""
        ...
