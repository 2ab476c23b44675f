"""Begin, step, outcome: how a work that may start becomes one that has ended, or has to wait.

The intent is written right before the step and the outcome right after it (rule 4). Both are gathered in batches.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any, Generic, TypeGuard

from relay.domain.errors import PartitionLost
from relay.domain.hold import hold
from relay.engine.context import LaneContext
from relay.engine.ends import Ends
from relay.engine.gather import Gather
from relay.engine.pings import LONGEST_CLOSE_S, Pings
from relay.engine.quarantine import Quarantine
from relay.engine.rows import fill_in, row_of
from relay.engine.seats import Seats
from relay.engine.work import Call, Dead, Decision, Done, GateRules, Later, Resend, W, Worker
from relay.state.attempts import (
    Ambiguous,
    BeginAsk,
    Change,
    Go,
    Have,
    Kind,
    LookedUp,
    Ping,
    Settlement,
    Stale,
    Verdict,
    Wait,
    WaitReason,
)
from relay.state.replies import answered, of
from relay.state.rows import Result, Row, Stage

TOKEN_BYTES = 8
CRASH_PAUSE_S = 5.0
NO_ROOM = "as many of the receiver's messages wait for an answer, or for a retry, as may"
OUR_PACE = frozenset[WaitReason]({"rate", "backlog"})
"""Waits that say nothing against the endpoint."""
RATE_PAUSE_S = 0.25
"""Least pause when the rate's slots are used up: they are given out up to 1 s ahead, so several become free at once."""


