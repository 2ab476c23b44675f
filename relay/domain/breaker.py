"""The circuit breaker of an endpoint, as pure steps. The state's script does the same inside of Redis.

A run of failures opens it; after `open_for` seconds one probe at a time is let through, and decides.
"""

from dataclasses import dataclass
from typing import Literal, assert_never

from relay.domain.receiver import BreakerPolicy


@dataclass(frozen=True, slots=True)
class Closed:
    """Everything goes. `failures`: length of the current run of them, which began at `since` (seconds)."""

    failures: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Open:
    """Nothing goes before `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """One probe is under way; when it has not reported by `lease_until`, another may be sent."""

    lease_until: float


Breaker = Closed | Open | HalfOpen


def ask(
    state: Breaker, now: float, policy: BreakerPolicy, probe_s: float
) -> tuple[Breaker, Literal["go", "probe"] | float]:
    """Whether an attempt may start at `now`: `go`, `probe` (its outcome decides), or the seconds to wait (> 0).

    `probe_s`: how long a probe may take until another may be sent.
    """
    match state:
        case Closed():
            return state, "go"
        case Open(until=moment) | HalfOpen(lease_until=moment):
            if now < moment:
                return state, moment - now
            return HalfOpen(now + probe_s), "probe"
    assert_never(state)


def record(state: Breaker, now: float, policy: BreakerPolicy, healthy: bool | None, probe: bool) -> Breaker:
    """The state after an outcome at `now`. `healthy` None says nothing; `probe`: it is the outcome of a probe.

    While it is open or half-open, only a probe counts: the others began before it opened. A run of failures that
    began more than `window` seconds ago starts anew with the current one.
    """
    match state:
        case Closed():
            return _count(state, now, policy, healthy)
        case Open():
            return state
        case HalfOpen():
            if not probe:
                return state
            if healthy is None:
                return HalfOpen(now)  # it decided nothing: the next may probe at once
            return Closed() if healthy else Open(now + policy.open_for)
    assert_never(state)


def _count(state: Closed, now: float, policy: BreakerPolicy, healthy: bool | None) -> Closed | Open:
    if healthy is None:
        return state
    if healthy:
        return Closed()
    fresh = state.failures == 0 or now - state.since > policy.window
    run = Closed(1, now) if fresh else Closed(state.failures + 1, state.since)
    return Open(now + policy.open_for) if run.failures >= policy.failures else run
