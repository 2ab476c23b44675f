"""Runs a lane: events in, commands out. `HANDLERS` has the function for each event of a work, by its phase.

record -> READ -> WAITING -> BEGINNING -> RUNNING -> SETTLING -> APPENDING -> MARKING -> OVER -> watermark
                     ^                                  |
                     +------- due records <-- PARKING <-+

An event that the table does not have for the phase of its work ends the lane. Pure; `now` is monotonic seconds.
`relay.engine.pump` delivers the events, and makes the calls that the commands request.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

from relay.domain.errors import RecordTooLarge
from relay.engine import admission, attempt, completion, parking, settlement
from relay.engine.batch import waits_first
from relay.engine.commands import BATCH, STILL_COUNT, CallQueue, Command
from relay.engine.decision import Call, Decision
from relay.engine.lane import Lane
from relay.engine.parked_index import ParkResult, Stored
from relay.engine.phases import Event, IllegalTransition, Phase
from relay.engine.quarantine import Arrived
from relay.engine.settlement import ToSettle
from relay.engine.work import LookupResult, Outcome, W
from relay.log.port import Coordinate, Record
from relay.state.attempts import Verdict, Wait
from relay.state.rows import Row

SHARE: Final = BATCH
"""Records of one lane that are read, and works that start, in one turn: other lanes have their turns, too."""

AnyLane = Lane[Any]
Handler = Callable[[AnyLane, Any, Any, float], None]
"""Handles an event of a work: gets the lane, the work, the result that the event brings, and the time."""

P, E = Phase, Event

_HANDLERS: Final[Mapping[Phase, Mapping[Event, Handler]]] = {
    P.READ: {E.LOOKED_UP: admission.looked_up},
    P.WAITING: {E.TAKEN: attempt.taken},
    P.SEATING: {E.SEATED: attempt.seated},
    P.BEGINNING: {E.VERDICT: attempt.verdict},
    P.DELAYED: {E.DUE: attempt.due},
    P.RUNNING: {E.DECIDED: settlement.decided},
    P.PINGING: {E.DECIDED: settlement.pinged},
    P.PING_SETTLING: {E.PING_SETTLED: settlement.ping_settled},
    P.SETTLING: {E.SETTLED: settlement.settled},
    P.APPENDING: {E.APPENDED: completion.appended},
    P.MARKING: {E.MARKED: completion.marked},
    P.PARKING: {E.PARKED: parking.parked, E.NOT_PARKED: settlement.not_parked},
    P.BEHIND: {E.LOOKED_BEHIND: parking.looked_behind},
    P.RETIRING: {E.RETIRED: completion.retired},
}


def _illegal(event: Event, lane: AnyLane, work: Any, result: Any, now: float) -> None:
    raise IllegalTransition(work, event)


HANDLERS: Final[Mapping[Phase, dict[Event, Handler]]] = {
    phase: {event: _HANDLERS.get(phase, {}).get(event, partial(_illegal, event)) for event in Event} for phase in Phase
}
"""As above; and every other event raises IllegalTransition.

