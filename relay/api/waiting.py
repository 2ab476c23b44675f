"""Why a delivery waits, derived from its row and context. Pure.

Times are Unix seconds; None if not known, or if there is none.
"""

from dataclasses import dataclass
from math import isinf
from typing import Final, NamedTuple

from relay.domain.hold import Hold, HoldReason
from relay.domain.identity import MessageId
from relay.domain.message import Message
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.route import is_in_shared
from relay.domain.state import WaitKind
from relay.domain.status_chain import step_of
from relay.domain.text import counted, lasting
from relay.domain.timing import resolved
from relay.state.port import EndpointHealth
from relay.state.read_model import UNSERVED_S, Openings, RowDetails
from relay.state.rows import Row, Stage

_NEXT: Final = frozenset({"retry", "delayed", "rate", "paused", "breaker", "settling", "in_doubt"})
"""The condition before the next attempt."""
_AT_ONCE_S: Final = 1.0
"""A message younger than this is usually sent before a client reads about it."""
_HOLDS: Final[dict[HoldReason, str]] = {
    "paused": "paused by hand",
    "gone": "paused, as it said that it is gone",
    "disabled": "paused, as it was down for too long",
}


class DeliveryWait(NamedTuple):
    """Why a delivery waits. `since`: when it began to wait, or to fail. `until`: when it goes on, at the earliest;
    of `answer`: when it is given up. `message`: the one that comes first."""

    kind: WaitKind
    since: float | None
    until: float | None
    detail: str
    message: MessageId | None = None


class LaneSeen(NamedTuple):
    """The partition that has a delivery now, and how long ago its owner was last alive; None: it never was."""

    topic: str
    partition: int
    ago_s: float | None

    @property
    def unserved(self) -> bool:
        return self.ago_s is None or self.ago_s > UNSERVED_S


class Head(NamedTuple):
    """Another delivery, that heads the order key."""

    source_id: str
    message_id: str
    seen: RowDetails


@dataclass(frozen=True, slots=True)
class HeldEndpoint:
    """An endpoint, and what keeps requests from it."""

    endpoint: Endpoint
    health: EndpointHealth
    openings: Openings


@dataclass(frozen=True, slots=True)
class Around:
    """The context of a delivery to `receiver`. `head`: None if no message precedes it. `lacking`: a process that has
    reported that it cannot use the receiver's settings. `is_due`: its message is known to ask for no time that is yet
    to come."""

    receiver: Receiver
    lane: LaneSeen
    held: HeldEndpoint
    head: Head | None = None
    lacking: str | None = None
    is_due: bool = False


def delayed(message: Message, received: float | None, now: float) -> DeliveryWait | None:
    """The wait of a message that is not due yet."""
    if message.timing is None:
        return None
    due = resolved(message.timing, now if received is None else received).deliver_at
    return DeliveryWait("delayed", received, due, "its sender asked for that time") if due > now else None


def before_routing(lane: LaneSeen, since: float | None, now: float) -> DeliveryWait | None:
    """The wait of a message that was not routed yet."""
    return _unserved(lane, since, now) or _queued(lane, since, now)


def of_delivery(seen: RowDetails, around: Around, received: float | None, now: float) -> DeliveryWait | None:
    """The wait of a delivery without a result. `received`: when its message was accepted. None if it has a result, or
    has only just arrived."""
    since = received if seen.since_s is None else now - seen.since_s
    wait = _held_up(seen, around, since, now)
    return _queued(around.lane, since, now) if wait is None and seen.row.stage < Stage.ACCEPTED else wait


def _held_up(seen: RowDetails, around: Around, since: float | None, now: float) -> DeliveryWait | None:
    row = seen.row
    if not around.receiver.enabled:
        return DeliveryWait("switched_off", since, None, "the receiver is switched off (enabled: false)")
    if not around.receiver.verified:
        unproven = (
            f"the receiver's URL has yet to prove that it wants this (verification: {around.receiver.verification})"
        )
        return DeliveryWait("verification", since, None, unproven)
    if around.receiver.moving and row.stage < Stage.AWAITING:
        moving = "the receiver moves to another lane, which begins when the old one has finished what it has"
        return _own(seen, around.receiver.post, now) or DeliveryWait("order", since, None, moving)
    receiver = around.receiver
    unserved = _unserved(around.lane, since, now)
    if unserved is not None or is_in_shared(receiver):
        unusable = _unusable(around.lacking, receiver.unusable if unserved is not None else None, since)
        if unusable is not None:
            return unusable
    if unserved is not None:
        return unserved
    match row.stage:
        case Stage.NONE | Stage.ENQUEUED | Stage.SENDING:
            return _of_post(seen, around, since, now)
        case Stage.AWAITING:
            return _of_answer(row, around, since, now)
        case _:
            return None