class Attempts(Generic[W]):
    """Runs the worker's step for works that order and caps let through."""

    def __init__(
        self,
        context: LaneContext,
        worker: Worker[W],
        ends: Ends[W],
        spawn: Callable[[Coroutine[None, None, None]], None],
        quarantine: Quarantine,
    ) -> None:
        self._context = context
        self._worker = worker
        self._seats: Seats[W] = Seats(context.turnstile, ends)
        self._ends: Ends[W] = self._seats
        self._spawn = spawn
        self._quarantine = quarantine
        self._room = context.bounds.parked_per_owner if worker.capped else None
        self._beginning: Gather[W] = Gather(self._begin, linger_s=context.linger_s)
        self._settling: Gather[tuple[W, Settlement, Decision]] = Gather(self._settle, linger_s=context.linger_s)
        self._pings: Pings[W] = Pings(context, worker, self._ends)
        self.loops = (self._beginning.run, self._settling.run, self._pings.run)
        self._running = 0
        self._line = asyncio.Lock()
        self._in_line = 0
        self._stopping = False
        self._abandoned = False

    def __len__(self) -> int:
        return self._seats.waiting + len(self._beginning) + len(self._settling) + len(self._pings) + self._running

    def start(self, work: W) -> None:
        """Take `work` up. Exactly one method of Ends is called for it in the end."""
        work.token, work.requested = b"", False
        end = self._worker.overdue(work)
        if isinstance(end, Later):
            self._ends.later(work, end)
        elif end is not None:
            self._ended(work, end)
        elif work.rules is None:
            self._run(work)
        elif self._seats.take(work, self._seated):
            self._beginning.put(work)

    def _seated(self, work: W) -> None:
        """It has waited for its seat, perhaps too long."""
        end = self._worker.overdue(work)
        if end is not None:
            self._ended(work, end)
        else:
            self._beginning.put(work)

    def stop(self) -> None:
        """Begin nothing any more; what is begun and not started yet is released. Outcomes are still stored."""
        self._stopping = True
        self._seats.stop()
        self._pings.stop()

    def abandon(self) -> None:
        """Replies that come from now on are nobody's business here."""
        self._abandoned = True
        self._pings.abandon()
        self._seats.leave_all()

    # begin

    async def _begin(self, batch: list[W]) -> None:
        context = self._context
        if self._stopping:
            return
        random = secrets.token_bytes(TOKEN_BYTES * len(batch))
        for n, work in enumerate(batch):
            work.token = random[TOKEN_BYTES * n : TOKEN_BYTES * (n + 1)]
        asked_at = context.clock.monotonic()  # not when the verdict is read: the process may have slept on it
        asks = [self._ask(work) for work in batch]
        try:
            verdicts: list[Verdict] = await context.patience.until_done(
                "begin attempts", lambda: answered(context.state.begin(of(context.lane, asks)))
            )
        except PartitionLost:
            self._ends.fence()
            return
        waiting: list[tuple[W, Wait]] = []
        for work, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, Wait):
                waiting.append((work, verdict))
            else:
                self._act(work, verdict, asked_at)
        for work, wait in reversed(waiting):  # each goes before the others again: they keep their turns
            if wait.why == "backlog" and context.shared:
                self._crowded_out(work, wait)
            else:
                self._wait(work, wait.seconds, wait.why)

    def _ask(self, work: W) -> BeginAsk:
        rules = _rules(work)
        return BeginAsk(
            row_of(work),
            work.generation,
            work.token,
            rules.limits,
            self._worker.kind,
            attempts=work.attempts,
            resolved=work.resolved,
            ask_first=rules.ask_first,
            recorded_ms=work.record.timestamp_ms if rules.at_most_once else None,
            room=self._room,
            room_to_retry=self._room if self._context.shared else None,
        )

    def _act(self, work: W, verdict: Go | Ping | Ambiguous | Have | Stale | LookedUp, asked_at: float) -> None:
        match verdict:
            case Go(attempt, start_in_s):
                if self._worker.kind is Kind.POST:
                    work.attempts = attempt
                else:
                    work.polls, work.token = attempt, b""  # a GET leaves no intent behind: nothing to settle it with
                work.begun_at = asked_at
                work.sent = True
                work.in_doubt, work.resolved = False, None
                self._start(work, start_in_s)
            case Ping(down_for_s):
                self._pings.send(work, down_for_s, _rules(work).limits.breaker)
            case Ambiguous(attempts, doubt):
                self._doubt(work, attempts, doubt)
            case Have(row):
                self._have(work, row)
            case Stale():
                self._outlived(work)
            case LookedUp():
                raise AssertionError("looked up, though nothing was asked unseen")

    def _wait(self, work: W, seconds: float, why: WaitReason) -> None:
        now = self._context.clock.monotonic()
        if why == "settling":
            self._ends.again(work, now + seconds)
            return
        down = why not in OUR_PACE
        least_s = 0.0 if down else RATE_PAUSE_S
        self._ends.close(work.gate, min(max(seconds, least_s), LONGEST_CLOSE_S), down=down)
        if why != "rate":
            self._context.observer.held(work.gate, why)
        self._ends.again(work, now)

    def _crowded_out(self, work: W, wait: Wait) -> None:
        """No room for its answer, or its retry, in a lane where nobody may wait in the others' way."""
        self._context.observer.held(work.gate, wait.why)
        if wait.fresh and not work.sent:
            work.token = b""
            self._ended(work, Dead("backlog_full", NO_ROOM))
        else:
            self._ends.again(work, self._context.clock.monotonic() + wait.seconds)

    def _doubt(self, work: W, attempts: int, doubt: int) -> None:
        work.token = b""
        work.attempts = max(work.attempts, attempts)
        work.in_doubt, work.doubt = True, doubt
        self._run(work)

    def _outlived(self, work: W) -> None:
        """A higher generation lives, under the same key of parked copies: the tombstone is its own business."""
        work.owes_tombstone = False
        self._ends.known(work)

    def _have(self, work: W, row: Row) -> None:
        fill_in(work, row, 0.0, self._worker.kind)
        if row.generation == work.generation and work.result is not None:
            self._ends.publish(work, self._worker.resume(work, work.result))
        else:
            self._ends.known(work)

    # step

    def _start(self, work: W, in_s: float) -> None:
        """Run the step of a work that was begun, when its turn at the rate has come."""
        if in_s > 0:
            self._running += 1
            self._spawn(self._run_later(work, in_s))
        else:
            self._run(work)

    async def _run_later(self, work: W, in_s: float) -> None:
        try:
            await self._context.clock.sleep(in_s)
            self._run(work)
        finally:
            self._running -= 1

    def _run(self, work: W) -> None:
        """Run the step. Its decision is there at once, or comes with a reply."""
        if work.suspect or (work.rules is None and self._in_line):
            self._running += 1
            self._in_line += 1
            self._spawn(self._run_in_line(work))
        elif (decision := self._step(work)) is not None:
            self._ended(work, decision)

    async def _run_in_line(self, work: W) -> None:
        """A suspect waits for its mark. What has no order key keeps its turn behind it: nothing else would keep it."""
        try:
            async with self._line:  # first come, first served
                if work.suspect:
                    decision = await self._quarantine.alone(work.record, lambda: self._step(work))
                else:
                    decision = self._step(work)
                if decision is not None:
                    self._ended(work, decision)
        finally:
            self._in_line -= 1
            self._running -= 1

    def _step(self, work: W) -> Decision | None:
        """What the step decides; None: that comes with a reply."""
        if work.token and self._too_late(work):  # a new owner may be about to send: surely not sent by us
            return Later(0.0, "begun and not started", Change.RELEASED)
        try:
            step = self._worker.step(work)
            if isinstance(step, Call):
                work.requested = True
                step.start(partial(self._replied, work, step.decide))
                self._running += 1
                return None
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            return self._crashed(work, error)
        return step

    def _too_late(self, work: W) -> bool:
        context = self._context
        return self._stopping or context.clock.monotonic() - work.begun_at > context.bounds.start_within_s

    def _replied(self, work: W, decide: Callable[[Any], Decision], reply: object) -> None:
        if self._abandoned:
            return
        if work.suspect:
            self._spawn(self._decide_alone(work, decide, reply))
            return
        self._running -= 1
        self._ended(work, self._decided(work, decide, reply))

    async def _decide_alone(self, work: W, decide: Callable[[Any], Decision], reply: object) -> None:
        try:
            decision = await self._quarantine.alone(work.record, lambda: self._decided(work, decide, reply))
        finally:
            self._running -= 1
        self._ended(work, decision)

    def _decided(self, work: W, decide: Callable[[Any], Decision], reply: object) -> Decision:
        try:
            return decide(reply)
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            return self._crashed(work, error)

    def _crashed(self, work: W, error: Exception) -> Later | Dead:
        """Tried again a few times, then poison."""
        work.crashes += 1
        self._context.observer.step_crashed(self._worker.stage, error)
        if work.crashes >= self._context.bounds.crashes:
            return Dead("poison", f"{type(error).__name__} in step {self._worker.stage}")
        return Later(CRASH_PAUSE_S, "step crashed", Change.DOUBT)

    # outcome

    def _ended(self, work: W, decision: Decision) -> None:
        match decision:
            case Resend():
                work.resolved = work.doubt
                self._ends.again(work, self._context.clock.monotonic())
            case Done() if decision.result is None:
                self._ends.publish(work, decision)
            case Done() | Dead() if work.rules is None:
                self._ends.publish(work, decision)
            case Later() if work.rules is None:
                self._ends.later(work, decision)
            case Done() | Dead() | Later():
                if isinstance(decision, Later) and decision.change is Change.RELEASED and decision.due_in_s:
                    # It could not be sent, whatever it was: nor can what else waits for this endpoint.
                    self._ends.close(work.gate, min(decision.due_in_s, LONGEST_CLOSE_S), down=False)
                self._settling.put((work, self._settlement(work, decision), decision))

    def _settlement(self, work: W, decision: Done | Dead | Later) -> Settlement:
        row, breaker = row_of(work), _rules(work).limits.breaker
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

    async def _settle(self, batch: list[tuple[W, Settlement, Decision]]) -> None:
        context = self._context
        await self._hold([(work, decision) for work, _, decision in batch if _is_for_good(decision)])
        settlements = [settlement for _, settlement, _ in batch]
        rows = await context.patience.until_done("store outcomes", lambda: answered(context.state.settle(settlements)))
        for (work, settlement, decision), row in zip(batch, rows, strict=True):
            if work.requested or not _was_over(row, settlement):
                context.observer.attempt(self._worker.stage, work, decision)
            if settlement.pause_s or _is_for_good(decision):
                self._ends.close(work.gate, min(settlement.pause_s or inf, LONGEST_CLOSE_S), down=True)
            healthy = self._healthy(settlement, decision)
            if healthy is not None:
                self._ends.heard(work, healthy=healthy)
            self._settled(work, settlement, decision, row)

    async def _hold(self, held: list[tuple[W, Dead | Later]]) -> None:
        """Before the outcome counts: one that is redelivered says it again, one that has ended never does."""
        context = self._context
        for gate, decision in {work.gate: decision for work, decision in held}.items():
            said = decision.detail if isinstance(decision, Dead) else decision.reason
            found = hold("gone", context.clock.time(), f"{said} (status {decision.last_status})")
            await context.patience.until_done("hold an endpoint", partial(context.holding.hold, gate, found))
            context.observer.gone(gate, found.detail)

    def _healthy(self, settlement: Settlement, decision: Decision) -> bool | None:
        """A GET says nothing for the breaker, but that the endpoint is there."""
        if self._worker.kind is Kind.POST:
            return settlement.healthy
        return None if settlement.pause_s or isinstance(decision, Dead) else True

    def _settled(self, work: W, settlement: Settlement, decision: Decision, row: Row | None) -> None:
        """What counts is what the row says: somebody else may have brought an outcome first. None: it says ours."""
        if row is not None and row.generation > work.generation:
            self._outlived(work)
            return
        if isinstance(decision, Later) and work.token and _taken_back(decision):
            work.attempts -= 1  # or the next begin, which is told this number, would count it after all
        if row is None:
            work.result = settlement.result
        else:
            fill_in(work, row, 0.0, self._worker.kind)
        work.due = 0.0
        if work.result is not None:
            self._ends.publish(work, self._worker.resume(work, work.result))
        elif isinstance(decision, Later):
            self._ends.later(work, decision)
        else:
            self._ends.known(work)  # our outcome came too late: the row is beyond it


def _is_for_good(decision: Decision) -> TypeGuard[Dead | Later]:
    """The endpoint is to be sent nothing until somebody resumes it."""
    return isinstance(decision, Dead | Later) and decision.pause_s == inf


def _was_over(row: Row | None, settlement: Settlement) -> bool:
    """Somebody else had ended it before: what was found here without a request was found too late, and is no news."""
    if row is None or row.stage < Stage.RESULT:
        return False
    ours, there = settlement.result, row.result
    return ours is None or there is None or (ours.outcome, ours.reason) != (there.outcome, there.reason)


def _taken_back(later: Later) -> bool:
    return later.change is Change.RELEASED or not later.counted


def _finite(pause_s: float) -> float:
    return 0.0 if pause_s == inf else pause_s


def _rules(work: W) -> GateRules:
    if work.rules is None:
        raise AssertionError("a call without rules")
    return work.rules
