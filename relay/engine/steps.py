"""A worker's step runs: what it decides at once, and what it has somebody asked. A bug in it stops no lane. Pure."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from relay.engine.asks import Alone, Ask
from relay.engine.attempts import NOT_SENT
from relay.engine.ending import Setting
from relay.engine.intake import Quarantine
from relay.engine.waiting import Waiting
from relay.engine.work import Call, Dead, Decision, Later, W, Worker
from relay.state.attempts import Change

CRASH_PAUSE_S: Final = 5.0


class Steps(Waiting[W]):
    """Runs the worker's step for works that order and caps let through."""

    def __init__(self, setting: Setting, worker: Worker[W]) -> None:
        super().__init__(setting, worker)
        self._quarantine = Quarantine()
        self._in_line = 0  # works whose part of ours runs with nobody beside it, and those that keep their turn behind
        self._under_way = 0  # requests, and what is about to become one
        self._to_run: list[W] = []

    def _decided(self, work: W, decision: Decision, now: float) -> None:
        """What became of a step."""
        raise NotImplementedError

    def _run(self, work: W) -> None:
        """Have its step run. A suspect runs alone; what has no order key keeps its turn behind one: nothing else would
        keep it."""
        self._under_way += 1
        if work.suspect or (work.rules is None and self._in_line):
            self._in_line += 1
            self._alone(work, partial(self._stepped, work), partial(self._stepped_alone, work))
        else:
            self._to_run.append(work)

    def steps(self) -> list[W]:
        """Works whose step is to be run now, each by `step`."""
        to_run, self._to_run = self._to_run, []
        return to_run

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
            self._asks.put(Ask.ALONE, Alone(work.record, work, None, lambda _now: poison, done))
        else:
            times = quarantine.times(work.record) if work.suspect else None
            self._asks.put(Ask.ALONE, Alone(work.record, work, times, part, done))

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
        return self.stopping or now - work.begun_at > self._bounds.start_within_s

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
