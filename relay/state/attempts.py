"""Attempts, as the state is asked for them and told of them: begin, its verdicts, and the outcome."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from relay.domain.receiver import BreakerPolicy
from relay.state.rows import Result, Row, RowKey


class CallKind(Enum):
    """POST: intent, counted attempt, rate and breaker. POLL: a status GET; no intent, no rate."""

    POST = "post"
    POLL = "poll"


@dataclass(frozen=True, slots=True)
class Limits:
    """What begin has to keep to, of the endpoint that `row.owner` names.

    `interval_s`: least distance of two POST starts (0: no limit). `settle_s`: how long after its begin a POST may
    still arrive. `probe_s`: how long after its begin a POST may be under way, as the one probe of a half-open breaker.
    `max_in_flight`: POSTs that may be under way from all lanes; None: any number.
    """

    interval_s: float
    settle_s: float
    breaker: BreakerPolicy
    probe_s: float
    max_in_flight: int | None = None


LONG_S: Final = 86_400.0
"""Of a lane that was opened before anything that counts."""


class BeginAsk(Struct, frozen=True, gc=False):
    """Ask to start an attempt. `token`: unique per attempt, so that a repeated call gets the same verdict.

    `attempts`: what the record itself says has been tried (for a row that was lost); the greater one counts.
    `resolved`: the doubt that the caller has resolved: it has proof (a status endpoint's 404 after settling) or the
    receiver's consent (`on_ambiguous: resend`) to POST although that attempt is in doubt. It holds, however long the
    next attempt has to wait, while no other one was begun; it does not shorten settling.
    `room`: of a POST: how many deliveries of its owner may wait for an answer (parked ones, those under way, those that
    said 202), this one included; `room_to_retry`: how many may be parked for a retry when a first attempt is made.
    None: any number.
    `ask_first`: in doubt after a loss of state, a delivery without a row is AMBIGUOUS (the receiver can be asked),
    unless there are no gaps and `offset`, of its record, is not below its lane's end (`State.ready`).
    `recorded_ms`: of one that may be sent at most once, when its record was appended (Unix ms): in doubt after a loss
    it is AMBIGUOUS without a row if that was before the loss, or as long as there are gaps (`State.gaps`).
    `unseen`: nobody has looked up its row. It is begun only where there is nothing to find: no row of this generation
    or a later one, no intent to park, no reference the lane keeps; nothing of its order key is parked in the lane, nor
    was asked for earlier in the call and got another verdict than Go; and the tag is neither in doubt after a loss nor
    has a gap. Everywhere else the verdict is LookedUp.
    `queue`: digest of the order key, None where there is no order (as in `IntakeAsk`); looked at of the unseen only,
    and of what they come after.
    `counted_s`: for so long, the lane's owner has counted its own POSTs, and kept them to its share of `max_in_flight`;
    0 where it has none. If that is not since `probe_s` before a loss of memory, nothing is begun until `probe_s` after
    it: until then what was under way, and was forgotten, may still be.
    `open_s`: for so long, the owner has had the lane. An offline endpoint that has failed last before that is pinged at
    once: a process that has just started, or has taken the lane over, does not know how it is.
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


class Go(NamedTuple):
    """Start `start_in_s` from now (at most 1 s: a slot of the rate limit), and within 5 s of this verdict, or release.

    `attempt`: 1-based number of this POST (or GET).
    """

    attempt: int
    start_in_s: float


WaitReason = Literal["rate", "pause", "breaker", "settling", "offline", "disabled", "backlog", "max_in_flight"]


class Wait(NamedTuple):
    """Not yet. Nothing was recorded, no attempt counted. `settling`: an earlier POST may still arrive. `offline`: as
    `breaker`, in a long outage; `disabled`: as `pause`, which such an outage ended in. `backlog`: there is no room for
    its answer or its retry; `fresh`: then, no attempt was ever made, for sure. `max_in_flight`: as many POSTs are
    under way as may be, or other lanes have waited longer: those that keep asking have their turns."""

    seconds: float
    why: WaitReason
    fresh: bool = False


class PingDue(NamedTuple):
    """Not yet: the endpoint is offline, for `down_for_s` so far. The caller alone is to send it a throw-away ping.

    No intent was written, no attempt counted, no slot of the rate taken. What comes of the ping is to be settled with
    the ask's token as RELEASED, with `healthy`; that is a probe's outcome for the endpoint, and nothing to the row.
    """

    down_for_s: float
    since: float
    """Unix seconds by the state's clock: it names the outage, in every process."""


class AmbiguousAttempt(NamedTuple):
    """An earlier attempt was begun, has settled, and nobody knows what came of it. `doubt` names it: its begin by the
    state's clock, or the moment of a loss before which it may have been begun (ms). `newer_than_loss`: its own record
    is, and only gaps leave it open whether the same was recorded, and sent, before."""

    attempts: int
    doubt: int
    newer_than_loss: bool = False


class Have(NamedTuple):
    """Nothing to send: the row already is at ACCEPTED or beyond (POLL: at RESULT or beyond)."""

    row: Row


class Stale(NamedTuple):
    """A higher generation lives; this record is a leftover."""

    generation: int


class LookedUp(NamedTuple):
    """Not begun, as it was `unseen`: the row as `intake` tells it. Nothing was recorded, and nothing was taken: no slot
    of the rate, no probe, no room."""

    row: Row


Verdict = Go | Wait | PingDue | AmbiguousAttempt | Have | Stale | LookedUp


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

    `detail`: what happened, in words; kept with `reason`, and only with one. `counted` False takes the attempt back
    (429). `healthy`: for the endpoint's breaker; None says nothing. `up` (with token b""): the endpoint
    answered a GET, or called us: an offline one is pinged at the next attempt, early once per `ping_every`.
    `pause_s`: send the whole endpoint nothing for so long; finite (what is held until it is resumed: `State.hold`).
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