def of_callback(
    callback: RowDetails,
    held: HeldEndpoint | None,
    lane: LaneSeen,
    since: float | None,
    now: float,
    lacking: str | None = None,
) -> DeliveryWait:
    """Why a result has not come back to its sender. `held` None: there is a consumer for it, and no endpoint.
    `lacking`: as in `Around`."""
    since = since if callback.since_s is None or since is not None else now - callback.since_s
    if (unusable := _unusable(lacking, None, since)) is not None:
        return unusable
    unserved = _unserved(lane, since, now)
    if unserved is not None:
        return unserved
    own = _own(callback, held.endpoint, now) if held is not None else None
    other = _endpoint_hold(held, since, now) if held is not None else None
    why = _later(own, other)
    if why is None:
        return DeliveryWait("callback", since, None, "the result is on its way to the sender")
    return DeliveryWait("callback", since, why.until, why.detail)


def next_attempt(row: Row, wait: DeliveryWait | None, now: float) -> float | None:
    """The earliest time of the next attempt, by the row and the present wait."""
    due = now + row.due_in_s if row.due_in_s > 0 and not isinf(row.due_in_s) else None
    if wait is None or wait.kind not in _NEXT or wait.until is None:
        return due
    return wait.until if due is None else max(due, wait.until)


def _queued(lane: LaneSeen, since: float | None, now: float) -> DeliveryWait | None:
    """The wait of a delivery without a known obstacle, also right after the state has lost its row."""
    if since is not None and now - since < _AT_ONCE_S:
        return None
    return DeliveryWait(
        "queued", since, None, f"queued on {lane.topic}/{lane.partition}; its worker takes it in its turn"
    )


def supposed(wait: DeliveryWait | None) -> DeliveryWait | None:
    """The wait of a delivery that is assumed, because its receiver subscribes at present: it may not have done so when
    the message was routed."""
    if wait is None or wait.kind != "queued":
        return wait
    since = "unless the receiver has subscribed since the message was routed: then it does not get it"
    return wait._replace(detail=f"{wait.detail}, {since}")


def _unserved(lane: LaneSeen, since: float | None, now: float) -> DeliveryWait | None:
    if not lane.unserved:
        return None
    where = f"no worker serves {lane.topic}/{lane.partition}"
    if lane.ago_s is None:
        return DeliveryWait("no_worker", since, None, f"{where}, and none is known to have done so")
    ago = lasting(lane.ago_s)
    return DeliveryWait("no_worker", now - lane.ago_s, None, f"{where}; the last one was seen {ago} ago")


def _unusable(lacking: str | None, here: str | None, since: float | None) -> DeliveryWait | None:
    """`here`: why the process that is asked cannot use the settings; of interest where no other one does."""
    if lacking is None and here is None:
        return None
    where = f"process {lacking} cannot use the settings" if lacking else "no process can use the settings"
    return DeliveryWait("configuration", since, None, f"{where}: {here}" if here else where)


def _of_post(seen: RowDetails, around: Around, since: float | None, now: float) -> DeliveryWait | None:
    post = around.receiver.post
    if seen.under_way and (under_way := _under_way(seen, post, now)) is not None:
        return under_way
    wait = _later(_own(seen, post, now), _endpoint_hold(around.held, since, now))
    if wait is not None:
        return wait
    parked_until = now + seen.due_in_s if seen.due_in_s > 0 else None
    if parked_until is not None and not (around.is_due and around.receiver.coalesce is None):
        return DeliveryWait("delayed", since, parked_until, "it is not due yet")
    slow, behind = _rate(around.held, since, now), _behind(around.head, since)
    if slow is not None and (around.head is None or not _waits_itself(around.head.seen)):
        return slow
    if (
        behind is None and slow is None and parked_until is not None
    ):  # after a loss of the state, which had its attempts
        return DeliveryWait("retry", since, parked_until, "it is parked until then; no attempt of it is known")
    return behind or slow


def _under_way(seen: RowDetails, post: Endpoint, now: float) -> DeliveryWait | None:
    begun, number = now - (seen.since_s or 0.0), seen.row.attempts
    if seen.starts_in_s > 0:
        return DeliveryWait(
            "rate", begun, now + seen.starts_in_s, f"attempt {number} has its slot, at {_rate_of(post)}"
        )
    until = begun + post.timeout
    if now >= until:
        return None
    return DeliveryWait("answer", begun, until, f"attempt {number} is in progress")


