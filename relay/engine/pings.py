"""Throw-away pings: in a long outage they ask an endpoint whether it is back, so that no message is used up for that.

The state lets one ping through at a time, in the whole cluster. What came of it is settled like any attempt's outcome,
as released: it counts for the endpoint, and the work in whose place it was sent waits as before.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Generic, Protocol

from relay.domain.hold import Hold, hold
from relay.domain.receiver import BreakerPolicy
from relay.engine.context import LaneContext
from relay.engine.gather import Gather
from relay.engine.rows import row_of
from relay.engine.work import Call, Decision, Later, W, W_contra, Worker
from relay.state.attempts import Change, Settlement
from relay.state.replies import answered

LONGEST_CLOSE_S = 10.0
"""A closed endpoint is asked about again at least this often: somebody may have resumed it."""

_Echo = tuple[W, Settlement, float, Hold | None]
"""A work, what came of the ping in its place, how long its endpoint was down, and how it is held from now on."""

_NOT_SENT = Later(0.0, "ping not sent", Change.RELEASED)


class Echoes(Protocol[W_contra]):
    """Where a ping leads."""

    def again(self, work: W_contra, due: float) -> None: ...

    def close(self, gate: str, seconds: float, *, down: bool) -> None: ...

    def heard(self, work: W_contra, *, healthy: bool) -> None: ...


class Pings(Generic[W]):
    """Sends pings in place of works. In the end `again` is called for each of these."""

    def __init__(self, context: LaneContext, worker: Worker[W], echoes: Echoes[W]) -> None:
        self._context = context
        self._worker = worker
        self._echoes = echoes
        self._settling: Gather[_Echo[W]] = Gather(self._settle)
        self.run = self._settling.run
        self._under_way = 0
        self._stopping = False
        self._abandoned = False

    def __len__(self) -> int:
        return len(self._settling) + self._under_way

    def stop(self) -> None:
        """Send none any more."""
        self._stopping = True

    def abandon(self) -> None:
        """Replies that come from now on are nobody's business here."""
        self._abandoned = True

    def send(self, work: W, down_for_s: float, breaker: BreakerPolicy) -> None:
        """Ping the endpoint of `work`, which the state has just told to (`relay.state.attempts.Ping`)."""
        decided = partial(self._decided, work, breaker, down_for_s)
        if self._stopping:
            decided(_NOT_SENT)
            return
        self._context.observer.offline(work.gate, down_for_s)
        work.pinging = True
        try:
            step = self._worker.step(work)
            if isinstance(step, Call):
                step.start(partial(self._replied, step.decide, decided))
                self._under_way += 1
                return
            outcome = _outcome(step)
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            outcome = self._crashed(error)
        finally:
            work.pinging = False
        decided(outcome)

    def _replied(self, decide: Callable[[Any], Decision], decided: Callable[[Later], None], reply: object) -> None:
        if self._abandoned:
            return
        self._under_way -= 1
        try:
            outcome = _outcome(decide(reply))
        except Exception as error:  # noqa: BLE001  a bug in a step must not stop the lane
            outcome = self._crashed(error)
        decided(outcome)

    def _crashed(self, error: Exception) -> Later:
        self._context.observer.step_crashed(self._worker.stage, error)
        return Later(0.0, "ping crashed", Change.RELEASED, healthy=False)

    def _decided(self, work: W, breaker: BreakerPolicy, down_for_s: float, outcome: Later) -> None:
        if outcome.due_in_s:  # it could not even be sent
            self._echoes.close(work.gate, min(outcome.due_in_s, LONGEST_CLOSE_S), down=False)
        held = self._held(breaker, down_for_s, outcome)
        settlement = Settlement(
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
        self._settling.put((work, settlement, down_for_s, held))

    def _held(self, breaker: BreakerPolicy, down_for_s: float, outcome: Later) -> Hold | None:
        """Whether it is sent nothing any more, until somebody resumes it."""
        now = self._context.clock.time()
        if outcome.pause_s == inf:
            return hold(
                "gone", now, f"it answered {outcome.last_status} to a ping after an outage of {down_for_s:.0f} s"
            )
        if outcome.healthy is False and down_for_s >= breaker.offline.disable_after:
            return hold("disabled", now, f"it was down for {down_for_s:.0f} s")
        return None

    async def _settle(self, batch: list[_Echo[W]]) -> None:
        context, patience = self._context, self._context.patience
        for work, _, _, held in batch:
            if held is not None:
                await patience.until_done("hold an endpoint", partial(context.holding.hold, work.gate, held))
        settlements = [settlement for _, settlement, _, _ in batch]
        await patience.until_done("store outcomes of pings", lambda: answered(context.state.settle(settlements)))
        for work, settlement, down_for_s, held in batch:
            self._tell(work.gate, settlement, down_for_s, held)
            healthy, echoes = settlement.healthy, self._echoes
            if healthy is not None:
                echoes.heard(work, healthy=healthy)
            if held or settlement.pause_s or healthy is False:
                closed_s = max(settlement.pause_s, settlement.breaker.offline.ping_every)
                echoes.close(work.gate, min(closed_s, LONGEST_CLOSE_S), down=True)
            echoes.again(work, context.clock.monotonic())

    def _tell(self, gate: str, settlement: Settlement, down_for_s: float, held: Hold | None) -> None:
        observer, healthy = self._context.observer, settlement.healthy
        if held:
            observer.shut(gate, down_for_s, settlement.last_status, gone=held.reason == "gone")
        elif healthy:
            observer.back(gate, down_for_s)
        elif healthy is False:
            observer.unanswered(gate)


def _outcome(decision: Decision) -> Later:
    if not isinstance(decision, Later):
        raise TypeError("a ping decides nothing about the work in whose place it was sent")
    return decision
