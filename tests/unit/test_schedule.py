"""Waits stay within their bounds whatever the policy, and `Retry-After` is read as RFC 9110 says."""

import math
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.receiver import PollPolicy, RetryPolicy
from relay.domain.schedule import (
    RETRY_AFTER_CAP_S,
    GiveUp,
    RetryAgain,
    backoff,
    next_attempt,
    parse_retry_after,
    poll_delay,
    requested_wait,
)

NOW = 1_700_000_000.0

durations = st.floats(0, 1e9)
policies = st.builds(
    RetryPolicy,
    base=durations,
    factor=st.floats(1, 1e300),
    cap=durations,
    max_attempts=st.integers(1, 10**9),
    max_age=durations,
    jitter=st.booleans(),
)
samples = st.floats(0, 1, exclude_max=True)


def half() -> float:
    return 0.5


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("1e3", None),
        ("nan", None),
        ("0x10", None),
        ("٣", None),
        ("1 2", None),
        ("Mon, 99 Foo 2023 00:00:00 GMT", None),
        ("Mon, 01 Jan 99999 00:00:00 GMT", None),
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("9" * 6000, RETRY_AFTER_CAP_S),
        (f"{NOW + 120:.0f}", 120.0),
        (f"{NOW - 120:.0f}", 0.0),
        ("Tue, 14 Nov 2023 22:15:20 GMT", 120.0),
        ("Tuesday, 14-Nov-23 22:15:20 GMT", 120.0),
        ("Tue Nov 14 22:15:20 2023", 120.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Fri, 31 Dec 2100 23:59:59 GMT", RETRY_AFTER_CAP_S),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds


@given(st.text() | st.from_regex(r"\w{3}, \d+ \w{3} \d+ \d+:\d+:\d+ [+-]?\w+"), durations)
def test_retry_after_survives_anything(value: str, now: float) -> None:
    seconds = parse_retry_after(value, now)
    assert seconds is None or 0 <= seconds <= RETRY_AFTER_CAP_S


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7", "x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW + 600:.0f}"}, 7.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW + 600:.0f}"}, 600.0),
        ({"x-ratelimit-remaining": "59", "x-ratelimit-reset": f"{NOW + 600:.0f}"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW - 1:.0f}"}, 0.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "soon"}, None),
        ({"x-ratelimit-remaining": "0"}, None),
        ({"ratelimit-remaining": "0", "ratelimit-limit": "200", "ratelimit-reset": "42"}, 42.0),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "9" * 400}, RETRY_AFTER_CAP_S),
    ],
)
def test_a_used_up_rate_limit_is_waited_for(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_wait(headers, NOW) == seconds


@given(st.integers(0, 86_400))
def test_a_date_means_the_time_until_then(ahead: int) -> None:
    assert parse_retry_after(formatdate(NOW + ahead, usegmt=True), NOW) == ahead


@given(st.integers(-5, 10**6), policies, samples)
def test_backoff_is_within_the_cap(attempt: int, policy: RetryPolicy, sample: float) -> None:
    assert 0 <= backoff(attempt, policy, lambda: sample) <= policy.cap


def test_backoff_grows_by_the_factor_up_to_the_cap() -> None:
    policy = RetryPolicy(base=5, factor=2, cap=60)
    assert [backoff(attempt, policy, half) for attempt in range(1, 7)] == [2.5, 5, 10, 20, 30, 30]


def test_backoff_without_jitter_is_exact() -> None:
    policy = RetryPolicy(base=7, factor=1, jitter=False)
    assert [backoff(attempt, policy, half) for attempt in (1, 2, 1000)] == [7, 7, 7]


def test_backoff_does_not_overflow() -> None:
    assert backoff(10**9, RetryPolicy(base=1, factor=10, cap=60, jitter=False), half) == 60
    assert backoff(10**9, RetryPolicy(base=0, factor=10, cap=60, jitter=False), half) == 0


@given(policies, st.integers(0, 10**9), durations, st.none() | durations, samples)
def test_an_attempt_comes_within_the_limits_or_not_at_all(
    policy: RetryPolicy, attempts: int, age_s: float, retry_after_s: float | None, sample: float
) -> None:
    verdict = next_attempt(
        attempts=attempts, age_s=age_s, policy=policy, retry_after_s=retry_after_s, jitter=lambda: sample
    )
    if attempts >= policy.max_attempts:
        assert verdict == GiveUp("exhausted")
    elif age_s >= policy.max_age:
        assert verdict == GiveUp("expired")
    else:
        assert isinstance(verdict, RetryAgain)
        assert 0 <= verdict.delay_s <= policy.max_age - age_s


def retry(*, attempts: int = 1, age_s: float = 0, retry_after_s: float | None = None) -> RetryAgain | GiveUp:
    policy = RetryPolicy(base=10, factor=2, cap=100, max_attempts=5, max_age=1000)
    return next_attempt(attempts=attempts, age_s=age_s, policy=policy, retry_after_s=retry_after_s, jitter=half)


def test_retry_after_lengthens_the_wait_and_never_shortens_it() -> None:
    assert retry() == RetryAgain(5)
    assert retry(retry_after_s=300) == RetryAgain(300)
    assert retry(retry_after_s=0) == RetryAgain(5)


def test_an_uncounted_first_attempt_waits_like_the_first() -> None:
    assert retry(attempts=0) == RetryAgain(5)


def test_the_last_attempt_is_made_when_the_age_limit_is_reached() -> None:
    assert retry(age_s=998, retry_after_s=300) == RetryAgain(2)
    assert retry(age_s=1000) == GiveUp("expired")


def test_the_last_attempt_exhausts() -> None:
    assert isinstance(retry(attempts=4), RetryAgain)
    assert retry(attempts=5) == GiveUp("exhausted")


def test_polls_start_at_the_base() -> None:
    policy = PollPolicy(base=2, factor=1.5, cap=5)
    assert [poll_delay(polls, policy) for polls in range(4)] == [2, 3, 4.5, 5]


@given(st.integers(0, 10**6), st.builds(PollPolicy, base=durations, factor=st.floats(1, 1e300), cap=durations))
def test_polls_stay_within_the_cap(polls: int, policy: PollPolicy) -> None:
    delay_s = poll_delay(polls, policy)
    assert 0 <= delay_s <= policy.cap
    assert not math.isnan(delay_s)
