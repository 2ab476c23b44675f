"""Decides what follows a failed POST, for receivers and callbacks alike: another attempt later, or the end."""

from dataclasses import dataclass
from typing import assert_never

from relay.domain.outcome import Ambiguous, NotNow, NotProcessed, healthy
from relay.domain.receiver import RetryPolicy
from relay.domain.schedule import GiveUp, Jitter, RetryAgain, backoff, next_attempt
from relay.engine.work import Dead, Later


@dataclass(frozen=True, slots=True)
class Setback:
    """An unsuccessful attempt. `detail`: the failure, in words. `whole`: the whole endpoint is to be paused.
    `counted`: this used up an attempt."""

    why: str
    detail: str
    status: int | None
    retry_after_s: float | None
    healthy: bool | None
    counted: bool = True
    whole: bool = False


def setback_of(outcome: NotNow | Ambiguous | NotProcessed, detail: str) -> Setback:
    """The setback of `outcome`. `detail`: describes the exchange behind it."""
    health = healthy(outcome)
    match outcome:
        case NotNow(retry_after_s, status, counted):
            return Setback("not now", detail, status, retry_after_s, health, counted, whole=True)
        case Ambiguous(retry_after_s, last_status, kind) | NotProcessed(retry_after_s, last_status, kind):
            return Setback(kind, detail, last_status, retry_after_s, health)
    assert_never(outcome)


def decide_retry(setback: Setback, *, attempts: int, age_s: float, policy: RetryPolicy, jitter: Jitter) -> Later | Dead:
    """Later, or dead (`exhausted`, `expired`) when the first of the policy's limits is reached.

    `attempts`: POSTs begun so far. The pause of a whole endpoint is as long as the endpoint asked for, even if this
    delivery has less time left, or none.
    """
    tried = attempts if setback.counted else min(attempts, policy.max_attempts) - 1
    asked_s = setback.retry_after_s or 0.0
    match next_attempt(attempts=tried, age_s=age_s, policy=policy, retry_after_s=setback.retry_after_s, jitter=jitter):
        case RetryAgain(delay_s):
            return Later(
                delay_s,
                setback.why,
                counted=setback.counted,
                last_status=setback.status,
                healthy=setback.healthy,
                pause_s=max(delay_s, asked_s) if setback.whole else 0.0,
                detail=setback.detail,
            )
        case GiveUp(reason):
            return Dead(
                reason,
                f"given up after {attempts} attempts; the last: {setback.detail}",
                setback.status,
                setback.healthy,
                pause_s=max(backoff(tried, policy, jitter), asked_s) if setback.whole else 0.0,
            )
