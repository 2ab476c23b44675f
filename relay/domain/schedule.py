"""Retry schedule: backoff between attempts, waits between status GETs, and `Retry-After`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, Literal

from relay.domain.receiver import PollPolicy, RetryPolicy

RETRY_AFTER_CAP_S: Final = 86_400.0
"""Longest wait that a receiver can request: a typo in its header must not delay messages for weeks."""
_LEAST_DATE: Final = 1_000_000_000.0
"""In Unix seconds, in 2001: a lower number counts from now."""

Jitter = Callable[[], float]
"""A uniform sample of [0, 1)."""

# Decimals are not in RFC 9110, but rate limiters send them.
_SECONDS = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")


@dataclass(frozen=True, slots=True)
class RetryAgain:
    """Retry in `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A limit is reached: `exhausted` (attempts) or `expired` (age)."""

    reason: Literal["exhausted", "expired"]


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds in a `Retry-After` header, in [0, RETRY_AFTER_CAP_S]; None if absent or invalid.

    `now`: Unix seconds, for dates, which some servers give in Unix seconds, too. A date in the past is 0. Source: RFC
    9110, section 10.2.3.
    """
    if value is None:
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return _from_now(float(text), now)
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:  # "-0000", and the asctime form: both are UTC
            moment = moment.replace(tzinfo=UTC)
        return _within_cap(moment.timestamp() - now)
    except (ValueError, OverflowError, IndexError, TypeError):  # the date parser raises any of these for invalid text
        return None


def requested_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds for which the sender of a response wants no further request, at most RETRY_AFTER_CAP_S; None if it says
    nothing. `headers`: names in lower case. `now`: Unix seconds.

    `Retry-After`; without it, the end of a rate limit of which nothing remains. GitHub gives it in Unix seconds, and
    Buildkite in seconds from now. Sources: docs.github.com, "Rate limits for the REST API"; buildkite.com/docs, "REST
    API rate limits".
    """
    asked_s = parse_retry_after(headers.get("retry-after"), now)
    if asked_s is not None:
        return asked_s
    for prefix in ("x-ratelimit", "ratelimit"):
        reset = headers.get(f"{prefix}-reset", "").strip()
        if headers.get(f"{prefix}-remaining", "").strip() == "0" and _SECONDS.fullmatch(reset):
            return _from_now(float(reset), now)
    return None


def _from_now(seconds: float, now: float) -> float:
    """`seconds` from now on, or since 1970."""
    return _within_cap(seconds - now if seconds > _LEAST_DATE else seconds)


def _within_cap(seconds: float) -> float:
    return min(max(seconds, 0.0), RETRY_AFTER_CAP_S)


def backoff(attempt: int, policy: RetryPolicy, jitter: Jitter) -> float:
    """Seconds to wait after failed attempt number `attempt` (1-based), in [0, policy.cap].

    Full jitter, after the cap: capped deliveries must not retry in step. Without `policy.jitter`, the exact wait.
    Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
    """
    ceiling = _grown(policy.base, policy.factor, policy.cap, attempt - 1)
    return ceiling * jitter() if policy.jitter else ceiling


def poll_delay(polls: int, policy: PollPolicy) -> float:
    """Seconds until the next status GET after `polls` of them; at most `policy.cap`."""
    return _grown(policy.base, policy.factor, policy.cap, polls)


def _grown(base: float, factor: float, cap: float, times: int) -> float:
    """min(cap, base * factor**times), for any `times`."""
    try:
        return min(cap, base * float(factor) ** max(times, 0))  # an int would grow to a billion digits
    except OverflowError:
        return cap if base > 0 else 0.0


def next_attempt(
    *, attempts: int, age_s: float, policy: RetryPolicy, retry_after_s: float | None, jitter: Jitter
) -> RetryAgain | GiveUp:
    """The next step after failed attempt number `attempts`, `age_s` seconds after acceptance.

    The first limit reached ends the delivery. `retry_after_s` lengthens the wait and never shortens it: a receiver that
    fails with `Retry-After: 0` would otherwise use up all attempts within a second. A wait beyond `max_age` is cut to
    it, so that a last attempt is made at the end instead of giving up early.
    """
    if attempts >= policy.max_attempts:
        return GiveUp("exhausted")
    rest_s = policy.max_age - age_s
    if rest_s <= 0:
        return GiveUp("expired")
    delay_s = max(backoff(attempts, policy, jitter), retry_after_s or 0.0)
    return RetryAgain(min(delay_s, rest_s))
