"""Attempts: the intent is stored right before the step (rule 4); then the worker's step runs, which decides at once or
makes a request. A bug in a step does not stop the lane. Pure."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

from relay.engine.admission import place
from relay.engine.batch import has_seat, left_out
from relay.engine.commands import Alone, CallQueue
from relay.engine.completion import ask_worker, known, resume
from relay.engine.decision import Call, Dead, Decision, Later
from relay.engine.lane import Lane
from relay.engine.parking import TOKEN_BYTES, again_without_seat, may_step_aside, resume_in_time
from relay.engine.phases import Event, Phase, advance
from relay.engine.policy import Fate
from relay.engine.quarantine import WorkerFault
from relay.engine.settlement import NO_ROOM, close, decided, outlived, overdue
from relay.engine.slices import SLICE_BYTES
from relay.engine.work import W, WaitFor, fill_in
from relay.state.attempts import (
    AlreadySettled,
    AmbiguousAttempt,
    BeginRequest,
    CallKind,
    Change,
    Go,
    LookedUp,
    PingDue,
    Stale,
    Verdict,
    Wait,
    WaitReason,
)
from relay.state.rows import Row

WAITS_FOR: Final[Mapping[WaitReason, WaitFor]] = {
    "rate": "rate",
    "pause": "paused",
    "breaker": "breaker",
    "settling": "settling",
    "offline": "offline",
    "disabled": "paused",
    "backlog": "backlog",
    "max_in_flight": "max_in_flight",
}
OUR_PACE: Final = frozenset[WaitReason]({"rate", "backlog", "max_in_flight"})
"""Reasons to wait that are no sign of a failing endpoint."""
LEAST_PAUSES: Final[Mapping[WaitReason, float]] = {"rate": 0.25, "backlog": 0.25}
"""Slots of the rate are assigned up to 1 s ahead, so several become free at once."""
CRASH_PAUSE_S: Final = 5.0
NOT_SENT: Final = Later(0.0, "ping not sent", Change.RELEASED)
STEPS_ASIDE: Final = Later(0.0, "its receiver's patience is over", Change.RELEASED)


# --- taken from the order ---------------------------------------------------------------------------------------


def taken(lane: Lane[W], work: W, _: None, now: float) -> None:
    work.token, work.requested = b"", False
    if work.result is not None:
        resume(lane, work, Event.TAKEN, now)
        return
    try:
        end = lane.worker.overdue(work)
    except Exception as error:
        raise WorkerFault(work) from error
    if work.steps_aside and end is None and may_step_aside(work, now):
        end = STEPS_ASIDE
    if work.batch is not None:
        end = left_out(work.batch, work, end)
    if end is not None or work.rules is None:
        advance(work, Event.TAKEN, Phase.RUNNING)
        if end is not None:
            overdue(lane, work, end, now)
        else:
            run(lane, work)
    elif lane.seats.take(work) if work.batch is None else has_seat(work.batch, lane.seats, work):
        advance(work, Event.TAKEN, Phase.BEGINNING)
        lane.calls.put(CallQueue.BEGIN, work)
    else:
        lane.seating += 1
        advance(work, Event.TAKEN, Phase.SEATING)


def seated(lane: Lane[W], work: W, _: None, now: float) -> None:
    """It has a seat, perhaps too late; so have the works that share its request."""
    works: Sequence[Any] = (work,) if work.batch is None else tuple(work.batch.seating)
    for each in works:
        _seated(lane, each, now)


def _seated(lane: Lane[W], work: W, now: float) -> None:
    lane.seating -= 1
    if lane.stopping:
        lane.seats.leave(work)
        return
    end = ask_worker(work, lane.worker.overdue, work)
    if work.batch is not None:
        end = left_out(work.batch, work, end)
    if end is not None:
        advance(work, Event.SEATED, Phase.RUNNING)
        overdue(lane, work, end, now)
    elif work.rules is None:  # its callback was removed meanwhile
        advance(work, Event.SEATED, Phase.RUNNING)
        run(lane, work)
    else:
        advance(work, Event.SEATED, Phase.BEGINNING)
        lane.calls.put(CallQueue.BEGIN, work)


# --- begin ------------------------------------------------------------------------------------------------------


def begin_requests(lane: Lane[W], works: Sequence[W], now: float) -> list[BeginRequest]:
    """What the state gets for these works."""
    lane.asked_at = now
    random = lane.setup.random(TOKEN_BYTES * len(works))
    for n, work in enumerate(works):
        work.token = random[TOKEN_BYTES * n : TOKEN_BYTES * (n + 1)]
    kind, policy, open_s = lane.worker.kind, lane.policy, now - lane.opened_at
    room = lane.bounds.parked_per_owner if policy.capped else None
    to_retry = room if policy.retries_need_room else None
    asks, before = [], None
    for work in works:
        rules, row = work.rules, work.row
        if rules is None or row is None:
            raise AssertionError("an attempt without rules or a row")
        asks.append(
            BeginRequest(
                row,
                work.generation,
                work.token,
                rules.limits,
                kind,
                attempts=work.attempts,
                resolved=work.resolved,
                ask_first=rules.ask_first,
                offset=work.record.offset if rules.ask_first else None,
                recorded_ms=work.record.timestamp_ms if rules.at_most_once else None,
                room=room,
                room_to_retry=to_retry,
                unseen=work.unseen,
                queue=work.queue,
                counted_s=open_s if rules.has_share else 0.0,
                open_s=open_s,
                rides=work.batch is not None and work.batch is before,
                paced=rules.paces_each,
                number=work.number_request if work.first_number else None,
            )
        )
        before = work.batch
    return asks


def verdict(lane: Lane[W], work: W, verdict: Verdict, now: float) -> None:
    """The state decided on the begin of `work`."""
    match verdict:
        case Go(attempt, start_in_s, number, gaps):
            if number is not None:
                work.take_number(number)
                work.gaps = gaps
            go(lane, work, attempt, start_in_s, now)
        case Wait():
            _must_wait(lane, work, verdict, now)
        case PingDue(down_for_s, since):
            advance(work, Event.VERDICT, Phase.PINGING)
            lane.observer.endpoint_offline(work.endpoint_id, down_for_s, since)
            work.pinging, work.down_for_s, work.down_since = True, down_for_s, since
            work.start_by = lane.asked_at + lane.bounds.start_within_s
            run(lane, work)
        case AmbiguousAttempt(attempts, doubt, newer):
            work.token = b""
            work.attempts = max(work.attempts, attempts)
            work.in_doubt, work.doubt, work.newer_than_loss = True, doubt, newer
            advance(work, Event.VERDICT, Phase.RUNNING)
            run(lane, work)
        case AlreadySettled(row):
            _already_settled(lane, work, row, now)
        case Stale():
            outlived(lane, work, Event.VERDICT, now)
        case LookedUp(row):
            _found(lane, work, row, now)


def go(lane: Lane[W], work: W, attempt: int, start_in_s: float, now: float) -> None:
    if lane.worker.kind is CallKind.POST:
        work.attempts = attempt
    else:
        work.polls, work.token = attempt, b""  # a GET leaves no intent to settle
    # from the call on, not from its reply: the process may have been suspended in between
    work.start_by = lane.asked_at + lane.bounds.start_within_s
    if work.rules is not None and work.rules.late_s < inf:
        work.start_by = min(work.start_by, slot_by(lane, start_in_s) + work.rules.late_s)
    work.sent, work.unseen = True, False
    work.in_doubt, work.resolved = False, None
    if start_in_s > 0 and not lane.stopping:
        advance(work, Event.VERDICT, Phase.DELAYED)
        lane.running += 1
        heapq.heappush(lane.delayed, (now + start_in_s, next(lane.numbers), work))
    else:
        advance(work, Event.VERDICT, Phase.RUNNING)
        run(lane, work)


def slot_by(lane: Lane[Any], start_in_s: float) -> float:
    """The earliest time of its slot of the rate: the state assigned it during the call, which took at least as long as
    the shortest of the last calls."""
    return lane.asked_at + min(lane.begin_s) + start_in_s


def due(lane: Lane[W], work: W, _: None, now: float) -> None:
    """Its slot of the rate is there; or the lane stops, and it is released."""
    lane.running -= 1
    advance(work, Event.DUE, Phase.RUNNING)
    run(lane, work)


def _must_wait(lane: Lane[W], work: W, wait: Wait, now: float) -> None:
    work.held_for = WAITS_FOR[wait.why]
    if wait.why == "settling":
        again_without_seat(lane, work, Event.VERDICT, now + wait.seconds, now)
        return
    if wait.why not in ("rate", "max_in_flight"):
        lane.observer.endpoint_held(work.endpoint_id, wait.why)
    if wait.why == "backlog":
        fate = lane.policy.no_room_for_answer(attempted=work.sent or not wait.fresh)
        if fate is Fate.DEAD_LETTER:
            work.token = b""
            advance(work, Event.VERDICT, Phase.RUNNING)
            decided(lane, work, NO_ROOM, now)
            return
        if fate is Fate.HOLD:
            again_without_seat(lane, work, Event.VERDICT, now + wait.seconds, now)
            return
    seconds = max(wait.seconds, LEAST_PAUSES.get(wait.why, 0.0))
    close(lane, work.endpoint_id, seconds, now, WAITS_FOR[wait.why], down=wait.why not in OUR_PACE)
    # for lack of room it goes behind those that are ready: one in doubt may have the room, and give it back
    due = now + seconds if wait.why == "backlog" else now
    again_without_seat(lane, work, Event.VERDICT, due, now)


def _already_settled(lane: Lane[W], work: W, row: Row, now: float) -> None:
    fill_in(work, row, now, lane.worker.kind)
    lane.seats.leave(work)
    if row.generation == work.generation and work.result is not None:
        resume_in_time(lane, work, Event.VERDICT, now)
    else:
        known(lane, work, Event.VERDICT, now)


def _found(lane: Lane[W], work: W, row: Row, now: float) -> None:
    """It was not begun, as it has a row: it goes on as if it had been looked up before."""
    work.token, work.unseen = b"", False
    seen = ask_worker(work, lane.worker.table.seen, work, row, now)
    lane.seats.leave(work)
    place(lane, work, seen, Event.VERDICT, now)


# --- step -------------------------------------------------------------------------------------------------------


def run(lane: Lane[W], work: W) -> None:
    """Queue its step. A suspect runs alone; a work without an order key keeps its turn behind a suspect, as nothing
    else would keep it."""
    lane.running += 1
    if work.suspect or (work.rules is None and lane.in_line):
        lane.in_line += 1
        _alone(lane, work, partial(run_step, lane, work), partial(_leave_line, lane))
    else:
        lane.to_run.append(work)


def holds_back(lane: Lane[Any]) -> bool:
    """More waits for the log than goes with the next call: steps without a request, which make records at once, wait.
    There may be thousands of them."""
    return lane.to_append > SLICE_BYTES and not lane.policy.parks


def run_step(lane: Lane[W], work: W, now: float) -> Decision | Call[Any]:
    """Its decision, or the request whose reply decides."""
    if work.token and is_too_late(lane, work, now):  # a new owner may be about to send it: this one must not
        return NOT_SENT if work.pinging else Later(0.0, "begun and not started", Change.RELEASED)
    work.started_at = now
    try:
        found = lane.worker.step(work)
        work.requested = isinstance(found, Call)
        return found
    except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
        return crashed(lane, work, error)


def is_too_late(lane: Lane[W], work: W, now: float) -> bool:
    return lane.stopping or now > work.start_by


def decide_on(lane: Lane[W], work: W, call: Call[Any], reply: object, now: float) -> Decision:
    """The decision on the reply to a request."""
    try:
        return call.decide(reply)
    except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
        return crashed(lane, work, error)


def decide_on_alone(lane: Lane[W], work: W, call: Call[Any], reply: object) -> None:
    """As `decide_on`, for a suspect."""
    _alone(lane, work, partial(decide_on, lane, work, call, reply))


def _alone(
    lane: Lane[W], work: W, part: Callable[[float], Any], done: Callable[[Any, float], None] | None = None
) -> None:
    quarantine, times = lane.quarantine, None
    if work.suspect:
        if (poison := quarantine.poison(work.record)) is not None:
            part = partial(_poisoned, poison)
        else:
            times = quarantine.times(work.record)
    lane.calls.put(CallQueue.ALONE, Alone(work.record, work, times, part, done))


def _poisoned(poison: Dead, _now: float) -> Dead:
    return poison


def _leave_line(lane: Lane[Any], _decision: Decision | None, _now: float) -> None:
    lane.in_line -= 1


def crashed(lane: Lane[W], work: W, error: Exception) -> Later | Dead:
    """Tried again a few times, then poison."""
    lane.observer.step_crashed(lane.worker.stage, error)
    if work.pinging:
        return Later(0.0, "ping crashed", Change.RELEASED, healthy=False)
    work.crashes += 1
    if work.crashes >= lane.bounds.crashes:
        said = f"{type(error).__name__} in step {lane.worker.stage}"
        return Dead("poison", said, may_arrive=work.requested)
    return Later(CRASH_PAUSE_S, "step crashed", Change.DOUBT, may_arrive=work.requested)
