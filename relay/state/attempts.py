"""Attempts at the state port: the request to begin one, its verdicts, and the settlement of its outcome."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from relay.domain.numbering import NumberGap
from relay.domain.receiver import BreakerPolicy
from relay.state.rows import Result, Row, RowKey


class CallKind(Enum):
    """POST: with an intent, counted, subject to rate and breaker. POLL: a status GET, without intent and rate."""

    POST = "post"
    POLL = "poll"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that begin enforces for the endpoint `row.owner`.

    `interval_s`: minimum time between two POST starts; 0 for no limit. `settle_s`: how long after its begin a POST may
    still arrive. `probe_s`: how long after its begin a POST may be in flight, also as the single probe of a half-open
    breaker. `max_in_flight`: POSTs in flight from all lanes; None if unlimited.
    """

    interval_s: float
    settle_s: float
    breaker: BreakerPolicy
    probe_s: float
    max_in_flight: int | None = None


class NumberRequest(NamedTuple):
    """Of a delivery of a numbered receiver. `known`: the number that it has; 0 if it has none. `first`: the number that
    it gets if the state has numbered nothing of its receiver before; 0: the state has given it the known one, rather
    than its record, and may have lost it. A delivery is numbered when its first attempt
    begins, or when it ends without one, and keeps its number."""

    known: int
    first: int


LONG_S: Final = 86_400.0
"""Stands for a lane that was opened long ago."""


class BeginRequest(Struct, frozen=True, gc=False):
    """Request to start an attempt. `token`: unique per attempt, so that a repeated call gets the same verdict.

    `attempts`: attempts according to the record itself, or the caller, for a missing row. Otherwise the row's number
    counts, as an attempt may have been released since; while rows may be lost, the greater one. `resolved`: a doubt
    that the caller has resolved: it has proof (a status endpoint's 404 after settling) or the receiver's consent
    (`on_ambiguous: resend`) to POST although that attempt is in doubt. It stays valid until another attempt is begun;
    it does not shorten settling. `room`: for a POST, how many deliveries of its owner may wait for an answer (parked,
    in flight, or after a 202), including this one; `room_to_retry`: how many may be parked for a retry when a first
    attempt is made. None if unlimited. `ask_first`: during doubt after a loss of state, a delivery without a row is
    AMBIGUOUS (the receiver can be polled), unless there are no gaps and the `offset` of its record is not below its
    lane's end (`State.ready`). `recorded_ms`: for a delivery that may be sent at most once, when its record was
    appended (Unix ms). During doubt after a loss it is AMBIGUOUS without a row if that was before the loss, or while
    there are gaps (`State.gaps`). `unseen`: the caller has not looked up the row. The attempt is begun only if there is
    nothing to find: no row of this generation or a later one, no intent to park, no reference in the lane; no record of
    its order key is parked in the lane, or got a verdict other than Go earlier in the call; and the tag is neither in
    doubt after a loss nor has a gap. Otherwise the verdict is LookedUp. `queue`: digest of the order key, None without
    an order (as in `IntakeRequest`); used only for unseen deliveries, and those before them in the call. `counted_s`:
    how long the lane's owner has counted its own POSTs and kept to its share of `max_in_flight`; 0 without a share. If
    that began later than `probe_s` before a loss of memory, no attempt is begun until `probe_s` after the loss, because
    forgotten POSTs may still be in flight. `open_s`: how long the owner has had the lane. An offline endpoint that
    failed last before that is pinged at once, because a process that has just started, or taken over the lane, does not
    know the endpoint's health. `rides`: it shares the request of the ask before it. If an ask of this request has
    begun, it takes no slot and no place of its own, unless with `paced` a slot; and it waits if one before it of its
    order key has not begun. `number`: for a POST to a numbered receiver.
    """

    row: RowKey
    generation: int
    token: bytes
    limits: Limits
    kind: CallKind = CallKind.POST
    attempts: int = 0
    resolved: int | None = None
    ask_first: bool = False
    offset: int | None = None
    recorded_ms: int | None = None
    room: int | None = None
    room_to_retry: int | None = None
    unseen: bool = False
    queue: bytes | None = None
    counted_s: float = 0.0
    open_s: float = LONG_S
    rides: bool = False
    paced: bool = False
    number: NumberRequest | None = None


class Go(NamedTuple):
    """Start in `start_in_s` (at most 1 s: a slot of the rate limit), and within 5 s of this verdict, or release it.

    `attempt`: 1-based number of this POST (or GET). `number`: of the delivery, if its receiver is numbered; `gaps`: the
    numbers below it that the receiver does not get, until a delivery that has named them succeeds.
    """

    attempt: int
    start_in_s: float
    number: int | None = None
    gaps: tuple[NumberGap, ...] = ()