The events TAKEN_IN, WITHDRAWN and FIRST_LEFT are not here: a handler causes them for other works of the lane, and moves
these itself."""


# --- events -----------------------------------------------------------------------------------------------------


def offer(lane: AnyLane, records: Sequence[Record], now: float) -> None:
    """Take the next records of the partition, in order."""
    lane.arrived.extend(map(Arrived, records))
    lane.memory.take(lane.watermark.add(records))
    lane.intake_limit.moved_at = now


def seated(lane: AnyLane, work: Any, now: float) -> None:
    """There is a seat for a request of `work`."""
    HANDLERS[work.phase][E.SEATED](lane, work, None, now)


def not_started(lane: Lane[W], work: W, error: Exception, now: float) -> None:
    """The request of its step could not even be started."""
    decided(lane, work, attempt.crashed(lane, work, error), now)


def replied(lane: Lane[W], work: W, call: Call[Any], reply: object, now: float) -> None:
    """The reply to the request of its step."""
    if work.suspect:
        attempt.decide_on_alone(lane, work, call, reply)
        return
    try:
        decision = call.decide(reply)
    except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
        decision = attempt.crashed(lane, work, error)
    lane.running -= 1  # as in `decided`
    HANDLERS[work.phase][E.DECIDED](lane, work, decision, now)


def decided(lane: Lane[W], work: W, decision: Decision, now: float) -> None:
    """Its step has decided, or its reply has."""
    lane.running -= 1
    HANDLERS[work.phase][E.DECIDED](lane, work, decision, now)


def resumed(lane: AnyLane, endpoint_id: str, now: float) -> None:
    """An endpoint was resumed. The next begin finds out whether it may be used: the state knows by now."""
    lane.order.reopen(endpoint_id, now)
    lane.due_index.expect(endpoint_id, 0.0)


def reopened(lane: AnyLane, endpoint_id: str, now: float) -> None:
    """An endpoint that was closed may accept requests again."""
    lane.order.reopen(endpoint_id, now)


# --- results of commands ----------------------------------------------------------------------------------------


def carried_out(lane: AnyLane, command: Command, reply: Any, now: float) -> None:
    """The result of a call."""
    lane.calls.answered(command.ask)
    _RESULTS[command.ask](lane, command.items, reply, now)


def refused(lane: AnyLane, command: Command, error: RecordTooLarge, now: float) -> None:
    """One of the records to append is too large for good."""
    lane.calls.answered(command.ask)
    completion.too_large(lane, command.items, error)


def lost(lane: AnyLane, command: Command, now: float) -> None:
    """A newer owner has the lane, and the call did nothing. Only outcomes of requests in flight still count."""
    lane.calls.answered(command.ask)
    if lane.fenced_at is None:
        lane.fenced_at = now
        lane.observer.fenced(lane.partition)


def _looked_up(lane: Lane[W], works: Sequence[W], seen: Sequence[LookupResult], now: float) -> None:
    if lane.stopping:
        return
    meanwhile, lane.parked_keys.meanwhile = lane.parked_keys.meanwhile, set()
    for work, each in zip(works, seen, strict=True):
        if meanwhile and work.queue in meanwhile:
            admission.look_up_again(lane, work)
        else:
            HANDLERS[work.phase][E.LOOKED_UP](lane, work, each, now)


def _begun(lane: Lane[W], works: Sequence[W], verdicts: Sequence[Verdict], now: float) -> None:
    """A bug that one of them triggers is raised after all verdicts are handled: an attempt that has begun, and that a
    broken lane does not release, would be in doubt."""
    lane.begin_s.append(now - lane.asked_at)
    if lane.order.has_batches:
        waits, works, verdicts = waits_first(works, verdicts)
        for work, verdict in waits:
            HANDLERS[work.phase][E.VERDICT](lane, work, verdict, now)
    waiting: list[tuple[W, Verdict]] = []
    bug: Exception | None = None
    for work, verdict in zip(works, verdicts, strict=True):
        if isinstance(verdict, Wait):
            waiting.append((work, verdict))
            continue
        try:
            HANDLERS[work.phase][E.VERDICT](lane, work, verdict, now)
        except Exception as error:  # noqa: BLE001
            bug = bug or error
    if bug is not None:
        raise bug
    for work, verdict in reversed(waiting):  # each is put before the others again, so they keep their turns
        HANDLERS[work.phase][E.VERDICT](lane, work, verdict, now)


def _settled(lane: AnyLane, _: object, stored: Sequence[tuple[ToSettle, Row | None]], now: float) -> None:
    for each in stored:
        work = each[0].work
        HANDLERS[work.phase][E.SETTLED](lane, work, each, now)


def _ping_settled(lane: AnyLane, _: object, stored: Sequence[tuple[ToSettle, Row | None]], now: float) -> None:
    for each, _row in stored:
        HANDLERS[each.work.phase][E.PING_SETTLED](lane, each.work, each, now)


def _appended(lane: Lane[W], works: Sequence[W], at: Sequence[Coordinate], now: float) -> None:
    start = 0
    for work in works:
        end = start + len(work.out)
        HANDLERS[work.phase][E.APPENDED](lane, work, tuple(at[start:end]), now)
        start = end
    lane.intake_limit.ended(now)


def _marked(lane: Lane[W], outcomes: Sequence[tuple[W, Outcome]], _reply: object, now: float) -> None:
    for work, outcome in outcomes:
        HANDLERS[work.phase][E.MARKED](lane, work, outcome, now)


def _retired(lane: Lane[W], works: Sequence[W], promoted: Sequence[bool], now: float) -> None:
    for work, next_is_due in zip(works, promoted, strict=True):
        HANDLERS[work.phase][E.RETIRED](lane, work, next_is_due, now)


def _parked(lane: Lane[W], works: Sequence[W], results: Sequence[ParkResult], now: float) -> None:
    if lane.left:
        return  # the next owner reads the records again
    parking.note_parked(lane, works, results)
    for work, result in zip(works, results, strict=True):
        event = E.PARKED if result is Stored.PARKED else E.NOT_PARKED
        HANDLERS[work.phase][event](lane, work, result, now)
    settlement.refuse_followers(lane, works, results, now)


def _looked_behind(lane: Lane[W], works: Sequence[W], emptied: Sequence[bool], now: float) -> None:
    parking.forget_emptied(lane, works, emptied)
    if CallQueue.LOOK_BEHIND in lane.calls.busy:
        return  # the others of the same look follow
    blocked = lane.is_blocked
    for work in lane.parked_keys.take_behind(now):
        HANDLERS[work.phase][E.LOOKED_BEHIND](lane, work, blocked, now)


def _took_due(lane: AnyLane, items: Sequence[Any], reply: Any, now: float) -> None:
    parking.took_due(lane, items[0], reply, now)


def _reserved(lane: AnyLane, items: Sequence[int], reply: Any, now: float) -> None:
    admission.reserved(lane, items[0], reply, now)


def _was_alone(lane: AnyLane, items: Sequence[Any], reply: Any, now: float) -> None:
    alone = items[0]
    if alone.done is not None:
        alone.done(reply, now)
    if alone.work is not None and reply is not None:
        decided(lane, alone.work, reply, now)


_RESULTS: Final[Mapping[CallQueue, Callable[[AnyLane, Any, Any, float], None]]] = {
    CallQueue.LOOK_UP: _looked_up,
    CallQueue.BEGIN: _begun,
    CallQueue.SETTLE: _settled,
    CallQueue.SETTLE_PING: _ping_settled,
    CallQueue.APPEND: _appended,
    CallQueue.MARK: _marked,
    CallQueue.RETIRE: _retired,
    CallQueue.PARK: _parked,
    CallQueue.LOOK_BEHIND: _looked_behind,
    CallQueue.TAKE_DUE: _took_due,
    CallQueue.RESERVE: _reserved,
    CallQueue.ALONE: _was_alone,
}


# --- turns ------------------------------------------------------------------------------------------------------


def take_turn(lane: Lane[W], now: float) -> None:
    """Read records that arrived, and start works that may start. Afterwards the caller takes the works of
    `lane.to_run`, by `attempt.run_step`, unless it `holds_back`, and makes the calls of `lane.calls.commands`."""
    if lane.opened_at > now:
        lane.opened_at = now
    while lane.delayed and (lane.stopping or lane.delayed[0][0] <= now):
        work = heapq.heappop(lane.delayed)[2]
        HANDLERS[work.phase][E.DUE](lane, work, None, now)
    if lane.to_mark:
        completion.mark_in_time(lane, now)
    lane.has_more, lane.wake_at = False, inf
    if lane.stopping:
        return
    if lane.order.lines.stranded:
        parking.follow(lane, now)
    if lane.early:
        parking.follow_records(lane, now)
    if lane.arrived or lane.to_admit:
        lane.has_more = admission.read(lane, SHARE, now)
    order, calls = lane.order, lane.calls
    if order.open or order.unseen or (order.timed and order.timed[0][0] <= now):
        _start(lane, now)
    if lane.parked_keys.behind:
        parking.look_behind(lane, now)
        lane.wake_at = lane.parked_keys.next_check(blocked=lane.is_blocked)
    if lane.policy.parks and CallQueue.TAKE_DUE not in calls.busy:
        if now >= lane.due_index.look_at:
            parking.take_due(lane, now)
        if CallQueue.TAKE_DUE not in calls.busy and lane.due_index.look_at < lane.wake_at:
            lane.wake_at = lane.due_index.look_at
    for timed in (order.timed, lane.delayed):
        if timed and timed[0][0] < lane.wake_at:
            lane.wake_at = timed[0][0]
    if lane.to_mark and lane.mark_at < lane.wake_at:
        lane.wake_at = lane.mark_at
    if lane.early:
        lane.wake_at = min(lane.wake_at, lane.opened_at + parking.EARLY_S)


def _start(lane: Lane[W], now: float) -> None:
    works = lane.order.take(now, 0 if lane.to_append and attempt.holds_back(lane) else SHARE)
    if lane.order.unseen:
        works += lane.order.take_over(partial(admission.is_over, lane), SHARE - len(works))
    for work in works:
        HANDLERS[work.phase][E.TAKEN](lane, work, None, now)
    lane.has_more = lane.has_more or len(works) >= SHARE


# --- end --------------------------------------------------------------------------------------------------------


def stop(lane: AnyLane) -> None:
    """Begin nothing new: the next owner reads records again that are unfinished when the lane is `idle`."""
    lane.stopping = True
    completion.mark_all(lane)
    lane.arrived.clear()
    lane.early.clear()
    lane.to_admit.clear()
    for ask in (CallQueue.LOOK_UP, CallQueue.BEGIN, CallQueue.TAKE_DUE, CallQueue.LOOK_BEHIND, CallQueue.RESERVE):
        lane.calls.drop(ask)


def leave(lane: AnyLane) -> None:
    """Nothing counts for the watermark any more; outcomes of attempts are still stored."""
    lane.left = True
    lane.to_mark.clear()
    lane.to_append = 0
    for ask in CallQueue:
        if ask not in STILL_COUNT:
            lane.calls.drop(ask)


def abandon(lane: AnyLane) -> None:
    """Give back the seats and the memory of its works: the results of their attempts are not awaited."""
    lane.seats.leave_all()
    lane.memory.close()
