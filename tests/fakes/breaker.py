"""The circuit breaker of an endpoint, as pure steps. The state's scripts do the same inside of Redis:
this is the reference that they are compared with.

A run of failures opens it; after `open_for` seconds one probe at a time is let through, and decides. In a long outage
the probe is a throw-away ping, and there is more time between two of them.
"""

from dataclasses import dataclass
from typing import Final, Literal, assert_never

from relay.domain.receiver import BreakerPolicy

SILENCE_S: Final = 86_400.0
"""A failure that nothing followed for so long says nothing about today: the next one begins a new outage."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Failures with no success between. The current run of them: `run` many since `run_since`, all within the policy's
    window. In all: `failures` since `since`, the last at `last`. Moments in seconds."""

    run: int
    run_since: float
    failures: int
    since: float
    last: float

    def age_s(self, now: float) -> float:
        """Seconds since it began; 0 where nothing was heard for too long."""
        return 0.0 if now - self.last > SILENCE_S else now - self.since


@dataclass(frozen=True, slots=True)
class Closed:
    """Everything goes. `outage`: failures that were not enough to open it."""

    outage: Outage | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Nothing goes before `until`."""

    until: float
    outage: Outage


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """One probe is in flight; if it has not reported by `lease_until`, another may be sent."""

    lease_until: float
    outage: Outage


Breaker = Closed | Open | HalfOpen


def ask(
    state: Breaker, now: float, policy: BreakerPolicy, probe_s: float
) -> tuple[Breaker, Literal["go", "probe", "ping"] | float]:
    """Whether an attempt may start at `now`: `go`, `probe` (its outcome decides), `ping` (not itself, but a throw-away
    ping in its place, whose outcome decides), or the seconds to wait (> 0).

    `probe_s`: how long a probe may take until another may be sent.
    """
    match state:
        case Closed():
            return state, "go"
        case Open(until=moment) | HalfOpen(lease_until=moment):
            if now < moment:
                return state, moment - now
            return HalfOpen(now + probe_s, state.outage), "ping" if _is_long(state.outage, now, policy) else "probe"
    assert_never(state)


def record(state: Breaker, now: float, policy: BreakerPolicy, healthy: bool | None, probe: bool) -> Breaker:
    """The state after an outcome at `now`. `healthy` None says nothing; `probe`: it is the outcome of a probe, or ping.

    While it is open or half-open, only a probe counts: the others began before it opened. A run of failures that
    began more than `window` seconds ago starts anew with the current one.
    """
    match state:
        case Closed():
            return _count(state, now, policy, healthy)
        case Open():
            return state
        case HalfOpen(outage=outage):
            if not probe:
                return state
            if healthy is None:
                return HalfOpen(now, outage)  # it decided nothing: the next may probe at once
            return Closed() if healthy else _stay_open(outage, now, policy)
    assert_never(state)


def _is_long(outage: Outage, now: float, policy: BreakerPolicy) -> bool:
    return outage.age_s(now) >= policy.offline.after


def _stay_open(before: Outage, now: float, policy: BreakerPolicy) -> Open:
    outage = _failed(before, now, run=before.run, run_since=before.run_since)
    return Open(now + (policy.offline.ping_every if _is_long(outage, now, policy) else policy.open_for), outage)


def _count(state: Closed, now: float, policy: BreakerPolicy, healthy: bool | None) -> Closed | Open:
    if healthy is None:
        return state
    if healthy:
        return Closed()
    before = state.outage
    if before is None or now - before.run_since > policy.window:
        outage = _failed(before, now, run=1, run_since=now)
    else:
        outage = _failed(before, now, run=before.run + 1, run_since=before.run_since)
    slowly = outage.failures >= policy.failures and _is_long(outage, now, policy)
    return Open(now + policy.open_for, outage) if slowly or outage.run >= policy.failures else Closed(outage)


def _failed(before: Outage | None, now: float, *, run: int, run_since: float) -> Outage:
    if before is None or now - before.last > SILENCE_S:
        return Outage(run, run_since, 1, now, now)
    return Outage(run, run_since, before.failures + 1, before.since, now)
