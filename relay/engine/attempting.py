"""Begin, step, outcome: how a work that may start becomes one that has ended, or has to wait.

The intent is written right before the step and the outcome right after it (rule 4). Pure.
"""

import heapq
from collections.abc import Sequence
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from relay.domain.hold import Hold
from relay.engine.asks import Ask
from relay.engine.attempts import (
    NO_ROOM,
    OUR_PACE,
    TOKEN_BYTES,
    asked_for,
    echo_of,
    hold_after_ping,
    hold_of,
    rules_of,
    settlement_of,
    taken_back,
    was_over,
)
from relay.engine.ending import Setting
from relay.engine.phases import Event, Phase, advance
from relay.engine.policy import Fate
from relay.engine.rows import fill_in
from relay.engine.steps import Steps
from relay.engine.work import Dead, Decision, Done, Later, Resend, Seen, W, W_contra, Worker
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
)
from relay.state.rows import Row

RATE_PAUSE_S: Final = 0.25
"""Least pause when the rate's slots are used up: they are given out up to 1 s ahead, so several become free at once."""
LONGEST_CLOSE_S: Final = 10.0
"""A closed endpoint is asked about again at least this often: somebody may have resumed it."""


class Seats(Protocol[W_contra]):
    """A bounded number of requests is under way in a process (`relay.engine.turnstile`)."""

    def take(self, work: W_contra) -> bool:
        """Whether there is a seat for it now; else `Attempting.seated` is to be called when there is."""
        ...

    def leave(self, work: W_contra) -> None:
        """It needs none any more; nothing where it has none."""
        ...

    def leave_all(self) -> None: ...


class Settling(NamedTuple):
    """What came of an attempt, or of a ping, on its way into the state. `hold`: its endpoint, before that."""

    work: Any
    settlement: Settlement
    hold: Hold | None
    decision: Done | Dead | Later


