"""Attempts as the state is told of them: what is asked before one, and what is stored after it. Pure."""

from math import inf
from typing import Final, TypeGuard

from relay.domain.hold import Hold, hold
from relay.domain.receiver import BreakerPolicy
from relay.engine.rows import row_of
from relay.engine.work import Dead, Decision, Done, GateRules, Later, Work
from relay.state.attempts import BeginAsk, Change, Kind, Settlement, WaitReason
from relay.state.rows import Result, Row, Stage

TOKEN_BYTES: Final = 8
OUR_PACE: Final = frozenset[WaitReason]({"rate", "backlog"})
"""Waits that say nothing against the endpoint."""
NOT_SENT: Final = Later(0.0, "ping not sent", Change.RELEASED)
NO_ROOM: Final = "as many of the receiver's messages wait for an answer, or for a retry, as may"


def asked_for(work: Work, kind: Kind, *, room: int | None, room_to_retry: int | None) -> BeginAsk:
    rules = rules_of(work)
    return BeginAsk(
        row_of(work),
        work.generation,
        work.token,
        rules.limits,
        kind,
        attempts=work.attempts,
        resolved=work.resolved,
        ask_first=rules.ask_first,
        recorded_ms=work.record.timestamp_ms if rules.at_most_once else None,
        room=room,
        room_to_retry=room_to_retry,
        unseen=work.unseen,
        queue=work.queue,
    )


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
        pause_s=pause_s,
        breaker=breaker,
    )


def hold_of(decision: Done | Dead | Later, now: float) -> Hold | None:
    """How its endpoint is held from now on, where it is to be sent nothing until somebody resumes it. `now`: Unix."""
    if not holds_for_good(decision):
        return None
    said = decision.detail if isinstance(decision, Dead) else decision.reason
    return hold("gone", now, f"{said} (status {decision.last_status})")


def echo_of(work: Work, outcome: Later, breaker: BreakerPolicy, held: Hold | None) -> Settlement:
    """What came of the ping in place of `work`: it counts for the endpoint, and says nothing of the work."""
    return Settlement(
        row_of(work),
        work.generation,
        work.token,
        Change.RELEASED,
        last_status=outcome.last_status,
        reason=outcome.reason,
        healthy=outcome.healthy,
        pause_s=0.0 if held else outcome.pause_s,
        breaker=breaker,
    )


def hold_after_ping(outcome: Later, breaker: BreakerPolicy, down_for_s: float, now: float) -> Hold | None:
    """Whether the endpoint is sent nothing any more, until somebody resumes it. `now`: Unix seconds."""
    if outcome.pause_s == inf:
        return hold("gone", now, f"it answered {outcome.last_status} to a ping after an outage of {down_for_s:.0f} s")
    if outcome.healthy is False and down_for_s >= breaker.offline.disable_after:
        return hold("disabled", now, f"it was down for {down_for_s:.0f} s")
    return None


def holds_for_good(decision: Decision) -> TypeGuard[Dead | Later]:
    """The endpoint is to be sent nothing until somebody resumes it."""
    return isinstance(decision, Dead | Later) and decision.pause_s == inf


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