WaitReason = Literal["rate", "pause", "breaker", "settling", "offline", "disabled", "backlog", "max_in_flight"]


class Wait(NamedTuple):
    """Not yet. Nothing was recorded, and no attempt counted. `settling`: an earlier POST may still arrive. `offline`:
    as `breaker`, in a long outage; `disabled`: as `pause`, after such an outage. `backlog`: there is no room for its
    answer or its retry; `fresh`: with `backlog`, certainly no attempt was made. `max_in_flight`: the limit of POSTs in
    flight is reached, or other lanes have waited longer; lanes that keep asking take turns."""

    seconds: float
    why: WaitReason
    fresh: bool = False


class PingDue(NamedTuple):
    """Not yet: the endpoint is offline, for `down_for_s` so far. Only this caller is to send it a ping.

    No intent was written, no attempt counted, no slot of the rate taken. The result of the ping is to be settled with
    the ask's token as RELEASED, with `healthy`: it is a probe's outcome for the endpoint, and does not affect the row.
    """

    down_for_s: float
    since: float
    """Unix seconds by the state's clock; identifies the outage in every process."""


class AmbiguousAttempt(NamedTuple):
    """An earlier attempt was begun and has settled, with an unknown outcome. `doubt` identifies it: its begin by the
    state's clock, or the time of a loss before which it may have begun (ms). `newer_than_loss`: its record is newer
    than the loss; only because of gaps, the same delivery may have been recorded and sent before."""

    attempts: int
    doubt: int
    newer_than_loss: bool = False


class AlreadySettled(NamedTuple):
    """Nothing to send: the row is already at ACCEPTED or beyond (for POLL: at RESULT or beyond)."""

    row: Row


class Stale(NamedTuple):
    """A higher generation exists; this record is outdated."""

    generation: int


class LookedUp(NamedTuple):
    """Not begun, because it was `unseen`: the row as returned by `intake`. Nothing was recorded or taken: no slot of
    the rate, no probe, no room."""

    row: Row


Verdict = Go | Wait | PingDue | AmbiguousAttempt | AlreadySettled | Stale | LookedUp


class Change(Enum):
    """The effect of an attempt on its row.

    RELEASED: certainly not started; the attempt is not counted, and the stage falls back. RETRY: not processed; retry
    after `due_in_s`. DOUBT: ambiguous; the stage stays SENDING, to be asked again after `due_in_s`. ACCEPTED, RESULT:
    `result` is stored. RELEASED, RETRY and DOUBT count only with the current attempt's token. ACCEPTED and RESULT raise
    the stage for any caller, including a former owner, unless the row is already there or beyond, or has a higher
    generation. STEP, of a poll, stores `reason` with an AWAITING row: the step that is asked now.
    """

    STEP = "step"
    RELEASED = "released"
    RETRY = "retry"
    DOUBT = "doubt"
    ACCEPTED = "accepted"
    RESULT = "result"


class Settlement(Struct, frozen=True, gc=False):
    """The outcome of an attempt, or (token b"") of a poll or of the receiver's own callback.

    `detail`: a description, stored only together with `reason`. `counted`: False reverts the count of the attempt
    (429). `healthy`: for the endpoint's breaker; None for neither. `up` (with token b""): the endpoint answered a GET,
    or called us; if it is offline, it is pinged at the next attempt, early once per `ping_every`. `pause_s`: seconds
    for which the endpoint gets no requests; finite (for an indefinite hold see `State.hold`). `unsent_ms` (with token
    b""): only if no attempt was ever begun; otherwise nothing changes. It is a time (Unix ms) at which none had begun:
    if the state has lost its memory since, one may have. `may_arrive`: the request of this attempt may still arrive.
    `settle_s`: how long after its begin it may, as any earlier attempt may whose outcome is not known. A RESULT with
    `reason` waits for them: until then the row has a `due_in_s`. `number`: for a delivery to a numbered receiver.
    ACCEPTED and RESULT end its number: with `reason`, or if it gets its number only now, it is a gap; also if a replay
    (generation above 0) is confirmed without an attempt, as its number may not have arrived.

    RESULT with `reason` and token b"" (a failure without an attempt) changes nothing while a missing row may be read
    back from the log: the delivery may have ended otherwise.
    """

    row: RowKey
    generation: int
    token: bytes
    change: Change
    due_in_s: float = 0.0
    counted: bool = True
    last_status: int | None = None
    reason: str | None = None
    detail: str | None = None
    result: Result | None = None
    healthy: bool | None = None
    up: bool = False
    pause_s: float = 0.0
    breaker: BreakerPolicy = BreakerPolicy()
    unsent_ms: int | None = None
    settle_s: float = 0.0
    may_arrive: bool = False
    number: NumberRequest | None = None