class Attempting(Steps[W]):
    """What comes before a step, and after it."""

    def __init__(self, setting: Setting, worker: Worker[W], seats: Seats[W]) -> None:
        super().__init__(setting, worker)
        self._seats = seats
        self._seating = 0
        self._room = setting.bounds.parked_per_owner if setting.policy.capped else None
        self._room_to_retry = self._room if setting.policy.retries_need_room else None
        self._asked_at = -inf
        self._delayed: list[tuple[float, int, W]] = []
        self._numbers = count()
        self.fenced_at: float | None = None
        """When a newer owner was met."""

    def fence(self, now: float) -> None:
        """A newer owner has the lane: nothing of ours may count any more, but outcomes of what is under way."""
        if self.fenced_at is None:
            self.fenced_at = now
            self._observer.fenced(self._setting.partition)

    # taken from the order

    def _start(self, work: W, now: float) -> None:
        work.token, work.requested = b"", False
        end = self._asked(work, self._worker.overdue, work)
        if end is not None or work.rules is None:
            advance(work, Event.TAKEN, Phase.RUNNING)
            if end is not None:
                self._overdue(work, end, now)
            else:
                self._run(work)
        elif self._seats.take(work):
            advance(work, Event.TAKEN, Phase.BEGINNING)
            self._asks.put(Ask.BEGIN, work)
        else:
            self._seating += 1
            advance(work, Event.TAKEN, Phase.SEATING)

    def seated(self, work: W, now: float) -> None:
        """There is a seat for it. It has waited for that, perhaps too long."""
        self._seating -= 1
        if self.stopping:
            self._leave_seat(work)
            return
        end = self._asked(work, self._worker.overdue, work)
        if end is not None:
            advance(work, Event.SEATED, Phase.RUNNING)
            self._overdue(work, end, now)
        else:
            advance(work, Event.SEATED, Phase.BEGINNING)
            self._asks.put(Ask.BEGIN, work)

    def _leave_seat(self, work: W) -> None:
        self._seats.leave(work)

    # begin

    def begin_asks(self, works: Sequence[W], now: float) -> list[BeginAsk]:
        self._asked_at = now  # not when the verdict is read: the process may have slept on it
        random = self._setting.random(TOKEN_BYTES * len(works))
        for n, work in enumerate(works):
            work.token = random[TOKEN_BYTES * n : TOKEN_BYTES * (n + 1)]
        kind, room, to_retry = self._worker.kind, self._room, self._room_to_retry
        return [asked_for(work, kind, room=room, room_to_retry=to_retry) for work in works]

    def _begun(self, works: Sequence[W], verdicts: Sequence[Verdict], now: float) -> None:
        waiting: list[tuple[W, Wait]] = []
        for work, verdict in zip(works, verdicts, strict=True):
            if isinstance(verdict, Wait):
                waiting.append((work, verdict))
            else:
                self._act(work, verdict, now)
        for work, wait in reversed(waiting):  # each goes before the others again: they keep their turns
            self._told_to_wait(work, wait, now)

    def _act(self, work: W, verdict: Go | Ping | Ambiguous | Have | Stale | LookedUp, now: float) -> None:
        match verdict:
            case Go(attempt, start_in_s):
                self._go(work, attempt, start_in_s, now)
            case Ping(down_for_s):
                advance(work, Event.VERDICT, Phase.PINGING)
                self._observer.offline(work.gate, down_for_s)
                work.pinging, work.down_for_s, work.begun_at = True, down_for_s, self._asked_at
                self._run(work)
            case Ambiguous(attempts, doubt):
                work.token = b""
                work.attempts = max(work.attempts, attempts)
                work.in_doubt, work.doubt = True, doubt
                advance(work, Event.VERDICT, Phase.RUNNING)
                self._run(work)
            case Have(row):
                self._have(work, row, now)
            case Stale():
                self._outlived(work, Event.VERDICT, now)
            case LookedUp(row):
                self._found(work, row, now)

    def _go(self, work: W, attempt: int, start_in_s: float, now: float) -> None:
        if self._worker.kind is Kind.POST:
            work.attempts = attempt
        else:
            work.polls, work.token = attempt, b""  # a GET leaves no intent behind: nothing to settle it with
        work.begun_at = self._asked_at
        work.sent, work.unseen = True, False
        work.in_doubt, work.resolved = False, None
        if start_in_s > 0 and not self.stopping:
            advance(work, Event.VERDICT, Phase.DELAYED)
            self._under_way += 1
            heapq.heappush(self._delayed, (now + start_in_s, next(self._numbers), work))
        else:
            advance(work, Event.VERDICT, Phase.RUNNING)
            self._run(work)

    def _start_delayed(self, now: float) -> None:
        """Their turn at the rate has come; or, as the lane stops, they are released."""
        while self._delayed and (self.stopping or self._delayed[0][0] <= now):
            work = heapq.heappop(self._delayed)[2]
            self._under_way -= 1
            advance(work, Event.DUE, Phase.RUNNING)
            self._run(work)

    def _told_to_wait(self, work: W, wait: Wait, now: float) -> None:
        if wait.why == "settling":
            self._back(work, Event.VERDICT, now + wait.seconds, now)
            return
        if wait.why != "rate":
            self._observer.held(work.gate, wait.why)
        if wait.why == "backlog":
            fate = self._policy.no_room_for_answer(attempted=work.sent or not wait.fresh)
            if fate is Fate.BURY:
                work.token = b""
                advance(work, Event.VERDICT, Phase.RUNNING)
                self._decided(work, Dead("backlog_full", NO_ROOM), now)
                return
            if fate is Fate.HOLD:
                self._back(work, Event.VERDICT, now + wait.seconds, now)
                return
        down = wait.why not in OUR_PACE
        least_s = 0.0 if down else RATE_PAUSE_S
        self._close(work.gate, max(wait.seconds, least_s), now, down=down)
        self._back(work, Event.VERDICT, now, now)

    def _have(self, work: W, row: Row, now: float) -> None:
        fill_in(work, row, 0.0, self._worker.kind)
        self._leave_seat(work)
        if row.generation == work.generation and work.result is not None:
            self._resume(work, Event.VERDICT, now)
        else:
            self._known(work, Event.VERDICT, now)

    def _found(self, work: W, row: Row, now: float) -> None:
        """It was not begun, as there is something to know of it: now it is as if it had been looked up before."""
        work.token, work.unseen = b"", False
        seen = self._asked(work, self._worker.table.seen, work, row, now)
        if seen is Seen.FINISHED:
            self._leave_seat(work)
            self._known(work, Event.VERDICT, now)
        elif seen is Seen.RESUME and work.result is not None:
            self._leave_seat(work)
            self._resume(work, Event.VERDICT, now)
        elif seen is Seen.BEHIND:
            self._leave_seat(work)
            self._keys.known(work.queue)
            self._leave_line(work, Event.VERDICT, self._queue_up, now)
        elif self._is_to_be_parked(work.due - now):
            self._leave_seat(work)
            self._leave_line(work, Event.VERDICT, self._park, now)
        else:
            self._back(work, Event.VERDICT, work.due, now)

    def _outlived(self, work: W, event: Event, now: float) -> None:
        """A higher generation lives, under the same key of parked copies: the tombstone is its own business."""
        work.owes_tombstone = False
        self._leave_seat(work)
        self._known(work, event, now)

    def _known(self, work: W, event: Event, now: float) -> None:
        """Its output is acknowledged already, or a higher generation lives."""
        if not self.left:
            self._observer.duplicate(self._worker.stage, 1)
            self._retire(work, event, now)

    def _back(self, work: W, event: Event, due: float, now: float) -> None:
        self._leave_seat(work)
        self._again(work, event, due, now)

    def _close(self, gate: str, seconds: float, now: float, *, down: bool) -> None:
        """The endpoint takes nothing now."""
        self._standing.closed(down=down)
        self._order.close(gate, now + min(seconds, LONGEST_CLOSE_S))

    # outcome

    def _overdue(self, work: W, end: Dead | Done | Later, now: float) -> None:
        """Its time is over, or has not come yet: nothing was begun."""
        if isinstance(end, Later):
            self._leave_seat(work)
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
            self._leave_seat(work)
            self._publish(work, Event.DECIDED, decision, now)
        else:
            self._settle(work, decision)

    def _decided_later(self, work: W, later: Later, now: float) -> None:
        if work.rules is None:
            self._leave_seat(work)
            self._later(work, Event.DECIDED, later, now)
            return
        if later.change is Change.RELEASED and later.due_in_s:
            # It could not be sent, whatever it was: nor can what else waits for this endpoint.
            self._close(work.gate, later.due_in_s, now, down=False)
        self._settle(work, later)

    def _settle(self, work: W, decision: Done | Dead | Later) -> None:
        advance(work, Event.DECIDED, Phase.SETTLING)
        held = hold_of(decision, self._setting.wall())
        self._asks.put(Ask.SETTLE, Settling(work, settlement_of(work, decision), held, decision))

    def _settled(self, settled: Sequence[Settling], rows: Sequence[Row | None], now: float) -> None:
        for each, row in zip(settled, rows, strict=True):
            work, settlement, held, decision = each
            if held is not None:
                self._observer.gone(work.gate, held.detail)
            if work.requested or not was_over(row, settlement):
                self._observer.attempt(self._worker.stage, work, decision)
            if settlement.pause_s or held is not None:
                self._close(work.gate, settlement.pause_s or inf, now, down=True)
            healthy = self._says_of_health(settlement, decision)
            if healthy is not None:
                self._heard(work, healthy=healthy)
            self._outcome_stored(work, each, row, now)

    def _says_of_health(self, settlement: Settlement, decision: Decision) -> bool | None:
        """A GET says nothing for the breaker, but that the endpoint is there."""
        if self._worker.kind is Kind.POST:
            return settlement.healthy
        return None if settlement.pause_s or isinstance(decision, Dead) else True

    def _heard(self, work: W, *, healthy: bool) -> None:
        self._standing.heard(healthy=healthy, enough=work.rules.limits.breaker.failures if work.rules else None)

    def _outcome_stored(self, work: W, settled: Settling, row: Row | None, now: float) -> None:
        """What counts is what the row says: somebody else may have brought an outcome first. None: it says ours."""
        decision = settled.decision
        if row is not None and row.generation > work.generation:
            self._outlived(work, Event.SETTLED, now)
            return
        self._leave_seat(work)
        if isinstance(decision, Later) and work.token and taken_back(decision):
            work.attempts -= 1  # or the next begin, which is told this number, would count it after all
        if row is None:
            work.result = settled.settlement.result
        else:
            fill_in(work, row, 0.0, self._worker.kind)
        work.due = 0.0
        if work.result is not None:
            self._resume(work, Event.SETTLED, now)
        elif isinstance(decision, Later):
            self._later(work, Event.SETTLED, decision, now)
        else:
            self._known(work, Event.SETTLED, now)  # our outcome came too late: the row is beyond it

    # pings

    def _pinged(self, work: W, decision: Decision, now: float) -> None:
        if not isinstance(decision, Later):
            raise TypeError("a ping decides nothing about the work in whose place it was sent")
        if decision.due_in_s:  # it could not even be sent
            self._close(work.gate, decision.due_in_s, now, down=False)
        breaker = rules_of(work).limits.breaker
        held = hold_after_ping(decision, breaker, work.down_for_s, self._setting.wall())
        advance(work, Event.DECIDED, Phase.ECHOING)
        self._asks.put(Ask.ECHO, Settling(work, echo_of(work, decision, breaker, held), held, decision))

    def _echoed(self, echoes: Sequence[Settling], now: float) -> None:
        for work, settlement, held, _ in echoes:
            self._tell_echo(work, settlement, held)
            healthy = settlement.healthy
            if healthy is not None:
                self._heard(work, healthy=healthy)
            if held or settlement.pause_s or healthy is False:
                closed_s = max(settlement.pause_s, settlement.breaker.offline.ping_every)
                self._close(work.gate, closed_s, now, down=True)
            work.pinging = False
            self._back(work, Event.ECHOED, now, now)

    def _tell_echo(self, work: W, settlement: Settlement, held: Hold | None) -> None:
        observer, healthy, gate = self._observer, settlement.healthy, work.gate
        if held:
            observer.shut(gate, work.down_for_s, settlement.last_status, gone=held.reason == "gone")
        elif healthy:
            observer.back(gate, work.down_for_s)
        elif healthy is False:
            observer.unanswered(gate)
