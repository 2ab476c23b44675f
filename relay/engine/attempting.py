"""Attempts: the intent is written right before the step (rule 4), then the worker's step runs: what it decides at once,
and what it has somebody asked. A bug in it stops no lane. Pure."""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Any, Final

from relay.engine.commands import Alone, CallQueue
from relay.engine.ending import LaneSetup
from relay.engine.intake import Quarantine
from relay.engine.phases import Event, Phase, advance
from relay.engine.policy import Fate
from relay.engine.settling import RequestSeats, Settling, rules_of
from relay.engine.waiting import NO_ROOM
from relay.engine.work import Call, Dead, Decision, Later, W, WaitFor, Work, Worker, fill_in, row_of
from relay.state.attempts import (
    AmbiguousAttempt,
    BeginAsk,
    CallKind,
    Change,
    Go,
    Have,
    LookedUp,
    PingDue,
    Stale,
    Verdict,
    Wait,
    WaitReason,
)
from relay.state.rows import Row

TOKEN_BYTES: Final = 8
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
"""Waits that say nothing against the endpoint."""
LEAST_PAUSES: Final[Mapping[WaitReason, float]] = {"rate": 0.25, "backlog": 0.25}
"""Slots of the rate are given out up to 1 s ahead, so several become free at once."""
CALLS_KEPT: Final = 8
"""Begins whose shortest tells how long one takes at the least."""
CRASH_PAUSE_S: Final = 5.0
NOT_SENT: Final = Later(0.0, "ping not sent", Change.RELEASED)


