"""Outcomes: what a step, or a ping, came to, and what the state is told of it, right after it (rule 4). What counts is
what the state says then: somebody else may have brought an outcome first. Pure."""

from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from msgspec import structs

from relay.domain.hold import Hold, hold
from relay.domain.receiver import BreakerPolicy
from relay.engine.commands import CallQueue
from relay.engine.ending import LaneSetup
from relay.engine.phases import Event, Phase, advance
from relay.engine.waiting import Waiting, patience_left_s
from relay.engine.work import (
    Dead,
    Decision,
    Done,
    GateRules,
    Later,
    Resend,
    W,
    W_contra,
    WaitFor,
    Work,
    Worker,
    fill_in,
    row_of,
)
from relay.state.attempts import CallKind, Change, Settlement
from relay.state.rows import Result, Row, Stage

HELD_UP_AFTER: Final = 3
"""A head that has failed so often is reported, with how many wait behind it."""
LONGEST_CLOSE_S: Final = 10.0
"""A closed endpoint is asked about again at least this often: the hint that it takes something again may be lost."""


class RequestSeats(Protocol[W_contra]):
    """A bounded number of requests is under way in a process (`relay.engine.request_limiter`)."""

    def take(self, work: W_contra) -> bool:
        """Whether there is a seat for it now; else `Attempting.seated` is to be called when there is."""
        ...

    def leave(self, work: W_contra) -> None:
        """It needs none any more; nothing where it has none."""
        ...

    def leave_all(self) -> None: ...


class ToSettle(NamedTuple):
    """What came of an attempt, or of a ping, on its way into the state. `hold`: its endpoint, before that."""

    work: Any
    settlement: Settlement
    hold: Hold | None
    decision: Done | Dead | Later


class Settling(Waiting[W]):
    """What comes after a step."""

    def __init__(self, setting: LaneSetup, worker: Worker[W], seats: RequestSeats[W]) -> None:
        super().__init__(setting, worker)
        self._seats = seats

    def _overdue(self, work: W, end: Dead | Done | Later, now: float) -> None:
        """Its time is over, or has not come yet: nothing was begun."""
        if isinstance(end, Later):
            self._seats.leave(work)
            if end.pause_s:
                self._close(work.gate, end.pause_s, now, "configuration", down=True)
                self._again(work, Event.DECIDED, now, now)
            else:
                self._later(work, Event.DECIDED, end, now)
        else:
            self._decided(work, end, now)

    def _decided(self, work: W, decision: Decision, now: float) -> None:
        if work.pinging:
            self._pinged(work, decision, now)
        elif isinstance(decision, Resend):
            work.resolved = work.doubt
            self._back(work, Event.DECIDED, now, now)
        elif isinstance(decision, Later):
            self._decided_later(work, decision, now)
        elif work.rules is None or (isinstance(decision, Done) and decision.result is None):
            self._seats.leave(work)
            self._publish(work, Event.DECIDED, decision, now)
        else:
            self._settle(work, decision)

    def _decided_later(self, work: W, later: Later, now: float) -> None:
        if work.rules is None:
            self._seats.leave(work)
            self._later(work, Event.DECIDED, later, now)
            return
        if later.change is Change.RELEASED and later.due_in_s:
            # It could not be sent, whatever it was: nor can what else waits for this endpoint.
            self._close(work.gate, later.due_in_s, now, "own_shortage", down=False)
        self._settle(work, self._failed(work, later, now))

    def _failed(self, work: W, later: Later, now: float) -> Later:
        """An attempt that failed. A head makes the next one when its receiver's patience ends, at the latest, as that
        may be the one that gets through."""
        if later.change is Change.RELEASED or not later.counted:
            return later
        if work.failing_since is None:
            work.failing_since = now
        if work.attempts >= HELD_UP_AFTER and (behind := self._order.behind(work)):
            self._observer.held_up(work, behind)
        left_s = patience_left_s(work, now)
        return structs.replace(later, due_in_s=left_s) if 0 < left_s < later.due_in_s else later

    def _settle(self, work: W, decision: Done | Dead | Later) -> None:
        advance(work, Event.DECIDED, Phase.SETTLING)
        held, settlement = hold_of(decision, self._setting.wall()), settlement_of(work, decision)
        if settlement.result is not None:
            self._holds(work, len(settlement.result.body))
        self._asks.put(CallQueue.SETTLE, ToSettle(work, settlement, held, decision))

    def _settled(self, settled: Sequence[ToSettle], rows: Sequence[Row | None], now: float) -> None:
        for each, row in zip(settled, rows, strict=True):
            work, settlement, held, decision = each
            if held is not None:
                self._observer.gone(work.gate, held.detail)
            if work.requested or not was_over(row, settlement):
                self._observer.attempt(self._worker.stage, work, decision)
            if settlement.pause_s or held is not None:
                self._close(work.gate, settlement.pause_s or inf, now, "paused", down=True)
            healthy = self._says_of_health(settlement, decision)
            if healthy is not None:
                self._heard(work, healthy=healthy)
            self._outcome_stored(work, each, row, now)

    def _says_of_health(self, settlement: Settlement, decision: Decision) -> bool | None:
        """A GET says nothing for the breaker, but that the endpoint is there."""
        if self._worker.kind is CallKind.POST:
            return settlement.healthy
        return None if settlement.pause_s or isinstance(decision, Dead) else True

    def _heard(self, work: W, *, healthy: bool) -> None:
        self._standing.heard(healthy=healthy, enough=work.rules.limits.breaker.failures if work.rules else None)

    def _outcome_stored(self, work: W, settled: ToSettle, row: Row | None, now: float) -> None:
        """What counts is what the row says: somebody else may have brought an outcome first. None: it says ours."""
        decision = settled.decision
        if row is not None and row.generation > work.generation:
            self._outlived(work, Event.SETTLED, now)
            return
        self._seats.leave(work)
        if isinstance(decision, Later) and work.token and taken_back(decision):
            work.attempts -= 1  # or the next begin, which is told this number, would count it after all
        if row is None:
            work.result = settled.settlement.result
        else:
            fill_in(work, row, 0.0, self._worker.kind)
        work.due = 0.0
        if work.result is not None:
            self._resume(work, Event.SETTLED, now)
        elif isinstance(decision, Later) and decision.change is Change.RELEASED and not decision.due_in_s:
            self._again(work, Event.SETTLED, now, now)
        elif isinstance(decision, Later):
            self._later(work, Event.SETTLED, decision, now)
        else:
            self._known(work, Event.SETTLED, now)  # our outcome came too late: the row is beyond it

    def _outlived(self, work: W, event: Event, now: float) -> None:
        """A higher generation lives, under the same key of parked copies: the tombstone is its own business."""
        work.owes_tombstone = False
        self._seats.leave(work)
        self._known(work, event, now)

    def _back(self, work: W, event: Event, due: float, now: float) -> None:
        self._seats.leave(work)
        self._again(work, event, due, now)

    def _close(self, gate: str, seconds: float, now: float, why: WaitFor, *, down: bool) -> None:
        """The endpoint takes nothing now."""
        self._standing.closed(down=down)
        self._order.close(gate, now + min(seconds, LONGEST_CLOSE_S), why)

    # pings

    def _pinged(self, work: W, decision: Decision, now: float) -> None:
        if not isinstance(decision, Later):
            raise TypeError("a ping decides nothing about the work in whose place it was sent")
        if decision.due_in_s:  # it could not even be sent
            self._close(work.gate, decision.due_in_s, now, "own_shortage", down=False)
        breaker = rules_of(work).limits.breaker
        held = hold_after_ping(decision, breaker, work.down_for_s, self._setting.wall())
        advance(work, Event.DECIDED, Phase.ECHOING)
        self._asks.put(CallQueue.ECHO, ToSettle(work, echo_of(work, decision, held), held, decision))

    def _echoed(self, echoes: Sequence[ToSettle], now: float) -> None:
        for work, settlement, held, _ in echoes:
            self._tell_echo(work, settlement, held)
            healthy = settlement.healthy
            if healthy is not None:
                self._heard(work, healthy=healthy)
            if held or settlement.pause_s or healthy is False:
                closed_s = max(settlement.pause_s, settlement.breaker.offline.ping_every)
                self._close(work.gate, closed_s, now, "offline", down=True)
            work.pinging = False
            self._back(work, Event.ECHOED, now, now)

    def _tell_echo(self, work: W, settlement: Settlement, held: Hold | None) -> None:
        observer, healthy, gate = self._observer, settlement.healthy, work.gate
        if held:
            observer.shut(gate, work.down_for_s, settlement.last_status, gone=held.reason == "gone")
        elif healthy:
            observer.back(gate, work.down_for_s, work.down_since)
        elif healthy is False:
            observer.unanswered(gate)