def _own(seen: RowDetails, endpoint: Endpoint, now: float) -> DeliveryWait | None:
    """The wait of the delivery itself, regardless of others."""
    row, since = seen.row, None if seen.since_s is None else now - seen.since_s
    due = now + row.due_in_s if row.due_in_s > 0 else None
    number, words = row.attempts, seen.detail or row.reason
    said = f": {words}" if words else ""
    if row.stage is Stage.SENDING:
        settled = (since or now) + endpoint.settle_s
        if now < settled:
            detail = f"attempt {number} may still arrive, as nothing is known of it{said}"
            return DeliveryWait("settling", since, max(settled, due or 0.0), detail)
        return DeliveryWait("in_doubt", since, due, f"it is unknown whether attempt {number} arrived{said}")
    if due is not None:
        what = f"attempt {number}" if number else "the request"  # a 429 does not count as an attempt
        return DeliveryWait("retry", since, due, f"{what} did not succeed{said}")
    return None


def _endpoint_hold(held: HeldEndpoint, since: float | None, now: float) -> DeliveryWait | None:
    health = held.health
    if health.paused_for_s > 0:
        if isinf(health.paused_for_s):
            return _held(health.hold, since)
        return DeliveryWait(
            "paused",
            since,
            now + health.paused_for_s,
            "nothing is sent for now: it asked for that, or was switched off a moment ago",
        )
    if health.breaker == "closed":
        return None
    failing, until = now - health.failing_for_s, now + held.openings.probe_in_s
    if health.failing_for_s >= held.endpoint.breaker.offline.after:
        return DeliveryWait("offline", failing, until, f"down for {lasting(health.failing_for_s)}; only pings are sent")
    return DeliveryWait(
        "breaker",
        failing,
        until,
        f"it failed {counted(health.failures, 'time')} in a row; one attempt is let through next",
    )


def _held(hold: Hold | None, since: float | None) -> DeliveryWait:
    if hold is None:
        return DeliveryWait("paused", since, None, "paused until an operator resumes it")
    words = f"{_HOLDS[hold.reason]}{f' ({hold.detail})' if hold.detail else ''}, until an operator resumes it"
    return DeliveryWait("paused", hold.since, None, words)


def _later(own: DeliveryWait | None, hold: DeliveryWait | None) -> DeliveryWait | None:
    """The one of two waits that ends later."""
    if own is None or hold is None:
        return own or hold
    if hold.until is None:
        return hold
    return hold if own.until is None or hold.until > own.until else own


def _rate(held: HeldEndpoint, since: float | None, now: float) -> DeliveryWait | None:
    wait_s = held.openings.rate_in_s
    if wait_s <= 0 or held.endpoint.rate_limit is None:
        return None
    return DeliveryWait("rate", since, now + wait_s, f"the receiver takes {_rate_of(held.endpoint)}")


def _rate_of(endpoint: Endpoint) -> str:
    return f"{endpoint.rate_limit} in {endpoint.window_size:g} s"


def _behind(head: Head | None, since: float | None) -> DeliveryWait | None:
    if head is None or head.seen.row.stage >= Stage.ACCEPTED:
        return None
    detail = f"message {head.message_id!r} of source {head.source_id!r} comes first"
    return DeliveryWait("order", since, None, detail, MessageId(head.source_id, head.message_id))


def _waits_itself(seen: RowDetails) -> bool:
    """Whether the delivery has a wait of its own, beside that of its endpoint."""
    return seen.row.stage is Stage.SENDING or seen.row.due_in_s > 0


def _of_answer(row: Row, around: Around, since: float | None, now: float) -> DeliveryWait:
    receiver, health = around.receiver, around.held.health
    until = None if since is None else since + receiver.answer_deadline
    if receiver.status_endpoint is None and not receiver.status_steps and not row.polls:
        return DeliveryWait("answer", since, until, "the receiver accepted it, and is to POST its answer")
    if health.paused_for_s > 0:
        hold = _endpoint_hold(around.held, since, now)
        if hold is not None:
            return hold
    asked = f"the receiver accepted it; {counted(row.polls, 'status check')} so far"
    if receiver.status_steps:
        asked += f"; now {row.reason or step_of(receiver, 0)}"
    return DeliveryWait("answer", since, until, asked)