class Attempting(Settling[W]):
    """What comes before a step, and the step itself, for works that order and caps let through."""

    def __init__(self, setting: LaneSetup, worker: Worker[W], seats: RequestSeats[W]) -> None:
        super().__init__(setting, worker, seats)
        self._quarantine = Quarantine()
        self._seating = 0
        self._room = setting.bounds.parked_per_owner if setting.policy.capped else None
        self._room_to_retry = self._room if setting.policy.retries_need_room else None
        self._asked_at = -inf
        self._opened_at = inf
        self._took: deque[float] = deque(maxlen=CALLS_KEPT)
        self._delayed: list[tuple[float, int, W]] = []
        self._numbers = count()
        self._in_line = 0  # works whose part of ours runs with nobody beside it, and those that keep their turn behind
        self._under_way = 0  # requests, and what is about to become one
        self._to_run: deque[W] = deque()

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
            self._asks.put(CallQueue.BEGIN, work)
        else:
            self._seating += 1
            advance(work, Event.TAKEN, Phase.SEATING)

    def seated(self, work: W, now: float) -> None:
        """There is a seat for it. It has waited for that, perhaps too long."""
        self._seating -= 1
        if self.stopping:
            self._seats.leave(work)
            return
        end = self._asked(work, self._worker.overdue, work)
        if end is not None:
            advance(work, Event.SEATED, Phase.RUNNING)
            self._overdue(work, end, now)
        else:
            advance(work, Event.SEATED, Phase.BEGINNING)
            self._asks.put(CallQueue.BEGIN, work)

    # begin

    def begin_asks(self, works: Sequence[W], now: float) -> list[BeginAsk]:
        self._asked_at = now
        random = self._setting.random(TOKEN_BYTES * len(works))
        for n, work in enumerate(works):
            work.token = random[TOKEN_BYTES * n : TOKEN_BYTES * (n + 1)]
        kind, room, to_retry = self._worker.kind, self._room, self._room_to_retry
        open_s = now - self._opened_at
        return [asked_for(work, kind, room=room, room_to_retry=to_retry, open_s=open_s) for work in works]

    def _begun(self, works: Sequence[W], verdicts: Sequence[Verdict], now: float) -> None:
        """A bug that one of them brings out is raised when each was told: what was begun, and is not released by the
        lane that broke, would be in doubt."""
        self._took.append(now - self._asked_at)
        waiting: list[tuple[W, Wait]] = []
        bug: Exception | None = None
        for work, verdict in zip(works, verdicts, strict=True):
            if isinstance(verdict, Wait):
                waiting.append((work, verdict))
                continue
            try:
                self._act(work, verdict, now)
            except Exception as error:  # noqa: BLE001
                bug = bug or error
        if bug is not None:
            raise bug
        for work, wait in reversed(waiting):  # each goes before the others again: they keep their turns
            self._told_to_wait(work, wait, now)

    def _act(self, work: W, verdict: Go | PingDue | AmbiguousAttempt | Have | Stale | LookedUp, now: float) -> None:
        match verdict:
            case Go(attempt, start_in_s):
                self._go(work, attempt, start_in_s, now)
            case PingDue(down_for_s, since):
                advance(work, Event.VERDICT, Phase.PINGING)
                self._observer.offline(work.gate, down_for_s, since)
                work.pinging, work.down_for_s, work.start_by = True, down_for_s, self._start_by()
                work.down_since = since
                self._run(work)
            case AmbiguousAttempt(attempts, doubt, newer):
                work.token = b""
                work.attempts = max(work.attempts, attempts)
                work.in_doubt, work.doubt, work.newer_than_loss = True, doubt, newer
                advance(work, Event.VERDICT, Phase.RUNNING)
                self._run(work)
            case Have(row):
                self._have(work, row, now)
            case Stale():
                self._outlived(work, Event.VERDICT, now)
            case LookedUp(row):
                self._found(work, row, now)

    def _go(self, work: W, attempt: int, start_in_s: float, now: float) -> None:
        if self._worker.kind is CallKind.POST:
            work.attempts = attempt
        else:
            work.polls, work.token = attempt, b""  # a GET leaves no intent behind: nothing to settle it with
        work.start_by = min(self._start_by(), self._slot_by(start_in_s) + rules_of(work).late_s)
        work.sent, work.unseen = True, False
        work.in_doubt, work.resolved = False, None
        if start_in_s > 0 and not self.stopping:
            advance(work, Event.VERDICT, Phase.DELAYED)
            self._under_way += 1
            heapq.heappush(self._delayed, (now + start_in_s, next(self._numbers), work))
        else:
            advance(work, Event.VERDICT, Phase.RUNNING)
            self._run(work)

    def _start_by(self) -> float:
        """Counted from when it was asked, not from when the verdict is read: the process may have slept on it."""
        return self._asked_at + self._bounds.start_within_s

    def _slot_by(self, start_in_s: float) -> float:
        """When its slot of the rate was there at the earliest: the state gave it some time within the call, which took
        what the quickest of late took, and the rest of the time before or after that."""
        return self._asked_at + min(self._took) + start_in_s

    def _start_delayed(self, now: float) -> None:
        """Their turn at the rate has come; or, as the lane stops, they are released."""
        while self._delayed and (self.stopping or self._delayed[0][0] <= now):
            work = heapq.heappop(self._delayed)[2]
            self._under_way -= 1
            advance(work, Event.DUE, Phase.RUNNING)
            self._run(work)

    def _told_to_wait(self, work: W, wait: Wait, now: float) -> None:
        work.held_for = WAITS_FOR[wait.why]
        if wait.why == "settling":
            self._back(work, Event.VERDICT, now + wait.seconds, now)
            return
        if wait.why not in ("rate", "max_in_flight"):
            self._observer.held(work.gate, wait.why)
        if wait.why == "backlog":
            fate = self._policy.no_room_for_answer(attempted=work.sent or not wait.fresh)
            if fate is Fate.BURY:
                work.token = b""
                advance(work, Event.VERDICT, Phase.RUNNING)
                self._decided(work, NO_ROOM, now)
                return
            if fate is Fate.HOLD:
                self._back(work, Event.VERDICT, now + wait.seconds, now)
                return
        seconds = max(wait.seconds, LEAST_PAUSES.get(wait.why, 0.0))
        self._close(work.gate, seconds, now, WAITS_FOR[wait.why], down=wait.why not in OUR_PACE)
        self._back(work, Event.VERDICT, now, now)

    def _have(self, work: W, row: Row, now: float) -> None:
        fill_in(work, row, 0.0, self._worker.kind)
        self._seats.leave(work)
        if row.generation == work.generation and work.result is not None:
            self._resume(work, Event.VERDICT, now)
        else:
            self._known(work, Event.VERDICT, now)

    def _found(self, work: W, row: Row, now: float) -> None:
        """It was not begun, as there is something to know of it: now it is as if it had been looked up before."""
        work.token, work.unseen = b"", False
        seen = self._asked(work, self._worker.table.seen, work, row, now)
        self._seats.leave(work)
        self._place(work, seen, Event.VERDICT, now)

    # step

    def _run(self, work: W) -> None:
        """Have its step run. A suspect runs alone; what has no order key keeps its turn behind one: nothing else would
        keep it."""
        self._under_way += 1
        if work.suspect or (work.rules is None and self._in_line):
            self._in_line += 1
            self._alone(work, partial(self._stepped, work), partial(self._stepped_alone, work))
        else:
            self._to_run.append(work)

    def steps(self) -> Iterator[W]:
        """Works whose step is to be run now, each by `step` before the next one is asked for."""
        for _ in range(len(self._to_run)):
            if self._holds_back:
                return
            yield self._to_run.popleft()

    @property
    def _holds_back(self) -> bool:
        """A step that asks nobody makes records at once, thousands of them maybe: the log has to take some first."""
        return not self._policy.parks and self._backed_up

    def step(self, work: W, now: float) -> Call[Any] | None:
        """What is to be asked outside, at once; `replied` gets the reply. None: it was decided already."""
        found = self._stepped(work, now)
        if isinstance(found, Call):
            return found
        self._under_way -= 1
        self._decided(work, found, now)
        return None

    def not_started(self, work: W, error: Exception, now: float) -> None:
        """What was to be asked outside could not even be put."""
        self._under_way -= 1
        self._decided(work, self._crashed(work, error), now)

    def replied(self, work: W, call: Call[Any], reply: object, now: float) -> None:
        if work.suspect:
            part = partial(self._understood, work, call, reply)
            self._alone(work, part, partial(self._decided_alone, work))
        else:
            self._under_way -= 1
            self._decided(work, self._understood(work, call, reply, now), now)

    def _alone(self, work: W, part: Callable[[float], Any], done: Callable[[Any, float], None]) -> None:
        quarantine = self._quarantine
        if work.suspect and (poison := quarantine.poison(work.record)) is not None:
            self._asks.put(CallQueue.ALONE, Alone(work.record, work, None, lambda _now: poison, done))
        else:
            times = quarantine.times(work.record) if work.suspect else None
            self._asks.put(CallQueue.ALONE, Alone(work.record, work, times, part, done))

    def _stepped_alone(self, work: W, decision: Decision | None, now: float) -> None:
        self._in_line -= 1
        if decision is not None:
            self._decided_alone(work, decision, now)

    def _decided_alone(self, work: W, decision: Decision, now: float) -> None:
        self._under_way -= 1
        self._decided(work, decision, now)

    def _stepped(self, work: W, now: float) -> Decision | Call[Any]:
        if work.token and self._is_too_late(work, now):  # a new owner may be about to send: surely not sent by us
            return NOT_SENT if work.pinging else Later(0.0, "begun and not started", Change.RELEASED)
        try:
            step = self._worker.step(work)
            work.requested = isinstance(step, Call)
            return step
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            return self._crashed(work, error)

    def _is_too_late(self, work: W, now: float) -> bool:
        return self.stopping or now > work.start_by

    def _understood(self, work: W, call: Call[Any], reply: object, now: float) -> Decision:
        try:
            return call.decide(reply)
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            return self._crashed(work, error)

    def _crashed(self, work: W, error: Exception) -> Later | Dead:
        """Tried again a few times, then poison."""
        self._observer.step_crashed(self._worker.stage, error)
        if work.pinging:
            return Later(0.0, "ping crashed", Change.RELEASED, healthy=False)
        work.crashes += 1
        if work.crashes >= self._bounds.crashes:
            return Dead("poison", f"{type(error).__name__} in step {self._worker.stage}")
        return Later(CRASH_PAUSE_S, "step crashed", Change.DOUBT)


def asked_for(work: Work, kind: CallKind, *, room: int | None, room_to_retry: int | None, open_s: float) -> BeginAsk:
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
        offset=work.record.offset if rules.ask_first else None,
        recorded_ms=work.record.timestamp_ms if rules.at_most_once else None,
        room=room,
        room_to_retry=room_to_retry,
        unseen=work.unseen,
        queue=work.queue,
        counted_s=open_s if rules.has_share else 0.0,
        open_s=open_s,
    )