def settlement_of(work: Work, decision: Done | Dead | Later) -> Settlement:
    row, breaker = row_of(work), rules_of(work).limits.breaker
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
    )


def hold_of(decision: Done | Dead | Later, now: float) -> Hold | None:
    """How its endpoint is held from now on, where it is to be sent nothing until somebody resumes it. `now`: Unix."""
    if isinstance(decision, Done) or decision.pause_s < inf:
        return None
    said = decision.detail if isinstance(decision, Dead) else decision.reason
    return hold("gone", now, f"{said} (status {decision.last_status})")


def echo_of(work: Work, outcome: Later, held: Hold | None) -> Settlement:
    """What came of the ping in place of `work`: it counts for the endpoint, and says nothing of the work."""
    pause_s = 0.0 if held else outcome.pause_s
    status, healthy = outcome.last_status, outcome.healthy
    said = Later(0.0, outcome.reason, Change.RELEASED, last_status=status, healthy=healthy, pause_s=pause_s)
    return settlement_of(work, said)


def hold_after_ping(outcome: Later, breaker: BreakerPolicy, down_for_s: float, now: float) -> Hold | None:
    """Whether the endpoint is sent nothing any more, until somebody resumes it. `now`: Unix seconds."""
    if outcome.pause_s == inf:
        return hold("gone", now, f"it answered {outcome.last_status} to a ping after an outage of {down_for_s:.0f} s")
    if outcome.healthy is False and down_for_s >= breaker.offline.disable_after:
        return hold("disabled", now, f"it was down for {down_for_s:.0f} s")
    return None


def was_over(row: Row | None, settlement: Settlement) -> bool:
    """Somebody else had ended it before: what was found here without a request was found too late, and is no news."""
    if row is None or row.stage < Stage.RESULT:
        return False
    ours, there = settlement.result, row.result
    return ours is None or there is None or (ours.outcome, ours.reason) != (there.outcome, there.reason)


def taken_back(later: Later) -> bool:
    """The attempt does not count."""
    return later.change is Change.RELEASED or not later.counted


def rules_of(work: Work) -> GateRules:
    if work.rules is None:
        raise AssertionError("a call without rules")
    return work.rules


def _finite(pause_s: float) -> float:
    return 0.0 if pause_s == inf else pause_s
