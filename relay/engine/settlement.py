"""Outcomes of attempts and of pings, and of works that found no room. The state stores each right after it is known
(rule 4), and its answer decides: another process may have stored an outcome first. Pure."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from msgspec import structs

from relay.domain.hold import Hold, hold
from relay.domain.text import lasting
from relay.engine.commands import CallQueue
from relay.engine.completion import known, publish, resume
from relay.engine.decision import Dead, Decision, Done, Later, Resend
from relay.engine.lane import Lane
from relay.engine.parked_index import NotParked, ParkResult
from relay.engine.parking import add, again, again_without_seat, later, patience_left_s, resume_in_time, wait_behind
from relay.engine.phases import Event, Phase, advance
from relay.engine.policy import Fate
from relay.engine.work import EndpointRules, W, WaitFor, Work, fill_in, rules_of
from relay.state.attempts import CallKind, Change, Settlement
from relay.state.rows import Result, Row, Stage

HELD_UP_AFTER: Final = 3
"""A head that has failed so often is reported, with the number of works behind it."""
NO_ROOM: Final = Dead("backlog_full", "as many of the receiver's messages wait for an answer, or for a retry, as may")
NO_ROOM_FOR_RESULT: Final = Dead(
    "callback_exhausted", "as many of the source's results wait for its callback as may, and others need the room"
)
STORED_S: Final = 1.0
"""How long the process that stored an outcome may take to publish it; later, a second copy does no harm."""
LOOK_AGAIN_S: Final = 60.0
"""How long a work without room to be parked waits before its row is read again: its receiver may bring the answer."""
LONGEST_CLOSE_S: Final = 10.0
"""A closed endpoint is tried again at least this often: the hint that it has reopened may be lost."""
REBUILDING: Final = Later(10.0, "waits until what Redis lost is rebuilt", Change.DOUBT)
"""In place of a failure without an attempt: its row may be read back, and say that it was answered."""
REBUILDING_PARKED: Final = structs.replace(REBUILDING, due_in_s=60.0)
"""Each look at a parked work costs a copy."""


_REFUSED: Final = (Phase.WAITING, Phase.BEHIND)
"""A work that found no room to be parked, and was not given up for that."""


class ToSettle(NamedTuple):
    """The outcome of an attempt, or of a ping, that the state stores. `hold`: its endpoint, before that; once stored,
    None if that was resumed after the request began."""

    work: Any
    settlement: Settlement
    hold: Hold | None
    decision: Done | Dead | Later


# --- decided ----------------------------------------------------------------------------------------------------


def overdue(lane: Lane[W], work: W, end: Dead | Done | Later, now: float) -> None:
    """Its time is over, or not there yet: nothing was begun."""
    if not isinstance(end, Later):
        decided(lane, work, end, now)
        return
    lane.seats.leave(work)
    if end.pause_s:
        close(lane, work.endpoint_id, end.pause_s, now, "configuration", down=True)
        # its row may have its end by now, as of a discard, and no begin asks for it
        work.unseen = False
        advance(work, Event.DECIDED, Phase.READ)
        lane.calls.put(CallQueue.LOOK_UP, work)
    else:
        later(lane, work, Event.DECIDED, end, now)


def decided(lane: Lane[W], work: W, decision: Decision, now: float) -> None:
    if isinstance(decision, Resend):
        work.resolved = work.doubt
        again_without_seat(lane, work, Event.DECIDED, now, now)
    elif isinstance(decision, Later):
        _decided_later(lane, work, decision, now)
    elif work.rules is None or (isinstance(decision, Done) and decision.result is None):
        lane.seats.leave(work)
        publish(lane, work, Event.DECIDED, decision, now)
    else:
        settle(lane, work, decision, now)


def _decided_later(lane: Lane[W], work: W, decision: Later, now: float) -> None:
    if work.rules is None:
        lane.seats.leave(work)
        later(lane, work, Event.DECIDED, decision, now)
        return
    if decision.change is Change.RELEASED and decision.due_in_s:
        # It could not be sent, for a reason that other works for this endpoint share.
        close(lane, work.endpoint_id, decision.due_in_s, now, "own_shortage", down=False)
    settle(lane, work, _failed(lane, work, decision, now), now)


def _failed(lane: Lane[W], work: W, decision: Later, now: float) -> Later:
    """An attempt that failed. A head makes the next one when its receiver's patience ends, at the latest, as that
    attempt may succeed; or it steps aside as soon as none of its requests may arrive any more."""
    if decision.change is Change.RELEASED or not decision.counted:
        return decision
    settle_s = rules_of(work).limits.settle_s
    if decision.may_arrive:
        work.may_arrive_until = work.started_at + settle_s
    if work.failing_since is None:
        work.failing_since = now
        if work.attempts > 1:  # earlier ones of a former owner
            work.may_arrive_until = now + settle_s
    if work.attempts >= HELD_UP_AFTER and (behind := lane.order.lines.behind(work)):
        lane.observer.held_up(work, behind)
    left_s = patience_left_s(work, now)
    if left_s <= 0 and work.may_arrive_until > now:
        return structs.replace(decision, due_in_s=work.may_arrive_until - now)
    return structs.replace(decision, due_in_s=left_s) if 0 < left_s < decision.due_in_s else decision


def settle(lane: Lane[W], work: W, decision: Done | Dead | Later, now: float) -> None:
    if isinstance(decision, Dead) and not work.requested and decision.last_status is None:
        # no request was made now: that of an earlier one
        decision = structs.replace(decision, last_status=work.last_status)
    is_gone = decision.pause_s == inf and not rules_of(work).is_origin
    held = hold_of(decision, lane.setup.wall() - now + work.started_at) if is_gone else None
    settlement = settlement_of(work, decision)
    # it was never sent, unless by the next owner
    if isinstance(decision, Dead) and decision.reason == NO_ROOM.reason:
        settlement = structs.replace(settlement, unsent_ms=int(lane.setup.wall() * 1000))
    advance(work, Event.DECIDED, Phase.SETTLING)
    if settlement.result is not None:
        work.held = len(settlement.result.body)
        lane.memory.take(work.held)
    if not work.taken:  # the state may refuse to give it up, so later ones of its order key must not pass it
        lane.parked_keys.going(work)
    lane.calls.put(CallQueue.SETTLE, ToSettle(work, settlement, held, decision))


# --- not parked -------------------------------------------------------------------------------------------------


def not_parked(lane: Lane[W], work: W, result: ParkResult, now: float) -> None:
    if isinstance(result, NotParked):
        _no_room(lane, work, result, now)
    elif isinstance(result, Dead):  # too large, after its intent to park was stored
        work.owes_tombstone = True
        publish(lane, work, Event.NOT_PARKED, result, now)
    else:  # another process stored its outcome and is about to publish it; otherwise this one does so
        work.due, work.unseen, work.result = now + STORED_S, True, None  # its row is read then, due or not
        add(lane, work, Event.NOT_PARKED, now)


def refuse_followers(lane: Lane[W], works: Sequence[W], results: Sequence[ParkResult], now: float) -> None:
    """When these are sent there may be room, and they would be parked before the refused ones of their order keys."""
    refused: Mapping[bytes | None, NotParked] = {
        work.queue: result
        for work, result in zip(works, results, strict=True)
        if isinstance(result, NotParked) and work.queue is not None and work.phase in _REFUSED
    }
    if not refused:
        return
    for work in lane.calls.withdraw(CallQueue.PARK, lambda work: work.parked_at is None and work.queue in refused):
        lane.parked_keys.gone(work)
        _no_room(lane, work, refused[work.queue], now)


def _no_room(lane: Lane[W], work: W, result: NotParked, now: float) -> None:
    if lane.policy.no_room_to_park(over_all=result.over_all, full=lane.full) is Fate.DEAD_LETTER:
        work.token, work.requested = b"", False
        advance(work, Event.NOT_PARKED, Phase.RUNNING)
        decided(lane, work, NO_ROOM if lane.policy.capped else NO_ROOM_FOR_RESULT, now)
        return
    if lane.worker.kind is CallKind.POLL:
        work.due = min(work.due, now + LOOK_AGAIN_S)
    _wait_for_room(lane, work, Event.NOT_PARKED, now)


def _wait_for_room(lane: Lane[W], work: W, event: Event, now: float) -> None:
    keys = lane.parked_keys
    keys.refused(now)
    if keys.has_parked(work.queue) or keys.has_behind(work.queue) or lane.order.lines.is_before_batch(work):
        wait_behind(lane, work, event, now)
    else:
        add(lane, work, event, now)


# --- settled ----------------------------------------------------------------------------------------------------


def settled(lane: Lane[W], work: W, stored: tuple[ToSettle, Row | None], now: float) -> None:
    """`stored`: what the state was asked to store, and the row that it has instead; None if it has this outcome."""
    (_, settlement, held, decision), row = stored
    if not work.taken:
        lane.parked_keys.gone(work)
    # refused: no attempt is known, and rows are missing; or the next owner of the lane has begun one
    if isinstance(decision, Dead) and row is not None and _is_refused(row, work):
        lane.seats.leave(work)
        work.sent = work.sent or row.stage is not Stage.NONE
        if work.taken:
            later(lane, work, Event.SETTLED, REBUILDING if work.parked_at is None else REBUILDING_PARKED, now)
        else:  # it has left the order, and found no room to be parked
            work.due = now + REBUILDING.due_in_s
            _wait_for_room(lane, work, Event.SETTLED, now)
        return
    if held is not None:
        lane.observer.endpoint_gone(work.endpoint_id, held.detail)
    if work.requested or not was_over(row, settlement):
        lane.observer.attempt(lane.worker.stage, work, decision)
    if settlement.pause_s or held is not None:
        close(lane, work.endpoint_id, settlement.pause_s or inf, now, "paused", down=True)
    healthy = settlement.healthy
    if lane.worker.kind is CallKind.POLL:  # a GET says nothing for the breaker, except that the endpoint is up
        healthy = None if settlement.pause_s or isinstance(decision, Dead) else True
    if healthy is not None and not (healthy and not lane.health.failures and not lane.health.down):
        _note_health(lane, work, healthy=healthy)
    outcome_stored(lane, work, settlement, decision, row, now)


def _is_refused(row: Row, work: Work) -> bool:
    return row.stage < Stage.ACCEPTED and row.generation <= work.generation


def _note_health(lane: Lane[W], work: W, *, healthy: bool) -> None:
    lane.health.record(healthy=healthy, enough=work.rules.limits.breaker.failures if work.rules else None)


def outcome_stored(
    lane: Lane[W], work: W, settlement: Settlement, decision: Done | Dead | Later, row: Row | None, now: float
) -> None:
    """What the row says counts: another process may have stored an outcome first. None: it has ours."""
    if row is not None and row.generation > work.generation:
        outlived(lane, work, Event.SETTLED, now)
        return
    lane.seats.leave(work)
    if isinstance(decision, Later) and work.token and taken_back(decision):
        work.attempts -= 1  # it does not count; the next begin gets this number
    work.due = 0.0
    if row is None:
        work.result = settlement.result
        if settlement.change is not Change.RELEASED:
            work.last_status = settlement.last_status
    else:
        fill_in(work, row, now, lane.worker.kind)
    if row is None and work.result is not None:
        resume(lane, work, Event.SETTLED, now)
    elif work.result is not None:
        resume_in_time(lane, work, Event.SETTLED, now)
    elif isinstance(decision, Later) and decision.change is Change.RELEASED and not decision.due_in_s:
        again(lane, work, Event.SETTLED, now, now)
    elif isinstance(decision, Later):
        later(lane, work, Event.SETTLED, decision, now)
    else:
        known(lane, work, Event.SETTLED, now)  # our outcome was too late: the row is beyond it


def outlived(lane: Lane[W], work: W, event: Event, now: float) -> None:
    """A later generation has begun, with parked copies under the same key: the tombstone is written for that one."""
    work.owes_tombstone = False
    lane.seats.leave(work)
    known(lane, work, event, now)


def close(lane: Lane[Any], endpoint_id: str, seconds: float, now: float, why: WaitFor, *, down: bool) -> None:
    """The endpoint accepts nothing now."""
    lane.health.closed(down=down)
    lane.order.close(endpoint_id, now + min(seconds, LONGEST_CLOSE_S), why)


# --- pings ------------------------------------------------------------------------------------------------------


def pinged(lane: Lane[W], work: W, decision: Decision, now: float) -> None:
    if not isinstance(decision, Later):
        raise TypeError("a ping decides nothing about the work in whose place it was sent")
    if decision.due_in_s:  # it could not even be sent
        close(lane, work.endpoint_id, decision.due_in_s, now, "own_shortage", down=False)
    held = hold_after_ping(decision, rules_of(work), work.down_for_s, lane.setup.wall() - now + work.started_at)
    advance(work, Event.DECIDED, Phase.PING_SETTLING)
    lane.calls.put(CallQueue.SETTLE_PING, ToSettle(work, ping_settlement(work, decision, held), held, decision))


def ping_settled(lane: Lane[W], work: W, ping: ToSettle, now: float) -> None:
    _, settlement, held, _ = ping
    _report_ping(lane, work, settlement, held)
    healthy = settlement.healthy
    if healthy is not None:
        _note_health(lane, work, healthy=healthy)
    if held or settlement.pause_s or healthy is False:
        closed_s = max(settlement.pause_s, settlement.breaker.offline.ping_every)
        close(lane, work.endpoint_id, closed_s, now, "offline", down=True)
    work.pinging = False
    again_without_seat(lane, work, Event.PING_SETTLED, now, now)


def _report_ping(lane: Lane[W], work: W, settlement: Settlement, held: Hold | None) -> None:
    observer, healthy, endpoint_id = lane.observer, settlement.healthy, work.endpoint_id
    if held:
        observer.endpoint_disabled(endpoint_id, work.down_for_s, settlement.last_status, gone=held.reason == "gone")
    elif healthy:
        observer.endpoint_back(endpoint_id, work.down_for_s, work.down_since)
    elif healthy is False:
        observer.ping_unanswered(endpoint_id)


# --- what the state stores --------------------------------------------------------------------------------------


def settlement_of(work: Work, decision: Done | Dead | Later) -> Settlement:
    row, rules = work.row, work.rules
    if row is None or rules is None:
        raise AssertionError("an attempt without rules or a row")
    breaker, settle_s, may_arrive = rules.limits.breaker, 0.0, False
    if work.queue is not None and not isinstance(decision, Done):
        settle_s, may_arrive = rules.limits.settle_s, decision.may_arrive
    match decision:
        case Later():
            return Settlement(
                row,
                work.generation,
                work.token,
                decision.change,
                due_in_s=decision.due_in_s,
                counted=decision.counted,
                last_status=decision.last_status,
                reason=decision.reason,
                detail=decision.detail,
                healthy=decision.healthy,
                up=decision.up,
                pause_s=_finite(decision.pause_s),
                breaker=breaker,
                may_arrive=may_arrive,
                number=work.number_request if work.first_number else None,
            )
        case Dead():
            result = Result("dead", decision.last_status, reason=decision.reason, detail=decision.detail)
            change, pause_s = Change.RESULT, _finite(decision.pause_s)
        case Done():
            if decision.result is None:
                raise AssertionError("settled without a result")
            result, pause_s = decision.result, 0.0
            change = Change.ACCEPTED if decision.stage is Stage.AWAITING else Change.RESULT
    return Settlement(
        row,
        work.generation,
        work.token,
        change,
        last_status=result.status,
        reason=result.reason,
        result=result,
        healthy=decision.healthy,
        up=isinstance(decision, Done) and decision.up,
        pause_s=pause_s,
        breaker=breaker,
        settle_s=settle_s,
        may_arrive=may_arrive,
        number=work.number_request if work.first_number else None,
    )


def hold_of(decision: Done | Dead | Later, since: float) -> Hold:
    """The hold of its endpoint, which gets nothing more until an operator resumes it. `since`: as in Hold."""
    if isinstance(decision, Done):
        return hold("gone", since, "it accepted a message, and asked for no further ones")
    said = decision.detail if isinstance(decision, Dead) else decision.reason
    return hold("gone", since, f"{said} (status {decision.last_status})")


def ping_settlement(work: Work, outcome: Later, held: Hold | None) -> Settlement:
    """The outcome of the ping in place of `work`: it counts for the endpoint, and changes nothing for the work."""
    pause_s = 0.0 if held else outcome.pause_s
    status, healthy = outcome.last_status, outcome.healthy
    said = Later(0.0, outcome.reason, Change.RELEASED, last_status=status, healthy=healthy, pause_s=pause_s)
    return settlement_of(work, said)


def hold_after_ping(outcome: Later, rules: EndpointRules, down_for_s: float, since: float) -> Hold | None:
    """The hold, if the endpoint gets nothing more until an operator resumes it. `since`: as in Hold."""
    if outcome.pause_s == inf and not rules.is_origin:
        detail = f"it answered {outcome.last_status} to a ping after an outage of {lasting(down_for_s)}"
        return hold("gone", since, detail)
    if outcome.healthy is False and down_for_s >= rules.limits.breaker.offline.disable_after:
        return hold("disabled", since, f"it was down for {lasting(down_for_s)}")
    return None


def was_over(row: Row | None, settlement: Settlement) -> bool:
    """Another process had ended it before: an outcome that was found here without a request is late, and no news."""
    if row is None or row.stage < Stage.RESULT:
        return False
    ours, there = settlement.result, row.result
    return ours is None or there is None or (ours.outcome, ours.reason) != (there.outcome, there.reason)


def taken_back(later: Later) -> bool:
    """The attempt does not count."""
    return later.change is Change.RELEASED or not later.counted


def _finite(pause_s: float) -> float:
    return 0.0 if pause_s == inf else pause_s
